"""Exact popularities as tables, a plot and a page of samples."""

from collections.abc import Sequence
import logging
import os
import pathlib
import time

import jax
import numpy as np

from nuclr_jax import popularity, sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.evaluate import agreement
from nuclr_jax.lab.evaluate.suspects import log_match_probability
from nuclr_jax.lab.report import (
  duplicates,
  near_duplicates,
  near_threshold,
  popularity_page,
  suspects,
  tables,
)
from nuclr_jax.lab.report.popularity_page import Alike, SidePage, Solved
from nuclr_jax.lab.report.subject import Subject
from nuclr_jax.lab.train.warm_start import POPULARITY_FILE, save_popularity
from nuclr_jax.popularity.problem import make_groups
from nuclr_jax.types import Sides

log = logging.getLogger(__name__)

MANY = 50_000  # pairs; from here on, solving for all of them takes long
TABLES = ("images.csv", "texts.csv", "duplicates.csv", "suspects.csv")
SUMMARY, PAGE = "summary.json", "popularity.html"


def write(
  subject: Subject,
  workdir: str | os.PathLike,
  *,
  max_pairs: int | None = None,
) -> pathlib.Path:
  """Solves for the popularities and writes them to `workdir/popularity/`.

  `images.csv` and `texts.csv` are tables with a row per id; `suspects.csv` has
  all pairs, the likeliest label noise first; `duplicates.csv` has the exact and
  near copies of images, file by file, the largest cluster first;
  `popularity.npz` is for the warm start of a run; `summary.json` has the counts
  and correlations; `popularity.html` shows the samples. `tables` says how texts
  that spreadsheets would take for formulas are written. Of texts against
  texts, there is one table, `texts.csv`.

  Args:
    subject: The pairs, from `subject.from_run` or `subject.from_files`.
    workdir: The folder to write in; made if missing.
    max_pairs: Solve for a sample of this many pairs exactly, and extend the
      solution to all of them.

  Returns:
    The path of the page.

  Raises:
    ValueError: For embeddings or ids that `popularity.solve` refuses; if
      another process writes there.
  """
  folder = files.folder_in(pathlib.Path(workdir).absolute(), "popularity")
  with files.locked(folder):
    return _write(subject, folder, max_pairs)


def _write(
  subject: Subject, folder: pathlib.Path, max_pairs: int | None
) -> pathlib.Path:
  """Solves for the popularities and writes them to a folder."""
  pairs, tau = subject.pairs, subject.temperature
  log.info("solving the popularities of %d pairs", len(pairs.pair_id))
  if max_pairs is None and len(pairs.pair_id) > MANY:
    log.info(
      "the time is quadratic in the pairs; --max_pairs=%d solves for a sample "
      "and extends the solution to all pairs",
      MANY,
    )
  began = time.monotonic()
  with jax.set_mesh(sharding.make_mesh()):
    solution = popularity.solve_sampled(
      pairs.image,
      pairs.text,
      temperature=tau,
      image_id=pairs.ids.image,
      text_id=pairs.ids.text,
      max_pairs=max(2, len(pairs.pair_id)) if max_pairs is None else max_pairs,
      key=jax.random.key(0),
    )
  seconds = time.monotonic() - began
  log.info("solved in %.0f s, residual %.2g", seconds, solution.residual)
  for name in (*TABLES, SUMMARY, PAGE, popularity_page.PLOT):  # of other pairs
    (folder / name).unlink(missing_ok=True)
  save_popularity(
    folder / POPULARITY_FILE,
    solution,
    temperature=tau,
    fingerprint=subject.fingerprint,
  )
  log_own = log_match_probability(solution, pairs, temperature=tau)
  sides = [_side(name, subject, solution, log_own) for name in Sides._fields]
  images, texts = sides
  log.info("looking for near-duplicates")
  alike = _text_clusters(subject, texts)
  texts.columns["cluster"] = np.zeros(len(texts.pair), int)
  for number, members in enumerate(alike.clusters, 1):
    texts.columns["cluster"][members] = number
  if subject.of_texts:  # both sides are the same
    sides, of_pairs, copies, doubtful = [texts], {}, None, None
  else:
    copies, doubtful = _compare_sides(subject, images, log_own, folder)
    of_pairs = {
      **duplicates.counts(copies),
      "duplicates_threshold": _similarity(copies.threshold),
      "duplicates_recall": copies.recall,
      "suspects_ordered_by": doubtful.by,
      "neighbours_recall": doubtful.recall,
    }
  log.info("writing tables and the page")
  for side in sides:
    tables.write(folder / f"{side.name}s.csv", side.columns)
  summary = {
    "pairs": len(pairs.pair_id),
    **{f"{side.name}s": len(side.pair) for side in sides},
    **_counts(subject, texts.columns["caption"]),
    **of_pairs,
    "text_clusters_threshold": _similarity(alike.threshold),
    "text_clusters_recall": alike.recall,
    "temperature": tau,
    "pairs_solved": solution.num_solved,
    "residual": solution.residual,
    "iterations": solution.iterations,
    "converged": solution.converged,
    **{
      f"undetermined_{x.name}s": int(
        getattr(solution.undetermined, x.name).sum()
      )
      for x in sides
    },
    "seconds": round(seconds, 1),
  } | _scores(sides)
  summary = {name: x for name, x in summary.items() if x is not None}
  files.write_json(folder / SUMMARY, summary)
  path = folder / PAGE
  popularity_page.write(
    path, Solved(subject, solution, sides, copies, doubtful, alike, summary)
  )
  return path


def _similarity(threshold: near_threshold.Threshold) -> float | None:
  return threshold.similarity if threshold.known else None


def _compare_sides(
  subject: Subject, images: SidePage, log_own: Sides, folder: pathlib.Path
) -> tuple[duplicates.Duplicates, suspects.Suspects]:
  """Finds duplicate images and suspects, and writes their tables."""
  copies = duplicates.find(subject)
  of_images = subject.photos.of_pairs[images.pair]
  images.columns["cluster"] = copies.cluster[of_images]
  tables.write(folder / "duplicates.csv", duplicates.columns(subject, copies))
  log.info("looking for suspects")
  doubtful = suspects.find(subject, log_own)
  tables.write(folder / "suspects.csv", suspects.columns(subject, doubtful))
  return copies, doubtful


def _side(name, subject, found, own) -> SidePage:
  """Makes the table of one side."""
  pairs = subject.pairs
  side_id = getattr(pairs.ids, name)
  ids, first, row, count = np.unique(
    side_id, return_index=True, return_inverse=True, return_counts=True
  )

  def mean(values):
    """Returns the mean over the pairs of each id."""
    return np.bincount(row, values) / count

  def log_mean(values):
    return make_groups(side_id).log_mean(values)[first]

  def learned(x):
    return None if x is None else getattr(x, name)

  zeta, log_u = learned(subject.zeta), learned(subject.log_u)
  columns = {"id": ids}
  if subject.photos.names:
    columns["key"] = subject.keys(first)
  columns["caption"] = subject.captions(pairs.ids.text[first])
  columns["pairs"] = count
  if zeta is not None:
    columns["zeta_learned"] = zeta[ids]
  columns["zeta_exact"] = getattr(found.zeta, name)
  if log_u is not None:
    columns["log_u_learned"] = log_mean(log_u)
  columns |= {
    "log_u_exact": log_mean(getattr(found.log_u, name)),
    "own_similarity": mean(np.einsum("nd,nd->n", pairs.image, pairs.text)),
    "match_probability": mean(np.exp(getattr(own, name))),
  }
  return SidePage(name, first, columns)


def _text_clusters(subject: Subject, texts: SidePage) -> Alike:
  """Finds rows of texts that training takes for negatives of each other."""
  ids, partner = subject.pairs.ids, None
  if subject.trained:
    partner = near_duplicates.partners(ids.text, ids.image)
  of_texts = subject.pairs.text[texts.pair], partner
  threshold = near_threshold.derive(
    *of_texts, temperature=subject.temperature, of="texts"
  )
  of = dict(threshold=threshold.similarity, of="texts")
  clusters = near_duplicates.clusters(*of_texts, **of)
  recall = near_duplicates.recall(*of_texts, clusters, **of)
  return Alike(clusters, threshold, recall)


def _counts(subject: Subject, captions: Sequence[str]) -> dict[str, int]:
  """Counts what became no pair, and the captions that were cut."""
  counts = {
    name: subject.counts[name]
    for name in ("without_caption", "rejected", "captions_cut")
    if name in subject.counts
  }
  if subject.photos.names:
    counts = {"photos": len(subject.photos.names)} | counts
  if subject.tokenizer is not None:
    cut = counts["captions_cut"] = int(subject.tokenizer.is_cut(captions).sum())
    if cut:
      log.warning(
        "%d of %d captions were cut to %d tokens",
        cut,
        len(captions),
        subject.tokenizer.length,
      )
  return counts


def _scores(sides) -> dict[str, float]:
  """Compares the learned zeta with the exact ones."""
  scores = {}
  for side in sides:
    if "zeta_learned" in side.columns:
      zeta = [side.columns[f"zeta_{x}"] for x in ("learned", "exact")]
      found = agreement.compare(*zeta)
      scores |= {f"{side.name}/{name}": x for name, x in found.items()}
  return scores

"""Exact popularities as tables, a plot and a page of samples."""

from collections.abc import Sequence
import logging
import os
import pathlib
import time
from typing import Any, NamedTuple

import jax
from matplotlib.figure import Figure
import numpy as np

from nuclr_jax import popularity, sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.evaluate import agreement
from nuclr_jax.lab.evaluate.suspects import log_match_probability
from nuclr_jax.lab.report import (
  duplicates,
  near_duplicates,
  page,
  suspects,
  tables,
)
from nuclr_jax.lab.report.subject import Subject
from nuclr_jax.lab.train.warm_start import POPULARITY_FILE, save_popularity
from nuclr_jax.popularity.problem import make_groups
from nuclr_jax.types import Sides

log = logging.getLogger(__name__)

NUM_CLUSTERS, CLUSTER_SHOWN = 8, 12  # of texts
MANY = 50_000  # pairs; from here on, solving for all of them takes long


class SidePage(NamedTuple):
  """One side's table, with a row per id."""

  name: str  # "image" or "text"
  pair: np.ndarray  # index of one pair of each id
  columns: dict[str, Any]


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
  alike, recall = _text_clusters(subject, texts)
  texts.columns["cluster"] = np.zeros(len(texts.pair), int)
  for number, members in enumerate(alike, 1):
    texts.columns["cluster"][members] = number
  if subject.of_texts:  # both sides are the same
    sides, of_pairs, copies, doubtful = [texts], {}, None, None
  else:
    copies, doubtful = _compare_sides(subject, images, log_own, folder)
    of_pairs = {
      **duplicates.counts(copies),
      "duplicates_recall": copies.recall,
      "suspects_ordered_by": doubtful.by,
      "neighbours_recall": doubtful.recall,
    }
  for side in sides:
    tables.write(folder / f"{side.name}s.csv", side.columns)
  summary = {
    "pairs": len(pairs.pair_id),
    **{f"{side.name}s": len(side.pair) for side in sides},
    **_counts(subject, texts.columns["caption"]),
    **of_pairs,
    "text_clusters_recall": recall,
    "temperature": tau,
    "pairs_solved": solution.num_solved,
    "residual": solution.residual,
    "iterations": solution.iterations,
    "converged": solution.converged,
    "seconds": round(seconds, 1),
  } | _scores(sides)
  summary = {name: x for name, x in summary.items() if x is not None}
  files.write_json(folder / "summary.json", summary)
  sections = [
    _left_out(summary),
    _table(summary),
    page.save(_plot(sides), folder / "zeta.png"),
  ]
  if copies:
    sections += _popular(subject, images)
    sections.append(duplicates.section(subject, copies))
  sections += _popular(subject, texts)
  sections.append(_alike(subject, texts, alike, recall))
  if doubtful:
    sections.append(suspects.section(subject, solution, doubtful))
  path = folder / "popularity.html"
  page.write(path, f"Popularities: {folder.parent.name}", sections)
  return path


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


def _text_clusters(
  subject: Subject, texts: SidePage
) -> tuple[list[np.ndarray], float | None]:
  """Returns rows of texts that training takes for negatives of each other.

  The second value is what `near_duplicates.recall` measures.
  """
  of_texts = subject.pairs.text[texts.pair], subject.pairs.ids.image[texts.pair]
  # Above this similarity, the loss can hardly tell two samples apart.
  of = dict(threshold=1 - subject.temperature / 2, of="texts")
  clusters = near_duplicates.clusters(*of_texts, **of)
  return clusters, near_duplicates.recall(*of_texts, clusters, **of)


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


def _left_out(summary) -> str:
  """Says what became no pair, and what the model has not seen of captions."""
  phrases = {
    "without_caption": "images without a caption, which are in no pair",
    "rejected": "images and captions that were rejected",
    "captions_cut": "captions of which the model has seen the beginning only",
  }
  items = "".join(
    f"<li>{summary[name]:,} {phrase}"
    for name, phrase in phrases.items()
    if summary.get(name)
  )
  where = ""
  if summary.get("without_caption") or summary.get("rejected"):
    where = "<p>rejected.jsonl, beside the embeddings, names the first two.</p>"
  return f"<ul>{items}</ul>{where}" if items else ""


def _table(summary) -> str:
  shown = {
    name: f"{x:.4g}" if isinstance(x, float) else str(x)
    for name, x in summary.items()
  }
  return (
    "<p>exp(&zeta;/&tau;) is how popular a sample is: how often it is similar "
    f"to anchors that are not its own.</p>{page.table(shown)}"
  )


def _plot(sides) -> Figure:
  """Plots learned against exact zeta, or the distribution of the exact ones."""
  figure = Figure(figsize=(10, 4.4), layout="constrained")
  plots = figure.subplots(1, len(sides), squeeze=False)[0]
  for axes, side in zip(plots, sides, strict=True):
    exact = side.columns["zeta_exact"]
    learned = side.columns.get("zeta_learned")
    axes.set_title(f"{side.name}s")
    axes.set_xlabel("exact zeta")
    if learned is None:
      axes.hist(exact, bins=80, color="#456")
      axes.set_ylabel(f"{side.name}s")
      continue
    axes.scatter(exact, learned, s=3, alpha=0.2, linewidths=0, color="#456")
    low, high = float(np.min(exact)), float(np.max(exact))
    # Zeta is determined only up to a constant, so the diagonal is shifted.
    shift = float(np.mean(learned) - np.mean(exact))
    axes.plot([low, high], [low + shift, high + shift], color="#a8261c", lw=1)
    axes.set_ylabel("learned zeta")
    axes.grid(alpha=0.3)
  return figure


def _popular(subject: Subject, side: SidePage) -> list[str]:
  """Shows the most and least popular samples."""
  captions, labels = side.columns["caption"], _labels(side)
  return page.popular(
    side.name,
    side.columns["zeta_exact"],
    choose=lambda rows: _one_each(rows, captions, page.NUM_SHOWN),
    captions=lambda rows: [labels[i] for i in rows],
    images=lambda rows: subject.images(side.pair[rows]),
  )


def _alike(subject: Subject, texts: SidePage, clusters, recall) -> str:
  """Shows the largest clusters of texts."""
  labels = _labels(texts)
  title, what = (
    "Near-duplicate texts",
    "texts that the model can hardly tell apart",
  )
  if subject.trained:
    title += ": suspected false negatives"
    what = "texts that training takes for negatives of each other"
  parts = [
    f"<h2>{title}</h2><p>{len(clusters):,} clusters of {what}."
    f"{near_duplicates.in_words(recall)}</p>"
  ]
  for members in clusters[:NUM_CLUSTERS]:
    shown = _one_each(members, texts.columns["caption"], CLUSTER_SHOWN)
    notes = [page.shown(labels[i]) for i in shown]
    gallery = page.gallery(subject.images(texts.pair[shown]), notes)
    parts.append(f"<h3>{len(members):,} texts</h3>{gallery}")
  return "".join(parts)


def _labels(side: SidePage) -> list[str]:
  """Returns captions, after the names of photos where they are known."""
  captions = side.columns["caption"]
  if "key" not in side.columns:
    return captions
  names = zip(side.columns["key"], captions, strict=True)
  return [f"{key}: {caption}" for key, caption in names]


def _one_each(rows, captions, count: int) -> np.ndarray:
  """Returns the first `count` rows with different captions."""
  first = {}
  for row in rows:
    first.setdefault(captions[row], row)
    if len(first) == count:
      break
  return np.array(list(first.values()), int)

"""Exact popularities as tables, a plot and a page of samples."""

import csv
import logging
import os
import pathlib
import time
from typing import Any, NamedTuple

import jax
from matplotlib.figure import Figure
import numpy as np

from nuclr_jax import files, popularity, sharding
from nuclr_jax.popularity import analysis
from nuclr_jax.popularity.files import POPULARITY_FILE, save_popularity
from nuclr_jax.popularity.problem import make_groups
from nuclr_jax.report import page
from nuclr_jax.report.subject import Subject
from nuclr_jax.types import Sides

log = logging.getLogger(__name__)

NUM_CLUSTERS, CLUSTER_SHOWN = 8, 12
INDISTINCT = 0.05  # standard deviation of log own weights


class SidePage(NamedTuple):
  """One side's table, with a row per id."""

  name: str  # "image" or "text"
  pair: np.ndarray  # index of one pair of each id
  columns: dict[str, Any]
  clusters: list[np.ndarray]  # rows of near-duplicates, largest cluster first


def write(
  subject: Subject,
  workdir: str | os.PathLike,
  *,
  max_pairs: int | None = None,
) -> pathlib.Path:
  """Solves for the popularities and writes them to `workdir/popularity/`.

  `images.csv` and `texts.csv` are tables with a row per id; `suspects.csv` has
  all pairs, the likeliest label noise first; `popularity.npz` is for the warm
  start of a run; `summary.json` has the correlations; `popularity.html` shows
  the samples.

  Args:
    subject: The pairs, from `subject.from_run` or `subject.from_files`.
    workdir: The folder to write in; made if missing.
    max_pairs: Solve for a sample of this many pairs exactly, and extend the
      solution to all of them.

  Returns:
    The path of the page.

  Raises:
    ValueError: For embeddings or ids that `popularity.solve` refuses.
  """
  folder = pathlib.Path(workdir).absolute() / "popularity"
  pairs, tau = subject.pairs, subject.temperature
  log.info("solving the popularities of %d pairs", len(pairs.pair_id))
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
  folder.mkdir(parents=True, exist_ok=True)
  save_popularity(
    folder / POPULARITY_FILE,
    solution,
    temperature=tau,
    fingerprint=subject.fingerprint,
  )
  log_own = analysis.log_own_weight(solution, pairs, temperature=tau)
  sides = [_side(name, subject, solution, log_own) for name in Sides._fields]
  for side in sides:
    _write_csv(folder / f"{side.name}s.csv", side.columns)
  summary = {
    "pairs": len(pairs.pair_id),
    "images": len(solution.ids.image),
    "texts": len(solution.ids.text),
    "temperature": tau,
    "pairs_solved": solution.num_solved,
    "residual": solution.residual,
    "iterations": solution.iterations,
    "converged": solution.converged,
    "seconds": round(seconds, 1),
  } | _scores(sides)
  files.write_json(folder / "summary.json", summary)
  sections = [_table(summary), page.save(_plot(sides), folder / "zeta.png")]
  for side in sides:
    sections += _galleries(subject, side)
  suspects = _suspects(subject, log_own)
  _write_suspects(folder / "suspects.csv", subject, suspects)
  sections.append(_noise(subject, solution, suspects))
  path = folder / "popularity.html"
  page.write(path, f"Popularities: {folder.parent.name}", sections)
  return path


def _side(name, subject, found, own) -> SidePage:
  """Makes the table of one side."""
  pairs, tau = subject.pairs, subject.temperature
  other = "text" if name == "image" else "image"
  side_id, other_id = (getattr(pairs.ids, x) for x in (name, other))
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
  embedding = getattr(pairs, name)[first]
  # Above this similarity, the loss can hardly tell two samples apart.
  groups = analysis.clusters(embedding, other_id[first], threshold=1 - tau / 2)
  cluster = np.zeros(len(ids), int)
  for number, members in enumerate(groups, 1):
    cluster[members] = number
  nothing = [""] * len(ids)
  columns = {
    "id": ids,
    **({} if subject.keys is None else {"key": subject.keys(first)}),
    "caption": subject.captions(pairs.ids.text[first]),
    "pairs": count,
    "zeta_learned": nothing if zeta is None else zeta[ids],
    "zeta_exact": getattr(found.zeta, name),
    "log_u_learned": nothing if log_u is None else log_mean(log_u),
    "log_u_exact": log_mean(getattr(found.log_u, name)),
    "own_similarity": mean(np.einsum("nd,nd->n", pairs.image, pairs.text)),
    "own_weight": mean(np.exp(getattr(own, name))),
    "cluster": cluster,
  }
  return SidePage(name, first, columns, groups)


def _write_csv(path: pathlib.Path, columns: dict[str, Any]) -> None:
  with path.open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))


def _scores(sides) -> dict[str, float]:
  """Compares the learned zeta with the exact ones."""
  scores = {}
  for side in sides:
    zeta = side.columns["zeta_learned"]
    if not isinstance(zeta, list):
      agreement = popularity.compare(zeta, side.columns["zeta_exact"])
      scores |= {f"{side.name}/{name}": x for name, x in agreement.items()}
  return scores


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
  for axes, side in zip(figure.subplots(1, 2), sides, strict=True):
    exact, learned = side.columns["zeta_exact"], side.columns["zeta_learned"]
    axes.set_title(f"{side.name}s")
    axes.set_xlabel("exact zeta")
    if isinstance(learned, list):
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


def _galleries(subject: Subject, side: SidePage) -> list[str]:
  """Shows the most and least popular samples, and near-duplicates."""
  captions = labels = side.columns["caption"]
  if "key" in side.columns:  # the names of photos are what a user looks for
    names = zip(side.columns["key"], captions, strict=True)
    labels = [f"{key}: {caption}" for key, caption in names]

  def images(rows):
    return subject.images(side.pair[rows])

  sections = page.popular(
    side.name,
    side.columns["zeta_exact"],
    choose=lambda rows: _one_each(rows, captions, page.NUM_SHOWN),
    captions=lambda rows: [labels[i] for i in rows],
    images=images,
  )
  sections.append(
    f"<h2>Near-duplicate {side.name}s: suspected false negatives</h2><p>"
    f"{len(side.clusters):,} clusters of {side.name}s that training takes for "
    "negatives of each other.</p>"
  )
  for members in side.clusters[:NUM_CLUSTERS]:
    shown = _one_each(members, captions, CLUSTER_SHOWN)
    notes = [page.shown(labels[i]) for i in shown]
    sections.append(
      f"<h3>{len(members):,} {side.name}s</h3>"
      + page.gallery(images(shown), notes)
    )
  return sections


class Suspects(NamedTuple):
  """Which pairs may be label noise."""

  pair: np.ndarray  # indices of all pairs, the most suspicious first
  log_own_weight: np.ndarray  # by pair
  neighbours_distance: np.ndarray | None  # by pair; None if it does not count


def _suspects(subject: Subject, log_own: Sides) -> Suspects:
  """Orders pairs by how suspicious they are.

  A model that has not been trained on the pairs gives wrong captions little
  weight. One that has been has memorized some of them, and the neighbours find
  more of them (experiments/hubs_and_suspects).
  """
  pairs, distance = subject.pairs, None
  # With exact zeta, both sides have the same weights, up to the residual.
  log_own = np.mean(log_own, axis=0)
  score = -log_own
  if np.std(log_own) < INDISTINCT:
    log.warning(
      "all pairs have nearly the same weight: at temperature %g, this model "
      "hardly tells captions apart, and the order of suspects says little",
      subject.temperature,
    )
  if subject.trained:
    sides = (pairs.image, pairs.text), (pairs.text, pairs.image)
    distance = np.mean(
      [analysis.neighbours_distance(*x) for x in sides], axis=0
    )
    score = distance
  return Suspects(np.argsort(-score, kind="stable"), log_own, distance)


def _write_suspects(path, subject: Subject, suspects: Suspects) -> None:
  """Writes the table of all pairs, the most suspicious first."""
  pairs, order = subject.pairs, suspects.pair
  own = np.einsum("nd,nd->n", pairs.image, pairs.text)
  columns = {
    "pair": pairs.pair_id[order],
    "image": pairs.ids.image[order],
    "text": pairs.ids.text[order],
    "caption": subject.captions(pairs.ids.text[order]),
    "own_similarity": own[order],
    "own_weight": np.exp(suspects.log_own_weight[order]),
  }
  if subject.keys is not None:
    columns = {"key": subject.keys(order)} | columns
  if suspects.neighbours_distance is not None:
    columns["neighbours_distance"] = suspects.neighbours_distance[order]
  _write_csv(path, columns)


def _noise(subject: Subject, found, suspects: Suspects) -> str:
  """Shows the most suspicious pairs, and a caption that would fit better."""
  pairs = subject.pairs
  worst = suspects.pair[: page.NUM_SHOWN]
  _, first = np.unique(pairs.ids.text, return_index=True)
  best = first[
    analysis.preferred(pairs.image[worst], pairs.text[first], found.zeta.text)
  ]
  own_captions = subject.captions(pairs.ids.text[worst])
  best_captions = subject.captions(pairs.ids.text[best])
  weights = np.exp(suspects.log_own_weight[worst])
  keys = [""] * len(worst)
  if subject.keys is not None:
    keys = [f"{page.shown(x)}<br>" for x in subject.keys(worst)]
  notes = [
    f"{key}<b>{page.shown(a)}</b><br>own weight {weight:.1e}<br>"
    f"rather: <span class=wrong>{page.shown(b)}</span>"
    for key, a, b, weight in zip(
      keys, own_captions, best_captions, weights, strict=True
    )
  ]
  how = (
    "far from the captions and images of their nearest neighbours"
    if subject.trained
    else "given little weight by their own images and captions"
  )
  gallery = page.gallery(subject.images(worst), notes)
  return (
    f"<h2>Suspected label noise</h2><p>Pairs that are {how}. Go through them "
    "in this order, correct or remove the captions that are wrong, and stop "
    "where most are right; suspects.csv has all of them. The own weight is the "
    "share of an image's weights, over all captions, that its own caption gets."
    f"</p>{gallery}"
  )


def _one_each(rows, captions, count: int) -> np.ndarray:
  """Returns the first `count` rows with different captions."""
  first = {}
  for row in rows:
    first.setdefault(captions[row], row)
    if len(first) == count:
      break
  return np.array(list(first.values()), int)

"""The page of a filter: how scores are distributed, and examples of pairs."""

from collections.abc import Mapping
import pathlib
from typing import Any

from matplotlib.figure import Figure
import numpy as np

from nuclr_jax.lab.data.shards import Shards
from nuclr_jax.lab.evaluate.choose import Choice
from nuclr_jax.lab.report import page
from nuclr_jax.lab.report.subject import decoded

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # of the pairs, from the best
SHOWN = 6  # pairs at each of them
AT_THRESHOLD = 12  # on each side
BINS = 80
WORDS = {
  "similarity": "the cosine similarity of image and text (CLIPScore)",
  "negcliploss": "the similarity less what image and text have with others, in "
  "random batches (negCLIPLoss)",
  "exact": "&tau; log of the weight of the pair among all pairs, with exact "
  "popularities",
  "normsim": "how near the image is to those of the target: the cosine with "
  "the nearest one or, with norm 2, the root of the sum of all squares "
  "(NormSim)",
  "confidence": "the log of the probability that a classifier of the other "
  "images gives to the caption",
}


def write(
  path: pathlib.Path,
  found: Shards,
  scores: Mapping[str, np.ndarray],
  choices: Mapping[str, Choice],
  kept: np.ndarray,
  summary: Mapping[str, Any],
) -> None:
  """Writes the page.

  Args:
    path: The file.
    found: The pairs.
    scores: The scores by name, the first one first.
    choices: What each score has chosen that chose at all.
    kept: Which pairs are kept.
    summary: Numbers for the table at its top.
  """
  whole = Choice(np.ones(len(kept), bool), kept, 0.0)
  chosen = {
    name: _examples(x, choices.get(name, whole)) for name, x in scores.items()
  }
  everywhere = [rows for x in chosen.values() for rows in x.values()]
  rows = np.unique(np.concatenate(everywhere))
  notes, images = _notes(found, rows), _images(found, rows)
  shown = {
    name: f"{x:.4g}" if isinstance(x, float) else str(x)
    for name, x in summary.items()
  }
  sections = [page.table(shown)]
  for name, score in scores.items():
    sections.append(f"<h2>{name}</h2><p>Here, {WORDS[name]}.</p>")
    figure = _histogram(name, score, kept)
    sections.append(page.save(figure, path.with_name(f"{name}.png")))
    for title, some in chosen[name].items():
      at = np.searchsorted(rows, some)
      texts = [
        f"<b class={'right' if kept[i] else 'wrong'}>"
        f"{'kept' if kept[i] else 'dropped'}</b> {score[i]:.4g}<br>{notes[j]}"
        for i, j in zip(some, at, strict=True)
      ]
      pictures = None if images is None else images[at]
      sections.append(f"<h3>{title}</h3>{page.gallery(pictures, texts)}")
  page.write(path, "Pairs kept and dropped", sections)


def _examples(score: np.ndarray, choice: Choice) -> dict[str, np.ndarray]:
  """Chooses pairs around the thresholds of a score, by title."""
  order, n = np.argsort(-score, kind="stable"), len(score)
  dropped = choice.among & ~choice.kept
  inside = order[choice.kept[order]][-AT_THRESHOLD:]
  outside = order[dropped[order]][:AT_THRESHOLD]
  found = {
    "The lowest of those that it keeps": inside,
    "The highest of those that it drops": outside,
  }
  for share in SHARES:
    at = min(int(share * n), n - 1)
    first = max(0, at - SHOWN // 2)
    title = f"At {share:.0%} of the pairs, {score[order[at]]:.4g}"
    found[title] = order[first : first + SHOWN]
  found["The lowest of all"] = order[-SHOWN:]
  return {title: rows for title, rows in found.items() if len(rows)}


def _notes(found: Shards, rows: np.ndarray) -> list[str]:
  """Returns captions and names of pairs, as HTML."""
  places = [
    f"row {row} of {pathlib.Path(found.names[i]).name}"
    for i, row in zip(*found.places(rows), strict=True)
  ]
  columns = [
    found.columns[x].pick(rows)
    for x in ("caption", "name")
    if x in found.columns
  ]
  return [
    "<br>".join(page.shown(str(x or "none")) for x in texts)
    for texts in zip(*columns, places, strict=True)
  ]


def _images(found: Shards, rows: np.ndarray) -> np.ndarray | None:
  column = found.columns.get("thumbnail")
  return None if column is None else decoded(column.pick(rows))


def _histogram(name: str, score: np.ndarray, kept: np.ndarray) -> Figure:
  """Plots the distribution of a score, with the part that is kept."""
  figure = Figure(figsize=(8, 3), layout="constrained")
  axes = figure.subplots()
  finite = np.isfinite(score)
  x = score[finite].astype(float)
  if len(x) and np.ptp(x) < 1e-9 * np.abs(x).max():
    x = x[:1]  # between equal numbers, there is no room for bins
  edges = np.histogram_bin_edges(x, BINS)
  axes.hist(score[finite], edges, color="#bbb", label="all")
  axes.hist(score[finite & kept], edges, color="#16703a", label="kept")
  axes.set_xlabel(name)
  axes.set_ylabel("pairs")
  axes.legend(frameon=False)
  return figure

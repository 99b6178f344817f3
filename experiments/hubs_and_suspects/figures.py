"""The figures of README.md."""

from collections.abc import Sequence

from matplotlib.figure import Figure
import numpy as np

from experiments.harness import Options, Results, Row
from experiments.harness.plots import COLORS, new_figure
from experiments.harness.statistics import paired, statistics
from experiments.hubs_and_suspects.results import (
  BASE,
  COLUMNS,
  OURS,
  PRIOR,
  TUNED,
  VIEWS,
  WRONG,
  area,
  recall,
)

DRAWN = (*TUNED, PRIOR)
SCORES = {
  "own similarity": "own similarity",
  "own weight, exact ζ": OURS,
  "margin, ζ = 0": "margin, ζ = 0",
  "neighbours' captions, images": "neighbours: both",
  "LEMoN": "LEMoN",
  "confident learning, told classes": "CL, cross-validated: self-confidence",
}
MARKERS = "os^Dv*"
BLACK = "#000000"


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  rows = list(results.rows.values())
  return {"hubs.png": draw_hubs(rows), "suspects.png": draw_suspects(rows)}


def draw_hubs(rows: Sequence[Row]) -> Figure:
  """Draws what each correction gains over the similarities."""
  figure = new_figure((10, 4.6), dpi=120)
  axes = figure.subplots()
  for i, name in enumerate(DRAWN):
    for at, column in enumerate(COLUMNS):
      found = paired(recall(rows, column, name), recall(rows, column, BASE))
      if not found.count:
        continue
      axes.errorbar(
        found.mean,
        at + 0.15 * (i - 2),
        xerr=np.nan_to_num(found.half_width),
        fmt=MARKERS[i],
        color=COLORS[i],
        markersize=5,
        label=name if column == NATURAL else None,
      )
  axes.axvline(0, color=BLACK, linestyle=":")
  axes.set_yticks(np.arange(len(COLUMNS)), list(COLUMNS))
  axes.invert_yaxis()
  axes.set_xlabel("points of recall@1 over E, mean of three models")
  axes.grid(alpha=0.3)
  axes.legend(
    frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1)
  )
  return figure


NATURAL = "natural: image to text"  # where all of `DRAWN` are scored


def draw_suspects(rows: Sequence[Row]) -> Figure:
  """Draws how well scores find wrong captions."""
  figure = new_figure((11, 4.2), dpi=120)
  panels = figure.subplots(1, len(VIEWS), sharey=True)
  titles = (
    "trained on the errors",
    "published, familiar",
    "published, new fonts",
  )
  for axes, view, title in zip(panels, VIEWS, titles, strict=True):
    for i, (label, name) in enumerate(SCORES.items()):
      found = [statistics(area(rows, view, x, name).values()) for x in WRONG]
      places = np.arange(len(WRONG)) + 0.09 * (i - 2.5)
      axes.errorbar(
        places,
        [x.mean for x in found],
        yerr=[np.nan_to_num(x.half_width) for x in found],
        fmt=MARKERS[i],
        color=(*COLORS, BLACK)[i],
        markersize=5,
        label=label,
      )
    shares = [x.replace(", ", "\n") for x in WRONG]
    axes.set_xticks(np.arange(len(WRONG)), shares, fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
  panels[0].set_ylabel("area under precision–recall")
  lines = panels[0].get_legend_handles_labels()
  figure.legend(*lines, loc="outside lower center", ncols=3, fontsize=9)
  return figure

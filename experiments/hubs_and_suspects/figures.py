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
  FAMILIAR,
  OURS,
  OWN,
  PRIOR,
  TUNED,
  UNFAMILIAR,
  WRONG,
  area,
  recall,
)

DRAWN = (*TUNED, PRIOR)
SCORES = {
  "own similarity": "own similarity",
  "match probability, exact ζ": OURS,
  "margin, exact ζ": "margin",
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
  figure = new_figure((11, 4), dpi=120)
  panels = figure.subplots(1, 2, width_ratios=(3, 2))
  for axes, kind in zip(panels, ("balanced", "natural"), strict=True):
    columns = [x for x in COLUMNS if x.startswith(kind)]
    for i, name in enumerate(DRAWN):
      found = {
        at: paired(recall(rows, x, name), recall(rows, x, BASE))
        for at, x in enumerate(columns)
      }
      found = {at: x for at, x in found.items() if x.count}
      axes.errorbar(
        [x.mean for x in found.values()],
        [at + 0.14 * (i - 2) for at in found],
        xerr=[np.nan_to_num(x.half_width) for x in found.values()],
        fmt=MARKERS[i],
        color=COLORS[i],
        markersize=5,
        label=name,
      )
    axes.axvline(0, color=BLACK, linestyle=":")
    places = [x.replace("balanced: ", "").replace(": ", ":\n") for x in columns]
    axes.set_yticks(np.arange(len(columns)), places, fontsize=9)
    axes.set_ylim(len(columns) - 0.5, -0.5)
    axes.set_title(f"{kind} queries: points of recall@1 over E", fontsize=10)
    axes.grid(alpha=0.3)
  lines = panels[1].get_legend_handles_labels()
  figure.legend(*lines, loc="outside lower center", ncols=5, fontsize=9)
  return figure


def draw_suspects(rows: Sequence[Row]) -> Figure:
  """Draws how well scores find wrong captions."""
  figure = new_figure((11, 4.2), dpi=120)
  panels = figure.subplots(1, 3, sharey=True)
  titles = {
    OWN: "trained on the errors",
    FAMILIAR: "published, familiar fonts",
    UNFAMILIAR: "published, unfamiliar fonts",
  }
  for axes, (view, title) in zip(panels, titles.items(), strict=True):
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

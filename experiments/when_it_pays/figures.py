"""The figures of README.md, and the one of docs/what_zeta_is.md."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
import numpy as np

from experiments.harness import Options, Results, Row
from experiments.harness.plots import new_figure
from experiments.harness.statistics import statistics
from experiments.when_it_pays import (
  duplicates,
  duplicates_report,
  positive_weight,
  positive_weight_report,
)
from experiments.when_it_pays.letters import ARMS
from experiments.when_it_pays.plan import TABLE, TAILS
from experiments.when_it_pays.tables import ADJUSTED, gain, of_part

# Fits of the table, and the score of each that is drawn.
FITS = {
  "E, ζ = 0": ("0", "E"),
  "E + τ log p, ζ = 0": ("0", "E - zeta + tau log p"),
  "E, ζ = τ log p": ("tau log p", "E"),
  "E, ζ learned from elsewhere": ("learned from elsewhere", "E"),
  "E − ζ, ζ learned from elsewhere": ("learned from elsewhere", "E - zeta"),
}
MARKERS = "o^sxv"


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  return {
    "table.png": draw_table(of_part(results, TABLE)),
    "tails.png": draw_tails(of_part(results, TAILS)),
    "near_duplicates.png": duplicates_report.draw(
      of_part(results, duplicates.PART)
    ),
    "positive_weight.png": positive_weight_report.draw(
      of_part(results, positive_weight.PART)
    ),
  }


def draw_table(rows: Sequence[Row]) -> Figure:
  """Draws what a known density leaves to zeta, against the width."""
  figure = new_figure((11, 3.6), dpi=120)
  left, *right = figure.subplots(1, 3)
  by_dim: dict[int, list[Row]] = {}
  for row in rows:
    by_dim.setdefault(int(row["setting"].removeprefix("d ")), []).append(row)
  dims = sorted(by_dim)

  def line(axes, name, value, **style):
    means = [statistics(map(value, by_dim[d])).mean for d in dims]
    axes.plot(dims, means, label=name, **style)

  for name, (fit, color) in {  # colors are those of the other panels
    "ζ = 0": ("0", "C0"),
    "ζ learned": ("learned", "C5"),
    "ζ learned from elsewhere": ("learned from elsewhere", "C3"),
    "ζ = τ log p": ("tau log p", "C2"),
  }.items():
    line(
      left,
      name,
      lambda row, fit=fit: row[fit]["excess"],
      marker="o",
      color=color,
    )
  left.set(yscale="log", title="objective above its minimum: nats")
  left.legend(frameon=False, fontsize=8)
  for axes, kind in zip(right, ("natural", "balanced"), strict=True):
    for marker, (name, (fit, score)) in zip(MARKERS, FITS.items(), strict=True):
      line(
        axes,
        name,
        lambda row, x=(fit, score, kind): 100 * row[x[0]][x[1]][x[2]],
        marker=marker,
        alpha=0.8,
      )
    line(
      axes,
      "best possible",
      lambda row, kind=kind: 100 * row["best"][kind],
      color="black",
      linestyle=":",
    )
    axes.set(title=f"{kind} queries: accuracy in %")
  right[-1].legend(frameon=False, fontsize=7)
  for axes in (left, *right):
    axes.set(xscale="log", xlabel="width of the unit vectors")
    axes.set_xticks(dims, list(map(str, dims)))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
  return figure


def draw_tails(rows: Sequence[Row]) -> Figure:
  """Draws what each arm gains over SogCLR, under both kinds of queries."""
  figure = new_figure((11, 4.2), dpi=120)
  panels = figure.subplots(1, 2, sharey=True)
  settings: Mapping[str, str] = {
    "exponent 1.2, d 32": "C3",
    "exponent 1.2, d 8": "C1",
    "exponent 1.2, d 128": "C4",
    "exponent 0.0, d 32": "C0",
  }
  names = [*(x for x in ARMS if x != "SogCLR"), ADJUSTED]
  for axes, kind in zip(panels, ("natural", "balanced"), strict=True):
    for i, (setting, color) in enumerate(settings.items()):
      for at, name in enumerate(names):
        found = gain(rows, name, setting, kind)
        if found.count < 2:
          continue
        axes.errorbar(
          found.mean,
          at + 0.15 * (i - 1.5),
          xerr=found.half_width,
          fmt="o",
          color=color,
          markersize=4,
          label=setting if at == 0 else None,
        )
    axes.axvline(0, color="black", linestyle=":")
    axes.set_title(f"{kind} queries: points over SogCLR's E", fontsize=10)
    axes.grid(alpha=0.3)
  panels[0].set_yticks(np.arange(len(names)), names)
  panels[0].invert_yaxis()
  lines = panels[0].get_legend_handles_labels()
  if lines[0]:
    figure.legend(*lines, loc="outside lower center", ncols=4, fontsize=8)
  return figure

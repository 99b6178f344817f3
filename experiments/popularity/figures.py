"""The figure of README.md."""

from matplotlib.figure import Figure

from experiments.harness import Options, Results
from experiments.harness.plots import new_figure
from experiments.harness.statistics import paired, statistics
from experiments.popularity.plan import VARIANTS
from experiments.popularity.tables import BASE, DIGITS, RECALL, values


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  rows = list(results.rows.values())
  return {"accuracy.png": draw_accuracy(rows)}


def draw_accuracy(rows) -> Figure:
  """Draws what more accurate zeta gain, against how accurate they are."""
  figure = new_figure((9, 3.8), dpi=120)
  panels = {f"test/{RECALL}": "test R@1", DIGITS: "digits"}
  all_axes = figure.subplots(1, len(panels))
  for axes, (column, title) in zip(all_axes, panels.items(), strict=True):
    without = values(rows, BASE, column, scale=100)
    for i, variant in enumerate(VARIANTS):
      accuracy = statistics(
        values(rows, variant.name, "exact/pearson_text").values()
      )
      ours = values(rows, variant.name, column, scale=100)
      gain = paired(ours, without)
      if variant.name == BASE or gain.count < 2:
        continue
      axes.errorbar(
        accuracy.mean,
        gain.mean,
        gain.half_width,
        fmt="o",
        color=f"C{i}",
        label=variant.name,
      )
    axes.axhline(0, color="black", linestyle=":")
    axes.set_xlabel("correlation of ζ with the exact ones (texts)")
    axes.set_title(f"{title}: points over ζ fixed at 0", fontsize=10)
    axes.grid(alpha=0.3)
  lines = all_axes[0].get_legend_handles_labels()
  if lines[0]:
    figure.legend(*lines, loc="outside lower center", ncols=3, fontsize=8)
  return figure

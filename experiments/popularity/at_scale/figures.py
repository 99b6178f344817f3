"""The figure of README.md."""

from matplotlib.figure import Figure

from experiments.harness import Options, Results
from experiments.harness.plots import new_figure
from experiments.popularity.at_scale.plan import (
  FROZEN,
  STEP_BATCHES,
  STEPS,
  TAUS,
)
from experiments.popularity.at_scale.tables import found, mean
from experiments.popularity.at_scale.ways import SHARES

WAYS = {"ζ exact": "o-", "SogCLR": "s:", "ζ = 0": "^--"}


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  return {"at_scale.png": draw(list(results.rows.values()))}


def draw(rows) -> Figure:
  """Draws the error of zeta by memory, and that of steps by batch size."""
  figure = new_figure((11, 4.6), dpi=120)
  left, right = figure.subplots(1, 2, sharey=True)
  shares = sorted(SHARES)
  for i, tau in enumerate(TAUS):
    for end, style in (("", "o-"), (", falls", "s--")):
      values = {
        100 * x: mean(
          found(rows, FROZEN, f"queue {100 * x:g} %{end}", tau), "gradient"
        )
        for x in shares
      }
      _line(left, values, style, color=f"C{i}", label=f"τ {tau}, queue{end}")
    none = mean(found(rows, FROZEN, "ζ = 0", tau), "gradient")
    if none is not None:
      left.axhline(none, color=f"C{i}", linestyle=":")
    for way, style in WAYS.items():
      values = {
        x: mean(found(rows, STEPS, way, tau, x), "step") for x in STEP_BATCHES
      }
      _line(right, values, style, color=f"C{i}", label=f"τ {tau}, {way}")
  left.set(xscale="log", xlabel="memory: % of 16,384 pairs (dotted: ζ = 0)")
  left.set_xticks([100 * x for x in shares], [f"{100 * x:g}" for x in shares])
  left.minorticks_off()
  left.set_title("gradient error of ζ, batch 16", fontsize=10)
  left.set_ylabel("relative error")
  right.set(xscale="log", xlabel="batch size, of 4,096 pairs")
  right.set_xticks(STEP_BATCHES, STEP_BATCHES)
  right.set_title("gradient error of a step", fontsize=10)
  for axes in (left, right):
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
      axes.legend(
        fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15)
      )
  return figure


def _line(axes, values, style: str, **look) -> None:
  """Draws the points that were measured."""
  points = [x for x in values.items() if x[1] is not None]
  if points:
    axes.plot(*zip(*points, strict=True), style, markersize=4, **look)

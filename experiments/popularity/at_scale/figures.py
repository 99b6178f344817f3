"""The figure of README.md."""

from matplotlib.figure import Figure

from experiments.harness import Options, Results
from experiments.harness.plots import new_figure
from experiments.popularity.at_scale.plan import FROZEN, TAUS
from experiments.popularity.at_scale.tables import found, mean
from experiments.popularity.at_scale.ways import SHARES

SCORES = {"gradient": "ζ, exact denominators", "step": "a step, with its u"}


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  return {"at_scale.png": draw(list(results.rows.values()))}


def draw(rows) -> Figure:
  """Draws gradient errors against the share of the pairs in memory."""
  figure = new_figure((11, 4.2), dpi=120)
  panels = figure.subplots(1, len(SCORES), sharey=True)
  shares = sorted(SHARES)
  for axes, (score, title) in zip(panels, SCORES.items(), strict=True):
    for i, tau in enumerate(TAUS):
      for end, style in (("", "o-"), (", falls", "s--")):
        points = [
          (
            100 * x,
            mean(found(rows, FROZEN, f"queue {100 * x:g} %{end}", tau), score),
          )
          for x in shares
        ]
        points = [x for x in points if x[1] is not None]
        if points:
          label = f"τ {tau}, queue{end}"
          axes.plot(
            *zip(*points, strict=True), style, color=f"C{i}", label=label
          )
      none = mean(found(rows, FROZEN, "ζ = 0", tau), score)
      if none is not None:
        axes.axhline(none, color=f"C{i}", linestyle=":")
    axes.set(xscale="log", xlabel="memory: % of all pairs")
    axes.set_title(f"gradient error: {title}", fontsize=10)
    axes.grid(alpha=0.3)
  panels[0].set_ylabel("relative error (dotted: ζ = 0)")
  handles = panels[0].get_legend_handles_labels()
  if handles[0]:
    figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=8)
  return figure

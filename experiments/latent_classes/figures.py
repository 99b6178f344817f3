"""The figures of README.md; each is drawn into an empty figure."""

from matplotlib import colormaps
from matplotlib.figure import Figure
import numpy as np

from experiments import labelled
from experiments.harness import Options, Results
from experiments.harness.plots import (
  COLORS,
  draw_statistics,
  log_ticks,
  new_figure,
)
from experiments.harness.statistics import statistics
from experiments.labelled import (
  Rows,
  by_setting,
  data_of,
  data_with,
  draw_course,
  score,
)
from experiments.latent_classes import plan


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  rows = labelled.trained(results)
  exact = list(results.rows.values())
  drawings = {
    "figure_2.png": (draw_amounts, rows),
    "lemmas.png": (draw_lemmas, rows),
    "norms.png": (draw_norms, rows),
    "exact.png": (draw_exact, exact),
  }
  return {
    name: draw(new_figure(), its_rows)
    for name, (draw, its_rows) in drawings.items()
  }


def draw_amounts(figure: Figure, rows: Rows) -> Figure:
  """Draws accuracies over k for each amount of data: paper 1, Figure 2."""
  if not (everything := data_with(rows, "figure 2")):
    return figure
  label_of = {
    "mu/avg_2": "mean classifier, tasks of 2 classes",
    "mu/top_1": "mean classifier, all classes",
  }
  panels = figure.subplots(len(everything), 2, squeeze=False)
  for row, data in zip(panels, everything, strict=True):
    settings = by_setting(rows, f"{data}/figure 2")
    fractions = list(dict.fromkeys(x.split()[0] for x in settings))
    for axes, name in zip(row, label_of, strict=True):
      for color, fraction in zip(COLORS, fractions, strict=False):
        points = {
          int(x.split()[1]): statistics(100 * score(y, name) for y in seeds)
          for x, seeds in settings.items()
          if x.split()[0] == fraction
        }
        label = f"{100 * float(fraction):g} % of the images"
        draw_statistics(axes, points, color, label)
      axes.set(xscale="log", title=f"{data}: {label_of[name]}")
      axes.set(xlabel="negatives k", ylabel="accuracy, %")
      axes.set_xticks(list(points), map(str, points))
      axes.minorticks_off()
      axes.grid(alpha=0.3)
  panels[0][0].legend(fontsize=8)
  return figure


def draw_lemmas(figure: Figure, rows: Rows) -> Figure:
  """Draws losses and bounds along training: paper 2, Figures 1 and 2."""
  for axes, (data, n, seeds) in _panels(figure, rows):
    bound = "bound" if n == 1 else f"bound_{n}"
    kinds = (
      (f"unsupervised_{n}", "unsupervised loss", "-"),
      ("mean_classifier", "loss of the mean classifier", "-"),
      (bound, "bound (Lemma 1; 2 for N > 1)", "--"),
    )
    for color, (name, label, style) in zip(COLORS, kinds, strict=False):
      draw_course(axes, seeds, name, color, label, style)
    axes.set(
      title=f"{data}, N = {n}", yscale="log", ylabel="loss, or its bound"
    )
    axes.set_xlabel("step")
    log_ticks(axes.yaxis)
  return _with_legend(figure)


def draw_norms(figure: Figure, rows: Rows) -> Figure:
  """Draws the extreme norms along training: paper 2, Figure 3."""
  for axes, (data, n, seeds) in _panels(figure, rows):
    draw_course(axes, seeds, "max_norm", COLORS[0], "largest norm", "-")
    draw_course(axes, seeds, "min_norm", COLORS[1], "smallest norm", "--")
    axes.set(title=f"{data}, N = {n}", xlabel="step", ylabel="norm of f(x)")
    axes.set_ylim(bottom=0)
  return _with_legend(figure)


def _panels(figure: Figure, rows: Rows) -> list[tuple]:
  """Makes a panel for each data set and N of the curves."""
  panels = [
    (data, int(n), seeds)
    for data in data_of(rows)
    for n, seeds in by_setting(rows, f"{data}/curves").items()
  ]
  if not panels:
    return []
  across = -(-len(panels) // 2)
  places = figure.subplots(2, across, squeeze=False).ravel()
  for axes in places[len(panels) :]:
    axes.remove()
  return list(zip(places, panels, strict=False))


def _with_legend(figure: Figure) -> Figure:
  """Adds one legend for all panels, outside of them."""
  for axes in figure.get_axes():
    axes.grid(alpha=0.3)
  if figure.get_axes():
    lines = figure.get_axes()[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=3)
  return figure


def draw_exact(figure: Figure, rows: Rows) -> Figure:
  """Draws the counter-examples of paper 1 and Theorem 1 of paper 2."""
  if not by_setting(rows, plan.THEOREM_1):
    return figure
  first, second, third = figure.subplots(1, 3)
  examples = by_setting(rows, plan.SECTION_5_1)
  for color, (name, (x,)) in zip(COLORS, examples.items(), strict=False):
    first.plot(
      x["radius"], x["unsupervised"], "o-", color=color, label=f"$f_1$, {name}"
    )
  first.set(xlabel="r", title="Section 5.1", xscale="log", yscale="log")
  log_ticks(first.xaxis)
  log_ticks(first.yaxis)
  examples = by_setting(rows, plan.APPENDIX_C)
  for color, style, (name, (x,)) in zip(
    COLORS, ("o-", "x--"), examples.items(), strict=False
  ):
    label = f"$f_1$, {name}, {x['classes']} classes"
    second.plot(
      x["negatives"], x["unsupervised"], style, color=color, label=label
    )
  second.set(xlabel="negatives k", title="Appendix C", xscale="log")
  negatives = next(iter(examples.values()))[0]["negatives"]
  second.set_xticks(negatives, negatives)
  second.minorticks_off()
  for axes in (first, second):
    axes.axhline(1, color="black", linestyle=":", label="$f_0$ = 0")
    axes.set_ylabel("unsupervised loss, hinge")
  widths = by_setting(rows, plan.THEOREM_1)
  falling = by_setting(rows, plan.RATE_BY_WIDTH)
  shades = colormaps["viridis"](np.linspace(0, 0.9, len(widths)))
  for color, (width, seeds) in zip(shades, widths.items(), strict=True):
    for rows_of_rate, style in ((seeds, "-"), (falling.get(width, []), ":")):
      for i, x in enumerate(rows_of_rate):
        steps = np.linspace(0, x["steps"], len(x["loss"]))[1:]
        label = f"width {width}" if not i and style == "-" else None
        third.plot(
          steps, x["loss"][1:], style, color=color, label=label, linewidth=1
        )
  third.set(xlabel="step", ylabel="loss of a triplet")
  third.set(xscale="log", yscale="log")
  third.set(title="Theorem 1 (dotted: rate like 1/m)")
  for axes in (first, second, third):
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
  return figure

"""The figures of README.md; each is drawn into a figure that is given."""

from matplotlib.figure import Figure
import numpy as np

from experiments.labelled_reports import (
  COLORS,
  Lines,
  Numbers,
  data_of,
  draw_course,
  draw_summaries,
  log_ticks,
  of_settings,
  score,
  summarise,
)
from experiments.latent_classes import counter_examples


def draw_amounts(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 2 of paper 1: accuracies over k, a curve for each amount."""
  del measured
  everything = data_of(lines)
  rows = figure.subplots(len(everything), 2, squeeze=False)
  for row, data in zip(rows, everything, strict=True):
    settings = of_settings(lines, f"{data}/figure 2")
    fractions = list(dict.fromkeys(x.split()[0] for x in settings))
    for axes, name in zip(row, ("mu/avg_2", "mu/top_1"), strict=True):
      for color, fraction in zip(COLORS, fractions, strict=False):
        own = {
          int(x.split()[1]): summarise(100 * score(y, name) for y in found)
          for x, found in settings.items()
          if x.split()[0] == fraction
        }
        label = f"{100 * float(fraction):g} % of the pictures"
        draw_summaries(axes, own, color, label)
      axes.set(xscale="log", title=f"{data}: {name.replace('/', ', ')}")
      axes.set(xlabel="negatives k", ylabel="accuracy, %")
      axes.set_xticks(list(own), map(str, own))
      axes.minorticks_off()
      axes.grid(alpha=0.3)
  rows[0][0].legend(fontsize=8)


def draw_lemmas(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figures 1 and 2 of paper 2: both losses and the bound along training."""
  del measured
  panels = [
    (data, int(n), found)
    for data in data_of(lines)
    for n, found in of_settings(lines, f"{data}/curves").items()
  ]
  across = -(-len(panels) // 2)
  places = figure.subplots(2, across, squeeze=False).ravel()
  for axes in places[len(panels) :]:
    axes.set_axis_off()
  for axes, (data, n, found) in zip(places, panels, strict=False):
    bound = "bound" if n == 1 else f"bound_{n}"
    kinds = (
      (f"unsupervised_{n}", r"$L_{un}$" if n == 1 else r"$L_{un}^N$", "-"),
      ("mean_classifier", r"$L_{sup}^\mu$", "-"),
      (bound, "Lemma 1" if n == 1 else "Lemma 2", "--"),
    )
    for color, (name, label, style) in zip(COLORS, kinds, strict=False):
      draw_course(axes, found, name, color, label, style)
    axes.set(title=f"{data}, N = {n}", yscale="log", xlabel="step")
    log_ticks(axes.yaxis)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def draw_norms(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Figure 3 of paper 2: the smallest and the largest norm along training."""
  del measured
  everything = data_of(lines)
  for axes, data in zip(
    figure.subplots(1, len(everything), squeeze=False)[0],
    everything,
    strict=True,
  ):
    settings = of_settings(lines, f"{data}/curves")
    for color, (n, found) in zip(COLORS, settings.items(), strict=False):
      draw_course(axes, found, "max_norm", color, f"largest, N = {n}", "-")
      draw_course(axes, found, "min_norm", color, f"smallest, N = {n}", "--")
    axes.set(title=data, xlabel="step", ylabel="norm of f(x)", yscale="log")
    log_ticks(axes.yaxis)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def draw_exact(figure: Figure, lines: Lines, measured: Numbers) -> None:
  """Counter-examples of paper 1, and Theorem 1 of paper 2."""
  del lines
  first, second, third = figure.subplots(1, 3)
  examples = measured["counter-examples"]
  for color, (name, x) in zip(
    COLORS, examples["figure 1"].items(), strict=False
  ):
    first.plot(
      x["radius"], x["unsupervised"], "o-", color=color, label=f"$f_1$, {name}"
    )
  first.set(xlabel="r", title="Section 5.1", xscale="log", yscale="log")
  log_ticks(first.xaxis)
  log_ticks(first.yaxis)
  for color, style, (name, x) in zip(
    COLORS, ("o-", "x--"), examples["appendix C"].items(), strict=False
  ):
    label = f"$f_1$, {name}, {x['classes']} classes"
    second.plot(
      x["negatives"], x["unsupervised"], style, color=color, label=label
    )
  second.set(xlabel="negatives k", title="Appendix C", xscale="log")
  second.set_xticks(counter_examples.NEGATIVES, counter_examples.NEGATIVES)
  second.minorticks_off()
  for axes in (first, second):
    axes.axhline(1, color="black", linestyle=":", label="$f_0$ = 0")
    axes.set_ylabel("unsupervised loss, hinge")
  steps = measured["theorem 1"]["steps"]
  for color, (width, x) in zip(
    COLORS, measured["theorem 1"]["widths"].items(), strict=False
  ):
    for i, losses in enumerate(x["loss"]):
      at = np.linspace(0, steps, len(losses))
      label = f"width {width}" if not i else None
      third.plot(at, losses, color=color, label=label, linewidth=1)
  third.set(xlabel="step", ylabel="loss, a triplet", yscale="log")
  third.set(title="Theorem 1: fixed triplets")
  for axes in (first, second, third):
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)

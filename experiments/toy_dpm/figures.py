"""The figures of README.md; each is drawn into an empty figure."""

from typing import NamedTuple

from matplotlib import ticker
from matplotlib.figure import Figure
import numpy as np
from scipy import interpolate, stats

from experiments.harness import Options, Results
from experiments.harness.plots import log_ticks, new_figure
from experiments.toy_dpm.risks import GCL, LEARNED, MLE, TRUE
from experiments.toy_dpm.summary import Numbers, summarise_all

APPROXIMATION = r"$\tilde{q}$"
GRID = 80  # points of a heat map along each axis


class Style(NamedTuple):
  """How a method looks in every figure; the colors are Okabe and Ito's."""

  label: str
  color: str
  marker: str
  line: str = "-"


STYLES = {
  MLE: Style("MLE, exact integral", "#000000", "s"),
  TRUE: Style("true q", "#009E73", "D", ":"),
  "learned, maxima": Style("learned, Z by maxima (paper)", "#0072B2", "o"),
  "learned, means": Style("learned, Z by means", "#56B4E9", "^", "--"),
  "learned, area": Style("learned, Z by the area", "#CC79A7", "v", "-."),
  "GCL, area": Style("GCL, c = 1", "#D55E00", "X"),
  "GCL, best": Style("GCL, best c", "#E69F00", "P", "--"),
}
# Quantities that depend on no constant have one look per method, and the best c
# looks the same whether it is fitted or chosen per data set.
ALIKE = {
  LEARNED: STYLES["learned, maxima"]._replace(label="learned"),
  GCL: STYLES["GCL, area"]._replace(label="GCL"),
  "GCL, fitted": STYLES["GCL, best"],
}
WITH_CONSTANTS = ("learned, maxima", "learned, means", "learned, area")
ERROR = (MLE, *WITH_CONSTANTS, "GCL, area", "GCL, fitted")
ERROR_TERM = (*WITH_CONSTANTS, "GCL, area", "GCL, best")
BOUNDED = ("learned, maxima", "learned, area", "GCL, area")
ERROR_LABEL = "absolute error, units of E"


def figures(options: Options, results: Results) -> dict[str, Figure]:
  """Draws all figures; returns them by file name."""
  del options
  numbers = summarise_all(results)
  drawings = {
    "spaces.png": draw_spaces,
    "temperatures.png": draw_temperatures,
    "without_constants.png": draw_without_constants,
    "bound.png": draw_bound,
  }
  drawn = {name: new_figure(dpi=120) for name in drawings}
  if numbers:
    for name, draw in drawings.items():
      draw(drawn[name], numbers)
  return drawn


def draw_curves(axes, methods, numbers: Numbers, sizes, ylabel: str) -> None:
  """Draws means over n with their 95 % intervals, both axes logarithmic."""
  for method in methods:
    style = ALIKE.get(method) or STYLES[method]
    mean, half = numbers[method].mean, numbers[method].half_width
    axes.plot(
      sizes,
      mean,
      style.line,
      marker=style.marker,
      markersize=4,
      color=style.color,
      label=style.label,
    )
    low = np.maximum(mean - half, mean / 10)  # a log axis has no place for 0
    axes.fill_between(
      sizes, low, mean + half, color=style.color, alpha=0.15, linewidth=0
    )
  axes.set(xscale="log", yscale="log", ylabel=ylabel)
  axes.set_xlabel("number of pairs n")
  axes.set_xticks(sizes, map(str, sizes))
  log_ticks(axes.yaxis)
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.grid(alpha=0.3)


def draw_popularity(axes, points, values, limits, title: str):
  """Draws a heat map of values at points of the square."""
  line = np.linspace(0, 1, GRID)
  grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
  heat = interpolate.RBFInterpolator(points, values)(grid)
  image = axes.imshow(
    heat.reshape(GRID, GRID),
    origin="lower",
    extent=(0, 1, 0, 1),
    vmin=limits[0],
    vmax=limits[1],
  )
  axes.plot(*points.T, ".", color="white", markersize=2)
  axes.set(xlabel="$y_1$", ylabel="$y_2$", title=title)
  return image


def draw_spaces(figure: Figure, results: Numbers) -> None:
  """Draws Figure 2: spaces, q, q~ and error at the first temperature."""
  tau, numbers = next(iter(results["temperatures"].items()))
  example = numbers["example"]
  axes = figure.subplot_mosaic(
    [["X", "q", "error"], ["Y", "approximation", "error"]],
    width_ratios=[1, 1.15, 1.6],
  )
  x, y = np.array(example["image"]), np.array(example["text"])
  angle = np.linspace(0, np.pi, 100)
  edge = np.stack([np.cos(angle), np.sin(angle)], axis=1)
  axes["X"].plot(*np.concatenate([edge, edge[:1]]).T, color="black")
  axes["X"].plot(*x.T, ".", color="#0072B2", markersize=4)
  axes["X"].set(xlabel="$x_1$", ylabel="$x_2$", title="anchors X")
  axes["Y"].plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="black")
  axes["Y"].plot(*y.T, ".", color="#D55E00", markersize=4)
  axes["Y"].set(xlabel="$y_1$", ylabel="$y_2$", title="contrasts Y")
  for name in "XY":
    axes[name].set_aspect("equal")
  q, learned = np.exp(example["log_q"]), np.exp(example["log_learned"])
  both = np.concatenate([q, learned])
  limits = both.min(), both.max()
  draw_popularity(axes["q"], y, q, limits, f"true q, n = {len(q)}")
  image = draw_popularity(
    axes["approximation"],
    y,
    learned,
    limits,
    f"learned {APPROXIMATION}, n = {len(q)}",
  )
  figure.colorbar(
    image,
    ax=[axes["q"], axes["approximation"]],
    label="popularity, anchors per unit area",
  )
  errors, sizes = numbers["error"], results["sizes"]
  draw_curves(axes["error"], ERROR, errors, sizes, ERROR_LABEL)
  axes["error"].set_title(f"generalisation error, τ = {tau}")
  axes["error"].legend(fontsize=8)


def draw_density(axes, example, tau: str) -> None:
  """Draws kernel densities of true and learned popularities."""
  q, learned = np.exp(example["log_q"]), np.exp(example["log_learned"])
  both = np.concatenate([q, learned])
  x = np.linspace(0, 1.1 * both.max(), 300)
  for values, style in ((q, STYLES[TRUE]), (learned, ALIKE[LEARNED])):
    label = "true q" if values is q else f"learned {APPROXIMATION}, Z by maxima"
    density = stats.gaussian_kde(values)(x)
    axes.plot(x, density, style.line, color=style.color, label=label)
  axes.axvline(len(q), color=ALIKE[GCL].color, label="GCL, c = 1")
  axes.set_xlabel(f"popularity at n = {len(q)}, anchors per unit area")
  axes.set(ylabel="density of popularities", title=f"τ = {tau}")


def draw_temperatures(figure: Figure, results: Numbers) -> None:
  """Draws Figure 6: densities, generalisation error and error term."""
  every = results["temperatures"]
  rows = figure.subplots(len(every), 3, squeeze=False)
  sizes = results["sizes"]
  for row, (tau, numbers) in zip(rows, every.items(), strict=True):
    draw_density(row[0], numbers["example"], tau)
    draw_curves(row[1], ERROR, numbers["error"], sizes, ERROR_LABEL)
    term = numbers["error_term"]
    draw_curves(row[2], ERROR_TERM, term, sizes, "error term of Theorem 1")
  rows[0][0].legend(fontsize=8)
  handles, labels = rows[0][1].get_legend_handles_labels()
  figure.legend(
    handles, labels, loc="outside lower center", ncols=len(ERROR), fontsize=8
  )


def draw_without_constants(figure: Figure, results: Numbers) -> None:
  """Draws what no constant changes: the shape of q~ and the gradient."""
  every = results["temperatures"]
  rows = figure.subplots(len(every), 2, squeeze=False)
  sizes = results["sizes"]
  for row, (tau, numbers) in zip(rows, every.items(), strict=True):
    draw_curves(
      row[0],
      (LEARNED, GCL),
      numbers["shape"],
      sizes,
      f"std of log({APPROXIMATION} / q), τ = {tau}",
    )
    draw_curves(
      row[1],
      (MLE, TRUE, LEARNED, GCL),
      numbers["gradient"],
      sizes,
      f"gradient norm at W = 1, τ = {tau}",
    )
  for axes in rows[0]:
    axes.legend(fontsize=8)


def draw_bound(figure: Figure, results: Numbers) -> None:
  """Draws errors, the last part of Theorem 1's bound, and the other parts."""
  every, sizes = results["temperatures"], results["sizes"]
  row = figure.subplots(1, len(every), squeeze=False)[0]
  for axes, (tau, numbers) in zip(row, every.items(), strict=True):
    bound = numbers["bound"]
    for method in BOUNDED:
      style = STYLES[method]
      look = dict(color=style.color, marker=style.marker, markersize=4)
      error = numbers["error"][method].mean
      axes.plot(sizes, error, "-", label=f"error: {style.label}", **look)
      last = bound[method].mean
      axes.plot(sizes, last, "--", label=f"last part: {style.label}", **look)
    for part, line in (("likelihood", "-."), ("integration", ":")):
      label = f"part of the bound: {part}"
      axes.plot(sizes, bound[part].mean, line, color="black", label=label)
    axes.set(xscale="log", yscale="log", title=f"τ = {tau}")
    axes.set_xlabel("number of pairs n")
    axes.set_ylabel("error, or part of the bound")
    axes.grid(alpha=0.3)
  handles, labels = row[0].get_legend_handles_labels()
  figure.legend(
    handles, labels, loc="outside lower center", ncols=4, fontsize=8
  )

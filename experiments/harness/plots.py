"""Shared by the figures of several studies."""

from collections.abc import Mapping

from matplotlib import ticker
from matplotlib.figure import Figure

from experiments.harness.statistics import Statistics

SIZE = (11, 6)  # inches
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def new_figure(size: tuple[float, float] = SIZE, *, dpi: int = 100) -> Figure:
  """Makes an empty figure.

  Args:
    size: Width and height in inches.
    dpi: Pixels per inch.
  """
  return Figure(figsize=size, dpi=dpi, layout="constrained")


def draw_statistics(
  axes, points: Mapping[float, Statistics], color, label, style="o-"
) -> None:
  """Draws means with their 95 % intervals.

  Args:
    axes: The Matplotlib axes to draw on.
    points: The statistics at each place on the x axis.
    color: The color of all points.
    label: The text of the legend.
    style: A Matplotlib format string for marker and line.
  """
  axes.errorbar(
    list(points),
    [x.mean for x in points.values()],
    [x.half_width for x in points.values()],
    fmt=style,
    markersize=4,
    color=color,
    label=label,
  )


def log_ticks(axis) -> None:
  """Puts ticks at 1, 2 and 5 in each decade of a logarithmic axis."""
  axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter("{x:g}")
  axis.set_minor_locator(ticker.NullLocator())

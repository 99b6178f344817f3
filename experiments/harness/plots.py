"""What the figures of several studies share."""

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
    dpi: Pixels in an inch.
  """
  return Figure(figsize=size, dpi=dpi, layout="constrained")


def draw_statistics(
  axes, points: Mapping[float, Statistics], color, label, style="o-"
) -> None:
  """Draws means with their standard errors.

  Args:
    axes: Where to draw.
    points: By their place on the x axis.
    color: One color for all.
    label: Text of the legend.
    style: Marker and line, as Matplotlib writes them.
  """
  axes.errorbar(
    list(points),
    [x.mean for x in points.values()],
    [x.standard_error for x in points.values()],
    fmt=style,
    markersize=4,
    color=color,
    label=label,
  )


def log_ticks(axis) -> None:
  """Puts ticks at 1, 2, 5 of each decade of a logarithmic axis."""
  axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axis.set_major_formatter("{x:g}")
  axis.set_minor_locator(ticker.NullLocator())

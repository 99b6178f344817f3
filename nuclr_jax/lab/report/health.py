"""How training went: diagnostics, alarms, and where the time went."""

from collections.abc import Mapping, Sequence
import html
import pathlib

from matplotlib.figure import Figure

from nuclr_jax.lab.report import page
from nuclr_jax.lab.train.diagnostics import Scale, find_alarms
from nuclr_jax.types import Sides

History = Sequence[Mapping[str, float]]

PREFIX = "diagnostics/"
# The title and the limits of each panel, which shows a number of both sides.
PANELS = {
  "mean_cosine": ("mean cosine of different samples", (-0.1, 1)),
  "dimensions": ("dimensions of the embeddings", None),
  "effective_negatives": ("effective negatives of a batch", None),
  "u_drift": ("u off the model, nats", None),
  "zeta_gain": ("gain of zeta over zeta = 0", (-1, 1)),
  "zeta_residual": ("residual of zeta", None),
  "zeta_noise": ("residuals of zeta that are noise", None),
  "temperature": ("temperature", None),
}


def section(
  history: History, times: History, plots: pathlib.Path, scale: Scale
) -> str:
  """Makes the section of a report; it is empty if the run recorded nothing.

  Args:
    history: The run's diagnostics (see `records.read_history`).
    times: How the run spent its time, read from `records.TIMES`.
    plots: The folder for the plots.
    scale: What the diagnostics of the run are compared with.
  """
  panels = [("gradient norm", ["train/gradient_norm"], None, history)]
  for name, (title, limits) in PANELS.items():
    names = [f"{PREFIX}{name}/{side}" for side in Sides._fields]
    panels.append((title, names, limits, history))
  shares = sorted({x for row in times for x in row if x.startswith("share/")})
  panels.append(("share of the time", shares, (0, 1), times))
  panels.append(("pairs per second", ["pairs_per_second"], None, times))
  panels = [x for x in panels if any(set(x[1]) & set(row) for row in x[3])]
  if not panels:
    return ""
  across = min(len(panels), 3)
  down = -(-len(panels) // across)
  figure = Figure(figsize=(3.7 * across, 2.9 * down), layout="constrained")
  axes = figure.subplots(down, across, squeeze=False).ravel()
  for place, (title, names, limits, rows) in zip(axes, panels, strict=False):
    page.plot(place, rows, names)
    place.set_title(title, fontsize=10)
    if limits:
      place.set_ylim(*limits)
    for text in place.get_legend().get_texts():
      text.set_text(text.get_text().rsplit("/", 1)[-1])
  for place in axes[len(panels) :]:
    place.set_axis_off()
  plot = page.save(figure, plots / "health.png")
  return f"<h2>Health</h2>{_alarms(history, scale)}{plot}"


def warnings(history: History, scale: Scale) -> list[str]:
  """Returns what the newest diagnostics of a run warn of.

  Args:
    history: The run's diagnostics.
    scale: What they are compared with.
  """
  return find_alarms(_newest(history), scale)


def _newest(history):
  """Returns the newest row with diagnostics; an empty one if there is none."""
  rows = [x for x in history if any(name.startswith(PREFIX) for name in x)]
  return rows[-1] if rows else {}


def _alarms(history, scale) -> str:
  """Shows what the newest diagnostics warn of."""
  newest = _newest(history)
  if not newest:
    return ""
  items = [
    f"<li class=wrong>{html.escape(x)}" for x in warnings(history, scale)
  ]
  for side in Sides._fields:
    noise, gain, low = (
      f"{PREFIX}{name}/{side}"
      for name in ("zeta_noise", "zeta_gain", "zeta_gain_low")
    )
    if low in newest and gain not in newest:
      items.append(
        f"<li>the residual of zeta of {side}s is below the noise: its gain is "
        f"at least {newest[low]:.2f}"
      )
    elif noise in newest and low not in newest:
      items.append(
        f"<li>how good zeta of {side}s is cannot be told from the sample: the "
        "residual of zeta = 0 is below the noise"
      )
  if not items:
    return "<p>The newest diagnostics warn of nothing.</p>"
  return f"<p>At step {newest['step']}:</p><ul>{''.join(items)}</ul>"

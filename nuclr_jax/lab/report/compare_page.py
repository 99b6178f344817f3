"""The page of `nuclr compare`: scores, curves, and how configs differ."""

from collections.abc import Sequence
import html
import pathlib

from matplotlib.figure import Figure
import numpy as np

from nuclr_jax.lab.report import compare, page
from nuclr_jax.lab.report.compare import ABSENT, Found, Setting
from nuclr_jax.lab.train import records

LOSS = "train/loss"
MAX_CURVES = 4  # scores with a plot
WIDTH, HEIGHT = 5.5, 3.4  # inches of a plot


def write(path: pathlib.Path, found: Found, blocks: Sequence[str]) -> None:
  """Writes the page.

  Args:
    path: The file.
    found: The settings and the notes.
    blocks: The lines of scores, as a terminal shows them.
  """
  settings = found.settings
  count = sum(len(x.runs) for x in settings)
  notes = "".join(f"<li>{html.escape(x)}" for x in found.notes)
  shown = "\n".join(blocks).strip("\n")
  sections = [
    f"<p>{count} runs in {len(settings)} settings, each compared with the "
    "first by its runs of the same seed. Intervals are 95 % (Student's t); a "
    "star says that 0 is outside.</p>",
    f"<ul class=wrong>{notes}</ul>" if notes else "",
    f"<pre>{html.escape(shown)}</pre>",
    "<h2>Curves</h2><p>Losses of different objectives have different "
    "scales.</p>" + _curves(settings, path.with_name("curves.png")),
    "<h2>What differs in the configs</h2>" + _configs(settings),
    "<h2>Runs</h2>" + _runs(settings),
  ]
  page.write(path, "Runs side by side", sections)


def _curves(settings: Sequence[Setting], path: pathlib.Path) -> str:
  """Plots the loss and scores over steps, and over hours."""
  runs = [run for x in settings for run in x.runs.values()]
  scored = (
    name
    for run in runs
    for row in run.history
    for name in row
    if name.startswith("validation/")
  )
  names = [LOSS, *records.headlines(scored)[:MAX_CURVES]]
  figure = Figure(
    figsize=(2 * WIDTH, HEIGHT * len(names)), layout="constrained"
  )
  axes = figure.subplots(len(names), 2, squeeze=False)
  hours = {run.name: compare.hours(run) for run in runs}
  for (left, right), name in zip(axes, names, strict=True):
    for i, setting in enumerate(settings):
      for j, run in enumerate(setting.runs.values()):
        points = page.points(run.history, name)
        if not points:
          continue
        steps, values = map(np.array, zip(*points, strict=True))
        style = {"color": f"C{i % 10}", "alpha": 0.8, "linewidth": 1.2}
        label = None if j else setting.label.replace("$", r"\$")
        left.plot(steps, values, label=label, **style)
        known = hours[run.name]
        if any(known.values()):
          at = np.interp(steps, list(known), list(known.values()))
          right.plot(at, values, **style)
    left.set(xlabel="step", ylabel=name)
    right.set(xlabel="hours, without compiling")
    for axis in (left, right):
      axis.grid(alpha=0.3)
  axes[0, 0].legend(frameon=False, fontsize=8)
  return page.save(figure, path)


def _configs(settings: Sequence[Setting]) -> str:
  configs = [x.config for x in settings]
  rows = [
    [key.replace("/", "."), *(str(x.get(key, ABSENT)) for x in configs)]
    for key in compare.differing(configs)
  ]
  if not rows:
    return "<p>Nothing but seeds.</p>"
  return page.grid(["", *(x.label for x in settings)], rows)


def _runs(settings: Sequence[Setting]) -> str:
  rows = [
    [
      run.name,
      setting.label,
      str(run.seed),
      f"{run.step:,}",
      "finished" if run.final is not None else "not finished",
    ]
    for setting in settings
    for run in setting.runs.values()
  ]
  return page.grid(["run", "setting", "seed", "step", ""], rows)

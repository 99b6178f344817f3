"""Extending a run: the same config with more epochs, in the same workdir.

A run that is extended goes on from its newest checkpoint: parameters, u, zeta,
the optimizer's state and the position in the data are kept. The number of
epochs has no part in any of them. It decides when the run ends, and with that
what schedules plan, which are made anew for the longer run:

  value(step) = schedule(step; num_steps after),  from the checkpoint's step on

A schedule that does not look at the end, such as a constant one, is the same as
before, and the run is the one that would have had as many epochs from the
start, bit for bit. A cosine that has come down to 0 rises again.
"""

from collections.abc import Iterator, Mapping
import json
import logging
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.factories import Bound
from nuclr_jax.lab.train import checkpoint, records
from nuclr_jax.lab.train.build import Experiment, span_of
from nuclr_jax.lab.train.optimizer import make_schedule
from nuclr_jax.lab.train.settings import Settings
from nuclr_jax.types import Schedule, Sides

EXTENDED = "extended.jsonl"  # a file of the workdir
EPOCHS = "num_epochs"  # the key of a config
SAME = 1e-6  # values of schedules that differ by a smaller share are equal
COMPARED = 65  # steps at which two plans are compared

log = logging.getLogger(__name__)


class Planned(NamedTuple):
  """What a schedule plans before and after a run is extended."""

  before: Schedule
  after: Schedule


def lengthened(
  recorded: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
  """Gives the config of a run the epochs that settings have, if they are more.

  Args:
    recorded: The complete config that the run has been trained with.
    settings: The settings that it is to go on with.
  """
  more = max(recorded[EPOCHS], settings.num_epochs)
  return {**recorded, EPOCHS: more}


def epochs_before(workdir: pathlib.Path, settings: Settings) -> float | None:
  """Returns how many epochs a run had that settings extend; None for others.

  Args:
    workdir: Folder of a run, whose config is not replaced yet; may be missing.
    settings: The settings that it is to go on with.
  """
  if not checkpoint.steps(workdir):
    return None
  before = records.read_config(workdir)[EPOCHS]
  return before if settings.num_epochs > before else None


def is_scored(workdir: pathlib.Path, settings: Settings) -> bool:
  """Returns whether a run has its final scores, and is not to be extended.

  Args:
    workdir: Folder of a run, whose config is not replaced yet; may be missing.
    settings: The settings that it is to go on with.
  """
  finished = (workdir / records.METRICS).exists()
  return finished and epochs_before(workdir, settings) is None


def begin(
  workdir: pathlib.Path,
  parts: Experiment,
  step: int | None,
  before: float | None,
) -> None:
  """Notes that a run is extended, and says what this changes.

  Its final metrics, `records.METRICS`, are removed: those of the history stay.

  Args:
    workdir: Folder of the run.
    parts: The parts of the longer run.
    step: The step that the run goes on from.
    before: What `epochs_before` returned; with None, nothing is done.
  """
  if before is None:
    return
  settings = parts.settings
  span = span_of(settings._replace(num_epochs=before), parts.data.train.sizes)
  log.info(
    "%s: the run is extended from %d to %d steps (num_epochs %g to %g); it "
    "goes on at step %d with its u, zeta, optimizer and position in the data",
    workdir,
    span["num_steps"],
    parts.num_steps,
    before,
    settings.num_epochs,
    step,
  )
  plans = planned(settings, span, parts.num_steps)
  for line in told(plans, step, parts.num_steps):
    log.info("%s", line)
  if distributed.is_first():
    path = workdir / EXTENDED
    rows = [*files.read_json_lines(path), {"step": step, EPOCHS: before}]
    files.write_atomically(path, "".join(json.dumps(x) + "\n" for x in rows))
    (workdir / records.METRICS).unlink(missing_ok=True)


def planned(
  settings: Settings, span: Mapping[str, int], num_steps: int
) -> dict[str, Planned]:
  """Returns the schedules of a run, by their keys in the config.

  Args:
    settings: The settings of the run.
    span: What `build.span_of` returned before the run was extended.
    num_steps: The steps of the longer run.
  """
  of_run = (settings.optimizer, settings.objective, *settings.terms.values())
  return {
    bound.key: Planned(bound(**span), bound(**{**span, "num_steps": num_steps}))
    for value in of_run
    for bound in _schedules(value)
  }


def told(plans: Mapping[str, Planned], step: int, num_steps: int) -> list[str]:
  """Says what becomes of each schedule, in a line.

  Args:
    plans: What `planned` returned.
    step: The step that the run goes on from.
    num_steps: The steps of the longer run.

  Example:
    >>> plan = Planned(lambda step: 1 - step / 4, lambda step: 1 - step / 8)
    >>> told({"rate": plan, "gamma": Planned(abs, abs)}, 4, 8)
    ['rate is planned anew: at step 4 it is 0.5 in place of 0 (it rises \
again), and at step 8, the end, 0', 'gamma stays as it was planned']
  """
  lines = []
  for key, plan in plans.items():
    at = np.unique(np.linspace(step, num_steps, COMPARED, dtype=int))
    if all(_is_close(*(float(x(int(i))) for x in plan)) for i in at):
      lines.append(f"{key} stays as it was planned")
      continue
    old, new = (float(x(step)) for x in plan)
    rises = " (it rises again)" if new > old else ""
    place = f" in place of {old:.3g}{rises}"
    lines.append(
      f"{key} is planned anew: at step {step} it is {new:.3g}"
      f"{'' if _is_close(old, new) else place}, and at step {num_steps}, the "
      f"end, {float(plan.after(num_steps)):.3g}"
    )
  return lines


def _is_close(a: float, b: float) -> bool:
  return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-12)


def _schedules(value: Any) -> Iterator[Bound]:
  """Yields the schedules among the arguments of a factory, at any depth."""
  if isinstance(value, Sides):
    for x in value:
      yield from _schedules(x)
  elif isinstance(value, Bound):
    if value.factory is make_schedule:
      yield value
    else:
      for x in value.arguments.values():
        yield from _schedules(x)

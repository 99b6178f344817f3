"""Extending a run: the same config with more epochs, in the same workdir.

A run that is extended goes on from its newest checkpoint: parameters, u, zeta,
the optimizer's state and the position in the data are kept. The number of
epochs has no part in any of them. It decides when the run ends, and with that
what schedules plan, which are made anew for the longer run:

  value(step) = schedule(step; num_steps after),  from the checkpoint's step on

A schedule that does not look at the end, such as a constant one, is the same as
before, and the run is the one that would have had as many epochs from the
start, bit for bit. A cosine that has come down to 0 rises again.

A data set that has gained or lost pairs changes the number of steps, too, and
schedules are made anew in the same way.
"""

from collections.abc import Iterator, Mapping
import json
import logging
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
import orbax.checkpoint as ocp

from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.factories import Bound
from nuclr_jax.lab.train import checkpoint, records
from nuclr_jax.lab.train.build import Experiment, span_of
from nuclr_jax.lab.train.optimizer import make_schedule
from nuclr_jax.lab.train.settings import Settings
from nuclr_jax.types import Schedule, Sides, Sizes

EXTENDED = "extended.jsonl"  # a file of the workdir
EPOCHS, PAIRS = "num_epochs", "num_pairs"  # keys of a config and of sizes
SAME = 1e-6  # values of schedules that differ by a smaller share are equal
COMPARED = 65  # steps at which two plans are compared

log = logging.getLogger(__name__)


class Planned(NamedTuple):
  """What a schedule plans before and after the number of steps changes."""

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


def is_scored(workdir: pathlib.Path, settings: Settings) -> bool:
  """Returns whether a run has its final scores, and is not to be extended.

  Args:
    workdir: Folder of a run, whose config is not replaced yet; may be missing.
    settings: The settings that it is to go on with.
  """
  if not (workdir / records.METRICS).exists():
    return False
  if not checkpoint.steps(workdir):
    return True
  return settings.num_epochs <= records.read_config(workdir)[EPOCHS]


def check_end(
  workdir: pathlib.Path, parts: Experiment, manager: ocp.CheckpointManager
) -> None:
  """Checks that a run that is not finished does not end before its checkpoint.

  Args:
    workdir: Folder of the run.
    parts: The parts that the run goes on with.
    manager: The checkpoints of the run.

  Raises:
    ValueError: If it would, for instance because the data have lost pairs.
  """
  step = checkpoint.latest(manager)
  if step is None or step <= parts.num_steps:
    return
  settings, saved = parts.settings, checkpoint.read_meta(manager, step)
  if _is_finished(workdir, settings, saved):
    return
  pairs, old_pairs = parts.data.train.sizes.num_pairs, saved["sizes"][PAIRS]
  end = _span_before(settings, saved)["num_steps"]
  enough = max(step + 1, end) / (pairs // settings.batch_size)
  raise ValueError(
    f"{workdir} is not finished and has a checkpoint of step {step}, but now "
    f"it would end at step {parts.num_steps}: it had {old_pairs} training "
    f"pairs and {end} steps, and there are {pairs} pairs. Use the data of that "
    f"run, or raise --config.{EPOCHS} from {settings.num_epochs:g}, say to "
    f"{math.ceil(enough)}; nuclr evaluate and nuclr export take the checkpoint "
    "as it is"
  )


def begin(
  workdir: pathlib.Path,
  parts: Experiment,
  manager: ocp.CheckpointManager,
  step: int,
) -> None:
  """Notes that the number of a run's steps changes, and says what this changes.

  It does if the run has more epochs than when its checkpoint was saved, or its
  data have gained or lost pairs. If training goes on, the final metrics,
  `records.METRICS`, are removed: those of the history stay.

  Args:
    workdir: Folder of the run.
    parts: The parts that the run goes on with.
    manager: The checkpoints of the run.
    step: The step of the checkpoint that the run goes on from.
  """
  settings, saved = parts.settings, checkpoint.read_meta(manager, step)
  epochs, old_pairs = saved["config"][EPOCHS], saved["sizes"][PAIRS]
  pairs = parts.data.train.sizes.num_pairs
  before = _span_before(settings, saved)
  after = span_of(settings, parts.data.train.sizes)
  if before == after or (
    step >= parts.num_steps and _is_finished(workdir, settings, saved)
  ):
    return
  after["num_steps"] = parts.num_steps  # may be one's own
  why, kept = [], "its u, zeta, optimizer and position in the data"
  if settings.num_epochs > epochs:
    why.append(f"num_epochs {epochs:g} to {settings.num_epochs:g}")
  if pairs != old_pairs:
    why.append(f"{old_pairs} to {pairs} training pairs")
    kept = "its optimizer, and with u and zeta of the pairs that it had"
  by = parts.num_steps - before["num_steps"]
  what = "extended" if by > 0 else "shortened" if by else "planned anew"
  # Nobody asks for the effect of other data on schedules.
  level = logging.INFO if pairs == old_pairs else logging.WARNING
  log.log(
    level,
    "%s: the run is %s from %d to %d steps (%s); it goes on at step %d with %s",
    workdir,
    what,
    before["num_steps"],
    parts.num_steps,
    "; ".join(why),
    step,
    kept,
  )
  for line in told(planned(settings, before, after), step, parts.num_steps):
    log.log(level, "%s", line)
  if distributed.is_first():
    row = {"step": step, EPOCHS: epochs}
    row |= {PAIRS: old_pairs} if pairs != old_pairs else {}
    path = workdir / EXTENDED
    rows = files.read_json_lines(path)
    rows += [row] if row not in rows else []  # a run may go on from it twice
    files.write_atomically(path, "".join(json.dumps(x) + "\n" for x in rows))
    (workdir / records.METRICS).unlink(missing_ok=True)


def in_words(row: Mapping[str, Any]) -> str:
  """Says what a line of `EXTENDED` says.

  Args:
    row: The line, of any content.

  Example:
    >>> in_words({"step": 8, "num_epochs": 2})
    'The run was extended at step 8; it was to have 2 epochs before.'
    >>> in_words({"step": 8, "num_epochs": 2, "num_pairs": 256})
    'The data changed at step 8; the run was to have 2 epochs of 256 pairs \
before.'
  """
  step, epochs = row.get("step"), row.get(EPOCHS)
  if PAIRS not in row:
    return (
      f"The run was extended at step {step}; it was to have {epochs} epochs "
      "before."
    )
  return (
    f"The data changed at step {step}; the run was to have {epochs} epochs of "
    f"{row[PAIRS]} pairs before."
  )


def _is_finished(workdir, settings, saved: checkpoint.Meta) -> bool:
  """Returns whether a run has its final scores and is not to be extended."""
  more = settings.num_epochs > saved["config"][EPOCHS]
  return (workdir / records.METRICS).exists() and not more


def _span_before(settings: Settings, saved: checkpoint.Meta) -> dict[str, int]:
  """Returns the `build.span_of` of a run when its checkpoint was saved."""
  then = settings._replace(num_epochs=saved["config"][EPOCHS])
  return span_of(then, Sizes(**saved["sizes"]))


def planned(
  settings: Settings, before: Mapping[str, int], after: Mapping[str, int]
) -> dict[str, Planned]:
  """Returns the schedules of a run, by their keys in the config.

  Args:
    settings: The settings of the run.
    before: What `build.span_of` returned for the run as it was.
    after: What it returns now.
  """
  of_run = (settings.optimizer, settings.objective, *settings.terms.values())
  return {
    bound.key: Planned(bound(**before), bound(**after))
    for value in of_run
    for bound in _schedules(value)
  }


def told(plans: Mapping[str, Planned], step: int, num_steps: int) -> list[str]:
  """Says what becomes of each schedule, in a line.

  Args:
    plans: What `planned` returned.
    step: The step that the run goes on from.
    num_steps: The steps of the run as it is now.

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

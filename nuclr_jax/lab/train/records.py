"""The files that a run writes to its workdir: config, metrics and times."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
from functools import partial
import json
import logging
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nuclr_jax import checks
from nuclr_jax.lab import distributed, extensions, files
from nuclr_jax.lab.config import (
  OWN_PARTS,
  Config,
  ConfigError,
  complete,
  is_due,
)
from nuclr_jax.lab.train import trackers
from nuclr_jax.lab.train.settings import Settings, resolve, with_held_out
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)

# Files of a workdir.
CONFIG, METRICS = "config.json", "metrics.json"
HISTORY, TIMES = "history.jsonl", "times.jsonl"

NEEDED = ("data", "model", "objective", "optimizer")  # to open a run

Window = Sequence[tuple[int, Metrics]]  # metrics of steps

# What is scored at the end; nuclr evaluate scores other sets of a finished run.
SCORED = ("data/test", "data/zero_shot", "data/probes")
# Keys that do not change what is learned: a run may continue with other values.
MAY_DIFFER = (
  # Where the work is done.
  "num_devices",
  "num_slices",
  "shard_params",
  "offload_rows",
  "num_workers",  # the batches are the same
  "data/package",  # once they are prepared, icons do without
  "data/processes",
  # What is logged, scored and kept, and when.
  "log_every",
  "eval_every",
  "eval_every_epochs",
  "checkpoint_every",
  "max_checkpoints",
  "keep_best",
  "trackers",
  # What is scored at the end: a wrong name must not cost the run.
  *SCORED,
)

# Other metrics may be infinite, but not NaN.
MUST_BE_FINITE = ("train/loss", "train/gradient_norm")


class Recorder(NamedTuple):
  """Writes the scalars of a step to a file of JSON lines and to trackers."""

  # Writes to `HISTORY`, which is the same for every run with the same seed.
  write: Callable[[int, Metrics], None]
  # Writes to `TIMES`, which differs from run to run.
  write_times: Callable[[int, Metrics], None]
  # Tells trackers that the run is stopped before its end.
  stop: Callable[[], None]


@contextlib.contextmanager
def open_recorder(
  workdir: pathlib.Path, settings: Settings | None = None, *, start_step: int
) -> Iterator[Recorder]:
  """Opens `history.jsonl`, `times.jsonl` and trackers; one process writes.

  Lines for steps after `start_step` are dropped, since these steps are done
  again; a run that starts at step 0 drops all lines.

  Args:
    workdir: Folder of the run.
    settings: The settings of the run, which name services that show it; by
      default there are none.
    start_step: The step that the run continues from.
  """
  if not distributed.is_first():
    yield Recorder(*[lambda step, metrics: None] * 2, lambda: None)
    return

  kept = start_step if start_step > 0 else -1  # the last step to keep

  def write(file, step, metrics):
    metrics = {name: float(value) for name, value in metrics.items()}
    file.write(json.dumps({"step": step} | metrics) + "\n")
    file.flush()
    tracked.hand_on(step, metrics)

  with contextlib.ExitStack() as stack:
    opened = trackers.open_all(workdir, settings, kept=kept)
    tracked, writers = stack.enter_context(opened), []
    for name in (HISTORY, TIMES):
      rows = [x for x in read_history(workdir, name) if x["step"] <= kept]
      text = "".join(json.dumps(row) + "\n" for row in rows)
      files.write_atomically(workdir / name, text)
      file = stack.enter_context(files.open_in_place(workdir / name, "a"))
      writers.append(partial(write, file))
    yield Recorder(*writers, tracked.stop)


def read_history(
  workdir: pathlib.Path, name: str = HISTORY
) -> list[dict[str, float]]:
  """Reads the rows of `HISTORY` or `TIMES`, except one cut off by a crash.

  Args:
    workdir: Folder of the run.
    name: `HISTORY` or `TIMES`.

  Returns:
    The rows, each with "step" and the metrics of the step.
  """
  rows = []
  for row in files.read_json_lines(workdir / name):
    if _is_step(row.get("step")) and all(map(_is_number, row.values())):
      rows.append(row)
    else:
      path = workdir / name
      log.warning("%s: left out a line that holds more than numbers", path)
  return rows


def read_metrics(workdir: pathlib.Path) -> Metrics:
  """Reads the final metrics of the run in `workdir`.

  Raises:
    ValueError: If they are damaged.
  """
  path = workdir / METRICS
  metrics = files.read_json(path)
  if wrong := [k for k, x in metrics.items() if not _is_number(x)]:
    raise ValueError(f"{path} is damaged: {wrong[0]} is not a number")
  return metrics


def _is_step(value: Any) -> bool:
  return isinstance(value, int) and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
  """Returns whether a value is a number that a float can hold, or NaN."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    return False
  return isinstance(value, float) or abs(value) < 2**63


def has_scores(workdir: pathlib.Path, step: int, *prefixes: str) -> bool:
  """Returns whether the history has a metric of a step with such a prefix."""
  return any(
    name.startswith(prefixes)
    for row in read_history(workdir)
    if row["step"] == step
    for name in row
  )


def lacks_validation(
  workdir: pathlib.Path, settings: Settings, period: int, step: int
) -> bool:
  """Returns whether a run must be validated at the step that it starts from.

  At step 0 it must if `keep_best` is set, so that a wrong name is found early;
  later, if it was killed between a checkpoint and the validation of that step.

  Args:
    workdir: Folder of the run.
    settings: The settings of the run.
    period: The steps between validations.
    step: The step.
  """
  if step == 0:
    return settings.keep_best is not None
  # Without validation sets, there are the diagnostics.
  names = "validation/", "diagnostics/"
  return is_due(period, step) and not has_scores(workdir, step, *names)


def check_same_run(
  config: Mapping[str, Any],
  others: Mapping[str, Mapping[str, Any]],
  *,
  scored: bool = False,
) -> None:
  """Raises ValueError if other configs would train something else.

  Keys that do not change what is learned (`MAY_DIFFER`) may differ.

  Args:
    config: The complete config of a run.
    others: Complete configs to compare it with; each key begins the message
      if that config differs.
    scored: Whether the run has its final scores, so that what is scored
      (`SCORED`) may no longer differ.

  Example:
    >>> recorded = {"runs/mine holds a run with another config": {"seed": 0}}
    >>> check_same_run({"seed": 1}, recorded)
    Traceback (most recent call last):
    ValueError: runs/mine holds a run with another config: seed is 0 there, 1
    here. Give the same config, or another workdir
    >>> check_same_run({"seed": 0, "log_every": 5}, recorded)
  """
  may_differ = set(MAY_DIFFER) - set(SCORED if scored else ())
  harmless = tuple(f"{key.replace('/', '.')} is " for key in may_differ)
  for message, other in others.items():
    every = distributed.differences(other, config)
    fine = [x for x in every if x.startswith(harmless)]
    if differing := [x for x in every if x not in fine]:
      more = ""
      if fine:
        more += f"; it may go on with the other changes ({'; '.join(fine)})"
      if any(x.startswith("num_epochs ") for x in differing):
        more += "; num_epochs may be raised, not lowered"
      if scored:
        more += (
          "; it is finished, and nuclr evaluate scores it on other sets "
          "(--data, --zero_shot)"
        )
      raise ValueError(
        f"{message}: {'; '.join(differing)}. Give the same "
        f"config, or another workdir{more}"
      )


def write_config(
  workdir: pathlib.Path, recorded: Mapping[str, Any], *, own: Sequence[str] = ()
) -> None:
  """Makes the workdir and writes the config of its run.

  Args:
    workdir: Folder of the run.
    recorded: The config.
    own: The parts of the run that the config does not name.
  """
  more = {OWN_PARTS: list(own)} if own else {}
  files.write_json(files.folder_in(workdir) / CONFIG, {**recorded, **more})


def check_replaceable(workdir: pathlib.Path) -> None:
  """Raises ValueError if a run would replace a config.json of something else.

  Folders of published models have one, too.

  Args:
    workdir: Folder of the run; may be missing.

  Example:
    >>> _ = (tmp_path / CONFIG).write_text('{"model_type": "bert"}')
    >>> check_replaceable(tmp_path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...config.json is not of a run, and a run there would replace...
  """
  path = workdir / CONFIG
  if not path.exists():
    return
  try:
    found = files.read_json(path)
  except ValueError:
    return  # of a run whose disk failed: there is nothing to lose
  if not set(NEEDED) <= set(found):
    raise ValueError(
      f"{path} is not of a run, and a run there would replace it; choose "
      "another workdir"
    )


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
  """Reads the complete config of the run in `workdir`.

  Raises:
    ValueError: If the workdir holds no run, or its config is damaged.
  """
  return _read(workdir)[0]


def read_settings(
  workdir: pathlib.Path, *, held_out: Config | None = None
) -> Settings:
  """Reads the settings of the run in `workdir`.

  It warns of scores and hooks of the run's own.

  Args:
    workdir: Folder of the run.
    held_out: Other held-out sets, see `settings.with_held_out`.

  Raises:
    ValueError: If the workdir holds no run, its config is damaged, or the run
      has parts that its config does not name.
  """
  recorded, own = _read(workdir)
  if needed := [name for name in own if name in NEEDED]:
    raise ValueError(
      f"the run in {workdir} has parts of its own ({', '.join(needed)}), which "
      f"its {CONFIG} does not name: open it in Python with parts=, or train "
      "with parts that a config can name, as MODULE:FACTORY"
    )
  if own:
    log.warning(
      "the run in %s had %s of its own, which its %s does not name; they are "
      "left out",
      workdir,
      ", ".join(own),
      CONFIG,
    )
  if held_out is not None:
    recorded = with_held_out(recorded, held_out)
  try:
    return resolve(recorded)
  except ConfigError as error:
    refused = isinstance(error.__cause__, extensions.NotImported)
    what = "cannot be opened yet" if refused else "is damaged"
    raise ValueError(f"{workdir / CONFIG} {what}: {error}") from error


def check_own_parts(workdir: pathlib.Path, own: Sequence[str]) -> None:
  """Raises ValueError if a run has not been trained with such parts of its own.

  Args:
    workdir: Folder of the run.
    own: The parts that its config does not name, see `build.Experiment.own`.
  """
  there, here = (
    [name for name in names if name in NEEDED]
    for names in (_read(workdir)[1], own)
  )
  if there != here:
    raise ValueError(
      f"the run in {workdir} has {', '.join(there) or 'no parts'} of its own, "
      f"and {', '.join(here) or 'no parts'} here; give the same parts to fit, "
      "or choose another workdir"
    )


def _read(workdir: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
  """Reads a run's complete config, and the names of parts of its own."""
  path = workdir / CONFIG
  if not path.exists():
    raise ValueError(f"{workdir} holds no run: {path} is missing; train first")
  recorded = files.read_json(path)
  own = recorded.pop(OWN_PARTS, [])
  if not checks.fits(own, Sequence[str]):
    raise ValueError(f"{path} is damaged: {OWN_PARTS} must be texts")
  try:
    return complete(recorded), own
  except ConfigError as error:
    raise ValueError(f"{path} is damaged: {error}") from error


def fetch(window: Window, last_good: Callable[[], str]) -> Window:
  """Fetches metrics of steps from the devices, and checks that they are finite.

  Args:
    window: `(step, metrics)` of each step.
    last_good: Returns where the newest checkpoint is, for the error message.

  Raises:
    FloatingPointError: If a metric is NaN, or the loss or the gradient norm is
      infinite; the message names the first such step.
  """
  fetched = [
    (step, {name: float(x) for name, x in metrics.items()})
    for step, metrics in jax.device_get(window)
  ]
  for step, metrics in fetched:
    wrong = [
      f"{name} = {value}"
      for name, value in metrics.items()
      if math.isnan(value) or (math.isinf(value) and name in MUST_BE_FINITE)
    ]
    if wrong:
      raise not_finite(step, wrong, last_good)
  return fetched


def not_finite(
  step: int, wrong: Sequence[str], last_good: Callable[[], str]
) -> FloatingPointError:
  """Makes the error of a step after which a run cannot go on.

  Args:
    step: The step.
    wrong: What is not finite.
    last_good: Returns where the newest checkpoint is.
  """
  more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
  return FloatingPointError(
    f"step {step} is not finite: {', '.join(wrong[:10])}{more}. Last good "
    f"checkpoint: {last_good()}. A lower learning rate, gradient "
    "clipping (optimizer.clip_norm) or a higher temperature may help, in "
    "another workdir; a NaN also comes from an id outside the range of the "
    "per-sample state, from an embedding that is infinite, from a batch whose "
    "pairs all share one image or one text, and from a schedule that leaves "
    "the range of what it sets, such as gamma"
  )


def check_finite(
  step: int, train_state: TrainState, last_good: Callable[[], str]
) -> None:
  """Checks what the metrics of a step do not show: what the step has made.

  Args:
    step: The step.
    train_state: The state after it.
    last_good: Returns where the newest checkpoint is.

  Raises:
    FloatingPointError: If a parameter, a statistic or the optimizer's state is
      not finite.
  """
  trees = train_state.params, train_state.model_state, train_state.opt_state
  leaves, _ = jax.tree_util.tree_flatten_with_path(trees)
  names = [
    f"{what}/{jax.tree_util.keystr(path[1:], simple=True, separator='/')}"
    for path, _ in leaves
    for what in [("parameter", "statistic", "optimizer")[path[0].idx]]
  ]
  finite = jax.device_get(are_finite([x for _, x in leaves]))
  if wrong := [x for x, ok in zip(names, finite, strict=True) if not ok]:
    raise not_finite(step, wrong, last_good)


@jax.jit
def are_finite(leaves: Sequence[jax.Array]) -> list[jax.Array]:
  """Returns whether all numbers of an array are finite, for each array."""
  return [jnp.all(jnp.isfinite(x)) for x in leaves]


def means(window: Window) -> Metrics:
  """Averages metrics over steps.

  Example:
    >>> means([(1, {"train/loss": 1.0}), (2, {"train/loss": 2.0})])
    {'train/loss': 1.5}
  """
  return {
    name: sum(metrics[name] for _, metrics in window) / len(window)
    for name in window[0][1]
  }


def is_headline(name: str) -> bool:
  """Returns whether a metric belongs in a one-line summary.

  Example:
    >>> is_headline("val/image_to_text/recall@1"), is_headline("val/recall@10")
    (True, False)
  """
  return name.endswith(("recall@1", "/top1", "/top_1", "/spearman"))


def headlines(names: Iterable[str]) -> list[str]:
  """Chooses the scores to show: one for each held-out set, of test sets first.

  Args:
    names: The names of all metrics.

  Example:
    >>> headlines(["test/mean_recall@1", "test/text_to_image/recall@1"])
    ['test/mean_recall@1']
  """
  found = filter(is_headline, dict.fromkeys(names))
  shown = sorted(found, key=lambda x: not x.startswith("test/"))
  return [x for x in shown if not x.endswith("/recall@1")] or shown


def summary(metrics: Metrics) -> str:
  """Puts the headline metrics of an evaluation on one line.

  Args:
    metrics: All metrics of the evaluation, by name.

  Example:
    >>> summary({"test/mean_recall@1": 0.5, "test/mean_recall@5": 0.9})
    'test/mean_recall@1 0.500'
  """
  chosen = headlines(metrics)
  return "  ".join(f"{name} {metrics[name]:.3f}" for name in chosen)

"""What a run writes about itself: config, history, scalars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from functools import partial
import json
import logging
import math
import os
import pathlib
from typing import Any, NamedTuple

import jax
from tensorboardX import SummaryWriter

from nuclr_jax import processes
from nuclr_jax.types import Metrics, flatten

log = logging.getLogger(__name__)


CONFIG, METRICS = "config.json", "metrics.json"  # files of a workdir
HISTORY, TIMES = "history.jsonl", "times.jsonl"
FREE = (
  "num_devices",
  "shard_params",
  "offload_rows",
  "log_every",
  "eval_every",
  "eval_every_epochs",
  "checkpoint_every",
  "max_checkpoints",
  "keep_best",
  "num_workers",
)
MUST_BE_FINITE = ("train/loss", "train/gradient_norm")  # others may be inf


class Recorder(NamedTuple):
  """Writes scalars of a step."""

  write: Callable[[int, Metrics], None]  # what a run of the same seed repeats
  write_times: Callable[[int, Metrics], None]  # and what it does not


@contextlib.contextmanager
def open_recorder(
  workdir: pathlib.Path, *, start_step: int
) -> Iterator[Recorder]:
  """Opens `history.jsonl`, `times.jsonl` and TensorBoard; one process writes.

  Lines of a run that was interrupted after `start_step` are dropped, since
  their steps are done again.
  """
  if not processes.is_first():
    yield Recorder(*[lambda step, metrics: None] * 2)
    return

  def write(file, step, metrics):
    metrics = {name: float(value) for name, value in metrics.items()}
    file.write(json.dumps({"step": step} | metrics) + "\n")
    file.flush()
    for name, value in metrics.items():
      tensorboard.add_scalar(name, value, step)

  with contextlib.ExitStack() as stack:
    tensorboard = stack.enter_context(
      SummaryWriter(
        os.fspath(workdir / "tensorboard"), purge_step=start_step + 1
      )
    )
    writers = []
    for name in (HISTORY, TIMES):
      rows = [x for x in read_history(workdir, name) if x["step"] <= start_step]
      text = "".join(json.dumps(row) + "\n" for row in rows)
      write_atomically(workdir / name, text)
      file = stack.enter_context((workdir / name).open("a"))
      writers.append(partial(write, file))
    yield Recorder(*writers)


def read_history(
  workdir: pathlib.Path, name: str = HISTORY
) -> list[dict[str, float]]:
  """All rows of a file of lines; a last one cut by a crash is left out."""
  path = workdir / name
  rows = []
  for line in path.read_text().splitlines() if path.exists() else []:
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      log.warning("%s: left out a line that was cut off", path)
  return rows


def has_scores(workdir: pathlib.Path, step: int, prefix: str) -> bool:
  """Whether the history has metrics of a step, with names that begin so."""
  return any(
    name.startswith(prefix)
    for row in read_history(workdir)
    if row["step"] == step
    for name in row
  )


def check_config(
  workdir: pathlib.Path, there: Mapping[str, Any], here: Mapping[str, Any]
) -> None:
  """Raises ValueError if the workdir holds the run of another config.

  Keys that do not change what is learned (`FREE`) may differ.
  """
  differing = differences(there, here)
  if differing:
    raise ValueError(
      f"{workdir} holds a run with another config: {'; '.join(differing)}. "
      "Give the same config to continue it, or another workdir"
    )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
  """Says in words where two configs differ, `FREE` keys aside."""
  there, here = (flatten(json.loads(json.dumps(x))) for x in (there, here))
  return [
    f"{key.replace('/', '.')} is {there.get(key, 'absent')} there, "
    f"{here.get(key, 'absent')} here"
    for key in sorted((there.keys() | here.keys()) - set(FREE))
    if there.get(key) != here.get(key)
  ]


def write_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Makes the workdir and writes its config."""
  workdir.mkdir(parents=True, exist_ok=True)
  write_json(workdir / CONFIG, config)


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
  """The config of the run in `workdir`.

  Raises:
    ValueError: If there is none.
  """
  path = workdir / CONFIG
  if not path.exists():
    raise ValueError(f"{workdir} holds no run: {path} is missing; train first")
  try:
    return json.loads(path.read_text())
  except json.JSONDecodeError as error:
    raise ValueError(f"{path} is damaged: {error}") from error


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never seen half written; one process writes."""
  if not processes.is_first():
    return
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text)
  os.replace(temporary, path)


def write_json(path: pathlib.Path, value) -> None:
  """Writes indented JSON atomically."""
  write_atomically(path, json.dumps(value, indent=2) + "\n")


def means(
  window: Sequence[tuple[int, Metrics]], last_good: Callable[[], str]
) -> Metrics:
  """Means of metrics over steps.

  Args:
    window: `(step, metrics)`; the metrics may still be on the devices.
    last_good: Names the newest checkpoint, for the message.

  Raises:
    FloatingPointError: For the first step with a NaN, or a loss or gradient
      norm that is not finite.
  """
  fetched = jax.device_get(window)
  for step, metrics in fetched:
    wrong = [
      f"{name} = {value}"
      for name, value in metrics.items()
      if math.isnan(value) or (math.isinf(value) and name in MUST_BE_FINITE)
    ]
    if wrong:
      raise FloatingPointError(
        f"step {step} is not finite: {', '.join(wrong)}. Last good checkpoint: "
        f"{last_good()}. A lower learning rate, gradient "
        "clipping (optimizer.clip_norm) or a higher temperature may help, in "
        "another workdir; a NaN also comes from an id outside the range of the "
        "per-sample state"
      )
  names = fetched[0][1]
  total = {name: sum(float(m[name]) for _, m in fetched) for name in names}
  return {name: value / len(fetched) for name, value in total.items()}


def is_headline(name: str) -> bool:
  """Whether a score is one of those that tell most.

  Example:
    >>> is_headline("validation/coco/image_to_text/recall@1")
    True
    >>> is_headline("validation/coco/image_to_text/recall@10")
    False
  """
  return name.endswith(("recall@1", "/top1", "/top_1", "/spearman"))


def summary(metrics: Metrics) -> str:
  """The headline numbers of an evaluation on one line.

  Args:
    metrics: Of the evaluation.

  Example:
    >>> summary({"test/mean_recall@1": 0.5, "test/mean_recall@5": 0.9})
    'test/mean_recall@1 0.500'
  """
  chosen = {name: x for name, x in metrics.items() if is_headline(name)}
  return "  ".join(f"{name} {value:.3f}" for name, value in chosen.items())

"""What a run writes about itself: config, history, scalars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import csv
from functools import partial
import io
import json
import logging
import math
import os
import pathlib
from typing import Any, NamedTuple

import jax
from tensorboardX import SummaryWriter

from nuclr_jax import processes
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)


CONFIG, METRICS = "config.json", "metrics.json"  # files of a workdir
HISTORY, TIMES = "history.jsonl", "times.jsonl"
# Keys that do not change what is learned: a run may go on with others.
MAY_DIFFER = (
  "num_devices",  # how the work is laid out
  "shard_params",  # likewise
  "offload_rows",  # likewise
  "num_workers",  # of the input; batches are the same
  "log_every",  # what is told
  "eval_every",  # what is scored, and when
  "eval_every_epochs",  # likewise
  "data/test",  # scored at the end, as are the next two
  "data/zero_shot",  # so that a wrong name can be corrected
  "data/probes",
  "checkpoint_every",  # what is kept
  "max_checkpoints",  # likewise
  "keep_best",  # likewise
)
MUST_BE_FINITE = ("train/loss", "train/gradient_norm")  # others may be inf


class Recorder(NamedTuple):
  """Writes scalars of a step to a file of lines, and to TensorBoard."""

  # To `HISTORY`: a run of the same seed has the same.
  write: Callable[[int, Metrics], None]
  write_times: Callable[[int, Metrics], None]  # to `TIMES`: it has others


@contextlib.contextmanager
def open_recorder(
  workdir: pathlib.Path, *, start_step: int
) -> Iterator[Recorder]:
  """Opens `history.jsonl`, `times.jsonl` and TensorBoard; one process writes.

  Lines of a run that was interrupted after `start_step` are dropped, since
  their steps are done again; at step 0 that is all of them.

  Args:
    workdir: Folder of the run.
    start_step: Steps that are done.
  """
  if not processes.is_first():
    yield Recorder(*[lambda step, metrics: None] * 2)
    return

  kept = start_step if start_step > 0 else -1  # the last step that stays

  def write(file, step, metrics):
    metrics = {name: float(value) for name, value in metrics.items()}
    file.write(json.dumps({"step": step} | metrics) + "\n")
    file.flush()
    for name, value in metrics.items():
      tensorboard.add_scalar(name, value, step)

  with contextlib.ExitStack() as stack:
    tensorboard = stack.enter_context(
      SummaryWriter(os.fspath(workdir / "tensorboard"), purge_step=kept + 1)
    )
    writers = []
    for name in (HISTORY, TIMES):
      rows = [x for x in read_history(workdir, name) if x["step"] <= kept]
      text = "".join(json.dumps(row) + "\n" for row in rows)
      write_atomically(workdir / name, text)
      file = stack.enter_context((workdir / name).open("a", encoding="utf-8"))
      writers.append(partial(write, file))
    yield Recorder(*writers)


def read_history(
  workdir: pathlib.Path, name: str = HISTORY
) -> list[dict[str, float]]:
  """All rows of `HISTORY` or `TIMES`; see `read_lines`."""
  return read_lines(workdir / name)


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """JSON of each line of a file; a last one cut by a crash is left out."""
  rows = []
  text = path.read_text(encoding="utf-8") if path.exists() else ""
  for line in text.splitlines():
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

  Keys that do not change what is learned (`MAY_DIFFER`) may differ.
  """
  differing = differences(there, here)
  if differing:
    raise ValueError(
      f"{workdir} holds a run with another config: {'; '.join(differing)}. "
      "Give the same config to continue it, or another workdir"
    )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
  """Says in words where two configs differ, `MAY_DIFFER` aside.

  Args:
    there: A config.
    here: Another.

  Example:
    >>> differences({"seed": 0, "log_every": 5}, {"seed": 1})
    ['seed is 0 there, 1 here']
  """
  return processes.differences(there, here, besides=MAY_DIFFER)


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
    return json.loads(path.read_text(encoding="utf-8"))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path} is damaged: {error}") from error


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never seen half written; one process writes."""
  if not processes.is_first():
    return
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def write_json(path: pathlib.Path, value) -> None:
  """Writes indented JSON atomically."""
  write_atomically(path, json.dumps(value, indent=2) + "\n")


def write_table(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes a CSV table atomically; columns are those of any row, in order."""
  columns = list(dict.fromkeys(key for row in rows for key in row))
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  write_atomically(path, text.getvalue())


def means(
  window: Sequence[tuple[int, Metrics]], last_good: Callable[[], str]
) -> Metrics:
  """Means of metrics over steps.

  Args:
    window: `(step, metrics)`; the metrics may still be on the devices.
    last_good: Names the newest checkpoint, for the message.

  Returns:
    The mean of each metric.

  Raises:
    FloatingPointError: For the first step with a NaN, or a loss or gradient
      norm that is not finite.

  Example:
    >>> window = [(1, {"train/loss": 1.0}), (2, {"train/loss": 2.0})]
    >>> means(window, lambda: "none")
    {'train/loss': 1.5}
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

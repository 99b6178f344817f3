"""What a run writes about itself: history, TensorBoard scalars, progress."""

from collections.abc import Callable
import json
import logging
import os
import pathlib
import time
from typing import NamedTuple

from tensorboardX import SummaryWriter

from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)


class Recorder(NamedTuple):
  """Writes scalars of a step; close it at the end."""

  write: Callable[[int, Metrics], None]
  close: Callable[[], None]


def open_recorder(workdir: pathlib.Path, *, start_step: int) -> Recorder:
  """Opens `history.jsonl` and the TensorBoard files of a run.

  Lines of a run that was interrupted after `start_step` are dropped, since
  their steps are done again.
  """
  path = workdir / "history.jsonl"
  kept = [row for row in read_history(workdir) if row["step"] <= start_step]
  write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
  history = path.open("a")
  tensorboard = SummaryWriter(
    os.fspath(workdir / "tensorboard"), purge_step=start_step + 1
  )

  def write(step, metrics):
    metrics = {name: float(value) for name, value in metrics.items()}
    history.write(json.dumps({"step": step} | metrics) + "\n")
    history.flush()
    for name, value in metrics.items():
      tensorboard.add_scalar(name, value, step)

  def close():
    history.close()
    tensorboard.close()

  return Recorder(write, close)


def read_history(workdir: pathlib.Path) -> list[dict[str, float]]:
  """All rows of `history.jsonl`; a last line cut by a crash is left out."""
  path = workdir / "history.jsonl"
  rows = []
  for line in path.read_text().splitlines() if path.exists() else []:
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      log.warning("%s: left out a line that was cut off", path)
  return rows


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never seen half written."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text)
  os.replace(temporary, path)


def write_json(path: pathlib.Path, value) -> None:
  """Writes indented JSON atomically."""
  write_atomically(path, json.dumps(value, indent=2) + "\n")


def progress(
  *, num_steps: int, batch_size: int
) -> Callable[[int, float], None]:
  """Makes `show(step, loss)`, which logs where a run is, its speed and ETA.

  Speed and ETA appear from the second call on, so that compilation does not
  distort them; the speed is that of the steps since the call before.
  """
  marks = []  # (time, step) of the first call and of the last

  def show(step, loss):
    now = time.monotonic()
    line = f"step {step}/{num_steps} ({100 * step // num_steps} %)"
    line += f"  loss {loss:.4f}"
    if marks:
      (first_time, first_step), (last_time, last_step) = marks[0], marks[-1]
      rate = (step - last_step) / (now - last_time)
      mean = (step - first_step) / (now - first_time)
      left = round((num_steps - step) / mean)
      line += f"  {rate:.1f} steps/s  {rate * batch_size:,.0f} pairs/s"
      line += f"  ETA {left // 60}:{left % 60:02d}"
    log.info(line)
    marks[1:] = [(now, step)]

  return show

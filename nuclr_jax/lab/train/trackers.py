"""What shows the curves of a run: TensorBoard, W&B, trackio and MLflow.

Each gets every row of `history.jsonl` and `times.jsonl`. Services get them in a
thread of their own, so that one that fails or hangs costs a run nothing but its
curves there. What a service calls the run, and how far it has come, is in
`trackers.json` in the workdir, with which a resumed run continues.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import queue
import threading
import time
from typing import Any, NamedTuple
import uuid

from nuclr_jax.lab import distributed, files
from nuclr_jax.lab.config import ConfigError
from nuclr_jax.lab.train.settings import Settings

log = logging.getLogger(__name__)

FILE = "trackers.json"
PROJECT = "nuclr_jax"  # unless the tracker's own environment variable names one
SECONDS = 60  # that the end of a run waits for a tracker

Row = Mapping[str, float | pathlib.Path]  # scores, and pictures as PNG files
HandOn = Callable[[int, Row], None]  # takes a step and a row of it


class Place(NamedTuple):
  """Where a tracker keeps a run."""

  id: str | None  # None until the tracker has given one
  step: int  # the last one that it has got; -1 if there is none


class Run(NamedTuple):
  """A run, as a tracker is told of it."""

  name: str  # to be shown
  workdir: pathlib.Path
  recorded: Mapping[str, Any]  # its complete config
  place: Place


class Tracked(NamedTuple):
  """A run that is open at a tracker."""

  id: str  # finds it again
  write: HandOn
  close: Callable[[], None]


def _wandb(run: Run) -> Tracked:
  import wandb

  opened = wandb.init(
    project=os.environ.get("WANDB_PROJECT", PROJECT),
    name=run.name,
    id=run.place.id or uuid.uuid4().hex[:8],
    resume="allow",
    dir=os.fspath(files.folder_in(run.workdir, "wandb").parent),
    config=run.recorded,
    # console.log has what is printed
    settings=wandb.Settings(console="off", quiet=True),
  )

  def write(step: int, row: Row) -> None:
    opened.log(_with(lambda x: wandb.Image(os.fspath(x)), row), step=step)

  return Tracked(opened.id, write, opened.finish)


def _trackio(run: Run) -> Tracked:
  import trackio

  opened = trackio.init(
    project=os.environ.get("TRACKIO_PROJECT", PROJECT),
    # Runs of one name would be one run.
    name=run.place.id or f"{run.name}-{uuid.uuid4().hex[:8]}",
    resume="allow",
    config=run.recorded,
    embed=False,
  )

  def write(step: int, row: Row) -> None:
    opened.log(_with(lambda x: trackio.Image(os.fspath(x)), row), step=step)

  return Tracked(opened.name, write, opened.finish)


def _mlflow(run: Run) -> Tracked:
  import mlflow
  from mlflow.entities import Metric, Param

  client, found = mlflow.MlflowClient(), run.place.id
  if found is None:
    experiment = _experiment(client)
    found = client.create_run(experiment, run_name=run.name).info.run_id
    values = _flat(run.recorded).items()
    params = [Param(key, json.dumps(x)) for key, x in values]
    for first in range(0, len(params), 100):  # it takes no more at once
      client.log_batch(found, params=params[first : first + 100])
  else:
    client.update_run(found, status="RUNNING")

  def write(step: int, row: Row) -> None:
    now = int(1000 * time.time())
    scores = [
      Metric(key.replace("@", "_at_"), x, now, step)  # it takes no @
      for key, x in row.items()
      if not isinstance(x, pathlib.Path)
    ]
    client.log_batch(found, metrics=scores)
    for path in row.values():
      if isinstance(path, pathlib.Path):
        client.log_artifact(found, os.fspath(path), "report")

  return Tracked(found, write, lambda: client.set_terminated(found))


def _experiment(client) -> str:
  """Returns the id of the experiment that the environment names, or ours."""
  if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
    return given
  name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
  found = client.get_experiment_by_name(name)
  return found.experiment_id if found else client.create_experiment(name)


OPEN: Mapping[str, Callable[[Run], Tracked]] = {
  "mlflow": _mlflow,
  "trackio": _trackio,
  "wandb": _wandb,
}


def check(names: Sequence[str]) -> None:
  """Raises ConfigError for a tracker that cannot be opened on this machine.

  Args:
    names: Names in `OPEN`.
  """
  for name in names:
    if importlib.util.find_spec(name) is None:
      raise ConfigError(
        f"config.trackers: {name} is not installed; pip install "
        f"'nuclr_jax[{name}]', or leave it out",
        "trackers",
      )
  if "wandb" in names and not _wandb_may_begin():
    raise ConfigError(
      "config.trackers: nobody is logged in to wandb; run wandb login, or set "
      "WANDB_MODE=offline and send the run later by wandb sync",
      "trackers",
    )


def _wandb_may_begin() -> bool:
  """Returns whether W&B would not ask who it is, in the middle of a run."""
  import wandb

  online = wandb.setup().settings.mode == "online"
  return not online or bool(wandb.login(prompt=False))


def open_all(
  workdir: pathlib.Path, settings: Settings | None, *, kept: int
) -> list[contextlib.AbstractContextManager[HandOn]]:
  """Returns what opens all trackers of a run, TensorBoard first.

  Args:
    workdir: Folder of the run.
    settings: The settings of the run, which name its services; None for none.
    kept: The last step that the run has made before; -1 if it begins.
  """
  names, recorded = (
    (settings.trackers, settings.recorded) if settings else ((), {})
  )
  return [
    tensorboard(files.folder_in(workdir, "tensorboard"), kept=kept),
    follow(workdir, names, recorded, anew=kept < 0),
  ]


@contextlib.contextmanager
def tensorboard(folder: pathlib.Path, *, kept: int) -> Iterator[HandOn]:
  """Yields a function that writes scalars for TensorBoard, at once.

  tensorboardX's `SummaryWriter` writes in a thread, which a full disk ends; the
  run would then wait for it forever.

  Args:
    folder: The folder of its files.
    kept: TensorBoard hides what an earlier process has written after this step.
  """
  # Not at the top: the train step needs no TensorBoard.
  from tensorboardX.event_file_writer import EventsWriter
  from tensorboardX.proto.event_pb2 import Event, SessionLog
  from tensorboardX.proto.summary_pb2 import Summary

  # By default, the name of a file is the second in which it is opened.
  events = EventsWriter(os.fspath(folder / "events"), f".{uuid.uuid4().hex}")

  def add(**event):
    events.write_event(Event(wall_time=time.time(), **event))
    events.flush()

  def write(step: int, row: Row) -> None:
    values = [Summary.Value(tag=x, simple_value=row[x]) for x in row]
    add(step=step, summary=Summary(value=values))

  try:
    add(step=kept + 1, session_log=SessionLog(status=SessionLog.START))
    yield write
  finally:
    events.close()


@contextlib.contextmanager
def follow(
  workdir: pathlib.Path,
  names: Sequence[str],
  recorded: Mapping[str, Any],
  *,
  anew: bool = False,
) -> Iterator[HandOn]:
  """Yields a function that hands a row of a step to services.

  It returns at once. At the end of the block, they have `SECONDS` to take what
  they have not taken yet.

  Args:
    workdir: Folder of the run.
    names: Names in `OPEN`.
    recorded: The complete config of the run.
    anew: Whether the run begins, so that what trackers had of it is another
      run's.
  """
  if anew and (workdir / FILE).exists():
    files.write_json(workdir / FILE, {})
  rows = {name: queue.SimpleQueue() for name in names}
  lock = threading.Lock()  # of the file
  threads = {
    name: threading.Thread(
      target=_send,
      args=(name, workdir, recorded, rows[name], lock),
      daemon=True,
    )
    for name in names
  }
  for thread in threads.values():
    thread.start()

  def hand_on(step: int, row: Row) -> None:
    for waiting in rows.values():
      waiting.put((step, dict(row)))

  try:
    yield hand_on
  finally:
    end = time.monotonic() + SECONDS
    for waiting in rows.values():
      waiting.put(None)
    for name, thread in threads.items():
      thread.join(max(0.0, end - time.monotonic()))
      if thread.is_alive():
        log.warning(
          "%s does not answer; its curves of this run are not complete", name
        )


def show(
  workdir: pathlib.Path,
  settings: Settings,
  pictures: Sequence[pathlib.Path],
) -> None:
  """Gives pictures of a run to the services that know it.

  Args:
    workdir: Folder of the run.
    settings: The settings of the run.
    pictures: PNG files.
  """
  places = _places(workdir)
  row = {f"report/{path.stem}": path for path in pictures}
  if places and row and distributed.is_first():
    with follow(workdir, list(places), settings.recorded) as hand_on:
      hand_on(max(place.step for place in places.values()), row)


def _send(name, workdir, recorded, rows, lock) -> None:
  """Sends rows to a tracker until there is None; runs in a thread."""
  try:
    place = _places(workdir).get(name, Place(None, -1))
    run = Run(workdir.resolve().name, workdir, recorded, place)
    tracked = OPEN[name](run)
    # Rows of a step that was cut off come again, as they were.
    while (item := rows.get()) is not None:
      step, row = item
      if step >= place.step and row:
        tracked.write(step, row)
        with lock:
          known = _places(workdir) | {name: Place(tracked.id, step)}
          files.write_json(
            workdir / FILE, {key: x._asdict() for key, x in known.items()}
          )
    tracked.close()
  except Exception as error:  # whatever it is, the run goes on
    log.warning(
      "%s: %s: %s; the run goes on without it, and its metrics are in its "
      "workdir",
      name,
      type(error).__name__,
      error,
    )


def _places(workdir: pathlib.Path) -> dict[str, Place]:
  """Reads where trackers keep a run; of a damaged file, what can be read."""
  path, found = workdir / FILE, {}
  if not path.exists():
    return found
  try:
    content = files.read_json(path)
  except ValueError as error:
    log.warning("%s; trackers get another run", error)
    return found
  for name, place in content.items():
    match place:
      case {"id": str(run), "step": int(step)} if name in OPEN:
        found[name] = Place(run, step)
      case _:
        log.warning("%s: left out %s, which is damaged", path, name)
  return found


def _with(convert: Callable[[pathlib.Path], Any], row: Row) -> dict[str, Any]:
  """Returns a row with its pictures converted."""
  return {
    key: convert(x) if isinstance(x, pathlib.Path) else x
    for key, x in row.items()
  }


def _flat(value: Any, key: str = "") -> dict[str, Any]:
  """Returns the values of nested mappings by their dotted keys.

  Example:
    >>> _flat({"seed": 0, "data": {"name": "glyphs", "sets": []}})
    {'seed': 0, 'data.name': 'glyphs', 'data.sets': []}
  """
  if not isinstance(value, Mapping) or not value:
    return {key: value} if key else {}
  found = {}
  for name, inner in value.items():
    found |= _flat(inner, f"{key}.{name}" if key else name)
  return found

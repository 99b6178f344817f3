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
import re
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
# How a run ends: it is complete, an error ended it, or somebody stopped it and
# may continue it.
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
EXIT_CODES = {FINISHED: 0, FAILED: 1, STOPPED: 255}  # as W&B understands them
STATES = {FINISHED: "FINISHED", FAILED: "FAILED", STOPPED: "KILLED"}  # MLflow's

Row = Mapping[str, float | pathlib.Path]  # scores, and pictures as PNG files
HandOn = Callable[[int, Row], None]  # takes a step and a row of it


class Place(NamedTuple):
  """Where a tracker keeps a run."""

  id: str | None  # None until the tracker has given one
  step: int  # the last one that it has got; -1 if there is none
  rows: int  # that it has got of this step
  ended: str = FINISHED  # how the run ended when it was last open there


NOWHERE = Place(None, -1, 0)


class Run(NamedTuple):
  """A run, as a tracker is told of it."""

  name: str  # to be shown
  workdir: pathlib.Path
  recorded: Mapping[str, Any]  # its complete config
  place: Place
  trains: bool  # or it is looked at, and its state there stays


class Tracked(NamedTuple):
  """A run that is open at a tracker."""

  id: str  # finds it again
  write: HandOn
  close: Callable[[str], None]  # takes how the run ends


class Listener(NamedTuple):
  """What is told of a run; errors that end it are seen by themselves."""

  hand_on: HandOn
  stop: Callable[[], None]  # says that the run is stopped before its end


def _wandb(run: Run) -> Tracked:
  import wandb

  opened = wandb.init(
    project=os.environ.get("WANDB_PROJECT", PROJECT),
    name=run.name,
    id=run.place.id or uuid.uuid4().hex[:8],
    resume="allow",
    dir=os.fspath(files.folder_in(run.workdir, "wandb").parent),
    config=run.recorded,
    # console.log has what is printed, and its lines are made of escapes.
    settings=wandb.Settings(console="off", silent=True),
  )
  if opened.url:
    log.info("wandb: %s", opened.url)
  # W&B's own steps only ever grow, and begin anew above those of a run that is
  # resumed: rows of the last step would be dropped.
  opened.define_metric("*", step_metric="step")

  def write(step: int, row: Row) -> None:
    shown = _with(lambda x: wandb.Image(os.fspath(x)), row)
    opened.log({"step": step} | shown)

  def close(ended: str) -> None:
    opened.finish(exit_code=EXIT_CODES[ended])

  return Tracked(opened.id, write, close)


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

  return Tracked(opened.name, write, lambda ended: opened.finish())


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
  elif run.trains:
    client.update_run(found, status="RUNNING")

  def write(step: int, row: Row) -> None:
    now = int(1000 * time.time())
    scores = [
      Metric(_name_for_mlflow(key), x, now, step)
      for key, x in row.items()
      if not isinstance(x, pathlib.Path)
    ]
    client.log_batch(found, metrics=scores)
    for path in row.values():
      if isinstance(path, pathlib.Path):
        client.log_artifact(found, os.fspath(path), "report")

  def close(ended: str) -> None:
    if run.trains:
      client.set_terminated(found, STATES[ended])

  return Tracked(found, write, close)


def _name_for_mlflow(name: str) -> str:
  """Returns a name of the characters that MLflow takes.

  Example:
    >>> _name_for_mlflow("test/flowers (2024)/recall@1")
    'test/flowers _2024_/recall_at_1'
  """
  return re.sub(r"[^\w.\-/ :]", "_", name.replace("@", "_at_"))


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
    names: Names in `OPEN`; only the first process opens them.
  """
  if not distributed.is_first():
    return
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
  return not online or bool(wandb.login(prompt=False, verify=False))


@contextlib.contextmanager
def open_all(
  workdir: pathlib.Path, settings: Settings | None, *, kept: int
) -> Iterator[Listener]:
  """Opens all trackers of a run.

  Args:
    workdir: Folder of the run.
    settings: The settings of the run, which name its services; None for none.
    kept: The last step that the run has made before; -1 if it begins.
  """
  names, recorded = (
    (settings.trackers, settings.recorded) if settings else ((), {})
  )
  events = files.folder_in(workdir, "tensorboard")
  with (
    tensorboard(events, kept=kept) as show,
    follow(workdir, names, recorded, kept=kept) as services,
  ):

    def hand_on(step: int, row: Row) -> None:
      show(step, row)
      services.hand_on(step, row)

    yield Listener(hand_on, services.stop)


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
  kept: int | None,
) -> Iterator[Listener]:
  """Hands rows of steps to services, without waiting for them.

  At the end of the block, they have `SECONDS` to take what they have not taken
  yet.

  Args:
    workdir: Folder of the run.
    names: Names in `OPEN`.
    recorded: The complete config of the run.
    kept: The last step that the run has made before, after which rows come
      again that a service may have; -1 if it begins, and what services had of
      it is another run's; None if it does not train.
  """
  if kept == -1 and (workdir / FILE).exists():
    files.write_json(workdir / FILE, {})
  places = _places(workdir)
  rows = {name: queue.SimpleQueue() for name in names}
  lock, threads = threading.Lock(), {}
  title, trains = workdir.resolve().name, kept is not None

  def keep(name: str, place: Place) -> None:
    """Writes where a tracker keeps the run; the other ones do so, too."""
    with lock:
      places[name] = place
      known = {key: x._asdict() for key, x in places.items()}
      files.write_json(workdir / FILE, known)

  for name in names:
    run = Run(title, workdir, recorded, places.get(name, NOWHERE), trains)
    args = name, run, kept, rows[name], keep
    threads[name] = threading.Thread(target=_send, args=args, daemon=True)
    threads[name].start()

  def hand_on(step: int, row: Row) -> None:
    for waiting in rows.values():
      waiting.put((step, dict(row)))

  ended = FINISHED

  def stop() -> None:
    nonlocal ended
    ended = STOPPED

  try:
    yield Listener(hand_on, stop)
  except BaseException as error:
    ended = STOPPED if isinstance(error, KeyboardInterrupt) else FAILED
    raise
  finally:
    end = time.monotonic() + SECONDS
    for waiting in rows.values():
      waiting.put(ended)
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
  """Gives pictures of a run to the services of its config that know it.

  Args:
    workdir: Folder of the run.
    settings: The settings of the run.
    pictures: PNG files.
  """
  if not settings.trackers:
    return
  places = _places(workdir)
  names = [name for name in settings.trackers if name in places]
  row = {f"report/{path.stem}": path for path in pictures}
  if not (names and row and distributed.is_first()):
    return
  try:
    check(names)
  except ConfigError as error:
    log.warning("the plots are not sent: %s", error)
    return
  with follow(workdir, names, settings.recorded, kept=None) as services:
    services.hand_on(max(places[name].step for name in names), row)


def _send(name, run: Run, kept: int | None, rows, keep) -> None:
  """Sends rows to a tracker until the run ends; runs in a thread."""
  close = None
  try:
    place, tracked = run.place, OPEN[name](run)
    close = tracked.close
    # Rows after `kept` come again, as they were.
    again = place.rows if kept is not None and place.step > kept else 0
    while not isinstance(item := rows.get(), str):
      step, row = item
      if step < place.step or not row:
        continue
      if step > place.step:
        again, place = 0, place._replace(id=tracked.id, step=step, rows=0)
      if again:
        again -= 1
        continue
      tracked.write(step, row)
      place = place._replace(id=tracked.id, rows=place.rows + 1)
      keep(name, place)
    ended = item if run.trains else place.ended
    if place.id:
      keep(name, place._replace(ended=ended))
    close = None  # which is tried once
    tracked.close(ended)
  except Exception as error:  # whatever it is, the run goes on
    log.warning(
      "%s: %s: %s; the run goes on without it, and its metrics are in its "
      "workdir",
      name,
      type(error).__name__,
      error,
    )
    if close:
      with contextlib.suppress(Exception):  # it would look as if it went on
        close(FAILED)


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
      case {"id": str(run), "step": int(step), "rows": int(rows)} if (
        name in OPEN and place.get("ended", FINISHED) in STATES
      ):
        ended = place.get("ended", FINISHED)
        found[name] = Place(run, step, rows, ended)
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

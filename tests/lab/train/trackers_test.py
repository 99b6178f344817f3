"""Trackers get every row once, and cannot stop a run."""

import importlib
import json
import os
import pathlib
import threading
import time

import numpy as np
from PIL import Image
import pytest

from nuclr_jax.lab.config import ConfigError, load_config
from nuclr_jax.lab.ranges import Tracker
from nuclr_jax.lab.train import records, trackers
from nuclr_jax.lab.train.settings import resolve
from nuclr_jax.lab.train.trackers import Tracked

CONFIG = {"seed": 3, "data": {"name": "glyphs", "sets": ()}}
SETTINGS = resolve(load_config("glyphs:smoke"))._replace(recorded=CONFIG)


@pytest.fixture
def service(monkeypatch):
  """A service that keeps what it gets, by the id of the run."""
  runs = {}

  def opened(run):
    found = run.place.id or f"{run.name}-{len(runs)}"
    rows = runs.setdefault(found, [])
    write = lambda step, row: rows.append((step, row))
    return Tracked(found, write, rows.append)

  monkeypatch.setitem(trackers.OPEN, "wandb", opened)
  return runs


def follow(workdir, steps, *, kept=-1):
  with trackers.follow(workdir, ["wandb"], CONFIG, kept=kept) as services:
    for step in steps:
      services.hand_on(step, {"train/loss": step / 10})


def steps_of(rows):
  return [row if isinstance(row, str) else row[0] for row in rows]


def test_each_name_of_a_config_has_a_service():
  allowed = Tracker.__metadata__[0]
  assert all(allowed.fits(name) for name in trackers.OPEN)
  assert not allowed.fits("tensorboard")


def test_a_resumed_run_continues_where_the_service_is(service, tmp_path):
  follow(tmp_path, (1, 2, 3, 3))
  follow(tmp_path, (2, 3, 3, 3, 4), kept=1)  # with one row more of step 3
  follow(tmp_path, (4, 5), kept=4)  # the end of step 4, such as final scores
  ((run, rows),) = service.items()
  assert run == f"{tmp_path.name}-0"
  finished = "finished"
  assert steps_of(rows) == [
    1,
    2,
    3,
    3,
    finished,
    3,
    4,
    finished,
    4,
    5,
    finished,
  ]
  assert rows[0] == (1, {"train/loss": 0.1})


def test_a_run_that_begins_again_is_another_run(service, tmp_path):
  follow(tmp_path, (1, 2))
  follow(tmp_path, (1,))
  assert [steps_of(x) for x in service.values()] == [
    [1, 2, "finished"],
    [1, "finished"],
  ]


@pytest.mark.parametrize(
  "error, ended",
  [(FloatingPointError, "failed"), (KeyboardInterrupt, "stopped")],
)
def test_a_service_is_told_how_a_run_ended(error, ended, service, tmp_path):
  with pytest.raises(error):
    with trackers.follow(tmp_path, ["wandb"], CONFIG, kept=-1) as services:
      services.hand_on(1, {"a": 1.0})
      raise error
  (rows,) = service.values()
  assert steps_of(rows) == [1, ended]
  # Looking at a run leaves that as it is, training goes on to another end.
  with trackers.follow(tmp_path, ["wandb"], CONFIG, kept=None) as services:
    services.hand_on(1, {"b": 1.0})
  follow(tmp_path, (2,), kept=1)
  assert steps_of(rows) == [1, ended, 1, ended, 2, "finished"]


def test_an_error_before_the_first_row_is_told_too(service, tmp_path):
  with pytest.raises(FloatingPointError):
    with trackers.follow(tmp_path, ["wandb"], CONFIG, kept=-1):
      raise FloatingPointError
  assert list(service.values()) == [["failed"]]


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_a_service_that_fails_is_left_alone(
  where, monkeypatch, tmp_path, caplog, service
):
  ends = []

  def fail(*args):
    raise OSError("no route to host")

  def opened(*args):
    if where == "open":
      fail()
    calls = dict(write=lambda *args: None, close=ends.append)
    return Tracked("a", **calls | {where: fail})

  monkeypatch.setitem(trackers.OPEN, "mlflow", opened)
  with trackers.follow(
    tmp_path, ["mlflow", "wandb"], CONFIG, kept=-1
  ) as services:
    for step in range(3):
      services.hand_on(step, {"a": 1.0})
  (line,) = caplog.messages
  assert line.startswith("mlflow: OSError: no route to host; the run goes on")
  assert ends == (["failed"] if where == "write" else [])
  assert steps_of(*service.values()) == [0, 1, 2, "finished"]


def test_the_end_does_not_wait_for_ever(monkeypatch, tmp_path, caplog):
  release = threading.Event()
  monkeypatch.setattr(trackers, "SECONDS", 0.1)
  wait = lambda *args: release.wait(60)
  opened = lambda run: Tracked("a", wait, lambda ended: None)
  monkeypatch.setitem(trackers.OPEN, "mlflow", opened)
  before = time.monotonic()
  with trackers.follow(tmp_path, ["mlflow"], CONFIG, kept=-1) as services:
    services.hand_on(0, {"a": 1.0})
  assert time.monotonic() - before < 30
  release.set()
  assert "mlflow does not answer" in caplog.text


@pytest.mark.parametrize("text", ["{", "[]", '{"wandb": {"id": 3}}'])
def test_a_damaged_file_of_places_stops_nothing(
  text, service, tmp_path, caplog
):
  (tmp_path / trackers.FILE).write_text(text)
  follow(tmp_path, (1,), kept=0)
  assert str(tmp_path / trackers.FILE) in caplog.text
  assert steps_of(*service.values()) == [1, "finished"]


def test_services_get_the_pictures_of_a_report(
  service, monkeypatch, tmp_path, caplog
):
  """Those that the config names, if they can be opened here."""
  picture = tmp_path / "curves.png"
  settings = SETTINGS._replace(trackers=("wandb",))
  with monkeypatch.context() as patch:
    patch.setattr(trackers, "check", lambda names: None)
    trackers.show(tmp_path, settings, [picture])
    assert not service  # the service does not know the run
    follow(tmp_path, (1, 7))
    trackers.show(tmp_path, SETTINGS, [picture])  # not in the config
    (rows,) = service.values()
    assert len(rows) == 3
    trackers.show(tmp_path, settings, [picture])
    assert rows[3:] == [(7, {"report/curves": picture}), "finished"]
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  trackers.show(tmp_path, settings, [picture])
  assert "the plots are not sent: config.trackers: wandb is" in caplog.text
  assert len(rows) == 5


def test_a_recorder_hands_on_all_rows(service, tiny, tmp_path):
  settings = resolve(tiny(trackers=("wandb",)))
  with records.open_recorder(tmp_path, settings, start_step=0) as recorder:
    recorder.write(1, {"train/loss": np.float32(0.5)})
    recorder.write_times(1, {"pairs_per_second": 5.0})
  rows = [(1, {"train/loss": 0.5}), (1, {"pairs_per_second": 5.0}), "finished"]
  assert list(service.values()) == [rows]


def test_a_run_that_is_stopped_says_so(service, tiny, tmp_path):
  settings = resolve(tiny(trackers=("wandb",)))
  with records.open_recorder(tmp_path, settings, start_step=0) as recorder:
    recorder.write(1, {"train/loss": 0.5})
    recorder.stop()
  assert steps_of(*service.values()) == [1, "stopped"]


def test_a_service_that_is_not_installed_is_refused(monkeypatch):
  find = importlib.util.find_spec
  lacks = lambda name: None if name == "trackio" else find(name)
  monkeypatch.setattr(importlib.util, "find_spec", lacks)
  with pytest.raises(ConfigError, match=r"pip install 'nuclr_jax\[trackio\]'"):
    trackers.check(["trackio"])


# With the real packages: `make trackers`.


@pytest.fixture
def picture(tmp_path):
  path = tmp_path / "curves.png"
  Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
  return path


def follow_twice(workdir, name, picture):
  """A run that is resumed, and then reported."""
  with trackers.follow(workdir, [name], CONFIG, kept=-1) as services:
    services.hand_on(1, {"train/loss": 0.5, "validation/mean_recall@1": 0.25})
  with trackers.follow(workdir, [name], CONFIG, kept=0) as services:
    services.hand_on(1, {"train/loss": 0.5, "validation/mean_recall@1": 0.25})
    services.hand_on(2, {"train/loss": 0.4})
  with trackers.follow(workdir, [name], CONFIG, kept=2) as services:
    services.hand_on(2, {"test/mean_recall@1": 0.5})
    services.stop()
  shown = SETTINGS._replace(trackers=(name,))
  trackers.show(workdir, shown, [picture])
  return json.loads((workdir / trackers.FILE).read_text())[name]


def test_mlflow(monkeypatch, tmp_path, picture, caplog):
  mlflow = pytest.importorskip("mlflow")
  monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
  monkeypatch.chdir(tmp_path)
  place = follow_twice(tmp_path, "mlflow", picture)
  assert not caplog.messages and place["step"] == 2
  client = mlflow.MlflowClient()
  run = client.get_run(place["id"])
  assert run.info.status == "KILLED" and run.data.params["seed"] == "3"
  assert run.data.params["data.name"] == '"glyphs"'
  assert run.data.metrics["validation/mean_recall_at_1"] == 0.25
  history = client.get_metric_history(place["id"], "train/loss")
  assert [(x.step, x.value) for x in history] == [(1, 0.5), (2, 0.4)]
  assert run.data.metrics["test/mean_recall_at_1"] == 0.5
  (artifact,) = client.list_artifacts(place["id"], "report")
  assert artifact.path == "report/curves.png"


def test_trackio(monkeypatch, tmp_path, picture, caplog):
  trackio = pytest.importorskip("trackio")
  from trackio import sqlite_storage, utils

  for module in (utils, sqlite_storage, trackio):
    monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
  place = follow_twice(tmp_path, "trackio", picture)
  assert not caplog.messages and place["step"] == 2
  (run,) = trackio.Api().runs(trackers.PROJECT)
  assert run.name == place["id"] and run.config["seed"] == 3
  rows = sqlite_storage.SQLiteStorage.get_logs(trackers.PROJECT, run.name)
  found = {(row["step"], row.get("train/loss")) for row in rows}
  assert found >= {(1, 0.5), (2, 0.4)}
  assert any("report/curves" in row for row in rows)


def test_wandb_without_a_network(monkeypatch, tmp_path, picture, caplog):
  pytest.importorskip("wandb").teardown()
  monkeypatch.setenv("WANDB_MODE", "offline")
  trackers.check(["wandb"])
  place = follow_twice(tmp_path, "wandb", picture)
  assert not caplog.messages and place["step"] == 2
  runs = sorted((tmp_path / "wandb").glob(f"offline-run-*-{place['id']}"))
  assert runs  # one or more, since names have the second in which they began
  kept = b"".join(
    path.read_bytes() for run in runs for path in run.glob("*.wandb")
  )
  assert b"validation/mean_recall@1" in kept and b"glyphs" in kept
  assert list((tmp_path / "wandb").rglob("curves*.png"))


def test_wandb_asks_nobody_in_the_middle_of_a_run(monkeypatch, tmp_path):
  pytest.importorskip("wandb").teardown()  # settings that it has read before
  for name in [x for x in os.environ if x.startswith("WANDB_")]:
    monkeypatch.delenv(name)
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
  monkeypatch.chdir(tmp_path)
  assert pathlib.Path.home() == tmp_path
  with pytest.raises(ConfigError, match="nobody is logged in to wandb"):
    trackers.check(["wandb"])

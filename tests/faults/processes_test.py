"""Two processes of two devices train together, as a user starts them."""

import json
import shutil
import signal
import socket
import time

import chex
import jax
import numpy as np
import pytest
from repository import CONFIGS
import tiny_config
import warm

from nuclr_jax.lab import distributed
from nuclr_jax.lab.train import build, checkpoint, loop, records

STEPS = 16
CHANGES = tiny_config.changes(
  STEPS,
  **{
    "model.text_layers": 0,
    "objective.zeta.size": 1024,
    "checkpoint_every": 0,
  },
)
CONFIG = CONFIGS / "glyphs.py"


class Run:
  """Both processes of a run; their messages go to files."""

  def __init__(self, workdir, data_dir, *, second=(), **changes):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = dict(
      config=f"{CONFIG}:smoke",
      workdir=workdir,
      data_dir=data_dir,
      coordinator=address,
      num_processes=2,
    )
    command = ["-m", "nuclr_jax.lab.cli.main", "train"]
    command += [f"--{k}={x}" for k, x in arguments.items()]
    command += tiny_config.as_flags(CHANGES | changes)
    self.logs = [workdir.with_suffix(f".{i}.log") for i in range(2)]
    self.processes = [
      warm.Process(
        [*command, f"--process_id={i}", *(second if i else ())],
        devices=2,
        log=log,
      )
      for i, log in enumerate(self.logs)
    ]

  def messages(self) -> str:
    return "\n".join(log.read_text() for log in self.logs)

  def wait(self, seconds=180) -> list[int]:
    """Exit codes; one that fails or time that is up ends the other."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      codes = [process.poll() for process in self.processes]
      if None not in codes:
        return codes
      time.sleep(0.1)
    for process in self.processes:
      process.kill()
    raise AssertionError(f"still running:\n{self.messages()}")


@pytest.fixture(scope="module")
def data(tiny, data_dir):
  """What the runs train on, for this process."""
  return build.load_data(tiny().data, data_dir=data_dir)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data_dir):
  """The workdir of a run that nothing interrupted."""
  workdir = tmp_path_factory.mktemp("processes") / "straight"
  run = Run(workdir, data_dir)
  assert run.wait() == [0, 0], run.messages()
  return workdir


def losses(workdir):
  rows = [row for row in records.read_history(workdir) if "train/loss" in row]
  assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
  return [row["train/loss"] for row in rows]


def test_two_processes_equal_one(straight, data, tmp_path):
  config = records.read_config(straight) | {"num_devices": 4}
  parts = build.build(config, data=data)
  alone = loop.fit(config, tmp_path, parts=parts)
  np.testing.assert_allclose(losses(straight), losses(tmp_path), rtol=1e-5)
  found = json.loads((straight / "metrics.json").read_text())
  assert found.keys() == alone.metrics.keys()
  first, second = straight.with_suffix(".0.log"), straight.with_suffix(".1.log")
  assert "on 4 device(s) of 2 process(es)" in first.read_text()
  assert "test/mean_recall@1" in first.read_text()
  assert "step" not in second.read_text()  # one process talks


def test_what_looks_at_all_pairs_or_keeps_another_state(
  data, data_dir, tmp_path
):
  """All at once: they share the hooks, the state and the checkpoints."""
  epoch = tiny_config.NUM_PAIRS / tiny_config.BATCH
  changes = {
    "num_microbatches": 2,
    "optimizer.weight_average": 0.5,
    "keep_best": "validation/mean_recall@1",
    "eval_every": 5,
    "refresh.every_epochs": 6.0 / epoch,
    "refresh.max_pairs": 512,
  }
  two = tmp_path / "two"
  run = Run(two, data_dir, **changes)
  assert run.wait(seconds=400) == [0, 0], run.messages()
  alone = tmp_path / "alone"
  config = records.read_config(two) | {"num_devices": 4}
  parts = build.build(config, data=data)
  loop.fit(config, alone, parts=parts)
  rows = [
    {k: x for k, x in row.items() if k in ("step", "train/loss", "zeta/text")}
    for workdir in (two, alone)
    for row in records.read_history(workdir)
    if "train/loss" in row
  ]
  for found, expected in zip(rows[:STEPS], rows[STEPS:], strict=True):
    assert found == pytest.approx(expected, rel=1e-4)
  for which in (checkpoint.NEWEST, checkpoint.BEST):
    states = [
      loop.load(x, parts=parts, checkpoints=which)[2] for x in (two, alone)
    ]
    chex.assert_trees_all_close(
      *map(jax.device_get, states), rtol=1e-3, atol=1e-4
    )


def test_one_preempted_process_stops_all_and_all_go_on(
  straight, data, data_dir
):
  workdir = straight.with_name("halves")
  run = Run(workdir, data_dir)
  first, second = run.processes
  while not records.read_history(workdir) and second.poll() is None:
    time.sleep(0.05)
  second.send_signal(signal.SIGINT)  # handed on as SIGTERM
  # JAX looks for it once a second, in which all steps would be done.
  for _ in range(20):
    if "SIGTERM caught" in run.messages():
      break
    first.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    first.send_signal(signal.SIGCONT)
    time.sleep(0.01)
  assert run.wait() == [130, 130], run.messages()
  assert "run the same command again to continue" in run.messages()
  assert not (workdir / "metrics.json").exists()
  elsewhere = shutil.copytree(workdir, workdir.with_name("elsewhere"))
  run = Run(workdir, data_dir)
  assert run.wait() == [0, 0], run.messages()
  assert "taking the state of step" in run.messages()
  assert "cannot be verified" not in run.messages()  # has digests
  assert losses(workdir) == losses(straight)
  parts = build.build(records.read_config(straight), data=data)
  states = [loop.load(x, parts=parts)[2] for x in (workdir, straight)]
  jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, states))
  # The same checkpoint goes on in one process, here with four devices.
  config = records.read_config(elsewhere) | {"num_devices": 4}
  parts = build.build(config, data=data)
  assert loop.fit(config, elsewhere, parts=parts).finished
  np.testing.assert_allclose(losses(elsewhere), losses(straight), rtol=1e-5)


def test_an_error_ends_all_processes_with_its_message(straight, data_dir):
  run = Run(straight, data_dir, batch_size=32)
  assert 1 in run.wait(60)
  assert "batch_size is 64 there, 32 here" in run.messages()


@pytest.mark.parametrize(
  "second, message",
  [
    ("--config.seed=1", "config: seed is 0 in process 0, 1 in process 1"),
    ("--workdir={}/mine", "must be one folder that all processes share"),
  ],
)
def test_processes_that_disagree_end(second, message, data_dir, tmp_path):
  second = [second.format(tmp_path)]
  run = Run(tmp_path / "run", data_dir, second=second)
  assert 1 in run.wait()
  assert message in run.messages()


@pytest.mark.parametrize(
  "arguments",
  [
    dict(coordinator="localhost:1"),
    dict(num_processes=2, process_id=0),
    dict(coordinator="localhost:1", num_processes=2, process_id=2),
  ],
)
def test_incomplete_arguments_are_refused(arguments):
  with pytest.raises(ValueError, match="go together"):
    distributed.join(**arguments)


def test_a_coordinator_without_a_port_is_refused():
  with pytest.raises(ValueError, match="an address and a port"):
    distributed.join(coordinator="localhost", num_processes=2, process_id=0)


def test_a_process_alone_joins_nobody(monkeypatch):
  monkeypatch.setattr(jax.distributed, "initialize", None)
  distributed.join()
  distributed.join(distributed=False)


@pytest.mark.parametrize(
  "environment",
  [
    {"SLURM_STEP_NUM_TASKS": "4"},
    {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"},
  ],
)
def test_slurm_and_tpu_slices_are_noticed(environment, monkeypatch):
  called = []
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(
    jax.distributed, "initialize", lambda **x: called.append(x)
  )
  distributed.join()
  assert [x.keys() for x in called] == [{"heartbeat_timeout_seconds"}]
  distributed.join(distributed=False)
  assert len(called) == 1

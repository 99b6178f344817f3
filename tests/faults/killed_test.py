"""Runs and ingests that are killed or stopped, and started again."""

import pathlib
import signal
import time

import chex
import jax
from make_photos import read, write_pairs
import numpy as np
import tiny_config
import warm

from nuclr_jax.lab import ingest
from nuclr_jax.lab.train import checkpoint, loop, records


def launch(workdir):
  """Starts the launcher in a process of its own."""
  command = ["-m", "nuclr_jax.lab.cli.main", "train"]
  command += ["--config=labelled:nuclr,digits", f"--workdir={workdir}"]
  command += tiny_config.as_flags(
    tiny_config.of_digits(300, checkpoint_every=25, num_devices=1)
  )
  return warm.Process(command)


def wait_for_checkpoint(workdir, process):
  deadline = time.time() + 120
  while time.time() < deadline and not checkpoint.steps(workdir):
    assert process.poll() is None, process.communicate()
    time.sleep(0.01)


def wait_for_step(workdir, step, process):
  deadline = time.time() + 120
  while time.time() < deadline:
    history = records.read_history(workdir)
    if history and history[-1]["step"] >= step:
      return
    assert process.poll() is None, process.communicate()
    time.sleep(0.02)
  raise AssertionError(f"no step {step} in two minutes")


def test_killed_and_started_again_gives_equal_bits(tmp_path):
  straight, killed = tmp_path / "straight", tmp_path / "killed"
  process = launch(straight)
  assert process.wait() == 0, process.communicate()
  process = launch(killed)
  wait_for_checkpoint(killed, process)
  time.sleep(np.random.default_rng(time.time_ns()).uniform(0, 0.5))
  process.send_signal(signal.SIGKILL)
  process.wait()
  # A checkpoint half written when the process died.
  (killed / "checkpoints" / "999").mkdir()
  process = launch(killed)
  out, err = process.communicate()
  assert process.returncode == 0, err
  assert "taking the state of step" in err
  states = [jax.device_get(loop.load(x)[2]) for x in (straight, killed)]
  chex.assert_trees_all_equal(*states)
  metrics = [(x / "metrics.json").read_text() for x in (straight, killed)]
  assert metrics[0] == metrics[1]
  rows = [records.read_history(x) for x in (straight, killed)]
  assert rows[0] == rows[1]


def test_a_signal_saves_and_says_how_to_go_on(tmp_path):
  process = launch(tmp_path)
  wait_for_step(tmp_path, 3, process)
  process.send_signal(signal.SIGTERM)
  _, err = process.communicate()
  assert process.returncode == 130, err  # a script must not take it for done
  assert "run the same command again to continue" in err
  saved = [int(x.name) for x in (tmp_path / "checkpoints").iterdir()]
  assert saved and max(saved) == records.read_history(tmp_path)[-1]["step"]
  assert not (tmp_path / "metrics.json").exists()


SCRIPT = """
import sys
from nuclr_jax.lab import ingest
if __name__ == "__main__":
  folder = ingest.ingest(sys.argv[1], "mine", data_dir=sys.argv[2], workers=2)
"""


def children(process):
  path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
  return [int(child) for child in path.read_text().split()]


def is_alive(pid):
  try:
    return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
  except OSError:
    return False


def test_kill_9_of_two_workers_and_one_worker_goes_on(tmp_path):
  """Parts of two workers and of one make the data set that one makes."""
  (tmp_path / "script.py").write_text(SCRIPT)
  for i in range(60):
    write_pairs(tmp_path / f"{i:02d}.tar", range(20 * i, 20 * i + 20))
  command = [tmp_path / "script.py", f"{tmp_path}/*.tar", tmp_path / "killed"]
  process = warm.Process(command)
  work = tmp_path / "killed" / "mine" / "incomplete"
  deadline = time.monotonic() + 60
  while not list(work.glob("*.npz")) and time.monotonic() < deadline:
    time.sleep(0.002)
  workers = children(process)
  process.send_signal(signal.SIGKILL)
  process.wait()
  while any(map(is_alive, workers)) and time.monotonic() < deadline:
    time.sleep(0.01)
  assert workers and not any(map(is_alive, workers))
  done = {path: path.stat().st_mtime_ns for path in work.glob("*.npz")}
  assert 0 < len(done) < 60
  given = f"{tmp_path}/*.tar"
  made = [
    ingest.ingest(given, "mine", data_dir=tmp_path / name, workers=1)
    for name in ("killed", "whole")
  ]
  assert read(made[0]) == read(made[1])
  assert [row[0] for row in read(made[0])] == [f"{i:05d}" for i in range(1200)]
  for path in made[1].glob("pairs-train/*.npy"):
    other = made[0] / "pairs-train" / path.name
    assert other.read_bytes() == path.read_bytes()

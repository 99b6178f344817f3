"""Damaged files of a run are named; damaged lines of a history are left out."""

import json
import subprocess
import sys

import pytest

from nuclr_jax import files
from nuclr_jax.config import complete, load_config
from nuclr_jax.report import page
from nuclr_jax.train import factories, records


@pytest.fixture
def workdir(tmp_path):
  records.write_config(tmp_path, complete(load_config("glyphs")))
  return tmp_path


@pytest.mark.parametrize(
  "change, message",
  [
    ({"batch_size": "128"}, "batch_size must be a whole number of at least 1"),
    ({"seed": 10**20}, r"seed must be a whole number in \[0, 2\*\*32\)"),
    ({"num_epochs": float("inf")}, "num_epochs must be a number greater than"),
    ({"data": None}, "data must be a mapping, got None"),
    ({"colour": "red"}, "unknown config keys"),
    ({"data": {"name": "glyphs", "shift": float("nan")}}, "data.shift must be"),
    ({"optimizer": {"learning_rate": 1, "b2": 2}}, r"b2 must be in \[0, 1\)"),
    (
      {"model": {"name": "small", "image_stages": [[0, 0, 0]]}},
      "model.image_stages must be a tuple",
    ),
  ],
)
def test_a_config_that_was_changed(change, message, workdir):
  path = workdir / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(ValueError, match=message) as error:
    records.read_config(workdir, factories.checked)
  assert str(path) in str(error.value)


@pytest.mark.parametrize("content", ["{", "[]", "7", "[" * 100_000, "\0"])
def test_json_that_is_none(content, workdir):
  path = workdir / "metrics.json"
  path.write_text(content)
  with pytest.raises(ValueError, match="metrics.json cannot be read"):
    files.read_json(path)


def test_damaged_lines_of_a_history_are_left_out(tmp_path, caplog):
  good = {"step": 1, "train/loss": 0.5}
  lines = [json.dumps(good), '{"step": 2, "tr', "7", "\0", '{"loss": 1}']
  lines += ['{"step": "3"}', json.dumps(good | {"step": 4})]
  (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
  rows = records.read_history(tmp_path)
  assert [row["step"] for row in rows] == [1, 4]
  assert "left out line 2, which is damaged" in caplog.text


def test_a_caption_of_a_megabyte_is_shown_in_part():
  text = page.shown("<" * 10**6)
  assert text.startswith("&lt;" * page.MAX_TEXT + "...")
  assert text.endswith("(999,500 more characters)")


def test_waiting_for_a_lock(tmp_path):
  """`wait` gives the lock to whoever comes next."""
  with files.locked(tmp_path, wait=True):
    with pytest.raises(ValueError, match="is in use by process"):
      with files.locked(tmp_path):
        pass
  with files.locked(tmp_path, wait=True):
    pass


def test_ctrl_c_during_garbage_collection_is_not_lost():
  """Python ignores what is raised there."""
  code = """
import os, signal, time
from nuclr_jax import progress
from nuclr_jax.cli import interrupts

class Slow:
  def __del__(self):
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(1000))

# A shell without job control starts what is in the background without it.
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupts.listen()
progress.hide_what_threads_say()
slow = Slow()
try:
  with interrupts.work("stopping"):
    del slow
    time.sleep(20)
except KeyboardInterrupt:
  print("came")
"""
  command = [sys.executable, "-c", code]
  result = subprocess.run(command, capture_output=True, text=True)
  assert result.stdout == "came\n"
  heard = "Ctrl-C was heard: stopping; a second one stops at once"
  assert result.stderr == f"\nnuclr: {heard}\n"

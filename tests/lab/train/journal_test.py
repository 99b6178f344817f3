"""The journal of a run: what it says of each beginning, and what is logged."""

import json
import logging
import subprocess

import jax
import pytest

from nuclr_jax import sharding
from nuclr_jax.lab.train import journal

log = logging.getLogger("nuclr_jax.some.module")


@pytest.fixture
def mesh():
  return sharding.make_mesh()


def test_each_beginning_and_end_has_a_line(tmp_path, mesh, monkeypatch):
  monkeypatch.setattr("sys.argv", ["/bin/nuclr", "train", "--config=a b"])
  log.warning("before")
  with journal.keep(tmp_path, mesh, step=0):
    log.warning("loss %.1f", 0.5)
  with pytest.raises(KeyError), journal.keep(tmp_path, mesh, step=7):
    raise KeyError
  log.warning("after")
  lines = journal.read(tmp_path)
  assert [x["event"] for x in lines] == ["begin", "end"] * 2
  assert [lines[0]["step"], lines[2]["step"]] == [0, 7]
  assert lines[0]["command"] == "nuclr train '--config=a b'"
  assert lines[0]["devices"] == jax.device_count()
  assert lines[0]["versions"]["jax"] == jax.__version__
  assert lines[1]["seconds"] >= 0
  (line,) = (tmp_path / journal.LOG).read_text().splitlines()
  assert line.endswith(" loss 0.5")


def test_a_line_that_a_crash_cut_off(tmp_path, mesh):
  (tmp_path / journal.JOURNAL).write_text('{"event": "beg')
  with journal.keep(tmp_path, mesh, step=3):
    pass
  assert [x["event"] for x in journal.read(tmp_path)] == ["begin", "end"]


def test_a_full_disk_ends_no_training(tmp_path, mesh, monkeypatch, capfd):
  """Checkpoints and metrics say so; the console's log is not worth a run."""
  with journal.keep(tmp_path, mesh, step=0):
    (handler,) = [
      x
      for x in logging.getLogger("nuclr_jax").handlers
      if isinstance(x, journal._Handler)
    ]

    def full(text):
      raise OSError(28, "No space left on device")

    monkeypatch.setattr(handler, "stream", type("Full", (), {"write": full}))
    log.warning("lost")
  assert "Traceback" not in capfd.readouterr().err


def test_the_commit_is_that_of_a_clone(tmp_path, monkeypatch):
  package = tmp_path / "clone" / "nuclr_jax" / "lab" / "train"
  package.mkdir(parents=True)
  monkeypatch.setattr(journal, "__file__", str(package / "journal.py"))
  assert journal.commit() is None  # no clone
  git = ["git", "-C", str(tmp_path / "clone")]
  who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
  (package / "x.py").write_text("1")
  for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
    subprocess.run([*git, *words], check=True)
  found = journal.commit()
  head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True)
  assert head.startswith(found)
  (package / "x.py").write_text("2")
  assert journal.commit() == f"{found}+"


def test_lines_are_json(tmp_path, mesh):
  with journal.keep(tmp_path, mesh, step=0):
    pass
  for line in (tmp_path / journal.JOURNAL).read_text().splitlines():
    json.loads(line)

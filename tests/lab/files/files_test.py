"""Files of a run that are damaged, and links that lead out of it."""

import fcntl
import json
import os
import subprocess
import sys

from matplotlib import figure
import pytest

from nuclr_jax.lab import files
from nuclr_jax.lab.config import complete, load_config
from nuclr_jax.lab.report import page
from nuclr_jax.lab.train import checkpoint, records


@pytest.fixture
def workdir(tmp_path):
  records.write_config(tmp_path, complete(load_config("glyphs")))
  return tmp_path


@pytest.mark.parametrize(
  "change, message",
  [
    ({"num_workers": 10**6}, "num_workers must be a whole number from 0 to 1,"),
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
    records.read_settings(workdir)
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
from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import interrupts

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


def content_of(folder):
  return {x.name: x.read_bytes() for x in folder.iterdir() if x.is_file()}


@pytest.fixture
def elsewhere(tmp_path):
  """A folder that is to stay as it is, whatever links to it."""
  folder = tmp_path / "elsewhere"
  folder.mkdir()
  (folder / "precious").write_text("precious")
  yield folder
  assert content_of(folder) == {"precious": b"precious"}
  assert len(list(folder.iterdir())) == 1


@pytest.fixture
def unpacked(tmp_path):
  """A folder that somebody else has prepared."""
  folder = tmp_path / "unpacked"
  folder.mkdir()
  return folder


WRITERS = {
  "text": lambda path: files.write_text(path, "new"),
  "text of process 0": lambda path: files.write_atomically(path, "new"),
  "JSON": lambda path: files.write_json(path, {}),
  "plot": lambda path: page.save(figure.Figure(), path),
  "page": lambda path: page.write(path, "title", []),
  "digests": lambda path: files.write_digests(path.parent),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("target", ["precious", "new"])
def test_a_link_is_replaced_by_what_is_written(
  writer, target, unpacked, elsewhere
):
  name = files.DIGESTS if writer == "digests" else "file"
  (unpacked / name).symlink_to(elsewhere / target)
  # The names of temporary files, as far as they could be foreseen.
  for temporary in (f"{name}.tmp", f"tmp.{name}", f"{name}.part"):
    (unpacked / temporary).symlink_to(elsewhere / target)
  WRITERS[writer](unpacked / name)
  assert not (unpacked / name).is_symlink()
  assert (unpacked / name).stat().st_size


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
  (tmp_path / "x").write_text("old")
  with pytest.raises(RuntimeError):
    with files.replacing(tmp_path / "x") as new:
      new.write_text("half")
      raise RuntimeError
  assert content_of(tmp_path) == {"x": b"old"}


def test_what_a_killed_process_left_is_removed(tmp_path):
  """But not what another one is writing, nor what only looks like it."""
  left = f"x.{'0' * 32}.tmp"
  others = {f"x.{'g' * 32}.tmp", f"y.{'0' * 32}.tmp", f"x.{'1' * 32}.tmp"}
  for name in {left, *others} - {f"x.{'1' * 32}.tmp"}:
    (tmp_path / name).touch()
  (tmp_path / f"x.{'1' * 32}.tmp").symlink_to(tmp_path / f"y.{'0' * 32}.tmp")
  with files.replacing(tmp_path / "x") as first:
    files.write_text(tmp_path / "x", "second")
    first.write_text("first")
  assert {x.name for x in tmp_path.iterdir()} == {"x", *others}
  assert (tmp_path / "x").read_text() == "first"


def test_files_have_the_permissions_of_any_other(tmp_path):
  (tmp_path / "plain").touch()
  files.write_text(tmp_path / "x", "new")
  modes = {x.stat().st_mode for x in tmp_path.iterdir()}
  assert len(modes) == 1


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("real", "a")])
def test_a_folder_that_is_a_link_is_refused(names, unpacked, elsewhere):
  (unpacked / "real").mkdir()
  (unpacked / "a").symlink_to(elsewhere)
  (unpacked / "real" / "a").symlink_to("../../elsewhere")
  with pytest.raises(ValueError, match="is a link to .*elsewhere, and nothing"):
    files.folder_in(unpacked, *names)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/tmp"])
def test_a_name_that_leads_out_of_a_folder(name, tmp_path):
  with pytest.raises(ValueError, match="cannot be the name of a folder"):
    files.folder_in(tmp_path, name)


def test_a_folder_that_the_user_names_may_be_a_link(tmp_path):
  (tmp_path / "disk").mkdir()
  (tmp_path / "named").symlink_to(tmp_path / "disk")
  with files.locked(tmp_path / "named"):
    files.write_text(files.folder_in(tmp_path / "named", "report") / "x", "new")
  with files.complete_folder(tmp_path / "named" / "out") as work:
    (work / "y").write_text("new")
  assert (tmp_path / "disk" / "report" / "x").exists()
  assert (tmp_path / "disk" / "out" / "y").exists()


@pytest.mark.parametrize("target", ["precious", "new"])
def test_a_lock_that_is_a_link(target, unpacked, elsewhere):
  (unpacked / files.LOCK).symlink_to(elsewhere / target)
  with pytest.raises(ValueError, match="is a link to"):
    with files.locked(unpacked):
      pass


def test_a_lock_with_a_second_name(unpacked, elsewhere):
  """As in a copy by `cp -al`; the other name keeps its file, and its lock."""
  lock = unpacked / files.LOCK
  lock.hardlink_to(elsewhere / "precious")
  with files.locked(unpacked):
    assert lock.stat().st_nlink == 1
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()}"):
      with files.locked(unpacked):
        pass
  with (elsewhere / "precious").open() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    lock.unlink()
    lock.hardlink_to(elsewhere / "precious")
    with pytest.raises(ValueError, match="in use by"):
      with files.locked(unpacked):
        pass
    assert lock.samefile(elsewhere / "precious")


def test_history_with_a_second_name(unpacked, elsewhere):
  path = unpacked / "history.jsonl"
  path.hardlink_to(elsewhere / "precious")
  with pytest.raises(ValueError, match="has a second name"):
    files.open_in_place(path, "a")


def test_a_lock_that_is_a_pipe(unpacked):
  os.mkfifo(unpacked / files.LOCK)
  with pytest.raises(ValueError, match="is a pipe or a device"):
    with files.locked(unpacked):
      pass


@pytest.mark.parametrize("name", ["incomplete.out", "out"])
def test_a_complete_folder_that_is_a_link(name, unpacked, elsewhere):
  """It would be emptied first."""
  target = elsewhere if name != "out" else elsewhere / "new"
  (unpacked / name).symlink_to(target)
  with pytest.raises(ValueError, match="is a link to"):
    with files.complete_folder(unpacked / "out"):
      pass


def test_links_anywhere_in_a_folder(unpacked, elsewhere):
  files.check_no_links(unpacked / "missing")
  (unpacked / "5" / "state").mkdir(parents=True)
  files.check_no_links(unpacked)
  (unpacked / "5" / "state" / "d").symlink_to(elsewhere)
  with pytest.raises(ValueError, match="state/d is a link to"):
    files.check_no_links(unpacked)


@pytest.mark.parametrize("name", ["tensorboard", "checkpoints", "best"])
def test_a_run_does_not_write_through_its_folders(name, unpacked, elsewhere):
  (unpacked / name).symlink_to(elsewhere)
  with pytest.raises(ValueError, match=f"{name} is a link to"):
    if name == "tensorboard":
      with records.open_recorder(unpacked, start_step=0):
        pass
    else:
      checkpoint.open_to_write(unpacked, name=name)


def test_a_checkpoint_that_is_a_link_is_not_deleted(unpacked, elsewhere):
  (unpacked / "checkpoints").mkdir()
  (unpacked / "checkpoints" / "5").symlink_to(elsewhere)
  with pytest.raises(ValueError, match="checkpoints/5 is a link to"):
    checkpoint.open_to_write(unpacked)


def test_histories_replace_links(unpacked, elsewhere):
  for name in (records.HISTORY, records.TIMES):
    (unpacked / name).symlink_to(elsewhere / "precious")
  with records.open_recorder(unpacked, start_step=0) as recorder:
    recorder.write(1, {"train/loss": 0.5})
  assert records.read_history(unpacked) == [{"step": 1, "train/loss": 0.5}]


@pytest.mark.parametrize(
  "error, message",
  [
    (ValueError("odd bytes"), "cannot be read: odd bytes; take another"),
    (EOFError(), "cannot be read: EOFError; take another"),
    (PermissionError(13, "Permission denied"), "Permission denied"),
  ],
)
def test_what_to_do_about_a_file_of_wrong_content(error, message, tmp_path):
  """Not about one that the system refuses to read."""
  (tmp_path / "x").touch()
  with (
    pytest.raises(ValueError, match=f"{message}$"),
    files.reading(tmp_path / "x", remedy="take another"),
  ):
    raise error

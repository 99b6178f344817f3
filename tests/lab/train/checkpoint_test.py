"""Checkpoints and folders: damage, and several processes at once."""

import contextlib
import errno
import logging
import os
import random
import subprocess
import sys
import tempfile

import chex
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from nuclr_jax import sharding
from nuclr_jax.lab import files
from nuclr_jax.lab.train import checkpoint

META = {"config": {"seed": 3}}


def state_of(step):
  numbers = np.random.default_rng(step).normal(size=(8, 30))
  return {"step": jnp.array(step), "weights": jnp.array(numbers, jnp.float32)}


@pytest.fixture
def workdir(tmp_path):
  """The workdir of a run with checkpoints of steps 4 and 8, 8 the best."""
  return make(tmp_path / "run")


def make(folder):
  for name, steps in ((checkpoint.NEWEST, (4, 8)), (checkpoint.BEST, (8,))):
    with contextlib.closing(checkpoint.open_to_write(folder, name=name)) as to:
      for step in steps:
        checkpoint.save(to, step, state_of(step), META)
  return folder


def read(workdir, name=checkpoint.NEWEST):
  manager, step = checkpoint.open_to_read(workdir, name=name)
  everywhere = {
    key: sharding.NamedSharding(sharding.make_mesh(1), sharding.REPLICATED)
    for key in ("step", "weights")
  }
  abstract = checkpoint.abstract_state(state_of(step), everywhere)
  with contextlib.closing(manager):
    state = checkpoint.restore(manager, step, abstract)
    return step, state, checkpoint.read_meta(manager, step)


def files_of(folder):
  return sorted(x for x in folder.rglob("*") if x.is_file())


def flip(path, bit):
  data = bytearray(path.read_bytes())
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(data)


def flip_one(workdir, step=8, name=checkpoint.NEWEST):
  """Flips a bit of the largest file of the state, which holds the weights."""
  files = files_of(workdir / name / str(step) / "state")
  flip(max(files, key=lambda x: x.stat().st_size), 999)


def assert_is(found, step):
  assert found[0] == step and found[2] == META
  chex.assert_trees_all_equal(found[1], state_of(step))


def test_an_intact_checkpoint_is_read_without_a_word(workdir, caplog):
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    assert_is(read(workdir), 8)
    assert_is(read(workdir, checkpoint.BEST), 8)
  assert not caplog.records


def test_no_flipped_bit_goes_unnoticed(workdir):
  """Whatever the bit, what is read is what was written."""
  files, rng = files_of(workdir / checkpoint.NEWEST / "8"), random.Random(0)
  unnoticed = set()
  for i in range(150):
    path = files[i] if i < len(files) else rng.choice(files)
    bit = rng.randrange(8 * path.stat().st_size)
    flip(path, bit)
    manager, step = checkpoint.open_to_read(workdir)
    manager.close()
    if step == 8:
      unnoticed.add(path.name)
      assert_is(read(workdir), 8)
    flip(path, bit)
  # Orbax writes these last, and nothing that is restored depends on them.
  assert unnoticed <= {"_CHECKPOINT_METADATA", "commit_success.txt"}


def test_a_run_goes_on_from_the_checkpoint_before(workdir, caplog):
  flip_one(workdir)
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    assert_is(read(workdir), 4)
    assert checkpoint.steps(workdir) == [4, 8]  # reading changes nothing
    checkpoint.open_to_write(workdir).close()
  for text in (
    "8 is damaged: state/",
    "the checkpoint of step 4 is used; what steps 5 to 8 did is lost",
    "is renamed to 8.damaged",
  ):
    assert text in caplog.text
  assert checkpoint.steps(workdir) == [4]
  assert (workdir / checkpoint.NEWEST / "8.damaged").exists()
  assert_is(read(workdir), 4)
  with contextlib.closing(checkpoint.open_to_write(workdir)) as to:
    checkpoint.save(to, 8, state_of(8), META)
  assert_is(read(workdir), 8)


@pytest.mark.parametrize(
  "name", ["layers=[64,64]", r"[a-\b]/**/gs:", "\udc80*"]
)
def test_a_workdir_of_any_name(tmp_path, name):
  """Orbax takes parts of a path for patterns, separators and schemes."""
  assert_is(read(make(tmp_path / "runs" / name)), 8)
  assert_is(read(tmp_path / "runs" / name, checkpoint.BEST), 8)
  assert os.listdir(tmp_path) == ["runs"]
  assert os.listdir(tmp_path / "runs") == [name.partition("/")[0]]
  manager, _ = checkpoint.open_to_read(tmp_path / "runs" / name)
  with contextlib.closing(manager):
    folder = tmp_path / "runs" / name / checkpoint.NEWEST
    assert checkpoint.folder_of(manager) == folder


def test_a_folder_for_links_with_a_special_name(tmp_path, monkeypatch):
  (tmp_path / "[a]").mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "[a]"))
  with pytest.raises(ValueError, match="set the environment variable TMPDIR"):
    checkpoint.open_to_write(tmp_path / "[b]")


def test_arrays_that_were_not_merged_are_no_checkpoint(tmp_path, monkeypatch):
  """What Orbax does on its own with such a path, and without a word."""
  monkeypatch.setattr(checkpoint, "_plain", lambda folder: folder)
  manager = checkpoint.open_to_write(tmp_path / "[a]")
  message = r"of 2 array\(s\), such as step, numbers are missing"
  with pytest.raises(ValueError, match=message), contextlib.closing(manager):
    checkpoint.save(manager, 4, state_of(4), META)
  assert checkpoint.steps(tmp_path / "[a]") == []


def test_a_lost_chunk_of_an_array_is_noticed(workdir):
  state = workdir / checkpoint.NEWEST / "8" / "state"
  assert checkpoint._lacking(state) == []
  file = {"driver": "file", "path": f"{state}/"}
  store = tensorstore.KvStore.open({"driver": "ocdbt", "base": file}).result()
  store.write("weights/0.0", None).result()
  assert checkpoint._lacking(state) == ["weights"]


def test_digests_are_those_of_sha256sum(workdir):
  folder = workdir / checkpoint.NEWEST / "8"
  command = ["sha256sum", "--check", "--strict", files.DIGESTS]
  subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
  lines = (folder / files.DIGESTS).read_text().splitlines()[1:]
  assert len(lines) == len(files_of(folder)) - 3  # all but the last written


def test_all_checkpoints_damaged(workdir):
  for step in (4, 8):
    flip_one(workdir, step)
  for opened in (checkpoint.open_to_read, checkpoint.open_to_write):
    with pytest.raises(ValueError, match="all checkpoints in .* are damaged"):
      opened(workdir)
  assert checkpoint.steps(workdir) == [4, 8]


def test_a_damaged_best_state(workdir, caplog):
  flip_one(workdir, name=checkpoint.BEST)
  with pytest.raises(ValueError, match="best are damaged"):
    read(workdir, checkpoint.BEST)
  assert_is(read(workdir), 8)
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    checkpoint.open_to_write(workdir, name=checkpoint.BEST).close()
  assert "the state that scored best is lost" in caplog.text
  assert (workdir / checkpoint.BEST / "8.damaged").exists()


def test_missing_files_and_missing_digests(workdir, caplog):
  folder = workdir / checkpoint.NEWEST / "8"
  (folder / "meta" / "metadata").unlink()
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    assert read(workdir)[0] == 4
  assert "8 is damaged: meta/metadata is missing" in caplog.text
  (folder / files.DIGESTS).write_bytes(b"")
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    assert read(workdir)[0] == 4
  assert "SHA256SUMS cannot be read" in caplog.text
  (workdir / checkpoint.NEWEST / "4" / files.DIGESTS).unlink()
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    assert_is(read(workdir), 4)
  assert "4 has no digests, so it cannot be verified" in caplog.text


def test_a_file_of_many(tmp_path):
  for name in ("a", "b"):
    (tmp_path / name).write_text(name)
  files.check_digests(tmp_path)  # has no digests
  files.write_digests(tmp_path)
  (tmp_path / "b").write_text("c")
  (tmp_path / "new").touch()
  files.check_digests(tmp_path, "a", "new")
  with pytest.raises(ValueError, match="is damaged: b has changed; write or"):
    files.check_digests(tmp_path)


HOLD = """
import pathlib, sys, time
from nuclr_jax.lab import files
with files.locked(pathlib.Path(sys.argv[1])):
  print("locked", flush=True)
  time.sleep(60)
"""


def test_the_lock_of_another_process_ends_with_it(tmp_path):
  command = [sys.executable, "-c", HOLD, tmp_path]
  with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    message = f"in use by process {process.pid} on .* since .*; wait until"
    with pytest.raises(ValueError, match=message), files.locked(tmp_path):
      pass
    process.kill()
  with files.locked(tmp_path):
    pass


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
  def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")

  monkeypatch.setattr(files.local.fcntl, "flock", flock)
  with caplog.at_level(logging.WARNING, "nuclr_jax"), files.locked(tmp_path):
    pass
  assert "the file system has no locks" in caplog.text


def test_two_make_one_folder(tmp_path):
  folder = tmp_path / "out"
  with files.complete_folder(folder) as work:
    (work / "a").write_text("mine")
    with (
      pytest.raises(ValueError, match="incomplete.out is in use by process"),
      files.complete_folder(folder),
    ):
      pass
  assert [x.name for x in folder.iterdir()] == ["a"]
  left = tmp_path / "incomplete.other"  # by a process that was killed
  (left / "sub").mkdir(parents=True)
  (left / "sub" / "b").touch()
  with files.complete_folder(tmp_path / "other") as work:
    (work / "a").touch()
  assert [x.name for x in (tmp_path / "other").iterdir()] == ["a"]
  with (
    pytest.raises(ValueError, match="exists already: another process made"),
    files.complete_folder(tmp_path / "third"),
  ):
    (tmp_path / "third").mkdir()
  assert not left.exists()

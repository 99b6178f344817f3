"""What is in a bucket while a run replaces its checkpoints, at any moment."""

import hashlib
import os
import pathlib
import shutil
import time

import make_bucket
import pytest

from nuclr_jax.lab.files import bucket, copies, local, push, remote

PLACE = "memory://bucket/run"
PARTS = ("state/a", "state/b", "meta/c")


@pytest.fixture
def memory(tmp_path, monkeypatch):
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
  return make_bucket.memory()


def make(folder: pathlib.Path, step: int, name: str = "checkpoints") -> None:
  """Makes a checkpoint appear at once, as Orbax does."""
  work = folder / name / f"{step}.orbax-checkpoint-tmp"
  for part in PARTS:
    (work / part).parent.mkdir(parents=True, exist_ok=True)
    (work / part).write_text(f"{part} of {step}")
  local.write_digests(work)
  (work / "_CHECKPOINT_METADATA").write_text("{}")
  work.rename(folder / name / str(step))
  with (folder / "history").open("a") as file:
    file.write(f"{step}\n")


def steps_in(memory, folder="checkpoints") -> dict[str, bool]:
  """The checkpoints in the bucket that claim to be complete, and whether.

  It knows nothing of the code that copies: the digests are compared by hashing.
  """
  found, start = {}, f"/bucket/run/{folder}/"
  names = [x[len(start) :] for x in memory.store if x.startswith(start)]
  for step in {x.split("/")[0] for x in names}:
    if f"{step}/_CHECKPOINT_METADATA" in names:
      sums = f"{start}{step}/SHA256SUMS"
      lines = memory.cat_file(sums).decode().splitlines()[1:]
      found[step] = len(lines) == len(PARTS) and all(
        f"{step}/{name}" in names
        and hashlib.sha256(memory.cat_file(f"{start}{step}/{name}")).hexdigest()
        == digest
        for digest, name in (x.split("  ") for x in lines)
      )
  return found


def after_each_operation(monkeypatch, memory, call) -> None:
  """Calls a function after each change of the bucket, in any thread.

  fsspec makes an object of its own for each thread, so the class is changed.
  """
  for kind in ("put_file", "rm_file", "pipe_file"):
    plain = getattr(type(memory), kind)

    def changed(*args, plain=plain, **kwargs):
      plain(*args, **kwargs)
      call()

    monkeypatch.setattr(type(memory), kind, changed)


@pytest.mark.parametrize("per_operation", [0.2, 1, 3])
@pytest.mark.parametrize("name", ["checkpoints", "best"])
def test_one_checkpoint_is_complete_at_any_time(
  memory, monkeypatch, per_operation, name
):
  """Whatever the run deletes while the bucket is slow."""
  seen, clock = [], [2.0]
  with remote.local_folder(PLACE) as folder:
    copy = copies.find_copy(folder, remote.cache_dir())
    make(folder, 1, name)
    push.push(copy, running=True)
    make(folder, 2, name)

    def run_on():
      """The run makes checkpoints meanwhile, keeps two, and is looked at."""
      seen.append(steps_in(memory, name))
      before = int(clock[0])
      clock[0] += per_operation
      for step in range(before + 1, int(clock[0]) + 1):
        make(folder, step, name)
        shutil.rmtree(folder / name / str(step - 2), ignore_errors=True)

    with monkeypatch.context() as patch:
      after_each_operation(patch, memory, run_on)
      for _ in range(4):
        push.push(copy, running=True)
  assert len(seen) > 20
  assert all(any(steps.values()) for steps in seen)
  assert all(all(steps.values()) for steps in seen), "one only claims to be"
  last = int(clock[0])
  assert steps_in(memory, name) == {str(last - 1): True, str(last): True}


@pytest.mark.parametrize("removed", [["state/a"], [*PARTS], ["SHA256SUMS"]])
@pytest.mark.parametrize("known", [True, False], ids=["copied", "not copied"])
def test_a_checkpoint_that_is_being_deleted(memory, removed, known):
  """It is not copied in part, and stays in the bucket until it has gone."""
  with remote.local_folder(PLACE) as folder:
    copy = copies.find_copy(folder, remote.cache_dir())
    make(folder, 1)
    if known:
      push.push(copy, running=True)
    make(folder, 2)
    for name in removed:
      (folder / "checkpoints" / "1" / name).unlink()
    push.push(copy, running=True)
    if known or removed != ["SHA256SUMS"]:
      expected = {"1": True, "2": True} if known else {"2": True}
      assert steps_in(memory) == expected
    shutil.rmtree(folder / "checkpoints" / "1")
  assert steps_in(memory) == {"2": True}


def test_files_that_vanish_while_a_snapshot_is_made(memory, monkeypatch):
  plain = push._link_or_copy
  with remote.local_folder(PLACE) as folder:
    make(folder, 1)
    make(folder, 2)

    def link(source, goal, **kwargs):
      if source.name == "b" and "1" in source.parts:
        source.unlink()
      plain(source, goal, **kwargs)

    copy = copies.find_copy(folder, remote.cache_dir())
    with monkeypatch.context() as patch:
      patch.setattr(push, "_link_or_copy", link)
      push.push(copy, running=True)
    assert steps_in(memory) == {"2": True}
    shutil.rmtree(folder / "checkpoints" / "1")


def test_without_hard_links(memory, monkeypatch):
  def refused(*_, **__):
    raise OSError("not supported")

  monkeypatch.setattr(os, "link", refused)
  with remote.local_folder(PLACE) as folder:
    make(folder, 1)
    copy = copies.find_copy(folder, remote.cache_dir())
    push.push(copy, running=True)
    assert steps_in(memory) == {"1": True}


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("fault", ["lost", "cut", "swallowed"])
@pytest.mark.parametrize(
  "name", ["state/b", "SHA256SUMS", "_CHECKPOINT_METADATA"]
)
def test_the_old_one_stays_until_the_new_one_has_arrived(
  memory, monkeypatch, running, fault, name
):
  """Whichever file it is that does not arrive."""
  plain = memory.put_file

  def put_file(source, goal, **kwargs):
    if not goal.endswith(name):
      plain(source, goal, **kwargs)
    elif fault == "lost":
      raise ConnectionError("reset by peer")
    elif fault == "cut":
      memory.pipe_file(goal, pathlib.Path(source).read_bytes()[:-1])

  with remote.local_folder(PLACE) as folder:
    make(folder, 1)
  copy = copies.find_copy(folder, remote.cache_dir())
  make(folder, 2)
  shutil.rmtree(folder / "checkpoints" / "1")
  with monkeypatch.context() as patch:
    patch.setattr(memory, "put_file", put_file)
    for _ in range(2):
      with pytest.raises(bucket.Unreached):
        push.push(copy, running=running)
      steps = steps_in(memory)
      assert steps["1"]
      if name == "state/b":
        assert "2" not in steps
  push.push(copy, running=running)
  assert steps_in(memory) == {"2": True}


def test_the_last_complete_one_is_never_removed(memory, caplog):
  with remote.local_folder(PLACE) as folder:
    make(folder, 1)
  with remote.local_folder(PLACE) as folder:
    shutil.rmtree(folder / "checkpoints" / "1")
    (folder / "config").write_text("1")
  assert steps_in(memory) == {"1": True}
  assert "checkpoints/1 is kept in the bucket" in caplog.text


def test_a_cache_that_is_deleted_during_a_run(memory, tmp_path):
  with remote.local_folder(PLACE) as folder:
    make(folder, 1)
    (folder / "config").write_text("1")
  before = dict(memory.store)
  for again in (True, False):
    with (
      pytest.raises(ValueError, match="was deleted while it was in use"),
      remote.local_folder(PLACE) as folder,
    ):
      shutil.rmtree(folder)
      if again:
        folder.mkdir()
        (folder / "history").write_text("2")
    assert memory.store == before


def test_a_bucket_that_is_slow(memory, monkeypatch, caplog):
  after_each_operation(monkeypatch, memory, lambda: time.sleep(0.03))
  with remote.local_folder(PLACE, period=0.1) as folder:
    make(folder, 1)
    until = time.monotonic() + 20
    while "behind" not in caplog.text and time.monotonic() < until:
      time.sleep(0.02)
  assert "the bucket is that far behind" in caplog.text


def test_an_error_does_not_end_the_copies(memory, monkeypatch, caplog):
  """Not of a full disk either."""
  plain, failures = push._link_or_copy, []

  def full(*args, **kwargs):
    if len(failures) < 2:
      failures.append(args)
      raise OSError(28, "No space left on device")
    plain(*args, **kwargs)

  monkeypatch.setattr(push, "_link_or_copy", full)
  with remote.local_folder(PLACE, period=0.02) as folder:
    make(folder, 1)
    until = time.monotonic() + 20
    while not steps_in(memory) and time.monotonic() < until:
      time.sleep(0.02)
    assert steps_in(memory) == {"1": True}
  assert "No space left on device" in caplog.text

"""Files in buckets: fsspec's memory, and local servers of S3 and Google."""

import errno
import json
import os
import pathlib
import shutil
import time
import uuid

import fsspec
import make_bucket
import pytest

from nuclr_jax.lab.files import bucket, checksum, copies, remote
from nuclr_jax.lab.train import checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=["memory", "s3", "gs"])
def root(request):
  """A bucket."""
  if request.param == "memory":
    yield "memory://bucket"
    return
  with make_bucket.SERVERS[request.param]() as path:
    yield path


@pytest.fixture
def place(root):
  """A new folder in a bucket."""
  return f"{root}/{uuid.uuid4().hex}/run"


@pytest.fixture
def memory():
  """The file system of memory://, with nothing in it."""
  return make_bucket.memory()


def put(place, name: str, content: bytes) -> None:
  """Changes a file in a bucket, as somebody else does."""
  system, folder = bucket.open_system(place)
  system.pipe_file(f"{folder}/{name}", content)


def kept_in(cache: pathlib.Path) -> dict[str, str]:
  """What was set aside in the cache, by name."""
  return {
    x.relative_to(folder).as_posix(): x.read_text()
    for folder in cache.glob("*.kept*")
    for x in folder.rglob("*")
    if x.is_file()
  }


def fail_to_copy(monkeypatch, place, write) -> None:
  """Works on a folder, of which nothing arrives in the bucket."""
  system, _ = bucket.open_system(place)

  def lost(*_, **__):
    raise ConnectionError("reset by peer")

  with monkeypatch.context() as patch:
    patch.setattr(system, "put_file", lost)
    with pytest.raises(bucket.Unreached), remote.local_folder(place) as folder:
      write(folder)


def files_in(place) -> dict[str, bytes]:
  system, name = bucket.open_system(place)
  system.invalidate_cache()
  return {
    x[len(name) :].strip("/"): system.cat_file(x) for x in system.find(name)
  }


def test_a_folder_there_and_back(place):
  with remote.local_folder(place) as folder:
    assert not list(folder.iterdir())
    (folder / "a.txt").write_text("1")
    (folder / "5").mkdir()
    (folder / "5" / "SHA256SUMS").write_text("all")
    for name in ("incomplete.x", "6.orbax-checkpoint-tmp"):
      (folder / name).mkdir()
      (folder / name / "part").write_text("half")
    assert remote.original(folder / "5") == f"{place}/5"
  assert files_in(place) == {"a.txt": b"1", "5/SHA256SUMS": b"all"}
  copy = remote.fetch(place)
  assert copy.name == "run" and (copy / "a.txt").read_text() == "1"
  with remote.local_folder(place) as folder:
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("2")
  assert files_in(place) == {"b.txt": b"2", "5/SHA256SUMS": b"all"}
  assert not (remote.fetch(place) / "a.txt").exists()
  assert bucket.names_in(place).keys() == {"b.txt", "5/SHA256SUMS"}
  assert list(bucket.find(f"{place}/*.txt")) == [f"{place}/b.txt"]
  assert bucket.read_range(f"{place}/5/SHA256SUMS", 1, 2) == b"ll"


def test_names_are_no_patterns(place, tmp_path):
  """`run[12]` is one folder, and neither run1 nor run2."""
  (tmp_path / "x").write_text("1")
  folders = ("1", "2", "[12]", "?", "*")
  for name in folders:
    bucket.upload(tmp_path / "x", f"{place}{name}/x.tar")

  def left():
    system, name = bucket.open_system(place)
    system.invalidate_cache()
    found = system.find(name.rpartition("/")[0])
    return {x.rpartition("run")[2].removesuffix("/x.tar") for x in found}

  assert left() == set(folders)
  for pattern in ("[12]", "[12]/x.tar", "[12]/*.tar"):
    assert set(bucket.find(place + pattern)) == {f"{place}[12]/x.tar"}
  bucket.remove(f"{place}[12]/x.tar")
  assert left() == {"1", "2", "?", "*"}
  found = set(bucket.find(f"{place}[1-2]/*"))
  assert found == {f"{place}1/x.tar", f"{place}2/x.tar"}
  bucket.remove(f"{place}*")
  assert left() == {"1", "2", "?"}
  with remote.new_folder(f"{place}[13]") as work:
    (work / "y").write_text("2")
  assert (remote.fetch(f"{place}[13]") / "y").read_text() == "2"
  assert not bucket.exists(f"{place}[13]/{remote.MARK}")


def test_only_what_has_changed_is_copied(place, monkeypatch):
  with remote.local_folder(place) as folder:
    for name in "abc":
      (folder / name).write_text(name)
  system, _ = bucket.open_system(place)
  copied = []
  for kind in ("get_file", "put_file"):
    plain = getattr(system, kind)

    def noted(source, *args, plain=plain, **kwargs):
      copied.append(pathlib.PurePosixPath(source).name)
      return plain(source, *args, **kwargs)

    monkeypatch.setattr(system, kind, noted)
  remote.fetch(place)
  assert not copied  # what was made here is here
  with remote.local_folder(place) as folder:
    (folder / "b").write_text("new")
  assert copied == ["b"]
  system.pipe_file(f"{bucket.open_system(place)[1]}/c", b"of others")
  copied.clear()
  assert (remote.fetch(place) / "c").read_bytes() == b"of others"
  assert copied == ["c"]


def test_marks_of_completeness_come_last(monkeypatch):
  place, order = "memory://bucket/run", []
  system = make_bucket.memory()
  plain = type(system).put_file

  def noted(self, source, goal, **kwargs):
    order.append(pathlib.PurePosixPath(goal).name)
    return plain(self, source, goal, **kwargs)

  monkeypatch.setattr(type(system), "put_file", noted)
  with remote.local_folder(place) as folder:
    for name in ("SHA256SUMS", "_CHECKPOINT_METADATA", "z", "a"):
      (folder / name).write_text("x")
  assert order[:2] == ["a", "z"] and set(order[2:]) == set(remote.LAST[:2])


def test_now_and_then(place):
  """A machine that is lost loses what is newer than the last copy."""
  with remote.local_folder(place, period=0.05) as folder:
    (folder / "history").write_text("1")
    until = time.monotonic() + 20
    while "history" not in bucket.names_in(place) and time.monotonic() < until:
      time.sleep(0.05)
    assert "history" in bucket.names_in(place)
  assert files_in(place) == {"history": b"1"}


def test_an_error_in_the_block(place):
  with pytest.raises(ZeroDivisionError), remote.local_folder(place) as folder:
    (folder / "kept").write_text("1")
    raise ZeroDivisionError
  assert files_in(place) == {"kept": b"1"}
  with pytest.raises(ZeroDivisionError), remote.new_folder(f"{place}/x") as new:
    (new / "dropped").write_text("1")
    raise ZeroDivisionError
  assert files_in(place) == {"kept": b"1"}
  with remote.new_folder(f"{place}/x") as new:
    (new / "numbers").write_text("1")
  assert files_in(f"{place}/x") == {"numbers": b"1"}
  with (
    pytest.raises(ValueError, match="exists already"),
    remote.new_folder(f"{place}/x"),
  ):
    pass


def test_what_could_not_be_copied_is_kept(place, monkeypatch):
  system, name = bucket.open_system(place)
  with remote.local_folder(place) as folder:
    (folder / "a").write_text("1")

  def lost(*_, **__):
    raise ConnectionError("reset by peer")

  def work():
    with remote.local_folder(place) as folder:
      (folder / "a").write_text("22")
      (folder / "b").write_text("3")

  with monkeypatch.context() as patch:
    patch.setattr(system, "put_file", lost)
    with pytest.raises(bucket.Unreached, match="reset by peer"):
      work()
  assert files_in(place) == {"a": b"1"}
  with remote.local_folder(place):
    pass
  assert files_in(place) == {"a": b"22", "b": b"3"}
  with monkeypatch.context() as patch:
    patch.setattr(system, "put_file", lost)
    with pytest.raises(bucket.Unreached):
      work()
  system.pipe_file(f"{name}/c", b"of others")
  with remote.local_folder(place) as folder:
    assert (folder / "c").exists()
  assert files_in(place) == {"a": b"22", "b": b"3", "c": b"of others"}


def interrupt(monkeypatch, place, count, before=lambda: None):
  """Lets the process end while it copies a file after `count` others."""
  system, _ = bucket.open_system(place)
  plain, done = system.put_file, []

  def put_file(*args, **kwargs):
    plain(*args, **kwargs)
    done.append(args)
    if len(done) > count:
      before()
      raise KeyboardInterrupt

  monkeypatch.setattr(system, "put_file", put_file)


@pytest.mark.parametrize("killed", [False, True], ids=["Ctrl-C", "kill -9"])
def test_a_copy_that_is_interrupted_goes_on(
  place, monkeypatch, tmp_path, killed
):
  notes = {}

  def keep():
    notes.update({x: x.read_text() for x in tmp_path.rglob(remote.NOTES)})

  with monkeypatch.context() as patch:
    interrupt(patch, place, 1, keep)
    with (
      pytest.raises(KeyboardInterrupt),
      remote.local_folder(place) as folder,
    ):
      for name in "abcd":
        (folder / name).write_text(name)
  if killed:  # what was on the disk then is there now
    for path, text in notes.items():
      path.write_text(text)
  assert set(files_in(place)) == {"a", "b"}
  with remote.local_folder(place):
    pass
  assert files_in(place) == {x: x.encode() for x in "abcd"}


def test_a_new_folder_that_is_interrupted_is_written_again(place, monkeypatch):
  def write(text):
    with remote.new_folder(place) as folder:
      for name in "abc":
        (folder / name).write_text(text)

  with monkeypatch.context() as patch:
    interrupt(patch, place, 2)
    with pytest.raises(KeyboardInterrupt):
      write("1")
  assert 1 < len(files_in(place)) < 4
  with pytest.raises(ValueError, match="run is incomplete: the command that"):
    remote.fetch(place)
  write("2")
  assert files_in(place) == {x: b"2" for x in "abc"}
  with pytest.raises(ValueError, match="exists already; choose another place"):
    write("3")


@pytest.mark.parametrize("mark", [b"", b"12", b"1f", b'{"names": ["later"]}'])
def test_what_others_put_into_an_interrupted_folder_stays(
  place, monkeypatch, mark
):
  def write():
    with remote.new_folder(place) as folder:
      for name in "abc":
        (folder / name).write_text("1")

  with monkeypatch.context() as patch:
    interrupt(patch, place, 2)
    with pytest.raises(KeyboardInterrupt):
      write()
  system, name = bucket.open_system(place)
  if mark != b'{"names": ["later"]}':
    system.pipe_file(f"{name}/{remote.MARK}", mark)  # of an earlier version
  system.pipe_file(f"{name}/later/metrics.json", b"work")
  before = files_in(place)
  with pytest.raises(ValueError, match="is incomplete, and holds . file"):
    write()
  assert files_in(place) == before


def test_a_full_disk_is_not_the_bucket(memory, monkeypatch):
  def get_file(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")

  put("memory://bucket/run", "a", b"1")
  monkeypatch.setattr(memory, "get_file", get_file)
  message = "memory://bucket/run/a cannot be copied: No space left on device"
  with pytest.raises(OSError, match=message) as error:
    remote.fetch("memory://bucket/run")
  assert error.value.errno == errno.ENOSPC
  assert not isinstance(error.value, bucket.Unreached)


def test_a_cache_is_on_this_machine(monkeypatch):
  monkeypatch.setenv(remote.CACHE, "s3://lake/cache")
  with pytest.raises(ValueError, match="CACHE=s3://lake/cache must be a fold"):
    remote.cache_dir()


def test_folders_that_are_gone(place):
  with remote.local_folder(place) as folder:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c").write_text("1")
  bucket.remove(place)
  with remote.local_folder(place) as folder:
    assert not list(folder.iterdir())


def test_copies_may_be_deleted(place):
  with remote.local_folder(place) as folder:
    for name in "ab":
      (folder / name).write_text(name)
  (remote.fetch(place) / "a").unlink()
  with remote.local_folder(place) as folder:
    (folder / "c").write_text("c")
  assert set(files_in(place)) == {"a", "b", "c"}
  remote.fetch(place, choose=lambda names: ["b"])
  (remote.fetch(place, choose=lambda names: ["b"]) / "a").unlink(
    missing_ok=True
  )
  with remote.local_folder(place, choose=lambda names: ["b"]):
    pass
  assert set(files_in(place)) == {"a", "b", "c"}


def test_what_is_not_there(place):
  with pytest.raises(ValueError, match="does not exist, or is empty"):
    remote.fetch(f"{place}/none")
  with pytest.raises(FileNotFoundError):
    bucket.read_range(f"{place}/none", 0, 3)
  assert not bucket.find(f"{place}/*.tar")


@pytest.mark.parametrize(
  ("path", "message"),
  [
    ("hdfs://cluster/run", "hdfs:// cannot be read or written; give a local"),
    ("gs://", "names no bucket, such as gs://BUCKET/FOLDER"),
    ("s3:///run", "names no bucket"),
    ("s3://a bucket/run", "names no bucket"),
    ("memory://x/..", 'a path in a bucket has no part ".."'),
    ("memory://..", 'a path in a bucket has no part ".."'),
    ("s3://bucket/a/../../b", 'a path in a bucket has no part ".."'),
    ("gs://bucket/./run/", 'a path in a bucket has no part ".."'),
    ("s3://bucket/run?versionId=1", 'nor "[?]versionId="; write it'),
    ("s3://bücket/run", "names no bucket"),
  ],
)
def test_paths_that_are_wrong(path, message):
  with pytest.raises(ValueError, match=message):
    remote.fetch(path)


def test_a_name_is_no_chain_of_file_systems(tmp_path):
  """In fsspec's own words, :: leads to another file system."""
  (tmp_path / "secret").write_text("secret")
  (tmp_path / "x").write_text("x")
  path = f"memory://bucket/x::file://{tmp_path}/secret"
  for use in (
    lambda: bucket.read_range(path, 0, 9),
    lambda: bucket.upload(tmp_path / "x", path),
  ):
    with pytest.raises(ValueError, match='no ".", "//" or "::"'):
      use()
  assert (tmp_path / "secret").read_text() == "secret"


def test_a_library_that_is_missing(monkeypatch):
  def missing(*_):
    raise ImportError("Please install s3fs")

  monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
  with pytest.raises(
    ValueError, match=r'needs s3fs; pip install "nuclr_jax\[s3'
  ):
    remote.fetch("s3://bucket/run")


def test_a_server_that_cannot_be_reached(monkeypatch):
  monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
  monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
  monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
  monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
  import s3fs

  s3fs.S3FileSystem.clear_instance_cache()
  with pytest.raises(bucket.Unreached, match="bucket/run cannot be reached"):
    remote.fetch("s3://bucket/run")
  s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(
  "name", ["a/../../../x", "a/../b", "./a", "/a", "a//b"]
)
def test_names_that_no_folder_can_hold(name, memory):
  memory.pipe_file(f"/bucket/run/{name}", b"1")
  with pytest.raises(ValueError, match="holds a file of the name"):
    remote.fetch("memory://bucket/run")


def test_a_file_that_is_a_folder_as_well(memory):
  for name in ("a/b", "x"):
    memory.pipe_file(f"/bucket/run/{name}", b"1")
  memory.store["/bucket/run/a"] = memory.store.pop("/bucket/run/x")
  with pytest.raises(ValueError, match="'a' both as a file and as a folder"):
    remote.fetch("memory://bucket/run")


ODD = ["bucket/run/..", "bucket/a/../../run", "bucket/./run", "bucket//run"]
ODD += ["..", "bucket/run/../", "bucket/run::file:///etc", "bucket/run/."]


@pytest.mark.parametrize("scheme", ["memory", "s3", "gs"])
@pytest.mark.parametrize("path", ODD)
def test_a_path_stays_in_its_place(scheme, path, tmp_path):
  """Nothing is contacted, read, written or removed, whoever gives the path."""
  kept = tmp_path / "cache" / "work"
  kept.parent.mkdir(parents=True)
  kept.write_text("the only copy")
  path = f"{scheme}://{path}"
  for use in (
    remote.fetch,
    lambda path: remote.local_folder(path).__enter__(),
    lambda path: remote.new_folder(path).__enter__(),
    remote.check_new,
    bucket.exists,
    bucket.names_in,
    bucket.find,
    bucket.remove,
    lambda path: bucket.upload(kept, path),
    lambda path: bucket.download(path, tmp_path / "new"),
    lambda path: bucket.read_range(path, 0, 3),
  ):
    with pytest.raises(ValueError, match='has no part ".."'):
      use(path)
  assert kept.read_text() == "the only copy"
  assert [x.name for x in kept.parent.iterdir()] == ["work"]


def test_choice_of_the_newest_checkpoint():
  names = [f"checkpoints/{x}/state/d" for x in (5, 10, 15)]
  names += [f"checkpoints/{x}/_CHECKPOINT_METADATA" for x in (5, 10)]
  names += ["best/5/_CHECKPOINT_METADATA", "config.json", "checkpoints/x"]
  assert checkpoint.of_newest(names) == [
    "checkpoints/10/state/d",
    "checkpoints/10/_CHECKPOINT_METADATA",
    "best/5/_CHECKPOINT_METADATA",
    "config.json",
  ]


def test_what_both_have_changed_is_set_aside(
  place, monkeypatch, tmp_path, caplog
):
  """The bucket's version is used, and nothing of the other one is lost."""
  with remote.local_folder(place) as folder:
    (folder / "history").write_text("1")

  def write(folder):
    (folder / "history").write_text("mine")
    (folder / "5").mkdir()
    (folder / "5" / "state").write_text("my state")

  fail_to_copy(monkeypatch, place, write)
  put(place, "history", b"of others")
  with remote.local_folder(place) as folder:
    assert (folder / "history").read_text() == "of others"
    assert not (folder / "5").exists()
  assert files_in(place) == {"history": b"of others"}
  expected = {"run/history": "mine", "run/5/state": "my state"}
  assert kept_in(tmp_path / "cache") == expected
  assert "are kept in" in caplog.text


def test_what_others_have_changed_besides_does_not_matter(place, monkeypatch):
  """A report, for instance, that was written while a run could not copy."""
  with remote.local_folder(place) as folder:
    for name in ("history", "report.html", "gone"):
      (folder / name).write_text("1")

  fail_to_copy(
    monkeypatch, place, lambda folder: (folder / "history").write_text("22")
  )
  put(place, "report.html", b"new")
  bucket.remove(f"{place}/gone")
  assert (remote.fetch(place) / "history").read_text() == "1"
  with remote.local_folder(place) as folder:
    assert (folder / "report.html").read_text() == "new"
    assert not (folder / "gone").exists()
  assert files_in(place) == {"history": b"22", "report.html": b"new"}


def test_a_file_that_nobody_noted_is_not_deleted(place, tmp_path):
  put(place, "a", b"1")
  copy = remote.fetch(place)
  (copy / "mine").write_text("2")
  put(place, "b", b"2")
  bucket.remove(f"{place}/a")
  assert [x.name for x in remote.fetch(place).iterdir()] == ["b"]
  put(place, "mine", b"of others")
  assert (remote.fetch(place) / "mine").read_text() == "of others"
  assert (copy / "mine").read_text() == "2"
  with remote.local_folder(place) as folder:
    assert folder == copy and (folder / "mine").read_text() == "of others"
  assert kept_in(tmp_path / "cache") == {"run/mine": "2"}


DAMAGE = {
  "not JSON": b"{",
  "a list": b"[]",
  "binary": bytes(range(256)),
  "empty": b"",
  "no keys": b"{}",
  "no files": b'{"path": "memory://bucket/run"}',
  "another path": b'{"path": "memory://bucket/other", "files": {}}',
  "a list of files": b'{"path": "PATH", "files": ["a"]}',
  "a number": b'{"path": "PATH", "files": {"a": 1}}',
  "no numbers": b'{"path": "PATH", "files": {"a": ["x", "y", "z"]}}',
  "empty notes": b'{"path": "PATH", "files": {"a": []}}',
  "too many": b'{"path": "PATH", "files": {"a": ["x", 1, 2, 3]}}',
  "deep": b"[" * 100_000,
  "a huge number": b'{"path": "PATH", "files": {"a": ["x", 1e999, NaN]}}',
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("copied", [True, False], ids=["copied", "not copied"])
def test_damaged_notes(damage, copied, memory, monkeypatch, tmp_path, caplog):
  place = "memory://bucket/run"
  with remote.local_folder(place) as folder:
    (folder / "a").write_text("1")
  if not copied:
    fail_to_copy(
      monkeypatch, place, lambda folder: (folder / "a").write_text("mine")
    )
  (notes,) = tmp_path.rglob(remote.NOTES)
  notes.write_bytes(DAMAGE[damage].replace(b"PATH", place.encode()))
  assert (remote.fetch(place) / "a").read_text() == "1"
  with remote.local_folder(place) as folder:
    (folder / "a").write_text("2")
  assert files_in(place) == {"a": b"2"}
  assert "cannot be read" in caplog.text
  if not copied:
    assert kept_in(tmp_path / "cache") == {"run/a": "mine"}


def test_without_notes_equal_files_are_known_by_their_checksums(
  place, tmp_path, monkeypatch
):
  with remote.local_folder(place) as folder:
    for name in "ab":
      (folder / name).write_text(name)
  (notes,) = tmp_path.rglob(remote.NOTES)
  notes.unlink()
  system, _ = bucket.open_system(place)
  copied, plain = [], system.get_file

  def get_file(source, *args, **kwargs):
    copied.append(source)
    return plain(source, *args, **kwargs)

  monkeypatch.setattr(system, "get_file", get_file)
  assert (remote.fetch(place) / "a").read_text() == "a"
  states_checksums = not place.startswith("memory")
  assert len(copied) == (0 if states_checksums else 2)


@pytest.mark.parametrize(
  "path", ["run", "run/notes.json", ".lock", "notes.json", "x.notes", "owner"]
)
def test_names_of_the_cache_are_names_like_others(path, memory):
  place = f"memory://bucket/{path}"
  names = (remote.NOTES, ".lock", "owner", "copy", "a.part", "a", "x/.lock")
  for name in names:
    put(place, name, name.encode())
  for _ in range(2):
    copy = remote.fetch(place)
    for name in names:
      assert (copy / name).read_text() == name
  with remote.local_folder(place) as folder:
    (folder / "a").write_text("new")
  expected = {x: x.encode() for x in names} | {"a": b"new"}
  assert files_in(place) == expected
  memory.pipe_file("/bucket/one/notes.json", b"1")
  assert remote.fetch("memory://bucket/one/notes.json").read_text() == "1"


def test_a_cache_of_an_earlier_version(memory, tmp_path, monkeypatch):
  """Its notes lay beside the copy, and had no stamp for what was on its way."""
  place = "memory://bucket/run"
  with remote.local_folder(place) as folder:
    (folder / "a").write_text("1")
  fail_to_copy(
    monkeypatch, place, lambda folder: (folder / "b").write_text("mine")
  )
  (notes,) = tmp_path.rglob(remote.NOTES)
  content = json.loads(notes.read_text())
  content["files"]["b"] = [None, *content["files"]["b"][1:3]]
  (tmp_path / "cache" / folder.parent.name / "notes.json").write_text(
    json.dumps(content)
  )
  shutil.rmtree(notes.parent)
  with remote.local_folder(place) as folder:
    assert (folder / "b").read_text() == "mine"
  assert files_in(place) == {"a": b"1", "b": b"mine"}


def test_names_that_look_unfinished_stay_in_the_bucket(place):
  put(place, "a.tmp", b"1")
  put(place, "b.lock", b"2")
  with remote.local_folder(place) as folder:
    (folder / "c").write_text("3")
  assert files_in(place) == {"a.tmp": b"1", "b.lock": b"2", "c": b"3"}


def test_a_run_that_writes_on_and_is_killed_before_the_copy_is_noted(
  place, tmp_path
):
  """What it had copied itself is no change of somebody else."""
  with remote.local_folder(place) as folder:
    (folder / "history").write_text("1\n")
  (notes,) = tmp_path.rglob(remote.NOTES)
  copy = copies.Copy(place, folder, notes)
  before = copies.read_notes(copy)["history"]
  (folder / "history").write_text("1\n2\n")
  on_its_way = before._replace(
    state=remote.local.state_of(folder / "history"), pushing=True
  )
  copies.write_notes(copy, {"history": on_its_way})
  put(place, "history", b"1\n2\n")
  (folder / "history").write_text("1\n2\n3\n")
  with remote.local_folder(place):
    pass
  assert files_in(place) == {"history": b"1\n2\n3\n"}
  assert not kept_in(tmp_path / "cache")


def test_a_copy_here_that_is_killed_is_no_work(memory, monkeypatch, tmp_path):
  """Half of a new version is here; the notes say that it came from there."""
  place = "memory://bucket/run"
  for name in "ab":
    put(place, name, b"1")
  copy = remote.fetch(place)
  for name in "ab":
    put(place, name, b"22")
  notes = next(tmp_path.rglob(remote.NOTES))
  plain, written = memory.get_file, []

  def get_file(source, *args, **kwargs):
    if written:
      raise KeyboardInterrupt
    written.append(notes.read_text())
    return plain(source, *args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(memory, "get_file", get_file)
    with pytest.raises(KeyboardInterrupt):
      remote.fetch(place)
  notes.write_text(written[0])  # as kill -9 leaves it
  assert {(copy / x).read_text() for x in "ab"} == {"1", "22"}
  with remote.local_folder(place) as folder:
    assert {(folder / x).read_text() for x in "ab"} == {"22"}
  assert not kept_in(tmp_path / "cache")


def test_files_that_vanish_while_they_are_copied_here(memory, monkeypatch):
  """A run that goes on elsewhere has replaced its checkpoint."""
  place = "memory://bucket/run"
  put(place, "5/state", b"5")
  plain = memory.get_file

  def get_file(source, *args, **kwargs):
    if "/5/" in source:
      bucket.remove(f"{place}/5")
      put(place, "6/state", b"6")
    return plain(source, *args, **kwargs)

  monkeypatch.setattr(memory, "get_file", get_file)
  assert (remote.fetch(place) / "6" / "state").read_text() == "6"


def test_marks_of_folders(place):
  """Consoles make an empty object for a folder; it is no file."""
  if place.startswith("memory"):
    pytest.skip("memory:// has no names that end in a slash")
  system, name = bucket.open_system(place)
  system.pipe_file(f"{name}/", b"")
  system.pipe_file(f"{name}/sub/", b"")
  with pytest.raises(ValueError, match="run is an empty folder"):
    remote.fetch(place)
  with remote.local_folder(place) as folder:
    (folder / "x").write_text("1")
  assert bucket.names_in(place).keys() == {"x"}
  assert [x.name for x in remote.fetch(place).iterdir()] == ["x"]


def flip(path: pathlib.Path) -> None:
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def cut(path: pathlib.Path) -> None:
  os.truncate(path, path.stat().st_size - 1)


def grow(path: pathlib.Path) -> None:
  path.write_bytes(path.read_bytes() + b"<html>")


@pytest.mark.parametrize("damage", [flip, cut, grow])
@pytest.mark.parametrize("count", [1, 99], ids=["once", "always"])
def test_what_arrives_damaged(place, tmp_path, monkeypatch, damage, count):
  """It is copied again, and is an error if that does not help."""
  if damage is flip and place.startswith("memory"):
    pytest.skip("memory:// states no checksums")
  put(place, "x.tar", b"0123456789")
  system, _ = bucket.open_system(place)
  plain, done = system.get_file, []

  def get_file(source, goal, **kwargs):
    plain(source, goal, **kwargs)
    done.append(goal)
    if len(done) <= count:
      damage(pathlib.Path(goal))

  monkeypatch.setattr(system, "get_file", get_file)
  here = tmp_path / "d" / "x.tar"
  if count == 1:
    bucket.download(f"{place}/x.tar", here)
    assert here.read_bytes() == b"0123456789" and len(done) == 2
    return
  with pytest.raises(bucket.Unreached, match="x.tar did not arrive as it is"):
    bucket.download(f"{place}/x.tar", here)
  assert not list(here.parent.iterdir())


@pytest.mark.parametrize("damage", [flip, cut, grow])
def test_what_is_damaged_on_its_way_to_the_bucket(
  place, tmp_path, monkeypatch, damage
):
  if damage is flip and place.startswith("memory"):
    pytest.skip("memory:// states no checksums")
  system, _ = bucket.open_system(place)
  plain = system.put_file

  def put_file(source, goal, **kwargs):
    copy = tmp_path / "on its way"
    shutil.copy(source, copy)
    if goal.endswith("a"):
      damage(copy)
    return plain(os.fspath(copy), goal, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(system, "put_file", put_file)
    with (
      pytest.raises(bucket.Unreached, match=r"1 file\(s\) did not arrive"),
      remote.local_folder(place) as folder,
    ):
      for name in "ab":
        (folder / name).write_text("0123456789")
  with remote.local_folder(place) as folder:
    assert (folder / "a").read_text() == "0123456789"
  assert files_in(place) == dict.fromkeys("ab", b"0123456789")


def test_an_etag_that_is_no_checksum(tmp_path):
  """That of an object which S3 encrypts with a key of KMS."""
  with make_bucket.s3() as root:
    put(f"{root}/run", "x", b"0123456789")
    path = tmp_path / "x"
    path.write_bytes(b"0123456788")
    system, name = bucket.open_system(f"{root}/run/x")
    info = system.info(name)
    assert "its MD5 is" in bucket.not_as_stated(f"{root}/run/x", info, path)
    system.pipe_file(
      name,
      b"0123456789",
      ServerSideEncryption="aws:kms",
      SSEKMSKeyId="arn:aws:kms:us-east-1:1:key/1",
    )
    other = dict(system.info(name), ETag=f'"{7:032x}"')
    path.write_bytes(b"0123456789")
    assert not bucket.not_as_stated(f"{root}/run/x", other, path)


def test_checksums_of_google(tmp_path):
  """Of an object of several parts there is CRC32C alone."""
  path = tmp_path / "x"
  path.write_bytes(b"123456789")
  info = {"size": 9, "crc32c": "4waSgw=="}  # the check value, E3069283
  assert not checksum.difference(info, path)
  path.write_bytes(b"123456780")
  assert "its CRC32C is" in checksum.difference(info, path)


def test_two_who_write_one_new_folder(memory):
  place = "memory://bucket/new"
  with (
    pytest.raises(ValueError, match="another process has written to"),
    pytest.MonkeyPatch.context() as patch,
    remote.new_folder(place) as work,
  ):
    (work / "x").write_text("1")
    plain = memory.put_file

    def put_file(source, goal, **kwargs):
      plain(source, goal, **kwargs)
      if goal.endswith("/x"):
        put(place, remote.MARK, b"of others")

    patch.setattr(memory, "put_file", put_file)
  with pytest.raises(ValueError, match="is incomplete"):
    remote.fetch(place)

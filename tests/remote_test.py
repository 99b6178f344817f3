"""Files in buckets: fsspec's memory, and local servers of S3 and Google."""

import pathlib
import time

import fsspec
import make_bucket
import pytest

from nuclr_jax.files import bucket, remote
from nuclr_jax.train import checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))


@pytest.fixture(params=["memory", "s3", "gs"])
def place(request):
  """A new folder in a bucket, as a path and as a file system."""
  if request.param == "memory":
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield "memory://bucket/run"
    return
  with make_bucket.SERVERS[request.param]() as path:
    yield f"{path}/run"


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
  system, _ = bucket.open_system(place)
  system.store.clear()
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
    ("memory://x/..", "a part . or .., which buckets do not follow"),
    ("memory://..", "a part . or .., which buckets do not follow"),
    ("s3://bucket/a/../../b", "a part . or .., which buckets do not follow"),
    ("gs://bucket/./run/", "a part . or .., which buckets do not follow"),
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
  with pytest.raises(FileNotFoundError):
    bucket.read_range(path, 0, 9)
  bucket.upload(tmp_path / "x", path)
  assert bucket.read_range(path, 0, 9) == b"x"
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


def test_names_that_lead_out():
  system = fsspec.filesystem("memory")
  system.store.clear()
  system.pipe_file("/bucket/run/a/../../../x", b"1")
  with pytest.raises(ValueError, match="holds a file of the name"):
    remote.fetch("memory://bucket/run")


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

"""Buckets that answer wrongly, late or not at all, and files that vanish."""

import contextlib
import json
import os
import shutil
import time

from absl.testing import flagsaver
import make_bucket
import make_captioned
import make_faults
from make_photos import write_pairs
import pytest
from repository import CLIP

from nuclr_jax.lab import config, ingest
from nuclr_jax.lab.cli import flags, main
from nuclr_jax.lab.data import places, tar_files
from nuclr_jax.lab.files import bucket, remote
from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.train import loop
from nuclr_jax.lab.user_files import inputs


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def s3():
  """A bucket with a model and a data set behind a server with faults."""
  with make_bucket.s3() as root:
    for file in CLIP.iterdir():
      bucket.upload(file, f"{root}/clip/{file.name}")
    with make_faults.before(os.environ["AWS_ENDPOINT_URL"]) as faults:
      yield root, faults


@pytest.fixture
def faulty(s3, monkeypatch):
  """Yields `(root, faults)` for clients that do not wait before they retry."""
  import s3fs

  monkeypatch.setenv("AWS_ENDPOINT_URL", s3[1].url)
  monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
  monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
  s3fs.S3FileSystem.clear_instance_cache()
  bucket._check_answers.cache_clear()
  yield s3
  s3fs.S3FileSystem.clear_instance_cache()


@contextlib.contextmanager
def meeting(faults, fault, choose=lambda method, path: True):
  faults.choose.append(lambda *where: fault if choose(*where) else None)
  try:
    yield
  finally:
    faults.choose.pop()


def is_content(method, path):
  return method == "GET" and "/clip/" in path and "list-type" not in path


def failing_command(capsys, *words):
  """Returns what a command says that fails before any work begins."""
  flags._base.cache_clear()
  with flagsaver.flagsaver(), pytest.raises(SystemExit) as ended:
    main.parse_flags(["nuclr", *words])
  assert ended.value.code == 1
  (line,) = capsys.readouterr().err.strip().splitlines()
  return line


@pytest.mark.parametrize("fault", make_faults.FAULTS)
def test_a_model_that_cannot_be_read(faulty, fault, capsys):
  """One line, and no traceback, from the command itself."""
  root, faults = faulty
  words = ["embed", f"--model={root}/clip", "--input=x.tar", "--output=out"]
  with meeting(faults, fault, is_content):
    line = failing_command(capsys, *words)
  assert f"{root}/clip/" in line
  assert "cannot be reached" in line or "does not exist" in line


@pytest.mark.parametrize(
  "words",
  [
    ["embed", "--model=s3://none/x", "--input=x.tar", "--output=out"],
    ["evaluate", f"--model={CLIP}", "--data=s3://none/mine"],
    ["evaluate", f"--model={CLIP}", "--data=mine", "--data_dir=s3://none/d"],
  ],
)
def test_a_bucket_that_is_not_there(faulty, words, capsys):
  line = failing_command(capsys, *words)
  assert "s3://none/" in line and "does not exist" in line


def test_a_bucket_to_write_to_is_looked_for_first(faulty, tmp_path):
  with pytest.raises(FileNotFoundError, match="there is no bucket s3://none"):
    remote.check_new("s3://none/out")
  remote.check_new(f"{faulty[0]}/out")


def test_an_answer_that_does_not_come(faulty, monkeypatch, capsys):
  root, faults = faulty
  monkeypatch.setattr(bucket, "PATIENCE", 0.5)
  words = ["embed", f"--model={root}/clip", "--input=x.tar", "--output=out"]
  with meeting(faults, make_faults.STALLED):
    start = time.monotonic()
    line = failing_command(capsys, *words)
  assert "no answer within" in line and time.monotonic() - start < 20


def test_google_without_an_answer(faulty, monkeypatch):
  import gcsfs

  monkeypatch.setenv("STORAGE_EMULATOR_HOST", faulty[1].url)
  monkeypatch.setattr(bucket, "PATIENCE", 0.5)
  gcsfs.GCSFileSystem.clear_instance_cache()
  with meeting(faulty[1], make_faults.STALLED):
    for ask in (bucket.exists, bucket.find, bucket.names_in, remote.fetch):
      start = time.monotonic()
      with pytest.raises(bucket.Unreached, match="no answer within"):
        ask("gs://bucket/x")
      assert time.monotonic() - start < 20
  gcsfs.GCSFileSystem.clear_instance_cache()


def test_more_bytes_than_were_asked_for(monkeypatch):
  system, _ = bucket.open_system("memory://bucket/x")
  monkeypatch.setattr(system, "cat_file", lambda *_, **__: b"12345")
  with pytest.raises(bucket.Unreached, match="5 bytes came in answer to 3"):
    bucket.read_range("memory://bucket/x", 0, 3)


def test_an_answer_that_is_cut_short_is_no_end_of_a_file(monkeypatch, tmp_path):
  (tmp_path / "x").write_bytes(bytes(range(10)))
  bucket.upload(tmp_path / "x", "memory://bucket/x")
  with bucket.open_file("memory://bucket/x") as file:
    assert file.read(4) + file.read(99) + file.read(1) == bytes(range(10))
    file.seek(2)
    read = file._file.read
    monkeypatch.setattr(file._file, "read", lambda size: read(size)[:1])
    assert file.read(1) == b"\2"
    for size in (2, -1):
      with pytest.raises(bucket.Unreached, match=r"1 of \d bytes came"):
        file.read(size)


def test_an_error_of_a_library_names_the_path(monkeypatch):
  """Whatever it is: what cannot be parsed is often a ValueError."""

  def garbled(*_, **__):
    raise json.JSONDecodeError("Expecting value", "", 0)

  system, _ = bucket.open_system("memory://bucket/x")
  monkeypatch.setattr(system, "find", garbled)
  with pytest.raises(bucket.Unreached, match="memory://bucket/x cannot be re"):
    bucket.names_in("memory://bucket/x")


class TestWhatVanishes:
  """A file that is gone is not a damaged one, of which some are expected."""

  @pytest.mark.parametrize("in_place", [False, True])
  def test_from_a_bucket(self, tmp_path, monkeypatch, in_place):
    system = make_bucket.memory()
    for i in range(2):
      tar = write_pairs(tmp_path / f"{i}.tar", [i])
      bucket.upload(tar, f"memory://b/raw/{i}.tar")
    download = bucket.download

    def late(path, here):
      system.store.pop("/b/raw/1.tar", None)
      download(path, here)

    monkeypatch.setattr(bucket, "download", late)
    how = {"data_dir": tmp_path / "d", "workers": 1, "in_place": in_place}
    with pytest.raises(bucket.Unreached, match="1.tar does not exist.* at fir"):
      ingest.ingest("memory://b/raw/*.tar", "mine", **how)
    assert not (tmp_path / "d" / "mine" / "1.0.0").exists()

  @pytest.mark.parametrize("change", ["is gone", "has changed"])
  def test_from_here(self, tmp_path, monkeypatch, change):
    tars = [write_pairs(tmp_path / f"{i}.tar", [i]) for i in range(2)]
    write_part = records.write_part

    def late(*args, **kwargs):
      tars[1].unlink(missing_ok=True)
      if change == "has changed":
        write_pairs(tars[1], [3, 4])
      return write_part(*args, **kwargs)

    monkeypatch.setattr(records, "write_part", late)
    how = {"data_dir": tmp_path / "d", "workers": 1}
    with pytest.raises(OSError, match=f"1.tar {change} since the command beg"):
      ingest.ingest(str(tmp_path / "*.tar"), "mine", **how)
    assert not (tmp_path / "d" / "mine" / "1.0.0").exists()
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "d")

  def test_a_photo(self, tmp_path, monkeypatch):
    folder = make_captioned.photo_folder(tmp_path / "photos", ["a", "b", "c"])
    (part,) = inputs.plan(str(folder)).parts
    next(folder.glob("*.jpg")).unlink()
    with pytest.raises(OSError, match="is gone since the command began"):
      records.write_part(part, tmp_path / "part")


@pytest.mark.parametrize("name", ["a[1].tar", "a?.tar", "a*.tar"])
def test_a_name_that_exists_is_no_pattern(tmp_path, name):
  make_bucket.memory()
  tar = write_pairs(tmp_path / "x.tar", [0])
  for file in (name, "a1.tar"):
    bucket.upload(tar, f"memory://b/{file}")
  assert list(bucket.find(f"memory://b/{name}")) == [f"memory://b/{name}"]
  assert tar_files.find_tars(f"memory://b/{name}") == [f"memory://b/{name}"]
  (row,) = inputs.plan(f"memory://b/{name}").files
  assert row[0] == f"memory://b/{name}"


def test_brackets_that_become_a_pattern_are_not_silent(tmp_path, caplog):
  make_bucket.memory()
  bucket.upload(write_pairs(tmp_path / "x.tar", [0]), "memory://b/a1.tar")
  assert list(bucket.find("memory://b/a[1].tar")) == ["memory://b/a1.tar"]
  assert "a[1].tar does not exist, and is read as a pattern" in caplog.text


class TestBucketsOfARun:
  """A run's config.json may name a bucket that the user names, too."""

  @pytest.fixture
  def workdir(self, tmp_path, monkeypatch):
    monkeypatch.delenv(places.DATA_DIR, raising=False)
    data = {"name": "image_text", "train": "s3://other/mine", "length": 16}
    data |= {"test": ("pets=s3://other/pets:val",), "tokenizer": "gs://o/words"}
    whole = config.load_config("cc3m:smoke").to_dict()
    whole = config.complete(whole | {"data": data})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(whole))
    opened = contextlib.closing(contextlib.ExitStack()), 0
    monkeypatch.setattr(
      loop.checkpoint, "open_to_read", lambda *_, **__: opened
    )
    monkeypatch.setattr(loop.contextlib, "closing", contextlib.nullcontext)
    return tmp_path / "run"

  def test_nobody_names_it(self, workdir, monkeypatch):
    monkeypatch.setattr(bucket, "open_system", None)
    with pytest.raises(
      ValueError, match=r"config.json names the bucket gs://o"
    ):
      loop.load(workdir)
    monkeypatch.setenv(bucket.BUCKETS, "gs://o/anything")
    with pytest.raises(ValueError, match=r"NUCLR_BUCKETS=s3://other$"):
      loop.load(workdir, data_dir="s3://mine/other")

  @pytest.mark.parametrize(
    ("variable", "how"),
    [
      ("gs://o,s3://other", {}),
      ("gs://o", {"data_dir": "s3://other/data"}),
      ("gs://o", {"held_out": {"test": ("x=s3://other/x",)}}),
    ],
  )
  def test_the_user_names_it(self, workdir, monkeypatch, variable, how):
    monkeypatch.setenv(bucket.BUCKETS, variable)
    monkeypatch.setattr(loop.build, "build", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      loop.load(workdir, **how)

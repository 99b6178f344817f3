"""Ingests that are interrupted, repeated and added to."""

import json
import os
import pathlib
import struct
import sys
import tarfile
import time
import zlib

from make_photos import PHOTOS, photo_folder, read, rejected, write_pairs
import pytest

from nuclr_jax.lab import files, ingest, progress
from nuclr_jax.lab.data import captions, pair_index, tar_files
from nuclr_jax.lab.ingest import beam, publish, records
from nuclr_jax.lab.user_files import inputs, readers

PHOTO = PHOTOS[0]


def test_splits_are_added_and_never_changed(tmp_path, caplog):
  caplog.set_level("INFO")
  write_pairs(tmp_path / "train.tar", [0, 1])
  write_pairs(tmp_path / "test.tar", [2, 3, 4])

  def make(tar, split):
    return ingest.ingest(
      f"{tmp_path}/{tar}.tar", "mine", split=split, data_dir=tmp_path, workers=1
    )

  folder = make("train", "train")
  before = {x: x.stat().st_mtime_ns for x in folder.rglob("*") if x.is_file()}
  given_up = folder / "mine-test.array_record-00000-of-00007"
  given_up.write_bytes(b"")
  make("test", "test")
  assert not given_up.exists()
  assert [row[1] for row in read(folder, "test")] == PHOTOS[2:5]
  assert [row[1] for row in read(folder, "train")] == PHOTOS[:2]
  assert "is in" not in caplog.text
  half_removed = folder.parent / "incomplete" / "part-00000.npz"
  half_removed.parent.mkdir()
  half_removed.write_bytes(b"")
  with pytest.raises(ValueError, match="split train already, of another input"):
    make("test", "train")
  make("train", "train")
  assert not half_removed.parent.exists()
  assert "split train is in" in caplog.text
  assert [row[1] for row in read(folder, "train")] == PHOTOS[:2]
  unchanged = {
    x: time for x, time in before.items() if x.stat().st_mtime_ns == time
  }
  assert {x.name for x in set(before) - set(unchanged)} <= {
    "dataset_info.json",
    "features.json",
  }
  assert publish.split_counts(folder)["test images"] == 3


def test_a_split_whose_name_begins_with_another_s(tmp_path):
  """One table makes both; each keeps its pairs."""
  photo_folder(tmp_path / "photos")
  rows = [
    {
      "split": split,
      "filepath": "sub",
      "filename": f"{i}.jpg",
      "sentences": [{"raw": f"photo {i}"}],
    }
    for i, split in enumerate(["train_extra", "train", "train"])
  ]
  (tmp_path / "table.json").write_text(json.dumps({"images": rows}))
  folder = ingest.ingest(
    str(tmp_path / "table.json"),
    "mine",
    images=tmp_path / "photos",
    data_dir=tmp_path,
    workers=1,
  )
  assert pair_index.load_index(folder, "train_extra").sizes.num_pairs == 1
  assert pair_index.load_index(folder, "train").sizes.num_pairs == 2
  assert publish.split_counts(folder)["train_extra captions"] == 1


class Killed(Exception):
  """Stands for kill -9: nothing of this package expects it."""


KILLED_AT = [
  (records, "write_part", 3),  # of 4 parts
  (os, "replace", 1),
  (os, "replace", 6),  # between the files of a part
  (publish, "save_index", 1),
  (publish, "_write_info", 1),
  (pathlib.Path, "replace", 2),  # when records get their names
  (pathlib.Path, "rename", 1),
  (publish.shutil, "rmtree", 1),
  (publish.shutil, "rmtree", 2),
]
CASES = [(place, second) for place in KILLED_AT for second in (False, True)]
CASES += [((pathlib.Path, "rename", 2), False)]
CASES += [((pathlib.Path, "replace", i), True) for i in (4, 5, 6, 7)]


@pytest.mark.parametrize(
  "place, is_second",
  CASES,
  ids=lambda x: f"{x[1]}-{x[2]}" if isinstance(x, tuple) else str(x),
)
def test_killed_anywhere_it_goes_on(tmp_path, place, is_second):
  """The data set is whole and the same, wherever the first call ended."""
  for i in range(4):
    write_pairs(tmp_path / f"{i}.tar", [2 * i, 2 * i + 1])
  (tmp_path / "1.tar").write_bytes(b"broken")

  def make(split="train"):
    return ingest.ingest(
      f"{tmp_path}/*.tar", "mine", split=split, data_dir=tmp_path, workers=1
    )

  if is_second:
    make("validation")
  module, name, count = place
  function, calls = getattr(module, name), []

  def fail(*args, **kwargs):
    calls.append(name)
    if len(calls) == count:
      raise Killed
    return function(*args, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(module, name, fail)
    with pytest.raises(Killed):
      make()
  if is_second:
    assert [row[1] for row in read(tmp_path / "mine" / "1.0.0", "validation")]
  folder = make()
  for split in ["train", "validation"][: 1 + is_second]:
    assert [row[0] for row in read(folder, split)] == [
      f"{i:05d}" for i in (0, 1, 4, 5, 6, 7)
    ]
    index = pair_index.load_index(folder, split)
    assert index.record.tolist() == list(range(6))
    assert [row["source"][-5:] for row in rejected(folder, split)] == ["1.tar"]
  assert not (folder.parent / "incomplete").exists()
  assert {path.name for path in folder.parent.iterdir()} == {"1.0.0", ".lock"}
  names = {path.name for path in folder.iterdir()}
  assert not [name for name in names if "tmp" in name]


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch, caplog):
  for i in range(3):
    write_pairs(tmp_path / f"{i}.tar", [i])
  write, seen = records.write_part, []

  def twice(part, stem, **options):
    seen.append(stem.name)
    if len(seen) == 3:
      raise KeyboardInterrupt
    return write(part, stem, **options)

  monkeypatch.setattr(records, "write_part", twice)
  given = f"{tmp_path}/*.tar"
  with pytest.raises(KeyboardInterrupt):
    ingest.ingest(given, "mine", data_dir=tmp_path, workers=1)
  work = tmp_path / "mine" / "incomplete"
  for options in ({"max_size": 32}, {"split": "test"}):
    with pytest.raises(ValueError, match=f"{work} holds an unfinished ingest"):
      ingest.ingest(given, "mine", data_dir=tmp_path, workers=1, **options)
  assert len(set(seen)) == 3
  # The input may be amended: what has not changed is not read again.
  os.utime(tmp_path / "0.tar")
  (tmp_path / "2.tar").unlink()
  write_pairs(tmp_path / "3.tar", [7, 8])
  caplog.set_level("INFO")
  ingest.ingest(given, "mine", data_dir=tmp_path, workers=1)
  assert "what has not changed is not read again" in caplog.text
  assert len(seen) == 5 and not set(seen[3:]) & set(seen[:3])
  assert "3 of 3 parts" in caplog.text and "ETA" in caplog.text


def test_images_that_two_splits_share(tmp_path, caplog):
  """Captions of an image in two splits, and a split that is added later."""
  photo_folder(tmp_path / "photos")
  images = sorted((tmp_path / "photos" / "sub").glob("*.jpg"))
  names = [x.relative_to(tmp_path / "photos") for x in images]
  assert len({x.read_bytes() for x in images[:2]}) == 2
  table = "file_name,text,split\n"
  table += f"{names[0]},a dog,train\n{names[1]},a cat,train\n"
  table += f"{names[0]},it runs,test\n"
  (tmp_path / "x.csv").write_text(table)
  how = {"data_dir": tmp_path, "workers": 1, "images": tmp_path / "photos"}
  ingest.ingest(f"{tmp_path / 'x.csv'}", "mine", **how)
  assert "1 of 1 images of split test are in split train, too" in caplog.text
  caplog.clear()
  (tmp_path / "y.csv").write_text(f"file_name,text\n{names[1]},a pet\n")
  for _ in range(2):  # what is there already is not said again
    ingest.ingest(f"{tmp_path / 'y.csv'}", "mine", split="validation", **how)
  said = [x for x in caplog.messages if "too, byte for byte" in x]
  assert [x.partition(",")[0] for x in said] == [
    "1 of 1 images of split validation are in split train"
  ]


@pytest.mark.parametrize("table", ["photos/metadata.csv", "x.csv"])
def test_changed_images_of_a_table_are_another_input(tmp_path, table):
  """A finished set is not taken for one of them."""
  photo_folder(tmp_path / "photos")
  image = sorted((tmp_path / "photos" / "sub").glob("*.jpg"))[0]
  name = image.relative_to(tmp_path / "photos")
  (tmp_path / table).write_text(f"file_name,text\n{name},a dog\n")
  given = (
    tmp_path / "photos" if table.startswith("photos") else tmp_path / table
  )
  more = {} if given.is_dir() else {"images": tmp_path / "photos"}
  for _ in range(2):  # nothing has changed
    ingest.ingest(f"{given}", "mine", data_dir=tmp_path, workers=1, **more)
  image.write_bytes(PHOTOS[-1])
  with pytest.raises(ValueError, match="split train already, of another input"):
    ingest.ingest(f"{given}", "mine", data_dir=tmp_path, workers=1, **more)


def test_two_at_once(tmp_path):
  write_pairs(tmp_path / "0.tar", [0])
  (tmp_path / "mine").mkdir()
  with files.locked(tmp_path / "mine"):
    opened = os.listdir("/dev/fd")
    with pytest.raises(ValueError, match=f"is in use by process {os.getpid()}"):
      ingest.ingest(f"{tmp_path}/0.tar", "mine", data_dir=tmp_path, workers=1)
    assert len(os.listdir("/dev/fd")) == len(opened)
  ingest.ingest(f"{tmp_path}/0.tar", "mine", data_dir=tmp_path, workers=1)


def test_nothing_left(tmp_path):
  """The next try is not in the way of what failed."""
  photo_folder(tmp_path / "photos")
  (tmp_path / "x.csv").write_text("image,caption\n0.jpg,a dog\n")
  given = f"{tmp_path}/x.csv"
  with pytest.raises(ValueError, match="no image with a caption.*missing file"):
    ingest.ingest(given, "mine", data_dir=tmp_path, workers=1)
  images = tmp_path / "photos" / "sub"
  ingest.ingest(given, "mine", data_dir=tmp_path, images=images, workers=1)


def tar_of(path, *members):
  """Writes a tar of one pair and of members with headers of any size."""
  write_pairs(path, [0])
  whole = path.read_bytes().rstrip(b"\0")
  whole += bytes(-len(whole) % 512)
  for name, size, content in members:
    info = tarfile.TarInfo(name)
    info.size = size
    whole += info.tobuf(tarfile.GNU_FORMAT) + content
    whole += bytes(-len(whole) % 512)
  path.write_bytes(whole + bytes(1024))


@pytest.mark.parametrize("size", [2**36, 2**70])
def test_a_header_that_claims_too_much(size, tmp_path):
  tar_of(tmp_path / "0.tar", ("x.jpg", size, b"abc"))
  write_pairs(tmp_path / "1.tar", [3])
  folder = ingest.ingest(
    f"{tmp_path}/*.tar", "mine", data_dir=tmp_path, workers=1
  )
  assert publish.split_counts(folder)["train images"] == 2
  reasons = {row["reason"] for row in rejected(folder)}
  assert reasons == {"damaged file"}


def test_json_that_is_nested_too_deep(tmp_path):
  deep = b'{"caption":' + b"[" * 100_000
  tar_of(
    tmp_path / "0.tar",
    ("x.jpg", len(PHOTO), PHOTO),
    ("x.json", len(deep), deep),
  )
  folder = ingest.ingest(f"{tmp_path}/0.tar", "mine", data_dir=tmp_path)
  assert publish.split_counts(folder)["train images"] == 1
  assert [row["reason"] for row in rejected(folder)] == ["no caption"]


def test_an_image_of_more_pixels_than_memory(tmp_path):
  """1.2 MB claim 10^8 pixels; none of them is decoded."""
  rows = zlib.compress(bytes(10_000 * (1 + 10_000 // 8)))

  def chunk(kind, data):
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

  header = struct.pack(">IIBBBBB", 10_000, 10_000, 1, 0, 0, 0, 0)
  bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
  bomb += chunk(b"IDAT", rows) + chunk(b"IEND", b"")
  tar_of(tmp_path / "0.tar", ("x.png", len(bomb), bomb), ("x.txt", 5, b"a dog"))
  folder = ingest.ingest(f"{tmp_path}/0.tar", "mine", data_dir=tmp_path)
  assert [row["reason"] for row in rejected(folder)] == ["too many pixels"]
  allowed = ingest.ingest(
    f"{tmp_path}/0.tar",
    "more",
    data_dir=tmp_path,
    max_pixels=10**8,
    max_size=16,
  )
  assert not rejected(allowed)


def test_what_no_reader_foresaw(tmp_path, monkeypatch):
  write_pairs(tmp_path / "0.tar", [0])
  write_pairs(tmp_path / "1.tar", [1])

  read_tar = readers.read_tar

  def broken(path):
    yield from read_tar(path)
    if "0.tar" in path:
      raise KeyError("strange")

  monkeypatch.setattr(inputs.readers, "read_tar", broken)
  folder = ingest.ingest(
    f"{tmp_path}/*.tar", "mine", data_dir=tmp_path, workers=1
  )
  assert publish.split_counts(folder)["train images"] == 2
  assert [row["reason"] for row in rejected(folder)] == [
    "damaged file (KeyError: 'strange')"
  ]


def test_links_out_of_a_folder_and_what_is_no_file(tmp_path):
  """Neither a photo nor a text of somebody else becomes a record."""
  photo_folder(tmp_path / "photos")
  (tmp_path / "secret.txt").write_text("a secret")
  (tmp_path / "secret.jpg").write_bytes(PHOTO)
  photos = tmp_path / "photos"
  (photos / "x.jpg").symlink_to(tmp_path / "secret.jpg")
  (photos / "y.jpg").write_bytes(PHOTO)
  (photos / "y.txt").symlink_to(tmp_path / "secret.txt")
  os.mkfifo(photos / "z.jpg")
  (photos / "w.jpg").symlink_to(photos / "sub" / "0.jpg")
  (photos / "w.txt").write_text("a link within")
  folder = ingest.ingest(f"{photos}", "mine", data_dir=tmp_path, workers=1)
  reasons = {row["key"]: row["reason"] for row in rejected(folder)}
  assert reasons["x.jpg"] == reasons["y.jpg"] == "link out of the folder"
  assert reasons["z.jpg"] == "missing file" and "w.jpg" not in reasons
  (tmp_path / "tars").mkdir()
  write_pairs(tmp_path / "0.tar", [0])
  (tmp_path / "tars" / "0.tar").symlink_to(tmp_path / "0.tar")
  with pytest.raises(ValueError, match="is a link out of .* with a pattern"):
    ingest.ingest(f"{tmp_path}/tars", "other", data_dir=tmp_path)
  assert ingest.ingest(f"{tmp_path}/tars/*.tar", "other", data_dir=tmp_path)


def test_texts_beside_images_are_bounded(tmp_path):
  """Before they are read: of a sparse file of a terabyte, nothing is.

  JSON that is too large beside a text, which has the captions, costs no pair.
  """
  folder = tmp_path / "photos"
  folder.mkdir()
  for name in "abcd":
    (folder / f"{name}.jpg").write_bytes(PHOTO)
    (folder / f"{name}.txt").write_text(f"photo {name}")
  os.truncate(folder / "a.txt", 2**40)
  (folder / "b.json").write_text(" " * (tar_files.MAX_TEXT + 1))
  (folder / "c.txt").write_text("word " * captions.MAX_LETTERS)
  made = ingest.ingest(f"{folder}", "mine", data_dir=tmp_path, workers=1)
  assert [row[0] for row in read(made)] == ["b.jpg", "d.jpg"]
  assert {row["key"]: row["reason"] for row in rejected(made)} == {
    "a.jpg": tar_files.LONG_TEXT,
    "b.json": tar_files.LONG_TEXT,
    "c.jpg": captions.TOO_LONG,
  }


def test_beam_that_is_not_installed(tmp_path, monkeypatch):
  for name in ("apache_beam", "apache_beam.runners.portability"):
    monkeypatch.setitem(sys.modules, name, None)
  expected = r'needs Apache Beam, .* pip install "nuclr_jax\[beam\]"'
  with pytest.raises(ValueError, match=expected):
    ingest.ingest("no input", "mine", data_dir=tmp_path, beam_options=[])
  assert not list(tmp_path.iterdir())


def test_beam_has_workers_of_its_own(tmp_path):
  options = {"data_dir": tmp_path, "workers": 2, "beam_options": []}
  with pytest.raises(
    ValueError, match="--workers=2 is the number of processes"
  ):
    ingest.ingest("no input", "mine", **options)


def test_progress_while_others_work():
  calls, deadline = [], time.monotonic() + 10
  with progress.every_period(lambda: calls.append(0), period=0.001):
    while len(calls) < 3 and time.monotonic() < deadline:
      time.sleep(0.001)
  count = len(calls)
  time.sleep(0.01)
  assert len(calls) == count >= 3


WORKER_SEES = {  # what differs: the file that is missing, the message
  "versions": (None, "has {.*, the launching process {.*1.0"),
  "data_dir": ("part.job", "does not see .*part.job; --data_dir must be a"),
  "tar": ("0.tar", "does not see .*0.tar; --input, and the images that"),
  "photo": ("photos/sub/0.jpg", "does not see .*sub/0.jpg; --input, and the"),
}


@pytest.mark.parametrize("what", WORKER_SEES)
def test_a_worker_of_beam_that_sees_something_else(what, tmp_path):
  """Its parts would hold other bytes, or nothing but missing files."""
  write_pairs(tmp_path / "0.tar", [0])
  photo_folder(tmp_path / "photos")
  given = tmp_path / ("photos" if what == "photo" else "0.tar")
  [part] = inputs.plan(str(given)).parts
  stem = str(tmp_path / "part")
  beam.save_job(part, stem)
  missing, message = WORKER_SEES[what]
  versions = beam.VERSIONS | ({} if missing else {"OpenCV": "1.0"})
  if missing:
    (tmp_path / missing).unlink()
  with pytest.raises(ValueError, match=f"the worker on .* {message}"):
    beam.run_job(stem, sizes={}, versions=versions)
  assert not (tmp_path / "part.npz").exists()


@pytest.mark.parametrize(
  "link", ["mine", "mine/incomplete", "mine/1.0.0", "mine/.lock",
           "mine/incomplete/1.0.0", "mine/incomplete/x.array_record.tmp"]
)  # fmt: skip
def test_links_in_the_folder_of_a_data_set(link, tmp_path):
  """Nothing is written or removed where they lead."""
  write_pairs(tmp_path / "0.tar", [0, 1])
  elsewhere, path = tmp_path / "elsewhere", tmp_path / "data" / link
  elsewhere.mkdir()
  (elsewhere / "old.tmp").write_text("precious")
  path.parent.mkdir(parents=True)
  path.symlink_to(elsewhere)
  with pytest.raises(ValueError, match=f"{link} is a link to"):
    ingest.ingest(
      f"{tmp_path}/0.tar", "mine", data_dir=tmp_path / "data", workers=1
    )
  assert [x.name for x in elsewhere.iterdir()] == ["old.tmp"]
  assert path.is_symlink()


def test_a_data_dir_may_be_a_link(tmp_path):
  write_pairs(tmp_path / "0.tar", [0, 1])
  (tmp_path / "disk").mkdir()
  (tmp_path / "data").symlink_to(tmp_path / "disk")
  ingest.ingest(
    f"{tmp_path}/0.tar", "mine", data_dir=tmp_path / "data", workers=1
  )
  folder = tmp_path / "disk" / "mine" / "1.0.0"
  assert [row[1] for row in read(folder, "train")] == PHOTOS[:2]

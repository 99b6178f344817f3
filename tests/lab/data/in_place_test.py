"""Data sets whose images stay in tar files, compared with ingested ones."""

import json
import os
import pathlib
import shutil

import chex
import fsspec
from make_photos import (
  PHOTOS,
  encoded,
  pixels,
  read,
  rejected,
  write_pairs,
  write_tar,
)
import numpy as np
import peak_memory
import pytest

from nuclr_jax.lab import files, ingest
from nuclr_jax.lab.data import captioned, image_text, in_place, loader
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.lab.files import bucket, remote
from nuclr_jax.lab.ingest import records


def make_tars(folder):
  """Tars with repeated images and captions, another format, and damage."""
  folder.mkdir(parents=True)
  write_pairs(folder / "a.tar", [0, 1, 2, 3])
  png = encoded(pixels(7, channels=4), "PNG")
  files = [("p/x.png", png), ("p/x.txt", b"a drawing"), ("y.txt", b"lost")]
  files += [("z.jpg", b"no image"), ("z.txt", b"broken")]
  write_tar(folder / "b.tar", files)
  write_tar(folder / "c.tar", [("q.jpg", PHOTOS[0][:-9]), ("q.txt", b"cut")])
  write_pairs(folder / "d.tar", [4, 5, 6, 7, 8, 9])
  with open(folder / "d.tar", "r+b") as file:
    file.truncate(os.path.getsize(folder / "d.tar") - 12_000)
  write_pairs(folder / "e.tar", [10, 11])
  return folder


def make(tars, data_dir, name, **options):
  how = {"data_dir": data_dir, "workers": 1} | options
  return ingest.ingest(f"{tars}/*.tar", name, **how)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """The data sets `copied` and `mine` of the same tars, in `tars`."""
  folder = tmp_path_factory.mktemp("in_place")
  tars = make_tars(folder / "tars")
  make(tars, folder, "copied")
  make(tars, folder, "mine", in_place=True)
  return folder


@pytest.fixture
def moved(data_dir, tmp_path):
  """A copy of the data sets and the tars, of the same times."""
  shutil.copytree(data_dir, tmp_path / "copy")
  say_where(tmp_path / "copy", tmp_path / "copy" / "tars")
  return tmp_path / "copy"


def say_where(data_dir, tars):
  path = data_dir / "mine" / "1.0.0" / "tars-train.json"
  content = json.loads(path.read_text())
  path.write_text(json.dumps(content | {"folder": str(tars)}))


def opened(data_dir, name="mine", split="train"):
  return captioned.open_captioned(name, split, data_dir)


def batches(data, count=4):
  words = build_tokenizer(captioned.all_captions(data), length=6)
  source = image_text.captioned_source(data, words, size=24)
  with loader.batches(source, batch_size=5, seed=1) as stream:
    return [next(stream) for _ in range(count)]


class TestEqualToIngest:
  def test_records_and_pairs(self, data_dir):
    copied, mine = opened(data_dir, "copied"), opened(data_dir)
    numbers = np.arange(copied.num_records)
    assert len(numbers) > 8
    assert copied.read(numbers) == mine.read(numbers)
    assert mine.read(numbers[::-1][:3]) == copied.read(numbers)[::-1][:3]
    assert captioned.all_captions(copied) == captioned.all_captions(mine)
    for x, y in zip(copied.index, mine.index, strict=True):
      np.testing.assert_array_equal(x, y)
    assert copied.fingerprint.split("/")[1:] == mine.fingerprint.split("/")[1:]

  def test_batches(self, data_dir):
    chex.assert_trees_all_equal(
      batches(opened(data_dir, "copied")), batches(opened(data_dir))
    )

  def test_rejections(self, data_dir):
    copied, mine = (
      rejected(data_dir / name / "1.0.0") for name in ("copied", "mine")
    )
    assert copied == mine and len(mine) >= 4

  def test_only_what_is_not_jpeg_is_copied(self, data_dir):
    rows = read(data_dir / "mine" / "1.0.0")
    assert [key for key, image, _ in rows if image] == ["p/x"]

  def test_shrunk_images_are_copied(self, data_dir):
    for name, options in (("small", {}), ("smaller", {"in_place": True})):
      make(data_dir / "tars", data_dir, name, max_size=32, **options)
    small = opened(data_dir, "small").read(np.arange(3))
    assert small == opened(data_dir, "smaller").read(np.arange(3))

  def test_part_of_a_split(self, data_dir):
    whole, part = opened(data_dir), opened(data_dir, split="train[2:8]")
    assert part.read(np.arange(6)) == whole.read(np.arange(2, 8))

  def test_parts_of_two_splits(self, data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "data")
    make(data_dir / "tars", tmp_path / "data", "mine", in_place=True, split="x")
    whole = opened(tmp_path / "data")
    part = opened(tmp_path / "data", split="train[2:4]+x[-1:]")
    last = whole.num_records - 1
    assert part.read(np.arange(3)) == whole.read(np.array([2, 3, last]))

  def test_can_be_copied_later(self, data_dir):
    ingest.ingest("tfds:mine", "later", data_dir=data_dir, workers=1)
    rows = [
      [x[1:] for x in read(data_dir / name / "1.0.0")]
      for name in ("copied", "later")
    ]
    assert rows[0] == rows[1]

  def test_interrupted_and_amended(self, tmp_path, monkeypatch):
    """Parts of two calls, of which the second has an earlier tar, too."""
    write, seen = records.write_part, []

    def thrice(part, stem, **options):
      seen.append(stem)
      if len(seen) == 4:
        raise KeyboardInterrupt
      return write(part, stem, **options)

    monkeypatch.setattr(records, "write_part", thrice)
    tars = make_tars(tmp_path / "tars")
    with pytest.raises(KeyboardInterrupt):
      make(tars, tmp_path, "mine", in_place=True)
    with pytest.raises(ValueError, match="an unfinished ingest of another in_"):
      make(tars, tmp_path, "mine")
    write_pairs(tars / "0.tar", [12, 13])
    make(tars, tmp_path, "mine", in_place=True)
    assert len(seen) == 7  # 3, the one in vain, and 3 more
    make(tars, tmp_path, "copied")
    numbers = np.arange(opened(tmp_path).num_records)
    left, right = (opened(tmp_path, x) for x in ("copied", "mine"))
    assert left.read(numbers) == right.read(numbers)
    make(tars, tmp_path, "mine", in_place=True)  # leaves it as it is


class TestKinds:
  def test_other_inputs(self, tmp_path):
    (tmp_path / "x.csv").write_text("image,caption\nx.jpg,a dog\n")
    with pytest.raises(ValueError, match="--in_place is for tar files"):
      ingest.ingest(
        f"{tmp_path}/x.csv", "mine", data_dir=tmp_path, in_place=True
      )

  @pytest.mark.parametrize(
    "name, options, remedy",
    [("mine", {}, "add"), ("copied", {"in_place": True}, "leave out")],
  )
  def test_splits_of_both_kinds(self, data_dir, name, options, remedy):
    with pytest.raises(ValueError, match=f"{remedy} --in_place"):
      make(data_dir / "tars", data_dir, name, split="test", **options)

  def test_two_splits(self, data_dir, tmp_path):
    for split, tar in (("train", "a"), ("test", "e")):
      given = f"{data_dir}/tars/{tar}.tar"
      how = {"split": split, "in_place": True, "workers": 1}
      ingest.ingest(given, "two", data_dir=tmp_path, **how)
    assert opened(tmp_path, "two", "train").num_records == 4
    assert opened(tmp_path, "two", "test").read([1])[0].image == PHOTOS[11 % 6]


class TestChanges:
  def test_moved(self, moved):
    copied = opened(moved, "copied").read([0, 4, 5])
    (moved / "tars").rename(moved / "elsewhere")
    with pytest.raises(ValueError, match=r'write their new "folder" into .*js'):
      opened(moved)
    say_where(moved, moved / "elsewhere")
    assert opened(moved).read([0, 4, 5]) == copied

  def test_another_time_is_no_change(self, moved):
    os.utime(moved / "tars" / "a.tar")
    assert opened(moved).read([1])[0].image == PHOTOS[1]

  def test_changed(self, moved):
    write_pairs(moved / "tars" / "a.tar", [1, 0, 2, 4])
    with pytest.raises(ValueError, match="a.tar has changed since it was inde"):
      opened(moved)

  def test_cut(self, moved):
    os.truncate(moved / "tars" / "e.tar", 1000)
    with pytest.raises(ValueError, match="e.tar has changed since it was inde"):
      opened(moved)

  def test_changed_while_it_is_open(self, moved):
    data = opened(moved)
    with open(moved / "tars" / "a.tar", "r+b") as file:
      file.seek(1200)
      file.write(b"flipped")
    assert data.read([1])[0].image == PHOTOS[1]
    with pytest.raises(ValueError, match="a.tar has changed.*as another data"):
      data.read([0])

  @pytest.mark.parametrize(
    "place, message",
    [
      ((-512, 100), "in 100 bytes from byte -512 of .*a.tar.* is impossible"),
      ((512, -100), "in -100 bytes from byte 512 of .*a.tar.* is impossible"),
      ((2**62, 100), "a.tar has changed since it was indexed"),
      ((512, 2**62), "a.tar has changed since it was indexed"),
      ((2**62, 2**62), "a.tar has changed since it was indexed"),
    ],
  )
  def test_places_that_are_impossible(self, moved, place, message):
    """They are refused at once, and no memory is set aside for them."""
    tars = in_place.Tars(
      [in_place.Tar(f"{moved}/tars/a.tar", [])], np.array([1]), moved
    )
    rows = [{"image": b"", in_place.PLACE: np.array([*place, 7], np.int64)}]
    before = peak_memory.peak_bytes()
    with pytest.raises(ValueError, match=message):
      in_place.read_images(tars, [0], rows)
    assert peak_memory.peak_bytes() - before < 100_000 * 2**10

  def test_a_pipe_in_place_of_a_tar_that_is_read(self, moved):
    data = opened(moved)
    in_place._opened.cache_clear()
    (moved / "tars" / "a.tar").unlink()
    os.mkfifo(moved / "tars" / "a.tar")
    with pytest.raises(ValueError, match="a.tar is not a regular file"):
      data.read([0])

  @pytest.mark.parametrize(
    "name, change",
    [
      ("image_id", lambda x: x - 1),
      ("text_id", lambda x: x + 2**20),
      ("record", lambda x: -x - 1),
      ("caption", lambda x: x[1:]),
      ("image_hash", lambda x: x[:, None]),
      ("text_hash", lambda x: x.astype(float)),
    ],
  )
  def test_an_index_that_is_impossible(self, moved, name, change):
    """Ids below 0 would be those of other pairs."""
    folder = moved / "mine" / "1.0.0" / "pairs-train"
    path = folder / f"{name}.npy"
    np.save(path, change(np.load(path)))
    files.write_digests(folder)
    with pytest.raises(
      ValueError, match="pairs-train is not an index of pairs"
    ):
      opened(moved)

  def test_no_regular_file(self, moved):
    (moved / "tars" / "a.tar").unlink()
    os.mkfifo(moved / "tars" / "a.tar")
    with pytest.raises(ValueError, match="a.tar, which holds images .* is not"):
      opened(moved)

  @pytest.mark.parametrize(
    "text", ["{", '{"folder": 1, "tars": []}', '{"folder": "/", "tars": []}']
  )
  def test_damaged_list(self, moved, text):
    path = moved / "mine" / "1.0.0" / "tars-train.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path} cannot be read"):
      opened(moved)

  @pytest.mark.parametrize(
    "name",
    ["../a.tar", "x/../../a.tar", "s3://other/a.tar", "memory://b/a.tar"],
  )
  def test_a_tar_elsewhere(self, moved, name):
    path = moved / "mine" / "1.0.0" / "tars-train.json"
    content = json.loads(path.read_text())
    content["tars"][0][0] = name
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="which is not in its folder"):
      opened(moved)

  @pytest.mark.parametrize("place", ["s3://other/x", "gs://o/x", "memory://o"])
  def test_a_bucket_that_only_the_list_names(self, moved, monkeypatch, place):
    monkeypatch.setenv(bucket.BUCKETS, "s3://mine,gs://mine,memory://mine")
    monkeypatch.setattr(bucket, "open_system", None)
    say_where(moved, place)
    with pytest.raises(ValueError, match="names the bucket .* NUCLR_BUCKETS="):
      opened(moved)

  def test_few_files_are_open(self, moved):
    def open_tars():
      files = pathlib.Path("/dev/fd").iterdir()
      paths = [os.path.realpath(x) for x in files]
      return sum(x.startswith(f"{moved}/tars/") for x in paths)

    data = opened(moved)
    for _ in range(3):
      data.read(np.arange(data.num_records))
    assert open_tars() == 3
    in_place._opened.cache_clear()
    assert open_tars() == 0


class TestIngestFromTfds:
  """The images of such a data set are copied into another one."""

  def again(self, moved, split="train"):
    how = {"data_dir": moved, "workers": 1, "split": "train"}
    return ingest.ingest(f"tfds:mine:{split}", "again", **how)

  def test_all_tars_are_there(self, moved):
    self.again(moved)
    data, copied = opened(moved, "again"), opened(moved, "copied")
    assert data.num_records == copied.num_records

  @pytest.mark.parametrize(
    ("change", "message"),
    [
      (os.unlink, "a.tar, which holds images of this data set, is not there"),
      (lambda path: path.write_bytes(bytes(20_000)), "a.tar has changed since"),
    ],
  )
  def test_a_tar_is_gone_or_has_changed(self, moved, change, message):
    change(moved / "tars" / "a.tar")
    with pytest.raises(ValueError, match=message):
      self.again(moved)
    assert not (moved / "again" / "1.0.0").exists()

  def test_a_tar_vanishes_meanwhile(self, moved, monkeypatch):
    monkeypatch.setattr(files.local, "PAUSE", 0.0)
    write_part = records.write_part

    def late(*args, **kwargs):
      (moved / "tars" / "a.tar").unlink()
      in_place._opened.cache_clear()
      return write_part(*args, **kwargs)

    monkeypatch.setattr(records, "write_part", late)
    with pytest.raises(OSError, match="a.tar, which .* is not there"):
      self.again(moved)
    assert not (moved / "again" / "1.0.0").exists()


class TestBuckets:
  @pytest.fixture
  def in_bucket(self, moved, monkeypatch):
    """The tars in a bucket, and not here."""
    monkeypatch.setenv(bucket.BUCKETS, "s3://other,memory://bucket")
    system = fsspec.filesystem("memory")
    system.put(f"{moved}/tars/", "/bucket/photos/", recursive=True)
    shutil.rmtree(moved / "tars")
    say_where(moved, "memory://bucket/photos")
    yield system
    system.rm("/bucket", recursive=True)

  def test_batches(self, moved, in_bucket):
    chex.assert_trees_all_equal(
      batches(opened(moved, "copied")), batches(opened(moved))
    )

  @pytest.mark.parametrize("place", ["here", "memory://bucket/data"])
  def test_ingest(self, moved, in_bucket, place, tmp_path, monkeypatch):
    """Tars and, perhaps, their index in a bucket; opening reads no image."""
    monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
    place = place.replace("here", str(tmp_path / "data"))
    make("memory://bucket/photos", place, "far", in_place=True)
    with monkeypatch.context() as patch:
      patch.setattr(bucket, "read_range", None)
      data = opened(place, "far")
    copied, numbers = opened(moved, "copied"), np.arange(data.num_records)
    assert data.read(numbers) == copied.read(numbers)
    for x, y in zip(data.index, copied.index, strict=True):
      np.testing.assert_array_equal(x, y)
    make("memory://bucket/photos", place, "far", in_place=True)  # is there

  def test_changed(self, moved, in_bucket):
    in_bucket.pipe("/bucket/photos/a.tar", bytes(20_000))
    with pytest.raises(ValueError, match="memory://.*a.tar has changed since"):
      opened(moved)
    in_bucket.rm("/bucket/photos/a.tar")
    with pytest.raises(
      ValueError, match="memory://.*a.tar, which .* not there"
    ):
      opened(moved)

  @pytest.mark.parametrize("failures", [3, 4])
  def test_reads_that_fail(self, moved, in_bucket, monkeypatch, failures):
    data, read_range, left = opened(moved), bucket.read_range, [failures]
    expected = opened(moved, "copied").read([2])

    def fail(*where):
      if left[0]:
        left[0] -= 1
        raise bucket.Unreached("memory://bucket cannot be reached: Timeout")
      return read_range(*where)

    monkeypatch.setattr(bucket, "read_range", fail)
    monkeypatch.setattr(files.local, "PAUSE", 0.001)
    if failures < files.local.TRIES:
      assert data.read([2]) == expected
      return
    with pytest.raises(ValueError, match="after 4 attempts: memory.* Timeout;"):
      data.read([2])

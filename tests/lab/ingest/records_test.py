"""What is kept to the bit, what is changed, and what is rejected."""

from collections import Counter
import io
import json
import tarfile

from array_record.python import array_record_module
import cv2
from make_photos import (
  CAPTIONS,
  PHOTOS,
  decoded,
  encoded,
  photo_folder,
  pixels,
  read,
  reasons,
  rejected,
  write_pairs,
  write_tar,
)
import numpy as np
from PIL import Image
import pyarrow as pa
from pyarrow import parquet
import pytest

from nuclr_jax.lab import ingest
from nuclr_jax.lab.data.tfds_reader import check_lengths
from nuclr_jax.lab.ingest import publish, records
from nuclr_jax.lab.user_files import columnar
from nuclr_jax.lab.user_files.items import Item, Part


def with_thumbnail(data):
  """The same image with a whole JPEG in its header."""
  size = (len(PHOTOS[1]) + 2).to_bytes(2, "big")
  return data[:2] + b"\xff\xff\xe5" + size + PHOTOS[1] + data[2:]


GOOD = PHOTOS[0]
LARGE = encoded(pixels(0, 375, 500))
TRUNCATED = {
  "half": GOOD[: len(GOOD) // 2],
  "end": GOOD[:-2],
  "zeros": LARGE[: len(LARGE) // 2] + bytes(10 * len(LARGE)),
  "thumbnail": with_thumbnail(LARGE)[: len(LARGE) // 2] + bytes(99_999),
  "another": LARGE[: len(LARGE) // 2] + LARGE,
  "progressive": encoded(pixels(0), progressive=True)[:-400],
  "png": encoded(pixels(0), "PNG")[:-400],
}


def test_every_reason_to_reject(tmp_path):
  files = [
    ("good.jpg", GOOD),
    ("good.txt", b"a dog"),
    ("two.jpg", GOOD),
    ("two.png", GOOD),
    ("two.txt", b"a dog"),
    ("good.jpg", PHOTOS[1]),
    ("good.txt", b"a second one"),
    ("no_image.txt", b"a dog"),
    ("strange.1.jpg", GOOD),
    ("no_text.jpg", GOOD),
    ("empty_text.jpg", GOOD),
    ("empty_text.txt", b" ... \n"),
    ("bad_json.jpg", GOOD),
    ("bad_json.json", b"{"),
    ("junk.jpg", b"<html>not found</html>"),
    ("junk.txt", b"a dog"),
    ("nothing.jpg", b""),
    ("nothing.txt", b"a dog"),
    ("small.jpg", encoded(pixels(0, 15, 300))),
    ("small.txt", b"a dog"),
    ("large.png", encoded(pixels(0, 16, 66_000), "PNG")),
    ("large.txt", b"a dog"),
    ("._mac.jpg", b"ignored"),
  ]
  for name, data in TRUNCATED.items():
    files += [(f"{name}.jpg", data), (f"{name}.txt", b"a dog")]
  files += [("last.jpg", PHOTOS[2]), ("last.txt", b"the last")]
  path = write_tar(tmp_path / "x.tar", files)
  folder = ingest.ingest(str(path), "mine", data_dir=tmp_path, workers=1)
  assert read(folder) == [
    ("good", GOOD, ["a dog"]),
    ("last", PHOTOS[2], ["the last"]),
  ]
  assert reasons(folder) == {
    "good": "duplicate key",
    "two": "two images or texts of one key; give each sample its own key",
    "no_image": "missing image",
    "strange.1": "no caption",
    "no_text": "no caption",
    "empty_text": "no caption",
    "bad_json": "no caption",
    "junk": "unreadable image",
    "nothing": "unreadable image",
    "small": "too small",
    "large": "too large",
    **dict.fromkeys(TRUNCATED, "truncated image"),
  }
  assert {row["source"] for row in rejected(folder)} == {str(path)}
  counts = Counter(reasons(folder).values())
  found = publish.split_counts(folder)
  assert found["train rejected"] == counts.total() == len(rejected(folder))
  for reason, count in counts.items():
    assert found[f"train rejected, {reason}"] == count


def test_decoders_take_zeros_for_an_image():
  """So it is right that they are looked for."""
  data = np.frombuffer(TRUNCATED["zeros"], np.uint8)
  assert cv2.imdecode(data, cv2.IMREAD_COLOR) is not None


@pytest.mark.parametrize("quality", [5, 75, 100])
@pytest.mark.parametrize("progressive", [False, True])
def test_whole_images_are_not_cut(quality, progressive):
  """Whatever follows them; an image in the header is none that follows."""
  noise = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
  for image in (noise, pixels(0, 300, 200)):
    how = dict(quality=quality, progressive=progressive)
    data = encoded(image, optimize=True, **how)
    for whole in (data, with_thumbnail(data), data + GOOD, data + bytes(99)):
      assert records.to_jpeg(whole) == whole


def test_memory_is_that_of_some_rows(tmp_path):
  """60 MB in one row group pass through 15."""
  images = [bytes([i % 256]) * 40_000 for i in range(1500)]
  table = pa.table({"jpg": images, "caption": ["a dog"] * 1500})
  path = tmp_path / "1.parquet"
  how = {"compression": "none", "use_dictionary": False, "write_batch_size": 16}
  parquet.write_table(table, path, row_group_size=1500, **how)
  del table
  before, most, count = pa.total_allocated_bytes(), 0, 0
  for item in columnar.read_columns(str(path), [0], "jpg", ["caption"]):
    most = max(most, pa.total_allocated_bytes() - before)
    count += len(item.image)
  assert count == 60_000_000 and most < 15_000_000


def test_rejected_rows_of_tables(tmp_path):
  photo_folder(tmp_path)
  lines = [
    "image\tcaption",
    "sub/0.jpg\ta dog",
    "sub/none.jpg\ta dog",
    "sub/1.jpg\ttoo\tmany",
    "\ta dog",
    'sub/2.jpg\t"swallows not',
    'sub/3.jpg\tthis line, up to here"',
    "sub/4.jpg\t",
  ]
  (tmp_path / "x.tsv").write_text("\n".join(lines))
  rows = [{"image": None, "caption": "a dog"}, {"image": "\ud800"}]
  (tmp_path / "x.json").write_text(json.dumps(rows))
  lines = ['{"image": "gone.jpg", "caption": "a dog"}', "[1]", '{"image": "su']
  (tmp_path / "x.jsonl").write_text("\n".join(lines))
  given = ",".join(f"{tmp_path}/x.{x}" for x in ("tsv", "json", "jsonl"))
  folder = ingest.ingest(given, "mine", data_dir=tmp_path, workers=1)
  kept = ["sub/0.jpg", "sub/2.jpg", "sub/3.jpg"]
  assert [row[0] for row in read(folder)] == kept
  assert reasons(folder) == {
    "sub/none.jpg": "missing file",
    "line 4": "broken row",
    "line 5": "missing image",
    "sub/4.jpg": "no caption",
    "row 0": "missing image",
    "?": "missing file",
    "gone.jpg": "missing file",
    "row 1": "broken row",
    "row 2": "broken row",
  }


def damaged_tars(folder):
  """Cut within an image, cut between two files, a header that is no header."""
  whole = write_pairs(folder / "x.tar", [0, 1, 2]).read_bytes()
  with tarfile.open(folder / "x.tar") as tar:
    third = tar.getmembers()[6]
  header = bytes(512).replace(b"\0", b"x")
  (folder / "1.tar").write_bytes(whole[: third.offset_data + 100])
  (folder / "2.tar").write_bytes(whole[: third.offset])
  rest = whole[third.offset_data :]
  (folder / "3.tar").write_bytes(whole[: third.offset] + header + rest)
  (folder / "4.tar").write_bytes(b"no tar at all" * 100)
  (folder / "5.tar").write_bytes(b"")
  (folder / "x.tar").unlink()
  return folder


def test_damaged_files_keep_what_can_be_read(tmp_path):
  (tmp_path / "tars").mkdir()
  damaged_tars(tmp_path / "tars")
  table = {"jpg": PHOTOS, "caption": CAPTIONS, "key": list("abcdef")}
  path = tmp_path / "1.parquet"
  how = {"row_group_size": 2, "compression": "none", "use_dictionary": False}
  parquet.write_table(pa.table(table), path, **how)
  whole = path.read_bytes()
  (tmp_path / "2.parquet").write_bytes(whole[:-1])
  page = parquet.ParquetFile(path).metadata.row_group(1).column(0)
  start = page.data_page_offset
  path.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
  made = {}
  for name, given in (("a", "tars"), ("b", "*.parquet")):
    made[name] = ingest.ingest(
      f"{tmp_path}/{given}", name, data_dir=tmp_path, workers=1
    )
  keys = [key for key, _, _ in read(made["a"])]
  assert keys == ["00000", "00001"] * 3
  found = Counter(
    (row["source"][-5], row["reason"]) for row in rejected(made["a"])
  )
  assert found == Counter(
    [(str(number), "damaged file") for number in range(1, 6)]
    + [("1", "damaged file")]  # the remainder, and the image that it begins
  )
  keys = [key for key, _, _ in read(made["b"])]
  assert keys[:2] == ["a", "b"] and not {"c", "d"} & set(keys)
  names = {row["source"][-9:] for row in rejected(made["b"])}
  assert names == {"1.parquet", "2.parquet"}


def on_white(image):
  """Blends an RGBA image with white, by Pillow."""
  white = Image.new("RGBA", image.shape[1::-1], "white")
  white.alpha_composite(Image.fromarray(image, "RGBA"))
  return np.asarray(white.convert("RGB"), np.int32)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_other_formats_become_jpeg(kind):
  image = pixels(7)
  options = {"WEBP": {"lossless": True}}.get(kind, {})
  found = records.to_jpeg(encoded(image, kind, **options))
  assert Image.open(io.BytesIO(found)).format == "JPEG"
  tolerance = 12 if kind == "GIF" else 3  # it has 256 colours
  assert np.abs(decoded(found) - image).mean() < tolerance


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_white(kind):
  image = pixels(8, channels=4)
  options = {"WEBP": {"lossless": True, "exact": True}}.get(kind, {})
  found = decoded(records.to_jpeg(encoded(image, kind, **options)))
  assert np.abs(found - on_white(image)).mean() < 3
  assert np.abs(found - image[..., :3]).mean() > 20  # it is not just dropped


def test_grey_and_16_bit_become_three_channels():
  image = pixels(9, channels=1)
  for data in (
    encoded(image, "PNG"),
    cv2.imencode(".png", image.astype(np.uint16) * 257)[1].tobytes(),
  ):
    found = Image.open(io.BytesIO(records.to_jpeg(data)))
    assert found.mode == "RGB"
    assert np.abs(np.asarray(found, np.int32) - image).mean() < 3


def test_jpegs_stay_to_the_bit():
  exif = Image.Exif()
  exif[0x0112] = 6  # rotated
  for data in (
    PHOTOS[0],
    encoded(pixels(0, channels=1)),
    encoded(pixels(0), progressive=True),
    encoded(pixels(0), exif=exif),
    with_thumbnail(PHOTOS[0]),
    PHOTOS[0] + b"more \xff\xda",
    PHOTOS[0] + bytes(100),
  ):
    assert records.to_jpeg(data) is data
    assert records.to_jpeg(data, max_size=60) is data


def test_max_size_shrinks_the_shorter_side():
  for kind in ("JPEG", "PNG"):
    found = decoded(
      records.to_jpeg(encoded(pixels(3, 120, 90), kind), max_size=32)
    )
    assert found.shape == (43, 32, 3)
    wanted = Image.fromarray(pixels(3, 120, 90)).resize(
      (32, 43), Image.Resampling.BOX
    )
    assert np.abs(found - np.asarray(wanted, np.int32)).mean() < 4


def test_files_are_closed_after_an_error(tmp_path, monkeypatch):
  closed = []

  class Broken:
    def __init__(self, path, options=None):
      del options
      self.path = path

    def write(self, data):
      raise RuntimeError("the disk is full")

    def num_records(self):
      self.write(b"")

    def close(self):
      closed.append(str(self.path))

  for name in ("ArrayRecordWriter", "ArrayRecordReader"):
    monkeypatch.setattr(array_record_module, name, Broken)
  items = [Item("a", "x.tar", GOOD, ["a dog"])]
  with pytest.raises(OSError, match="cannot be written: the disk is full"):
    records.write_part(Part("train", lambda: items), tmp_path / "part")
  [path] = closed
  assert path.startswith(f"{tmp_path}/part.array_record.")
  assert path.endswith(".tmp")
  (tmp_path / "a").touch()
  with pytest.raises(ValueError, match=r"cannot be opened \(the disk is full"):
    check_lengths(tmp_path, [tmp_path / "a"], [1])
  assert closed[1:] == [str(tmp_path / "a")]


def test_two_attempts_at_a_part_at_the_same_time(tmp_path):
  """As on a cluster that starts a slow part again; neither harms the other."""
  items = [Item(x, "x.tar", GOOD, [f"photo {x}"]) for x in "abc"]
  part, stem = Part("train", lambda: items), tmp_path / "part"

  def files():
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

  def slow():
    yield items[0]
    assert records.write_part(part, stem) == (3, 0)
    first.update(files())
    yield from items[1:]

  first = {}
  assert records.write_part(Part("train", slow), stem) == (3, 0)
  assert len(files()) == 3
  assert {name: first[name] for name in files()} == files()

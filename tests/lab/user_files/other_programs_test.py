"""Files as other programs write them: none is read wrongly in silence."""

import json

from make_photos import PHOTOS, photo_folder
import pyarrow as pa
from pyarrow import parquet
import pytest

from nuclr_jax.lab.ingest import records
from nuclr_jax.lab.user_files import inputs
from nuclr_jax.lab.user_files.items import Rejected


def planned(given, **how):
  """By split, the number of the photo and the captions of each item.

  Of what is rejected, it is the reason.
  """
  found = {}
  for part in inputs.plan(str(given), **how).parts:
    for item in records.check_items(part.read()):
      found.setdefault(part.split, []).append(
        item.reason
        if isinstance(item, Rejected)
        else (PHOTOS.index(item.image), *item.captions)
      )
  return found


def photos(folder):
  """A folder of photos 0.jpg to 5.jpg."""
  photo_folder(folder)
  return folder / "sub"


def to_parquet(path, **cells):
  path.parent.mkdir(parents=True, exist_ok=True)
  parquet.write_table(pa.table(cells), path)
  return path


# COCO's annotations.


def coco(folder, ids, of):
  """A file of images with these ids, and captions of these ids."""
  images = [{"id": x, "file_name": f"{i}.jpg"} for i, x in enumerate(ids)]
  texts = [{"image_id": x, "caption": f"text {i}"} for i, x in enumerate(of)]
  path = photos(folder) / "coco.json"
  path.write_text(json.dumps({"images": images, "annotations": texts}))
  return path


def test_images_of_coco_that_share_an_id_are_refused(tmp_path):
  """As where files are joined that number their images from 0."""
  with pytest.raises(ValueError, match="id 1 for two images, 0.jpg and 2.jpg"):
    planned(coco(tmp_path, [1, 2, 1], [1, 2, 1]))


def test_an_image_of_coco_may_be_listed_twice(tmp_path):
  path = coco(tmp_path, [1, 2], [1, 2])
  content = json.loads(path.read_text())
  content["images"] *= 2
  path.write_text(json.dumps(content))
  assert planned(path) == {"train": [(0, "text 0"), (1, "text 1")]}


def test_ids_of_coco_may_be_quoted_in_one_list(tmp_path):
  path = coco(tmp_path, [7, "8"], ["7", 8])
  assert planned(path) == {"train": [(0, "text 0"), (1, "text 1")]}


# Several images in a row.


def test_captions_of_two_images_in_a_row_are_not_mixed(tmp_path):
  """As in Winoground."""
  path = to_parquet(
    tmp_path / "x.parquet",
    image_0=[{"bytes": PHOTOS[0]}],
    image_1=[{"bytes": PHOTOS[1]}],
    caption_0=["text 0"],
    caption_1=["text 1"],
  )
  with pytest.raises(ValueError, match="in the columns image_0, image_1; name"):
    planned(path)
  with pytest.raises(ValueError, match="columns image_0, image_1, and capt"):
    planned(path, image_column="image_0")
  for i in range(2):
    how = dict(image_column=f"image_{i}", caption_column=f"caption_{i}")
    assert planned(path, **how) == {"train": [(i, f"text {i}")]}


def test_a_table_of_two_images_in_a_row(tmp_path):
  path = photos(tmp_path) / "x.csv"
  path.write_text("image1,image2,caption1,caption2\n0.jpg,1.jpg,a,b\n")
  with pytest.raises(ValueError, match="columns image1, image2, and capt"):
    planned(path, image_column="image1")
  how = dict(image_column="image1", caption_column="caption1,caption2")
  assert planned(path, **how) == {"train": [(0, "a", "b")]}


def test_a_numbered_image_alone_has_all_captions(tmp_path):
  path = photos(tmp_path) / "x.csv"
  path.write_text("image1,caption1,caption2\n0.jpg,a,b\n")
  found = planned(path, image_column="image1")
  assert found == {"train": [(0, "a", "b")]}


def test_further_images_of_a_row_are_named(tmp_path, caplog):
  path = to_parquet(
    tmp_path / "x.parquet",
    image=PHOTOS[:2],
    conditioning_image=PHOTOS[2:4],
    sha256=[b"x", b"y"],
    text=[b"a", b"b"],
  )
  assert planned(path) == {"train": [(0, "a"), (1, "b")]}
  assert "the column image, not from conditioning_image;" in caplog.text


def test_one_unusual_column_of_bytes_is_that_of_images(tmp_path):
  cells = {"scan": PHOTOS[:1], "caption": [b"a"]}
  assert planned(to_parquet(tmp_path / "x.parquet", **cells)) == {
    "train": [(0, "a")]
  }


def test_rows_of_the_same_key_are_all_read(tmp_path):
  """As where an image has a row for each of its captions."""
  path = to_parquet(
    tmp_path / "x.parquet",
    key=[b"k", b"k", b"l"],
    jpg=[PHOTOS[0], PHOTOS[0], PHOTOS[1]],
    caption=["a", "b", "c"],
  )
  assert planned(path) == {"train": [(0, "a"), (0, "b"), (1, "c")]}
  (part,) = inputs.plan(str(path)).parts
  keys = [item.key for item in part.read()]
  assert keys == ["k", "x-000000001", "l"]

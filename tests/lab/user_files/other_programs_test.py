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

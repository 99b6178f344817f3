"""Evaluation sets of photos: captioned ones, and ones with a class each.

Where a set lies is said in one string: `SET`, `SET:SPLIT` or `NAME=SET:SPLIT`
(`NAME=SET`), if it is to be called otherwise. `SET` is a prepared TFDS data set
or, for sets with classes, a folder with `CLASS/*.jpg` or `SPLIT/CLASS/*.jpg`.
"""

from collections.abc import Callable, Sequence
from functools import cache
import os
import pathlib
from typing import NamedTuple

import numpy as np

from nuclr_jax.data import captioned, images, prepared, sources
from nuclr_jax.data.sources import Pictures
from nuclr_jax.evaluate import driver, prompts
from nuclr_jax.evaluate.driver import Evaluator, ImageTextSet, LabelledSet

TEST_SPLITS = ("test", "validation", "val")


class Place(NamedTuple):
  """Where an evaluation set lies."""

  name: str  # what its metrics and prompts are called
  source: str  # a folder, or a prepared data set
  split: str | None


def parse(text: str) -> Place:
  """Reads a string as in the module's docstring.

  Example:
    >>> parse("coco:test"), parse("imagenet=/data/imagenet/val").source
    (Place(name='coco', source='coco', split='test'), '/data/imagenet/val')
  """
  if not text.strip():
    raise ValueError(
      f"a data set is missing, got {text!r}; give SET, SET:SPLIT or "
      "NAME=SET:SPLIT"
    )
  name, equals, source = text.partition("=")
  if not equals:
    source, _, split = text.partition(":")
    return Place(source.partition("/")[0], source, split or None)
  folder, _, split = source.rpartition(":")
  return Place(name, folder, split) if folder else Place(name, source, None)


def places(texts: Sequence[str]) -> list[Place]:
  """`parse` of several; metrics are told apart by their names.

  Raises:
    ValueError: If two have one name, or one has none.

  Example:
    >>> [place.name for place in places(["coco:val", "mine=coco:test"])]
    ['coco', 'mine']
  """
  found = [parse(text) for text in texts]
  names = [place.name for place in found]
  wrong = sorted({x for x in names if not x or names.count(x) > 1})
  if wrong:
    raise ValueError(
      f"evaluation sets need names of their own, got {wrong} of {list(texts)}; "
      "give names as NAME=SET:SPLIT"
    )
  return found


def image_text_set(
  name: str, split: str, *, size: int, data_dir: str | os.PathLike | None = None
) -> ImageTextSet:
  """Images of a prepared data set with all their captions.

  A group is an image and its captions. Images are resized to size x size
  pixels whatever their shape, as in the published protocol.

  Args:
    name: See `prepared.find`.
    split: Name of the split.
    size: In pixels.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such data set or split.
  """
  data = captioned.open_split(name, split, data_dir)
  return ImageTextSet(
    captioned.pictures(data, lambda image: images.resize(image, size)),
    np.arange(data.num_records),
    captioned.captions(data),
    np.array(data.index.record),
  )


def labelled_set(
  place: Place,
  *,
  size: int,
  split: str | None = None,
  data_dir: str | os.PathLike | None = None,
) -> LabelledSet:
  """Images with classes, and CLIP's prompts for them.

  Pictures are central squares, size x size pixels.

  Args:
    place: Where they lie. A folder's classes are its sub-folders, in order.
    size: In pixels.
    split: If the place names none; by default the test split, else the
      validation split, else, of a folder, the folder itself.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such data set, it has no classes, or pictures
      without a label.
  """
  split = place.split or split

  def to_picture(data: bytes, what) -> images.Picture:
    try:
      return images.resize_and_crop(images.decode(data), size)
    except ValueError as error:
      raise ValueError(f"{what}: {error}") from error

  folder = class_folder(place, data_dir)
  if folder is None:
    found = _of_data_set(place, split, to_picture, data_dir)
  else:
    found = _of_folder(folder, split, to_picture)
  fetch, label, classes = found
  return LabelledSet(
    Pictures(len(label), fetch), label, prompts.make(place.name, classes)
  )


def check(
  place: Place,
  data_dir: str | os.PathLike | None = None,
  *,
  split: str | None = None,
) -> None:
  """Raises ValueError unless `labelled_set` finds pictures with labels.

  It opens no picture, and looks at the first label of a data set only.

  Args:
    place: As there.
    data_dir: As there.
    split: As there.
  """
  split = place.split or split
  folder = class_folder(place, data_dir)
  if folder is not None:
    folder = _split_folder(folder, split)
    if not any(map(_is_picture, folder.glob("*/*"))):
      raise _no_pictures(folder)
    return
  data, _, label = _open_data_set(place, split, data_dir)
  _check_labels(data.name, [row[label] for row in data.read([0])])


def class_folder(
  place: Place, data_dir: str | os.PathLike | None = None
) -> pathlib.Path | None:
  """The folder of classes that a place is, if it is no prepared data set."""
  folder = sources.cache_dir(data_dir) / pathlib.Path(place.source).expanduser()
  return folder if folder.is_dir() and not prepared.versions(folder) else None


def zero_shot_when_asked(place: Place, **options) -> Evaluator:
  """`driver.zero_shot_evaluator` of a set that is opened when it first runs."""

  @cache
  def evaluator():
    data = labelled_set(place, **options)
    return driver.zero_shot_evaluator(data, place.name)

  return lambda embed: evaluator()(embed)


def probe_when_asked(place: Place, **options) -> Evaluator:
  """`driver.probe_evaluator`, likewise; it needs the splits train and test."""

  @cache
  def evaluator():
    place_of_all = place._replace(split=None)
    train = labelled_set(place_of_all, split="train", **options)
    test = labelled_set(place, **options)
    return driver.probe_evaluator(train, test, place.name)

  return lambda embed: evaluator()(embed)


Found = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, Sequence[str]]


def _of_folder(folder, split, to_picture) -> Found:
  """Pictures, labels and names of the classes of a folder."""
  folder = _split_folder(folder, split)
  classes = sorted(x.name for x in folder.iterdir() if x.is_dir())
  paths, label = [], []
  for i, name in enumerate(classes):
    found = sorted(filter(_is_picture, (folder / name).iterdir()))
    paths += found
    label += [i] * len(found)
  if not paths:
    raise _no_pictures(folder)

  def fetch(numbers):
    return np.stack(
      images.in_threads(
        lambda i: to_picture(paths[i].read_bytes(), paths[i]), list(numbers)
      )
    )

  return fetch, np.array(label), classes


def _is_picture(path: pathlib.Path) -> bool:
  return path.suffix.lower() in images.ENDINGS


def _no_pictures(folder: pathlib.Path) -> ValueError:
  return ValueError(
    f"{folder} holds no images in sub-folders, one for each class; it holds "
    f"{sorted(x.name for x in folder.iterdir())[:5]}"
  )


def _split_folder(folder: pathlib.Path, split: str | None) -> pathlib.Path:
  """The folder of a split; of none, the test split's or the folder itself."""
  same = {"validation": ("validation", "val"), "val": ("val", "validation")}
  names = TEST_SPLITS if split is None else same.get(split, (split,))
  found = [folder / name for name in names if (folder / name).is_dir()]
  if not found and split is not None:
    raise ValueError(
      f"{folder} has no folder {split}; it holds "
      f"{sorted(x.name for x in folder.iterdir())[:5]}"
    )
  return found[0] if found else folder


def _of_data_set(place, split, to_picture, data_dir) -> Found:
  """Likewise of a prepared TFDS data set."""
  data, image, label = _open_data_set(place, split, data_dir)

  def fetch(numbers):
    rows = [row[image] for row in data.read(numbers)]
    return np.stack(images.in_threads(lambda x: to_picture(x, data.name), rows))

  labels = [int(row[label]) for row in prepared.rows(data.read, data.length)]
  _check_labels(data.name, labels)
  return fetch, np.array(labels), data.features[label].names


def _check_labels(name: str, labels) -> None:
  if min(labels) < 0:  # as TFDS marks them
    raise ValueError(
      f"{name} has pictures without a label ({min(labels)}); take a split "
      "whose pictures have one"
    )


def _open_data_set(place, split, data_dir):
  """A split of a prepared data set, its image feature and its class label."""
  import tensorflow_datasets as tfds

  if split is None:
    names = prepared.split_names(place.source, data_dir)
    split = next((x for x in TEST_SPLITS if x in names), TEST_SPLITS[0])
  data = prepared.open_split(place.source, split, data_dir)
  kinds = {
    kind: [k for k, f in data.features.items() if isinstance(f, kind)]
    for kind in (tfds.features.Image, tfds.features.ClassLabel)
  }
  if not all(kinds.values()):
    raise ValueError(
      f"{data.name} needs an image feature and a class label; its features are "
      f"{sorted(data.features)}"
    )
  image, label = (
    name if name in names else names[0]
    for name, names in zip(("image", "label"), kinds.values(), strict=True)
  )
  if not data.length:
    raise ValueError(f"{data.name} has no pictures")
  return data, image, label

"""Splits of captioned images in TFDS format: records, and the index of pairs.

OpenCV is imported by the functions that decode, so that the core can import
this file without it.
"""

from collections.abc import Callable, Sequence
from functools import partial
import logging
import os
import pathlib
from typing import NamedTuple
import zlib

import numpy as np

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data import in_place, places, tfds_reader
from nuclr_jax.lab.data.captions import captions_of, key_of
from nuclr_jax.lab.data.pair_index import (
  PairIndex,
  canonical,
  content_hash,
  join_indexes,
  load_index,
  number_pairs,
  repeats,
  save_index,
)
from nuclr_jax.lab.data.source import (
  DEFAULT_RESIZE,
  ImageTextSet,
  LazyImages,
  Resize,
)

log = logging.getLogger(__name__)


class Record(NamedTuple):
  """An image as it is stored, its captions, and the name of its file."""

  image: bytes
  captions: list[str]
  key: str  # a record number where the data set has no feature `key`


class Captioned(NamedTuple):
  """A split of captioned images."""

  read: Callable[[np.ndarray], list[Record]]  # record numbers -> records
  texts: Callable[[np.ndarray], list[Record]]  # the same, maybe without images
  index: PairIndex
  num_records: int
  fingerprint: str


def open_captioned(
  name: str, split: str, data_dir: str | os.PathLike | None = None
) -> Captioned:
  """Opens a split of a prepared TFDS data set with images and captions.

  A data set that `nuclr ingest` wrote has an index of its pairs. Any other data
  set is read once to number them; the index is kept in `data_dir`.

  Args:
    name: The data set, see `places.find_data_set`.
    split: Name of the split.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If it cannot be read, or has no images with captions, or if
      tars that hold its images have changed.
  """
  data = tfds_reader.open_split(name, split, data_dir)
  image = tfds_reader.image_field(data.features)
  caption = tfds_reader.caption_field(data.features)

  tars = in_place.tars_of(data.folder, split)
  if tars is not None:
    in_place.check_tars(tars, data.read)

  def read(numbers, *, in_tars=True):
    rows = data.read(numbers)
    if tars is None or not in_tars:
      encoded = [row[image] for row in rows]
    else:
      encoded = in_place.read_images(tars, numbers, rows)
    return [
      Record(x, captions_of(row, caption), key_of(row, f"record {i}"))
      for i, row, x in zip(numbers, rows, encoded, strict=True)
    ]

  index = load_index(data.folder, split)
  if index is None:
    kept = places.cache_dir(data_dir) / "pairs" / data.name
    index = load_index(kept, data.stamp)
    if index is None:
      index = _scan(read, data)
      _keep(kept, data.stamp, index, data_dir)
  texts = partial(read, in_tars=False)
  fingerprint = index.fingerprint(data.name)
  return Captioned(read, texts, index, data.length, fingerprint)


def join(
  sets: Sequence[Captioned], data_dir: str | os.PathLike | None = None
) -> Captioned:
  """Makes one split of several, whose records follow each other.

  Images and captions that several of them have share an id. The index of the
  pairs is made once, and is kept in `data_dir`.

  Args:
    sets: The splits.
    data_dir: Folder of prepared data sets.
  """
  if len(sets) == 1:
    return sets[0]
  lengths = [data.num_records for data in sets]
  ends = np.cumsum(lengths)

  def read(numbers, *, images=True):
    numbers = np.asarray(numbers)
    rows = [None] * len(numbers)
    which = np.searchsorted(ends, numbers, side="right")
    for i in np.unique(which):
      places_of_set = np.flatnonzero(which == i)
      own_numbers = numbers[places_of_set] - (ends[i] - lengths[i])
      read_own = sets[i].read if images else sets[i].texts
      for place, row in zip(places_of_set, read_own(own_numbers), strict=True):
        rows[place] = row
    return rows

  fingerprint = "+".join(data.fingerprint for data in sets)
  kept = places.cache_dir(data_dir) / "pairs" / "joined"
  name = f"{zlib.crc32(fingerprint.encode()):08x}"
  index = load_index(kept, name)
  if index is None:
    log.info("numbering the pairs of %d data sets together, once", len(sets))
    index = join_indexes([data.index for data in sets], lengths)
    _keep(kept, name, index, data_dir)
  texts = partial(read, images=False)
  return Captioned(read, texts, index, int(ends[-1]), fingerprint)


def _keep(kept: pathlib.Path, name: str, index: PairIndex, data_dir) -> None:
  """Writes an index to a folder below that of prepared data sets."""
  home = places.cache_dir(data_dir)
  files.folder_in(home, *kept.relative_to(home).parts)
  save_index(kept, name, index)


def open_image_text_set(
  name: str,
  split: str,
  *,
  size: int,
  resize: Resize = DEFAULT_RESIZE,
  data_dir: str | os.PathLike | None = None,
) -> ImageTextSet:
  """Opens images of a prepared data set, with all their captions.

  A group is a record: an image and its captions. Equal images, and captions of
  the same words, share an id where there are any (`ImageTextSet.same`).

  Args:
    name: The data set, see `places.find_data_set`.
    split: Name of the split.
    size: Height and width of the images, in pixels.
    resize: How images become squares; without a mode, they are squashed.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such data set or split.
  """
  data = open_captioned(name, split, data_dir)
  index = data.index
  of_record = np.full(data.num_records, -1)
  of_record[index.record] = index.image_id
  return ImageTextSet(
    resized_images(data, size, resize),
    np.arange(data.num_records),
    all_captions(data),
    np.array(index.record),
    same=repeats(of_record, index.text_id),
    fingerprint=data.fingerprint,
  )


def resized_images(
  data: Captioned, size: int, resize: Resize = DEFAULT_RESIZE
) -> LazyImages:
  """Makes lazy images, one per record, decoded and resized on access.

  Args:
    data: The split.
    size: Height and width of the images, in pixels.
    resize: How images become squares; without a mode, they are squashed.
  """
  from nuclr_jax.lab.data import images

  def fetch(numbers):
    rows = data.read(numbers)
    return np.stack(
      images.in_threads(
        lambda row: images.resize(decode(row, data), size, resize), rows
      )
    )

  return LazyImages(data.num_records, fetch)


def all_captions(data: Captioned) -> list[str]:
  """Reads the captions of all pairs, in the order of the pair ids."""
  rows = tfds_reader.all_rows(data.texts, data.num_records)
  return [caption for row in rows for caption in row.captions]


def decode(row: Record, data: Captioned) -> np.ndarray:
  """Decodes the image of a record of a split.

  Raises:
    ValueError: If the image is broken; the message says how to leave it out.
  """
  from nuclr_jax.lab.data import images

  try:
    return images.decode(row.image)
  except ValueError as error:
    raise ValueError(
      f"{data.fingerprint}: the image captioned {row.captions[:1]} is broken: "
      f"{error}; nuclr ingest --input=tfds:NAME makes a data set without "
      "broken images"
    ) from error


def _scan(read, data: tfds_reader.PreparedSplit) -> PairIndex:
  """Reads all records once, to number the pairs."""
  log.info("numbering the pairs of %s, once", data.name)
  image, count, caption, empty = [], [], [], 0
  show = progress.reporter(f"records of {data.name}", data.length)
  for row in tfds_reader.all_rows(read, data.length):
    image.append(content_hash(row.image))
    count.append(len(row.captions))
    for text in map(canonical, row.captions):
      empty += not text
      caption.append(content_hash(text.encode()))
    show(len(image))
  if empty:
    log.warning("%s: %d captions hold no word", data.name, empty)
  return number_pairs(
    np.array(image, np.uint64),
    np.array(count, np.int32),
    np.array(caption, np.uint64),
  )

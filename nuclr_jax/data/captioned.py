"""Captioned images: a source of pairs that reads and decodes as it goes."""

from collections.abc import Callable
import logging
import os
from typing import NamedTuple

import numpy as np

from nuclr_jax import host
from nuclr_jax.data import (
  fields,
  images,
  pair_index,
  prepared,
  randaugment,
  sources,
)
from nuclr_jax.data.pair_index import PairIndex
from nuclr_jax.data.sources import Source
from nuclr_jax.data.tokenizer import Tokenizer
from nuclr_jax.data.transforms import NUM_RANDOM
from nuclr_jax.types import Batch

log = logging.getLogger(__name__)


class Record(NamedTuple):
  """An image, as it is stored, and its captions."""

  image: bytes
  captions: list[str]


class Captioned(NamedTuple):
  """A split of captioned images."""

  read: Callable[[np.ndarray], list[Record]]  # record numbers -> records
  index: PairIndex
  num_records: int
  fingerprint: str


def open_split(
  name: str, split: str, data_dir: str | os.PathLike | None = None
) -> Captioned:
  """Opens a split of a prepared TFDS data set with images and captions.

  What `nuclr ingest` wrote knows its pairs. Any other data set is read once to
  number them; the result is kept in `data_dir`.

  Args:
    name: See `prepared.find`.
    split: Name of the split.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If it cannot be read, or has no images with captions.
  """
  data = prepared.open_split(name, split, data_dir)
  image, caption = (
    find(data.features) for find in (fields.image_field, fields.caption_field)
  )

  def read(numbers):
    return [
      Record(row[image], fields.captions_of(row, caption))
      for row in data.read(numbers)
    ]

  index = pair_index.load(data.folder, split)
  if index is None:
    kept = sources.cache_dir(data_dir) / "pairs" / data.name
    index = pair_index.load(kept, data.stamp)
    if index is None:
      index = _scan(read, data)
      pair_index.save(kept, data.stamp, index)
  fingerprint = f"{data.name}/{len(index.record)}/{index.checksum:08x}"
  return Captioned(read, index, data.length, fingerprint)


def pictures(
  data: Captioned, to_picture: Callable[[images.Image], images.Picture]
) -> sources.Pictures:
  """All images, by record, decoded and brought to one size when asked for."""

  def fetch(numbers):
    rows = data.read(numbers)
    found = images.in_threads(lambda row: to_picture(_decode(row, data)), rows)
    return np.stack(found)

  return sources.Pictures(data.num_records, fetch)


def captions(data: Captioned) -> list[str]:
  """The captions of all pairs, by pair id."""
  rows = prepared.rows(data.read, data.num_records)
  return [caption for row in rows for caption in row.captions]


def source(
  data: Captioned,
  tokenizer: Tokenizer,
  *,
  size: int,
  scale: tuple[float, float] = (0.5, 1.0),
  flip: bool = True,
  num_ops: int = 2,
  level: float = 7.0,
) -> Source:
  """Pairs of pictures and tokens, decoded and augmented batch by batch.

  Not augmented, a picture is the whole image; see `images` and `randaugment`.

  Args:
    data: The split.
    tokenizer: Of the captions.
    size: Height and width of the pictures, in pixels.
    scale: Share of the area that a random crop takes.
    flip: Whether half of the pictures are mirrored.
    num_ops: How many operations RandAugment draws, at most 3; 0 = none.
    level: Their strength, in [0, 10].

  Raises:
    ValueError: If a number is out of range.
  """
  _check(size, scale, num_ops, level)
  index = data.index

  def picture(row, random):
    image = _decode(row, data)
    if random is None:
      return images.resize(image, size)
    cropped = images.random_resized_crop(
      image, random, size=size, scale=scale, flip=flip
    )
    rest = random[images.CROP_NUMBERS :]
    return randaugment.rand_augment(cropped, rest, num_ops=num_ops, level=level)

  def fetch(pair_ids, random=None):
    rows = data.read(index.record[pair_ids])
    numbers = [None] * len(rows) if random is None else random
    found = images.in_threads(
      lambda x: picture(*x), list(zip(rows, numbers, strict=True))
    )
    which = zip(rows, index.caption[pair_ids], strict=True)
    return Batch(
      np.stack(found),
      tokenizer.encode([row.captions[i] for row, i in which]),
      np.asarray(pair_ids, np.int32),
      *index.ids(pair_ids),
    )

  def captions(text_ids):
    pairs = index.pairs_of_texts(text_ids)
    records = index.record[pairs]
    rows = prepared.rows(lambda i: data.read(records[list(i)]), len(pairs))
    which = zip(rows, index.caption[pairs], strict=True)
    return [row.captions[i] for row, i in which]

  return Source(
    index.sizes,
    fetch,
    index.ids,
    captions,
    data.fingerprint,
    lambda: pair_index.keys(index),
  )


def _check(size, scale, num_ops, level) -> None:
  if size < 1 or not 0 < scale[0] <= scale[1] <= 1:
    raise ValueError(
      "size must be at least 1 pixel and scale two shares in (0, 1], the "
      f"smaller first; got {size} and {scale}"
    )
  most = (NUM_RANDOM - images.CROP_NUMBERS) // randaugment.NUMBERS
  if not 0 <= num_ops <= most or not 0 <= level <= randaugment.MAX_LEVEL:
    raise ValueError(
      f"num_ops must be in [0, {most}] and level in "
      f"[0, {randaugment.MAX_LEVEL}], got {num_ops} and {level}"
    )


def _decode(row: Record, data: Captioned) -> images.Image:
  try:
    return images.decode(row.image)
  except ValueError as error:
    raise ValueError(
      f"{data.fingerprint}: the image captioned {row.captions[:1]} is broken: "
      f"{error}; nuclr ingest --input=tfds:NAME makes a data set without such"
    ) from error


def _scan(read, data: prepared.Split) -> PairIndex:
  """Reads all records once, to number the pairs."""
  log.info("numbering the pairs of %s, once", data.name)
  image, count, caption, empty = [], [], [], 0
  show = host.progress(f"records of {data.name}", data.length)
  for row in prepared.rows(read, data.length):
    image.append(pair_index.content_hash(row.image))
    count.append(len(row.captions))
    for text in map(pair_index.canonical, row.captions):
      empty += not text
      caption.append(pair_index.content_hash(text.encode()))
    show(len(image))
  if empty:
    log.warning("%s: %d captions have no word", data.name, empty)
  return pair_index.build(
    np.array(image, np.uint64),
    np.array(count, np.int32),
    np.array(caption, np.uint64),
  )

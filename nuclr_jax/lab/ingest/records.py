"""Checks and writes the records of a data set that is being ingested.

A part of a split becomes a file of records, a list of what was rejected and
why, and the hashes of all images and captions, from which the pairs of the
whole split are numbered. Items are handled one after another; at most one is in
memory.
"""

from collections.abc import Callable, Iterable, Iterator
import json
import os
import pathlib
from typing import Any

import cv2
import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data.images import (
  MAX_PIXELS,
  MIN_SIZE,
  UNREADABLE,
  decode_input,
  is_jpeg,
)
from nuclr_jax.lab.data.in_place import PLACE, place_of
from nuclr_jax.lab.data.pair_index import canonical, content_hash
from nuclr_jax.lab.data.tar_members import DAMAGED
from nuclr_jax.lab.data.tfds_reader import num_records, record_writer
from nuclr_jax.lab.files import bucket
from nuclr_jax.lab.user_files.items import (
  Item,
  Part,
  Rejected,
  check_unchanged,
  tidy,
  why_none,
)

QUALITY = 95  # of JPEGs that are made from images in other formats
# Reasons to reject an item, besides those of `user_files.items` and `images`.
DUPLICATE_KEY = "duplicate key"  # an earlier item of the part has the same key
TOO_LARGE = "too large"  # for JPEG


def record_features(*, in_place: bool = False) -> tfds.features.FeaturesDict:
  """Returns the TFDS features of every ingested data set.

  Args:
    in_place: Whether images stay in tars.
  """
  features = {
    "image": tfds.features.Image(encoding_format="jpeg"),
    "captions": tfds.features.Sequence(tfds.features.Text()),
    "key": tfds.features.Text(),
  }
  if in_place:
    features[PLACE] = tfds.features.Tensor(shape=(3,), dtype=np.int64)
  return tfds.features.FeaturesDict(features)


def write_part(
  part: Part,
  stem: str | os.PathLike,
  *,
  max_size: int | None = None,
  max_pixels: int = MAX_PIXELS,
  in_place: bool = False,
) -> tuple[int, int]:
  """Writes STEM.array_record, STEM.rejected.jsonl and finally STEM.npz.

  A file gets its name only when it is complete. The .npz holds image_hash
  uint64 [records], num_captions int32 [records], caption_hash uint64
  [captions], num_bytes, the number of images in the records and, if images stay
  in place, JSON of the tar that was read (`Part.stamp`).

  Args:
    part: The part to write.
    stem: Path of the files, without their endings.
    max_size: The largest shorter side of an image, in pixels; larger images are
      shrunk to it.
    max_pixels: Images with more pixels are rejected before they are decoded.
    in_place: Whether images stay in the tar, if it has them as JPEG and they
      are not shrunk.

  Returns:
    The number of records and the number of rejections.

  Raises:
    OSError: If the records cannot be written, for instance on a full disk, or
      if a file that was read has changed meanwhile.
  """
  stem = os.fspath(stem)
  with (  # the last one gets its name first
    files.replacing(f"{stem}.npz") as complete,
    files.replacing(f"{stem}.rejected.jsonl") as rejections,
    files.replacing(f"{stem}.array_record") as written,
  ):
    encode = record_features(in_place=in_place).serialize_example
    num_bytes, num_images, rejected = 0, 0, 0
    images, counts, captions = [], [], []
    with (
      record_writer(written) as writer,
      rejections.open("w", encoding="utf-8") as listed,
    ):
      items = _guarded(part.read)
      sizes = {"max_size": max_size, "max_pixels": max_pixels}
      for item in check_items(items, **sizes):
        if isinstance(item, Rejected):
          print(json.dumps(item._asdict()), file=listed)
          rejected += 1
          continue
        row = {"image": item.image, "captions": item.captions, "key": item.key}
        if in_place:
          row |= _placed(item)
        num_images += bool(row["image"])
        # The fields of a record have no order of their own: with a fixed one,
        # the same input makes the same bytes.
        example = tf_example_pb2.Example.FromString(encode(row))
        data = example.SerializeToString(deterministic=True)
        writer.write(data)
        num_bytes += len(data)
        images.append(content_hash(item.image))
        counts.append(len(item.captions))
        words = map(canonical, item.captions)
        captions += [content_hash(x.encode()) for x in words]
    check_unchanged(part.stamp)
    _check_length(written, len(images))
    hashes = {
      "image_hash": np.array(images, np.uint64),
      "num_captions": np.array(counts, np.int32),
      "caption_hash": np.array(captions, np.uint64),
      "num_bytes": np.int64(num_bytes),
      "num_images": np.int64(num_images),
      "stamp": np.array(json.dumps(part.stamp if in_place else None)),
    }
    with complete.open("wb") as file:
      np.savez(file, **hashes)
  return len(images), rejected


def _placed(item: Item) -> dict[str, Any]:
  """Returns the features of an image that stays in its tar, if it does."""
  if item.offset is None:
    return {PLACE: np.zeros(3, np.int64)}
  return {"image": b"", PLACE: place_of(item.offset, item.image)}


def _guarded(
  read: Callable[[], Iterable[Item | Rejected]],
) -> Iterator[Item | Rejected]:
  """Yields the items of a reader; an error is the last item, as rejected.

  Readers yield what they cannot read. An error that they did not foresee must
  not stop an ingest of many files either, nor every attempt to repeat it.
  """
  source = str(next(iter(getattr(read, "args", ())), ""))[:500]
  try:
    for item in read():
      source = item.source
      yield item
  except bucket.Unreached:  # it must be read again, once the bucket is there
    raise
  except Exception as error:
    reason = f"{DAMAGED} ({type(error).__name__}: {progress.first_line(error)})"
    yield Rejected("", source, reason)


def check_items(
  items: Iterable[Item | Rejected],
  *,
  max_size: int | None = None,
  max_pixels: int = MAX_PIXELS,
) -> Iterator[Item | Rejected]:
  """Yields good items, with JPEG bytes, and rejects all other items.

  An item of which only some captions are bad keeps its other captions; the bad
  ones are yielded before it, as rejected.

  Args:
    items: The items of a part.
    max_size: The largest shorter side of an image, in pixels; larger images are
      shrunk to it.
    max_pixels: Images with more pixels are rejected before they are decoded.

  Example:
    >>> items = [Item("a", "x.tar", b"", ["a dog"])]
    >>> [rejected.reason for rejected in check_items(items)]
    ['unreadable image']
  """
  keys, sizes = set(), {"max_size": max_size, "max_pixels": max_pixels}
  for item in items:
    name = item.key  # different names may be cleaned to the same text
    item, bad = tidy(item)
    if isinstance(item, Rejected):
      yield item
      continue
    reason = "" if item.captions else why_none(bad)
    if name in keys:
      reason = DUPLICATE_KEY
    keys.add(name)
    try:
      image = b"" if reason else to_jpeg(item.image, **sizes)
    except ValueError as error:
      reason = str(error)
    except Exception as error:  # such as MemoryError
      reason = f"{UNREADABLE} ({type(error).__name__})"
    if reason:
      yield Rejected(item.key, item.source, reason)
      continue
    yield from bad
    offset = item.offset if image is item.image else None
    yield item._replace(image=image, offset=offset)


def to_jpeg(
  data: bytes, *, max_size: int | None = None, max_pixels: int = MAX_PIXELS
) -> bytes:
  """Decodes an image to check it, and returns it as JPEG.

  A JPEG that is not shrunk is returned bit for bit. Other formats become JPEGs
  of what `images.decode` makes of them.

  Args:
    data: The bytes of an image file.
    max_size: The largest shorter side of the image, in pixels; a larger image
      is shrunk to it.
    max_pixels: The largest number of pixels that may be decoded.

  Raises:
    ValueError: If the image cannot be used; the message is the reason, in a few
      words.
  """
  pixels = decode_input(data, max_pixels=max_pixels, min_size=MIN_SIZE)
  height, width = pixels.shape[:2]
  shorter = min(height, width)
  small_enough = max_size is None or shorter <= max_size
  if is_jpeg(data) and small_enough:
    return data
  if not small_enough:
    size = (round(x * max_size / shorter) for x in (width, height))
    pixels = cv2.resize(pixels, tuple(size), interpolation=cv2.INTER_AREA)
  pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
  options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
  try:
    good, encoded = cv2.imencode(".jpg", pixels, options)
  except cv2.error:
    good = False
  if not good:  # a side is above 65,535 pixels
    raise ValueError(TOO_LARGE)
  return encoded.tobytes()


def _check_length(path: pathlib.Path, length: int) -> None:
  """Checks how many records a file has: a full disk may go unreported."""
  try:
    count = num_records(path)
  except Exception as error:  # array_record raises RuntimeError
    raise OSError(
      f"{path} was not written correctly: is the disk full?"
    ) from error
  if count != length:
    raise OSError(
      f"{path} holds {count} of {length} records: is the disk full?"
    )

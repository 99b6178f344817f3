"""One part of a data set that is being ingested: checked images, written.

A part is a file of records, a list of what was rejected and why, and the
hashes of everything, from which the whole split's pairs are numbered. Its items
pass one after the other; no more than one is in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import json
import os
from typing import NamedTuple

import cv2
import numpy as np
import tensorflow_datasets as tfds

from nuclr_jax.data import pair_index, prepared, sources

MIN_SIZE = 16  # pixels a side
QUALITY = 95  # of images that are not JPEG as they come
# Reasons of rejection, of an item unless they say otherwise.
NO_CAPTION = "no caption"
EMPTY_CAPTION = "empty caption"  # of a caption; the item stays with the others
NO_UTF8 = "caption is not UTF-8"  # likewise
DUPLICATE_KEY = "duplicate key"  # of an item before it, in the same part
UNREADABLE = "unreadable image"  # no image, or none of a known kind
TRUNCATED = "truncated image"  # its end is missing
TOO_SMALL = "too small"  # below `MIN_SIZE` on a side
TOO_LARGE = "too large"  # above what JPEG can have
NO_IMAGE = "missing image"  # the input names none
NO_FILE = "missing file"  # the input names one that is not there
BROKEN_ROW = "broken row"  # of a table
BROKEN_RECORD = "unreadable record"  # of a TFDS data set
DAMAGED = "damaged file"  # of the input, or the rest of it


class Item(NamedTuple):
  """An image and its captions as they were found, not yet checked."""

  key: str
  source: str  # the file that it is from
  image: bytes
  captions: Sequence[str]


class Rejected(NamedTuple):
  """Something that did not become a record."""

  key: str
  source: str
  reason: str


class Part(NamedTuple):
  """Items of a split that one process reads."""

  split: str
  read: Callable[[], Iterable[Item | Rejected]]


def features() -> tfds.features.FeaturesDict:
  """The features of every data set that was ingested."""
  return tfds.features.FeaturesDict(
    {
      "image": tfds.features.Image(encoding_format="jpeg"),
      "captions": tfds.features.Sequence(tfds.features.Text()),
      "key": tfds.features.Text(),
    }
  )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Keeps OpenCV from describing every broken image."""
  moved = not hasattr(cv2, "setLogLevel")  # in OpenCV 5
  set_level = (cv2.utils.logging if moved else cv2).setLogLevel
  before = set_level(0)
  try:
    yield
  finally:
    set_level(before)


def write(
  part: Part, stem: str | os.PathLike, *, max_size: int | None = None
) -> tuple[int, int]:
  """Writes STEM.array_record, STEM.rejected.jsonl and, last, STEM.npz.

  A file has its name only when it is complete. The .npz holds image_hash
  uint64 [records], num_captions int32 [records], caption_hash uint64
  [captions], and num_bytes.

  Args:
    part: What to write.
    stem: Path of the files, without their endings.
    max_size: See `to_jpeg`.

  Returns:
    How many records there are, and how many rejections.

  Raises:
    OSError: If the records cannot be written, as on a full disk.
  """
  names = [f"{os.fspath(stem)}.{x}" for x in ("array_record", "rejected.jsonl")]
  temporary = [f"{name}.tmp" for name in names]
  encode, num_bytes, rejected = features().serialize_example, 0, 0
  images, counts, captions = [], [], []
  with (
    prepared.record_writer(temporary[0]) as writer,
    open(temporary[1], "w", encoding="utf-8") as listed,
    quiet(),
  ):
    for found in check(part.read(), max_size=max_size):
      if isinstance(found, Rejected):
        print(json.dumps(found._asdict()), file=listed)
        rejected += 1
        continue
      row = {"image": found.image, "captions": found.captions, "key": found.key}
      data = encode(row)
      writer.write(data)
      num_bytes += len(data)
      images.append(pair_index.content_hash(found.image))
      counts.append(len(found.captions))
      words = map(pair_index.canonical, found.captions)
      captions += [pair_index.content_hash(x.encode()) for x in words]
  _check_length(temporary[0], len(images))
  for old, new in zip(temporary, names, strict=True):
    os.replace(old, new)
  hashes = {
    "image_hash": np.array(images, np.uint64),
    "num_captions": np.array(counts, np.int32),
    "caption_hash": np.array(captions, np.uint64),
    "num_bytes": np.int64(num_bytes),
  }
  with open(f"{os.fspath(stem)}.npz.tmp", "wb") as file:
    np.savez(file, **hashes)
  os.replace(file.name, file.name.removesuffix(".tmp"))
  return len(images), rejected


def check(
  found: Iterable[Item | Rejected], *, max_size: int | None = None
) -> Iterator[Item | Rejected]:
  """Passes good items on, with JPEG bytes; names the reason of all others.

  An item with some empty captions keeps the others; the empty ones are
  rejected before it.

  Example:
    >>> items = [Item("a", "x.tar", b"", ["a dog"])]
    >>> [rejected.reason for rejected in check(items)]
    ['unreadable image']
  """
  keys = set()
  for item in found:
    item, bad = tidy(item)
    if isinstance(item, Rejected):
      yield item
      continue
    reason = "" if item.captions else NO_CAPTION
    if item.key in keys:
      reason = DUPLICATE_KEY
    keys.add(item.key)
    try:
      image = b"" if reason else to_jpeg(item.image, max_size=max_size)
    except ValueError as error:
      reason = str(error)
    if reason:
      yield Rejected(item.key, item.source, reason)
      continue
    yield from bad
    yield item._replace(image=image)


def tidy(item: Item | Rejected) -> tuple[Item | Rejected, list[Rejected]]:
  """An item whose texts can be written, and its bad captions apart.

  Example:
    >>> item, bad = tidy(Item("a", "x.tar", b"", [" a dog ", "?!"]))
    >>> item.captions, bad[0].reason
    (['a dog'], 'empty caption')
  """
  item = item._replace(key=_clean(item.key), source=_clean(item.source))
  if isinstance(item, Rejected):
    return item, []
  captions = [_clean(caption).strip() for caption in item.captions]
  wrong = list(map(_wrong, captions))
  kept = [x for x, reason in zip(captions, wrong, strict=True) if not reason]
  bad = [Rejected(item.key, item.source, x) for x in wrong if x]
  return item._replace(captions=kept), bad


def _wrong(caption: str) -> str:
  """Why a caption cannot be used; U+FFFD is where bytes were no text."""
  if "\ufffd" in caption:
    return NO_UTF8
  return "" if pair_index.canonical(caption) else EMPTY_CAPTION


def to_jpeg(data: bytes, *, max_size: int | None = None) -> bytes:
  """Decodes an image to see that it is good, and returns it as JPEG.

  Bytes of a JPEG are kept to the bit. Other formats become JPEG of three
  channels, with white where they are transparent.

  Args:
    data: The bytes of an image file.
    max_size: Images whose shorter side is above this are made so small.

  Raises:
    ValueError: If the image is not good: the reason in two words.
  """
  is_jpeg = data.startswith(b"\xff\xd8")
  # Orientation is ignored in both; transparency is wanted of others only.
  how = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
  pixels = _decode(data, how if is_jpeg else cv2.IMREAD_UNCHANGED)
  height, width = pixels.shape[:2]
  shorter = min(height, width)
  if shorter < MIN_SIZE:
    raise ValueError(TOO_SMALL)
  small_enough = max_size is None or shorter <= max_size
  if is_jpeg and small_enough:
    return data
  pixels = _three_channels(pixels, is_tiff=data[:2] in (b"II", b"MM"))
  if not small_enough:
    size = (round(x * max_size / shorter) for x in (width, height))
    pixels = cv2.resize(pixels, tuple(size), interpolation=cv2.INTER_AREA)
  options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
  try:
    good, encoded = cv2.imencode(".jpg", pixels, options)
  except cv2.error:
    good = False
  if not good:  # a side is above 65,535 pixels
    raise ValueError(TOO_LARGE)
  return encoded.tobytes()


def _decode(data: bytes, how: int) -> np.ndarray:
  """Pixels of an image; an image that ends early is an error."""
  if _is_cut(data):
    raise ValueError(TRUNCATED)
  pixels = None
  with contextlib.suppress(cv2.error):
    if data:
      pixels = cv2.imdecode(np.frombuffer(data, np.uint8), how)
  if pixels is None:
    raise ValueError(UNREADABLE)
  return pixels


def _is_cut(data: bytes) -> bool:
  """Whether a JPEG or PNG has no end; more may follow it.

  Decoders take zeros after the cut, which an interrupted copy leaves, for data.
  """
  if data.startswith(b"\x89PNG"):
    return b"IEND" not in data
  if not data.startswith(b"\xff\xd8\xff"):
    return False
  at = 2  # the end of a thumbnail in the header is not the image's
  while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda":
    is_fill = data[at + 1 : at + 2] == b"\xff"
    size = int.from_bytes(data[at + 2 : at + 4], "big")
    at += 1 if is_fill else 2 + size
  return data.find(b"\xff\xd9", at) < 0


def _three_channels(pixels: np.ndarray, *, is_tiff: bool) -> np.ndarray:
  """BGR uint8 of anything that OpenCV decodes."""
  if pixels.dtype == np.uint16:
    pixels = (pixels / 257).round().astype(np.uint8)
  if pixels.dtype != np.uint8:
    raise ValueError(UNREADABLE)
  if pixels.ndim == 2:
    return cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR)
  if pixels.shape[2] == 4:
    alpha = pixels[..., 3:].astype(np.float32) / 255
    # Colours of TIFF come multiplied with alpha already.
    colours = pixels[..., :3] * (1.0 if is_tiff else alpha)
    return (colours + 255 * (1 - alpha)).round().clip(0, 255).astype(np.uint8)
  return pixels


def _check_length(path: str, length: int) -> None:
  """Reads back how many records a file has; a full disk is not always told."""
  try:
    found = sources.num_records(path)
  except Exception as error:  # array_record raises RuntimeError
    raise OSError(f"{path} was not written well: is the disk full?") from error
  if found != length:
    raise OSError(
      f"{path} holds {found} of {length} records: is the disk full?"
    )


def _clean(text: str) -> str:
  """Text that UTF-8 can write."""
  return text.encode("utf-8", "replace").decode()

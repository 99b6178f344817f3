"""Ids and keys of the pairs of a data set of captioned images.

A record is an image with one or more captions; a pair is a record and one of
its captions. Pairs are numbered in the order of records and captions. Images of
equal bytes share an image id, captions of equal words share a text id.

Ids are row numbers and change when the data set changes; a key is a hash of
the content of a sample, and still identifies it after the data set has grown or
shrunk.
"""

from collections.abc import Iterable, Sequence
import hashlib
import os
import pathlib
import re
from typing import NamedTuple
import unicodedata
import zlib

from jaxtyping import Int, UInt64
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.types import Sides, Sizes


class PairIndex(NamedTuple):
  """The pairs of a split, by pair id."""

  record: Int[np.ndarray, "num_pairs"]  # which record holds the image
  caption: Int[np.ndarray, "num_pairs"]  # which of the record's captions
  image_id: Int[np.ndarray, "num_pairs"]
  text_id: Int[np.ndarray, "num_pairs"]
  image_hash: UInt64[np.ndarray, "num_images"]  # of the content, by image id
  text_hash: UInt64[np.ndarray, "num_texts"]

  @property
  def sizes(self) -> Sizes:
    """How many pairs, images and texts there are."""
    return Sizes(len(self.record), len(self.image_hash), len(self.text_hash))

  @property
  def checksum(self) -> int:
    """A checksum of the contents; it changes whenever an id changes meaning."""
    return zlib.crc32(self.text_hash, zlib.crc32(self.image_hash))

  @property
  def assignment(self) -> int:
    """A checksum of what each pair has: its ids, and where it is."""
    checksum = 0
    for x in (self.record, self.caption, self.image_id, self.text_id):
      checksum = zlib.crc32(np.ascontiguousarray(x, np.int64), checksum)
    return checksum

  def fingerprint(self, name: str, checksum: int | None = None) -> str:
    """Identifies these pairs, see `same_data`.

    Args:
      name: The name of the data set.
      checksum: A checksum of more than the contents, in place of `checksum`.
    """
    checksum = self.checksum if checksum is None else checksum
    return f"{name}/{len(self.record)}/{checksum:08x}{self.assignment:08x}"

  def ids(self, pair_ids: np.ndarray) -> Sides:
    """Returns the image ids and the text ids of pairs."""
    return Sides(self.image_id[pair_ids], self.text_id[pair_ids])

  def pairs_of_texts(self, text_ids: np.ndarray) -> np.ndarray:
    """Returns the first pair of each text."""
    return np.unique(self.text_id, return_index=True)[1][text_ids]


def same_data(known: str, now: str) -> bool:
  """Returns whether a recorded fingerprint is that of the data of today.

  Earlier versions recorded the checksum of the contents alone.

  Args:
    known: The recorded fingerprint.
    now: The fingerprint of the data, of several sets with "+" between them.

  Example:
    >>> same_data("a/9/0123abcd", "a/9/0123abcd00000001")
    True
    >>> same_data("a/9/0123abcd00000002", "a/9/0123abcd00000001")
    False
  """
  return known in (now, re.sub(r"(/[\da-f]{8})[\da-f]{8}(?=\+|$)", r"\1", now))


class Keys(NamedTuple):
  """A key for every id, unique within its id space."""

  pair: UInt64[np.ndarray, "num_pairs"]
  image: UInt64[np.ndarray, "num_images"]
  text: UInt64[np.ndarray, "num_texts"]


class _Words(dict):
  """Maps characters of words to themselves and all other characters to " "."""

  def __missing__(self, point):
    kind = unicodedata.category(chr(point))
    # Punctuation, separators, control characters, and symbols except emoji.
    between = kind[0] in "PZC" or kind in ("Sm", "Sc", "Sk")
    self[point] = " " if between else chr(point)
    return self[point]


_WORDS = _Words()


def canonical(caption: str) -> str:
  """Reduces a caption to its words; captions of the same words are one text.

  Case, punctuation, white space and the way Unicode encodes an accent make no
  difference.

  Example:
    >>> canonical("A dog, running.  "), canonical(" ?! ")
    ('a dog running', '')
  """
  caption = unicodedata.normalize("NFC", caption.lower())
  return " ".join(caption.translate(_WORDS).split())


def content_hash(data: bytes) -> int:
  """Computes a 64-bit hash that is the same in every process and version.

  Example:
    >>> content_hash(b"a dog") == content_hash(b"a dog")
    True
  """
  digest = hashlib.blake2b(data, digest_size=8).digest()
  return int.from_bytes(digest, "little")


def content_keys(contents: Iterable[bytes]) -> UInt64[np.ndarray, "ids"]:
  """Makes keys from the content of samples.

  Samples with equal content are distinguished by their order.

  Example:
    >>> a, b, c = content_keys([b"x", b"y", b"x"])
    >>> bool(a != c), content_keys([b"y", b"x"]).tolist() == [b, a]
    (True, True)
  """
  seen, keys = {}, []
  for content in contents:
    digest = hashlib.blake2b(content, digest_size=16).digest()
    count = seen[digest] = seen.get(digest, -1) + 1
    number = hashlib.blake2b(
      digest + count.to_bytes(8, "little"), digest_size=8
    )
    keys.append(int.from_bytes(number.digest(), "little"))
  return np.array(keys, np.uint64)


def repeats(image_id: np.ndarray, text_id: np.ndarray) -> Sides | None:
  """Returns `ImageTextSet.same`: the ids, or None if none of them repeats.

  Args:
    image_id: The id of each image.
    text_id: The id of each caption.

  Example:
    >>> repeats(np.array([7, 5]), np.array([1, 2, 1])).image.tolist()
    [1, 0]
    >>> repeats(np.array([7, 5]), np.array([1, 2, 3])) is None
    True
  """
  found = [np.unique(x, return_inverse=True) for x in (image_id, text_id)]
  if all(len(ids) == len(rows) for ids, rows in found):
    return None
  return Sides(*(rows for _, rows in found))


def match_keys(
  old: UInt64[np.ndarray, "old"], new: UInt64[np.ndarray, "new"]
) -> Int[np.ndarray, "new"]:
  """Finds the old id of each sample of a new data set; -1 if it has none.

  Example:
    >>> old, new = np.uint64([7, 5, 9]), np.uint64([9, 8, 7])
    >>> match_keys(old, new)
    array([ 2, -1,  0])
  """
  order = np.argsort(old)
  at = np.searchsorted(old, new, sorter=order).clip(max=len(old) - 1)
  before = order[at]
  return np.where(old[before] == new, before, -1)


def number_pairs(
  image_hash: UInt64[np.ndarray, "records"],
  num_captions: Int[np.ndarray, "records"],
  caption_hash: UInt64[np.ndarray, "num_pairs"],
) -> PairIndex:
  """Numbers the pairs, images and texts of a split.

  Args:
    image_hash: `content_hash` of each record's image.
    num_captions: The number of captions of each record.
    caption_hash: `content_hash` of each caption's `canonical` form, record
      after record.

  Raises:
    ValueError: If the lengths and counts do not match.

  Example:
    >>> hashes = np.array([7, 8, 7], np.uint64), np.array([5, 6, 5], np.uint64)
    >>> index = number_pairs(hashes[0], np.array([1, 1, 1]), hashes[1])
    >>> index.image_id.tolist(), index.text_id.tolist(), index.sizes.num_pairs
    ([0, 1, 0], [0, 1, 0], 3)
  """
  if len(image_hash) != len(num_captions) or (
    num_captions.sum() != len(caption_hash)
  ):
    raise ValueError(
      f"there are {len(image_hash)} images, {len(num_captions)} counts of "
      f"captions, which say {num_captions.sum()}, and {len(caption_hash)} "
      "captions; give a count for each image and a hash for each caption"
    )
  record = np.repeat(np.arange(len(image_hash), dtype=np.int32), num_captions)
  first = np.cumsum(num_captions) - num_captions
  caption = np.arange(len(record)) - np.repeat(first, num_captions)
  image_id, images = _number(image_hash)
  text_id, texts = _number(caption_hash)
  return PairIndex(
    record, caption.astype(np.int32), image_id[record], text_id, images, texts
  )


def join_indexes(
  indexes: Sequence[PairIndex], num_records: Sequence[int]
) -> PairIndex:
  """Joins the pairs of several data sets, one after another.

  Images and captions that several of them have share an id, as within one.

  Args:
    indexes: The pairs of each data set.
    num_records: The number of records of each.

  Example:
    >>> hashes = np.array([7, 8], np.uint64), np.array([5, 6], np.uint64)
    >>> index = number_pairs(hashes[0], np.array([1, 1]), hashes[1])
    >>> joined = join_indexes([index, index], [2, 2])
    >>> joined.record.tolist(), joined.image_id.tolist()
    ([0, 1, 2, 3], [0, 1, 0, 1])
  """
  starts = np.cumsum([0, *num_records[:-1]], dtype=np.int32)
  image_id, images = _number(
    np.concatenate([x.image_hash[x.image_id] for x in indexes])
  )
  text_id, texts = _number(
    np.concatenate([x.text_hash[x.text_id] for x in indexes])
  )
  return PairIndex(
    np.concatenate(
      [x.record + at for x, at in zip(indexes, starts, strict=True)]
    ),
    np.concatenate([x.caption for x in indexes]),
    image_id,
    text_id,
    images,
    texts,
  )


def hide_repetitions(index: PairIndex) -> PairIndex:
  """Gives every pair its own text id, even where captions repeat.

  Pairs with the same caption then become negatives of each other.

  Example:
    >>> hashes = np.array([7, 8], np.uint64), np.array([5, 5], np.uint64)
    >>> index = number_pairs(hashes[0], np.array([1, 1]), hashes[1])
    >>> index.text_id.tolist(), hide_repetitions(index).text_id.tolist()
    ([0, 0], [0, 1])
  """
  hashes = index.text_hash[index.text_id]
  return index._replace(
    text_id=np.arange(len(hashes), dtype=index.text_id.dtype),
    text_hash=content_keys(x.tobytes() for x in hashes),
  )


def index_keys(index: PairIndex) -> Keys:
  """Makes the keys of all pairs, images and texts of an index."""
  both = np.stack(
    [index.image_hash[index.image_id], index.text_hash[index.text_id]], axis=1
  )
  pair = content_keys(row.tobytes() for row in both)
  return Keys(pair, np.array(index.image_hash), np.array(index.text_hash))


def save_index(folder: str | os.PathLike, split: str, index: PairIndex) -> None:
  """Writes the index of a split beside its records, atomically.

  An index that another process has just written is kept.

  Args:
    folder: Folder of the data set.
    split: Name of the split.
    index: The pairs of the split.
  """
  with files.fresh_folder(_path(folder, split)) as new:
    for name, x in index._asdict().items():
      np.save(new / f"{name}.npy", x)
    files.write_digests(new)


def load_index(folder: str | os.PathLike, split: str) -> PairIndex | None:
  """Opens an index of `save_index`, mapped into memory; None if it is absent.

  Args:
    folder: Folder of the data set.
    split: Name of the split.

  Raises:
    ValueError: If a file is damaged or missing, or holds what is impossible.
  """
  path = _path(folder, split)
  if not path.exists():
    return None
  if files.has_digests(path) and (wrong := files.damage(path)):
    raise ValueError(
      f"{path} is damaged: {files.join_damage(wrong)}; delete this folder, and "
      "the next run makes it again"
    )
  arrays = []
  for name in PairIndex._fields:
    with files.reading(path / f"{name}.npy") as file:
      arrays.append(np.load(file, mmap_mode="r"))
  index = PairIndex(*arrays)
  if wrong := _wrong(index):
    raise ValueError(
      f"{path} is not an index of pairs: {wrong}; delete this folder, and the "
      "next run makes it again"
    )
  return index


def _wrong(index: PairIndex) -> str:
  """Returns what is impossible in an index, or ""."""
  lengths = {len(x) if x.ndim == 1 else -1 for x in index[:4]}
  if len(lengths) > 1 or any(
    x.ndim != 1 or x.dtype.kind not in "iu" for x in index
  ):
    return "its arrays are not one whole number for each pair, image and text"
  for name, limit in (
    *(("record", 2**31), ("caption", 2**31)),
    *(("image_id", len(index.image_hash)), ("text_id", len(index.text_hash))),
  ):
    x = getattr(index, name)
    if len(x) and not 0 <= x.min() <= x.max() < limit:
      return f"{name} goes from {x.min()} to {x.max()}, not below {limit}"
  return ""


def _number(hashes):
  """Returns ids in the order of first occurrence, and the hash of each id."""
  values, first, inverse = np.unique(
    hashes, return_index=True, return_inverse=True
  )
  order = np.argsort(first)
  rank = np.empty(len(order), np.int32)
  rank[order] = np.arange(len(order))
  return rank[inverse], values[order]


def _path(folder, split) -> pathlib.Path:
  return pathlib.Path(folder) / f"pairs-{split}"

"""Which pairs a set of captioned images has, and their ids.

A record is an image with one or more captions; a pair is a record and one of
its captions. Pairs are numbered in the order of records and captions. Images of
equal bytes share an image id, captions of equal words a text id.
"""

from collections.abc import Sequence
import hashlib
import os
import pathlib
import shutil
from typing import NamedTuple
import unicodedata
import uuid
import zlib

from jaxtyping import Int, UInt64
import numpy as np

from nuclr_jax.data.keys import Keys, content_keys
from nuclr_jax.types import Sides, Sizes


class PairIndex(NamedTuple):
  """The pairs of a split, by pair id."""

  record: Int[np.ndarray, "num_pairs"]  # of the image
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
    """Of the contents; ids that mean something else have another one."""
    return zlib.crc32(self.text_hash, zlib.crc32(self.image_hash))

  def ids(self, pair_ids: np.ndarray) -> Sides:
    """The image id and the text id of pairs."""
    return Sides(self.image_id[pair_ids], self.text_id[pair_ids])

  def pairs_of_texts(self, text_ids: np.ndarray) -> np.ndarray:
    """The first pair of each text."""
    return np.unique(self.text_id, return_index=True)[1][text_ids]


class _Words(dict):
  """Characters of words as they are, all others as a space; by code point."""

  def __missing__(self, point):
    kind = unicodedata.category(chr(point))
    # Punctuation, separators, control characters, and symbols but pictures.
    between = kind[0] in "PZC" or kind in ("Sm", "Sc", "Sk")
    self[point] = " " if between else chr(point)
    return self[point]


_WORDS = _Words()


def canonical(caption: str) -> str:
  """The words of a caption; captions of the same words are one text.

  Case, punctuation and white space do not matter, nor does how Unicode writes
  an accent.

  Example:
    >>> canonical("A dog, running.  "), canonical(" ?! ")
    ('a dog running', '')
  """
  caption = unicodedata.normalize("NFC", caption.lower())
  return " ".join(caption.translate(_WORDS).split())


def content_hash(data: bytes) -> int:
  """A 64-bit hash that stays the same for ever.

  Example:
    >>> content_hash(b"a dog") == content_hash(b"a dog")
    True
  """
  digest = hashlib.blake2b(data, digest_size=8).digest()
  return int.from_bytes(digest, "little")


def build(
  image_hash: UInt64[np.ndarray, "records"],
  num_captions: Int[np.ndarray, "records"],
  caption_hash: UInt64[np.ndarray, "num_pairs"],
) -> PairIndex:
  """Numbers the pairs, images and texts of a split.

  Args:
    image_hash: `content_hash` of each record's image.
    num_captions: How many captions each record has.
    caption_hash: `content_hash` of each caption's `canonical` form, record
      after record.

  Raises:
    ValueError: If the numbers do not fit each other.

  Example:
    >>> hashes = np.array([7, 8, 7], np.uint64), np.array([5, 6, 5], np.uint64)
    >>> index = build(hashes[0], np.array([1, 1, 1]), hashes[1])
    >>> index.image_id.tolist(), index.text_id.tolist(), index.sizes.num_pairs
    ([0, 1, 0], [0, 1, 0], 3)
  """
  if len(image_hash) != len(num_captions) or (
    num_captions.sum() != len(caption_hash)
  ):
    raise ValueError(
      f"there are {len(image_hash)} images, {len(num_captions)} counts of "
      f"captions, which say {num_captions.sum()}, and {len(caption_hash)} "
      "captions"
    )
  record = np.repeat(np.arange(len(image_hash), dtype=np.int32), num_captions)
  first = np.cumsum(num_captions) - num_captions
  caption = np.arange(len(record)) - np.repeat(first, num_captions)
  image_id, images = _number(image_hash)
  text_id, texts = _number(caption_hash)
  return PairIndex(
    record, caption.astype(np.int32), image_id[record], text_id, images, texts
  )


def keys(index: PairIndex) -> Keys:
  """Names of all ids that stay when the data set gains or loses some."""
  both = np.stack(
    [index.image_hash[index.image_id], index.text_hash[index.text_id]], axis=1
  )
  pair = content_keys(row.tobytes() for row in both)
  return Keys(pair, np.array(index.image_hash), np.array(index.text_hash))


def save(folder: str | os.PathLike, split: str, index: PairIndex) -> None:
  """Writes the index of a split beside its records; never half of it.

  If another process has just written it, that one stays.
  """
  path = _path(folder, split)
  temporary = path.with_name(f"tmp.{path.name}.{uuid.uuid4().hex}")
  temporary.mkdir(parents=True)
  for name, x in index._asdict().items():
    np.save(temporary / f"{name}.npy", x)
  try:
    temporary.rename(path)
  except OSError:
    shutil.rmtree(temporary)
    if not path.exists():
      raise


def load(folder: str | os.PathLike, split: str) -> PairIndex | None:
  """Opens what `save` wrote, mapped into memory; None if it is not there."""
  path = _path(folder, split)
  if not path.exists():
    return None
  names: Sequence[str] = PairIndex._fields
  return PairIndex(*(np.load(path / f"{x}.npy", mmap_mode="r") for x in names))


def _number(hashes):
  """Ids in the order of first occurrence, and the hash of each id."""
  values, first, inverse = np.unique(
    hashes, return_index=True, return_inverse=True
  )
  order = np.argsort(first)
  rank = np.empty(len(order), np.int32)
  rank[order] = np.arange(len(order))
  return rank[inverse], values[order]


def _path(folder, split) -> pathlib.Path:
  return pathlib.Path(folder) / f"pairs-{split}"

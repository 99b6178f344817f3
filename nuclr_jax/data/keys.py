"""Names of samples that stay when a data set gains or loses some."""

from collections.abc import Iterable
import hashlib
from typing import NamedTuple

from jaxtyping import Int, UInt64
import numpy as np


class Keys(NamedTuple):
  """A key for every id, unique within its id space."""

  pair: UInt64[np.ndarray, "num_pairs"]
  image: UInt64[np.ndarray, "num_images"]
  text: UInt64[np.ndarray, "num_texts"]


def content_keys(contents: Iterable[bytes]) -> UInt64[np.ndarray, "ids"]:
  """Keys made of what samples contain.

  Those of equal content are told apart by their order.

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


def match(
  old: UInt64[np.ndarray, "old"], new: UInt64[np.ndarray, "new"]
) -> Int[np.ndarray, "new"]:
  """The id that each new sample had before; -1 for those that were not there.

  Example:
    >>> match(np.array([7, 5, 9], np.uint64), np.array([9, 8, 7], np.uint64))
    array([ 2, -1,  0])
  """
  order = np.argsort(old)
  at = np.searchsorted(old, new, sorter=order).clip(max=len(old) - 1)
  before = order[at]
  return np.where(old[before] == new, before, -1)

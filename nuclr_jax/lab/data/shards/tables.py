"""Columns of the Parquet files beside embeddings, a batch of rows at a time."""

from collections.abc import Iterator, Sequence
import pathlib
import re
from typing import Any, NamedTuple
import uuid

from jaxtyping import Bool, Int, UInt64
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data.pair_index import content_hash

BATCH = 2**16  # rows
DIGITS = 32  # of a uid
HEX = re.compile("[0-9a-fA-F]*")
DASHED = re.compile("-".join(f"[0-9a-fA-F]{{{n}}}" for n in (8, 4, 4, 4, 12)))
UID = np.dtype("u8,u8")  # its halves, as DataComp's tools take them


class Column(NamedTuple):
  """A column of several Parquet files, one after the other.

  `index` says which of the rows belongs to each pair; None means that there is
  one for each, in the order of the pairs.
  """

  paths: Sequence[pathlib.Path]
  name: str
  index: Int[np.ndarray, "pairs"] | None = None

  def batches(self) -> Iterator[tuple[pathlib.Path, list[Any]]]:
    """Yields files and the values of some of their rows, all in order.

    Raises:
      ValueError: If a file cannot be read, or lacks the column.
    """
    from pyarrow import parquet

    for path in self.paths:
      with files.reading(path), parquet.ParquetFile(path) as file:
        files.check_expansion(file.metadata)
        if self.name not in file.schema_arrow.names:
          names = ", ".join(file.schema_arrow.names)
          raise ValueError(f"it has no column {self.name}; it has {names}")
        for batch in file.iter_batches(BATCH, columns=[self.name]):
          yield path, batch.column(0).to_pylist()

  def pick(self, rows: Int[np.ndarray, "some"]) -> list[Any]:
    """Returns the values of some pairs; None where there is no value."""
    wanted = rows if self.index is None else self.index[rows]
    numbers, place = np.unique(wanted, return_inverse=True)
    found, start = [], 0
    for _, values in self.batches():
      ends = np.searchsorted(numbers, [start, start + len(values)])
      found += [values[i - start] for i in numbers[slice(*ends)].tolist()]
      start += len(values)
      if len(found) == len(numbers):
        break
    return [found[i] for i in place.tolist()]

  def hashes(
    self,
  ) -> tuple[UInt64[np.ndarray, "pairs"], Bool[np.ndarray, "pairs"]]:
    """Returns a hash of each pair's value, and whether it has one.

    Equal values have equal hashes. Null and NaN are no values.
    """
    numbers, known = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]
    for _, values in self.batches():
      known.append(np.array([_is_value(x) for x in values], bool))
      numbers.append(np.array([_hash(x) for x in values], np.uint64))
    found = np.concatenate(numbers), np.concatenate(known)
    return found if self.index is None else tuple(x[self.index] for x in found)


def _is_value(value: Any) -> bool:
  return value is not None and value == value  # NaN is not itself


def _hash(value: Any) -> int:
  if isinstance(value, int):
    return value % 2**64  # a negative one, too
  return content_hash(
    value if isinstance(value, bytes) else f"{value}".encode()
  )


def read_uids(column: Column) -> np.ndarray:
  """Reads uids of 32 hexadecimal digits as pairs of 64-bit numbers.

  Dashes may be between the digits, as UUIDs have them; a column of bytes may
  have the digits, or the 16 bytes themselves.

  Returns:
    An array [pairs] of the dtype `UID`.

  Raises:
    ValueError: If a uid is something else, or is there twice.
  """
  parts, ends, total = [np.zeros(0, UID)], [], 0
  for path, values in column.batches():
    with files.reading(path):
      parts.append(_parsed(values))
    total += len(values)
    ends.append((total, path))
  uids = np.concatenate(parts)
  order = np.lexsort((uids["f1"], uids["f0"]))
  twice = np.flatnonzero(uids[order][1:] == uids[order][:-1])
  if len(twice):
    first, second = sorted(order[twice[0] : twice[0] + 2].tolist())
    places = [
      next(path for end, path in ends if x < end) for x in (first, second)
    ]
    raise ValueError(
      f"{places[1]}: uid {as_text(uids[second : second + 1])[0]} is there "
      f"twice, first in {places[0]} ({len(twice)} such uids in all); leave out "
      "the file that was copied twice"
    )
  return uids


def as_text(uids: np.ndarray) -> list[str]:
  """Formats uids as 32 hexadecimal digits.

  Example:
    >>> as_text(np.array([(1, 255)], UID))
    ['000000000000000100000000000000ff']
  """
  return [f"{a:016x}{b:016x}" for a, b in uids.tolist()]


def is_uid(value: Any) -> bool:
  """Returns whether a value is a uid, in one of the forms of `read_uids`.

  Example:
    >>> is_uid("00000000-0000-0001-0000-0000000000FF"), is_uid(bytes(16))
    (True, True)
    >>> is_uid("0"), is_uid(7), is_uid("0" * 31 + "g"), is_uid(bytes(15))
    (False, False, False, False)
  """
  return _digits(value) is not None


def _digits(value: Any) -> str | None:
  """Returns the 32 digits of a uid, or None for something else."""
  if isinstance(value, bytes):
    if len(value) == DIGITS // 2:
      return value.hex()
    value = value.decode("latin-1")
  elif isinstance(value, uuid.UUID):
    return value.hex
  if not isinstance(value, str):
    return None
  if DASHED.fullmatch(value):
    return value.replace("-", "")
  return value if len(value) == DIGITS and HEX.fullmatch(value) else None


def _parsed(values: Sequence[Any]) -> np.ndarray:
  """Parses uids; raises ValueError for something else."""
  digits = [_digits(x) for x in values]
  if None in digits:
    wrong = values[digits.index(None)]
    raise ValueError(f"{wrong!r:.80} is no uid of {DIGITS} hexadecimal digits")
  data = bytes.fromhex("".join(digits))
  halves = np.frombuffer(data, ">u8").reshape(-1, 2)
  uids = np.empty(len(values), UID)
  uids["f0"], uids["f1"] = halves[:, 0], halves[:, 1]
  return uids

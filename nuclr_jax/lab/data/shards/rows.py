"""Rows of embeddings in files, of which only blocks are ever in memory.

A block is mapped, copied as float32, and unmapped again. The files may be of
any size, and keep their precision.
"""

from collections.abc import Sequence
import math
import mmap
import os
import pathlib
import shutil
from typing import BinaryIO, NamedTuple
import zipfile

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import files

LOCAL_HEADER = 30  # bytes of a member's header in a zip file, before its name
BLOCK = 2**20  # bytes that are read at a time


class Part(NamedTuple):
  """An array [rows, dim] that lies in one piece in a file."""

  path: pathlib.Path  # the file that holds the numbers
  name: str  # what messages call it
  dtype: np.dtype
  shape: tuple[int, int]
  offset: int  # bytes before the numbers


class Rows:
  """The rows of several arrays, one after the other.

  Attributes:
    parts: The arrays, all of one width.
    dim: That width.
  """

  def __init__(
    self,
    parts: Sequence[Part],
    index: Int[np.ndarray, "rows"] | None = None,
  ):
    """Joins arrays.

    Args:
      parts: The arrays.
      index: Which of their rows are the rows, in this order; None means all.

    Raises:
      ValueError: If the arrays are of different widths.
    """
    self.parts, self.index = tuple(parts), index
    self.dim = parts[0].shape[1]
    for part in parts:
      if part.shape[1] != self.dim:
        raise ValueError(
          f"{part.name} has {part.shape[1]} columns, and {parts[0].name} "
          f"{self.dim}; embed all of them by one model"
        )
    sizes = [part.shape[0] for part in parts]
    self._starts = np.cumsum([0, *sizes])

  def __len__(self) -> int:
    return int(self._starts[-1]) if self.index is None else len(self.index)

  def subset(self, rows: Int[np.ndarray, "some"]) -> "Rows":
    """Returns some of the rows as rows of their own."""
    index = rows if self.index is None else self.index[rows]
    return Rows(self.parts, index)

  def read(
    self, rows: slice | Int[np.ndarray, "some"]
  ) -> Float[np.ndarray, "some dim"]:
    """Copies rows as they are in the files, in the files' own precision.

    Args:
      rows: A slice, or indices in any order.
    """
    at = self._numbers(rows)
    order = np.argsort(at, kind="stable")  # so that files are read forwards
    ordered = at[order]
    dtype = np.result_type(*{part.dtype for part in self.parts})
    found = np.empty((len(at), self.dim), dtype.newbyteorder("="))
    ends = np.searchsorted(ordered, self._starts)
    for part, start, first, end in zip(
      self.parts, self._starts[:-1], ends[:-1], ends[1:], strict=True
    ):
      if first == end:
        continue
      array = _mapped(part)
      if not isinstance(rows, slice):
        array.base.madvise(mmap.MADV_RANDOM)  # else neighbours come along
      found[order[first:end]] = array[ordered[first:end] - start]
      del array
    return found

  def unit(
    self, rows: slice | Int[np.ndarray, "some"]
  ) -> Float[np.ndarray, "some dim"]:
    """Reads rows as float32 of unit norm; see `scaled` for what it refuses.

    Args:
      rows: A slice, or indices in any order.
    """
    return scaled(self.read(rows), lambda row: self.name_of(rows, row))[0]

  def name_of(self, rows: slice | Int[np.ndarray, "some"], row: int) -> str:
    """Says in which array a row is, and where.

    Args:
      rows: What `read` was given.
      row: The index of a row of the result.
    """
    at = self._numbers(rows)[row]
    number = int(np.searchsorted(self._starts, at, side="right")) - 1
    return f"row {at - self._starts[number]} of {self.parts[number].name}"

  def _numbers(self, rows) -> Int[np.ndarray, "some"]:
    if self.index is not None:
      return self.index[rows]
    if isinstance(rows, slice):
      return np.arange(*rows.indices(len(self)))
    return rows


class InMemory:
  """An array as rows, for a loop of one's own.

  Example:
    >>> InMemory(np.eye(3)).subset(np.array([2])).unit(slice(0, 1))
    array([[0., 0., 1.]], dtype=float32)
  """

  def __init__(self, array: Float[np.ndarray, "rows dim"]):
    """Takes the array as it is."""
    self.array = np.asarray(array)

  def __len__(self) -> int:
    return len(self.array)

  def subset(self, rows: Int[np.ndarray, "some"]) -> "InMemory":
    """Returns some of the rows as rows of their own."""
    return InMemory(self.array[rows])

  def read(
    self, rows: slice | Int[np.ndarray, "some"]
  ) -> Float[np.ndarray, "some dim"]:
    """Returns rows as they are."""
    return self.array[rows]

  def unit(
    self, rows: slice | Int[np.ndarray, "some"]
  ) -> Float[np.ndarray, "some dim"]:
    """Returns rows as float32 of unit norm."""
    at = np.arange(len(self))[rows]
    return scaled(self.read(rows), lambda row: f"row {at[row]}")[0]


Blocks = Rows | InMemory


def scaled(
  x: Float[np.ndarray, "rows dim"], name_of
) -> tuple[Float[np.ndarray, "rows dim"], Float[np.ndarray, "rows"]]:
  """Scales rows to unit norm, in float32.

  Args:
    x: The rows.
    name_of: Names the row of an index, for the message.

  Returns:
    The rows, and the norms that they had.

  Raises:
    ValueError: If a row is zero, or has a number that is not finite.

  Example:
    >>> x, norm = scaled(np.array([[3.0, 4.0]]), name_of=str)
    >>> print(x, norm)
    [[0.6 0.8]] [5.]
  """
  if x.dtype.itemsize < 4:  # half precision is slow on CPUs
    x = x.astype(np.float32)
  # Squares of large numbers overflow, unless the largest number is 1.
  largest = _largest(x)
  wrong = _without_direction(largest)
  if len(wrong):
    what = "zero" if largest[wrong[0]] == 0 else "not finite"
    raise ValueError(
      f"{name_of(int(wrong[0]))} is {what}; embed it again, or leave it out"
    )
  x = (x / largest).astype(np.float32, copy=False)
  norm = np.linalg.norm(x, axis=1, keepdims=True)
  x /= norm
  return x, (norm * largest.astype(float))[:, 0]


def without_direction(
  x: Float[np.ndarray, "rows dim"],
) -> Int[np.ndarray, "some"]:
  """Finds rows that are zero, or have a number that is not finite.

  Example:
    >>> without_direction(np.array([[0.0, 0.0], [1.0, 0.0], [np.inf, 0.0]]))
    array([0, 2])
  """
  return _without_direction(_largest(x))


def _without_direction(largest):
  return np.flatnonzero(~((largest > 0) & np.isfinite(largest)))


def _largest(x: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows 1"]:
  return np.maximum(x.max(axis=1), -x.min(axis=1))[:, None]


def _mapped(part: Part) -> np.memmap:
  """Maps an array; raises ValueError if its file is gone, or has shrunk."""
  try:
    return np.memmap(part.path, part.dtype, "r", part.offset, part.shape)
  except (OSError, ValueError) as error:
    raise ValueError(
      f"{part.name} has been replaced, cut off or removed since it was opened "
      f"({error}); run the command again once the files stay as they are"
    ) from error


def open_npy(path: pathlib.Path) -> Part:
  """Finds the array of a `.npy` file.

  Raises:
    ValueError: If the file holds something else, or less than it says.
  """
  with files.reading(path), path.open("rb") as file:
    return _part(path, str(path), file, os.fstat(file.fileno()).st_size)


def open_members(
  path: pathlib.Path, names: Sequence[str], scratch: pathlib.Path
) -> list[Part]:
  """Finds arrays of an `.npz` file, and compares them with their checksums.

  Args:
    path: The file.
    names: The names of the arrays.
    scratch: A folder for arrays that are compressed, which cannot be mapped.

  Raises:
    ValueError: If the file is damaged, or lacks an array.
  """
  with files.reading(path), _archive(path) as archive:
    known = [x.removesuffix(".npy") for x in archive.namelist()]
    if missing := [x for x in names if x not in known]:
      raise ValueError(
        f"it has no array {missing[0]}; it has {', '.join(sorted(known))}"
      )
    return [
      _member(path, archive, archive.getinfo(f"{name}.npy"), scratch)
      for name in names
    ]


def names_of_members(path: pathlib.Path) -> list[str]:
  """Lists the arrays of an `.npz` file."""
  with files.reading(path), _archive(path) as archive:
    return [x.removesuffix(".npy") for x in archive.namelist()]


def _archive(path: pathlib.Path) -> zipfile.ZipFile:
  try:
    return zipfile.ZipFile(path)
  except zipfile.BadZipFile as error:  # its list of members is at the end
    raise ValueError("it is cut off, or no .npz file") from error


def _member(path, archive, info, scratch) -> Part:
  """Finds the array of one member of a zip file."""
  name = f"{info.filename.removesuffix('.npy')} of {path}"
  if info.compress_type == zipfile.ZIP_STORED:
    with archive.open(info) as member:
      while member.read(BLOCK):  # an error where the checksum is another
        pass
    with path.open("rb") as file:
      file.seek(info.header_offset)
      header = file.read(LOCAL_HEADER)
      lengths = np.frombuffer(header, "<u2", 2, LOCAL_HEADER - 4)
      file.seek(info.header_offset + LOCAL_HEADER + int(lengths.sum()))
      return _part(path, name, file, file.tell() + info.file_size)
  if info.file_size > max(
    files.MAX_EXPANSION * info.compress_size, files.LITTLE
  ):
    raise ValueError(
      f"{info.filename} claims to have {info.file_size:.2g} bytes in "
      f"{info.compress_size:.2g}"
    )
  number = len(list(scratch.iterdir()))
  with files.replacing(scratch / f"{number}.npy") as new:
    with archive.open(info) as member, new.open("wb") as file:
      shutil.copyfileobj(member, file, BLOCK)
  part = open_npy(scratch / f"{number}.npy")
  return part._replace(name=name)


def _part(path, name: str, file: BinaryIO, end: int) -> Part:
  """Reads the header of an array that ends at a byte of the file."""
  version = np.lib.format.read_magic(file)
  read = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
  }
  if version not in read:
    raise ValueError(f"it is in version {version} of NumPy's format")
  shape, by_column, dtype = read[version](file)
  if dtype.kind == "V" and dtype.itemsize == 2 and not dtype.names:
    raise ValueError(
      f"it holds numbers of 2 bytes that NumPy does not know {list(shape)}, "
      "such as bfloat16; convert them to float16 or float32"
    )
  floating = dtype.kind == "f" and dtype.itemsize <= 8
  if len(shape) != 2 or not shape[1] or not floating or by_column:
    order = ", stored column by column" if by_column else ""
    raise ValueError(
      f"it holds {dtype}{list(shape)}{order}; it must hold floating numbers "
      "of 16, 32 or 64 bits [pairs, dim], stored row by row"
    )
  size, found = math.prod(shape) * dtype.itemsize, end - file.tell()
  if found != size:
    raise ValueError(
      f"its {list(shape)} {dtype} take {size:,} bytes, and there are "
      f"{found:,}; it was not written or copied to the end"
    )
  return Part(path, name, dtype, shape, file.tell())

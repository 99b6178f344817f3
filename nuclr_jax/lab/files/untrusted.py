"""Bounds for reading files, which may come from untrusted sources."""

from collections.abc import Iterable, Iterator
import contextlib
import json
import os
import stat
from typing import Any

MAX_SIZE = 2**28  # bytes of a file that is read as a whole
MAX_IMAGE = 2**30  # bytes of a file of an image
MAX_EXPANSION = 100  # of compressed data; a bomb reaches 1,000
LITTLE = 2**24  # bytes that may be expanded from anything


def check_size(path: str | os.PathLike, most: int = MAX_SIZE) -> None:
  """Raises an error for a file that would fill the memory, or never end.

  Args:
    path: The file, of which nothing is read.
    most: The largest number of bytes.

  Raises:
    ValueError: If it is not a regular file (a pipe or a device, for instance),
      or is larger.
    OSError: If there is none.

  Example:
    >>> check_size("/dev/zero")
    Traceback (most recent call last):
    ValueError: it is not a regular file
  """
  state = os.stat(path)
  if not stat.S_ISREG(state.st_mode):
    raise ValueError("it is not a regular file")
  if state.st_size > most:
    raise ValueError(f"it has {state.st_size:,} bytes, and may have {most:,}")


def parse_json(content: str | bytes, **options) -> Any:
  """Parses JSON.

  Args:
    content: The text, or its bytes in a Unicode encoding.
    **options: Those of `json.loads`.

  Raises:
    ValueError: If it is not JSON, or is nested too deeply.

  Example:
    >>> parse_json("[1, 2]"), parse_json(b"1")
    ([1, 2], 1)
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
  """
  try:
    return json.loads(content, **options)
  except RecursionError as error:
    raise ValueError("it is nested too deeply") from error


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
  """Turns the panic of a library in Rust into a ValueError.

  It would end the process with a traceback, since it is no `Exception`.
  """
  try:
    yield
  except BaseException as error:
    if type(error).__name__ != "PanicException":
      raise
    raise ValueError(f"the library that reads it gave up: {error}") from error


def check_expansion(metadata: Any, groups: Iterable[int] | None = None) -> None:
  """Raises ValueError if a Parquet file would fill many times its own size.

  Args:
    metadata: The metadata of the file, by pyarrow.
    groups: The row groups to look at; None means all of them.
  """
  for i in range(metadata.num_row_groups) if groups is None else groups:
    group = metadata.row_group(i)
    for column in map(group.column, range(group.num_columns)):
      size = column.total_uncompressed_size
      stored = column.total_compressed_size
      if size > max(MAX_EXPANSION * stored, LITTLE):
        raise ValueError(
          f"column {column.path_in_schema} of row group {i} claims to have "
          f"{size:.2g} bytes in {stored:.2g}"
        )

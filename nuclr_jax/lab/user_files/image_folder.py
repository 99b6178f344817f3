"""Hugging Face's `imagefolder`: images, and tables that describe them.

`metadata.csv`, `metadata.jsonl` or `metadata.parquet` lies in the folder of the
images, or in a folder above: in the column `file_name`, or `NAME_file_name`, it
has their paths from its own folder.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
import csv
import functools
import logging
import os
import pathlib
from typing import NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import tidy_text
from nuclr_jax.lab.data.images import POINTER
from nuclr_jax.lab.data.text_files import open_text
from nuclr_jax.lab.user_files import splits
from nuclr_jax.lab.user_files.columns import plain
from nuclr_jax.lab.user_files.csv_rows import header_of
from nuclr_jax.lab.user_files.items import AWAY, NO_SPLIT, Rejected
from nuclr_jax.lab.user_files.tables import Row, read_table

NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")

log = logging.getLogger(__name__)


class ImageFolder(NamedTuple):
  """A folder of images with tables of their captions."""

  path: pathlib.Path
  tables: tuple[pathlib.Path, ...]


def describes_images(path: pathlib.Path) -> bool:
  """Returns whether a file is a table of `imagefolder`, by its columns.

  Other files may be called metadata.csv, too.

  Args:
    path: The file.
  """
  if path.name not in NAMES or not path.is_file():
    return False
  header = map(plain, _header(path))
  return any(
    x in ("file_name", "file_names") or x.endswith("_file_name") for x in header
  )


def _header(path: pathlib.Path) -> list[str]:
  import pyarrow
  from pyarrow import parquet

  try:
    if path.suffix == ".parquet":
      with parquet.ParquetFile(path) as file:
        return list(file.schema_arrow.names)
    with open_text(path, newline="") as file:
      _, first, delimiter = header_of(file)
    if first.startswith(POINTER.decode()):
      return ["file_name"]  # what is wrong is said where files are listed
    if path.suffix == ".csv":
      rows = csv.reader([first], delimiter=delimiter)
      return list(map(tidy_text, next(rows, [])))
    row = files.parse_json(first)
    return list(row) if isinstance(row, dict) else []
  except (pyarrow.ArrowException, csv.Error, OSError, ValueError):
    return ["file_name"]  # its reader says what is wrong


def rows_of(
  folder: ImageFolder,
  images: Sequence[pathlib.Path],
  columns: Mapping[str, str | None],
) -> list[tuple[str | None, Row | Rejected]]:
  """Reads the tables of a folder, and finds the images that none names.

  Args:
    folder: The folder.
    images: The images in it. Those that no table names have their captions
      beside them, as in any folder.
    columns: The columns that the user names, see `tables.read_table`.

  Returns:
    The rows with the splits that the tables name, or None. Keys are paths in
    the folder.

  Raises:
    ValueError: If a table has an unknown form, or a folder has two tables.
  """
  places = Counter(table.parent for table in folder.tables)
  for place, count in places.items():
    if count > 1:
      names = ", ".join(x.name for x in folder.tables if x.parent == place)
      raise ValueError(
        f"{place} has {names}; keep one of them, or give --input={place}/NAME"
      )
  rows, named, top = [], set(), os.path.abspath(folder.path)
  beside = 0  # texts that are not read
  inside = functools.cache(lambda place: files.inside(place, folder.path))
  for table in folder.tables:
    for name, row in read_table(table, **columns):
      if isinstance(row, Row):
        path = pathlib.Path(os.path.normpath(row.path))
        named.add(os.fspath(path))
        if not _is_inside(path, folder.path, inside):
          row = Rejected(row.key, row.source, AWAY)
        else:
          beside += os.path.isfile(path.with_suffix(".txt"))
          key = os.path.relpath(path, top)
          row = row._replace(key=key, path=os.fspath(path))
      rows.append((name, row))
  if beside:
    log.warning(
      "%s: captions are read from %s, not from %d texts beside images",
      folder.path,
      ", ".join(sorted({x.name for x in folder.tables})),
      beside,
    )
  splits_named = [name for name, _ in rows if name]
  for path in map(os.path.abspath, images):
    if path not in named:
      key, source = os.path.relpath(path, top), os.fspath(folder.path)
      rows.append((None, Row(key, source, path, None)))
  if not splits_named:
    return rows
  rest = splits.rest_of(None, splits_named)
  return [
    (rest, Rejected(row.key, row.source, NO_SPLIT))
    if name is None and isinstance(row, Row)
    else (name or rest, row)
    for name, row in rows
  ]


def _is_inside(path: pathlib.Path, folder: pathlib.Path, inside) -> bool:
  """Returns whether a path is in a folder, also once links are followed.

  Args:
    path: The path. It is not inside if a folder in it has a NUL in its name.
    folder: The folder.
    inside: Says it of the folder that the path is in; it is asked once.
  """
  try:
    linked = os.path.islink(path) and not files.inside(path, folder)
    return not linked and inside(path.parent) and bool(path.name)
  except (OSError, ValueError, RuntimeError):
    return False  # a folder with a NUL, or links in a circle

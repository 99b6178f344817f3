"""Readers of what users have; each reads a part alone, item after item.

No reader fails because of its data: it says what it could not read. What an
item must be like, `parts.check` decides.
"""

from collections.abc import Iterator, Mapping, Sequence
import json
import os
import pathlib
import tarfile

from nuclr_jax.data import fields
from nuclr_jax.data.images import ENDINGS
from nuclr_jax.ingest.parts import (
  BROKEN_RECORD,
  BROKEN_ROW,
  DAMAGED,
  NO_FILE,
  NO_IMAGE,
  Item,
  Rejected,
)
from nuclr_jax.ingest.tables import Row

BLOCK = 512  # bytes, of a tar file


def read_tar(path: str) -> Iterator[Item | Rejected]:
  """Reads a tar file in webdataset's format: KEY.jpg, KEY.txt, KEY.json.

  Files of a key need not follow each other. The caption is KEY.txt, or else
  the caption in KEY.json.

  Example:
    >>> [found.reason for found in read_tar("no such file.tar")]
    ['damaged file']
  """
  try:
    with open(path, "rb") as file:
      members, complete = _members(file)
      for (key, _), places in members.items():
        found = {name: _bytes_at(file, *at) for name, at in places.items()}
        if "image" in found:
          yield Item(key, path, found["image"], _captions(found))
        else:
          yield Rejected(key, path, NO_IMAGE)
  except OSError:
    complete = False
  if not complete:
    yield Rejected("", path, DAMAGED)


def read_rows(rows: Sequence[Row | Rejected]) -> Iterator[Item | Rejected]:
  """Opens the images that rows of a table name.

  Example:
    >>> row = Row("a.jpg", "t.csv", "no such folder/a.jpg", ["a dog"])
    >>> [found.reason for found in read_rows([row])]
    ['missing file']
  """
  for row in rows:
    if isinstance(row, Rejected):
      yield row
      continue
    try:
      with open(row.path, "rb") as file:
        image = file.read()
    except (OSError, ValueError):  # there are names that no file can have
      yield Rejected(row.key, row.source, NO_FILE)
      continue
    captions = row.captions
    captions = _captions(_beside(row.path)) if captions is None else captions
    yield Item(row.key, row.source, image, captions)


def read_parquet(
  path: str, groups: Sequence[int], image: str, caption: str
) -> Iterator[Item | Rejected]:
  """Reads row groups of a file, a few rows at a time.

  Args:
    path: The file.
    groups: Which row groups.
    image: Column of bytes, or of structs that have bytes.
    caption: Column of strings, or of lists of them.

  Yields:
    Items; their keys are the column `key` if there is one, else file and row.
  """
  import pyarrow
  from pyarrow import parquet

  for group in groups:
    try:
      # So it keeps some pages in memory, not row groups.
      how = {"buffer_size": 1 << 20, "pre_buffer": False}
      with parquet.ParquetFile(path, **how) as file:
        sizes = (file.metadata.row_group(i).num_rows for i in range(group))
        number = sum(sizes)
        columns = sorted({image, caption, "key"} & set(file.schema_arrow.names))
        for batch in file.iter_batches(16, [group], columns, use_threads=False):
          for at in range(len(batch)):
            key = f"{pathlib.Path(path).stem}-{number:09d}"
            number += 1
            yield _parquet_item(key, path, batch, at, image, caption)
    except (pyarrow.ArrowException, OSError):
      yield Rejected(f"row group {group}", path, DAMAGED)


def read_tfds(
  folder: str, split: str, start: int, stop: int
) -> Iterator[Item | Rejected]:
  """Reads records of a prepared TFDS data set, images as they are stored."""
  import tensorflow_datasets as tfds

  builder = tfds.builder_from_directory(folder)
  image = fields.image_field(builder.info.features)
  caption = fields.caption_field(builder.info.features)
  decoders = {image: tfds.decode.SkipDecoding()}
  data = builder.as_data_source(split, decoders=decoders)
  keys = set()
  for i in range(start, stop):
    key = f"{split}-{i:09d}"
    try:
      row = data[i]
    except Exception:  # array_record raises RuntimeError, TFDS others
      yield Rejected(key, folder, BROKEN_RECORD)
      continue
    own = fields.captions_of(row, "key") if "key" in row else []
    if own and own[0] not in keys:  # else there were several files of one name
      keys.add(own[0])
      key = own[0]
    captions = fields.captions_of(row, caption)
    yield Item(key, folder, row[image], captions)


def damaged(path: str) -> Iterator[Rejected]:
  """Says that a file cannot be opened."""
  yield Rejected("", path, DAMAGED)


def _members(file) -> tuple[dict, bool]:
  """Where the files of each item are, and whether the tar is complete.

  A second file of the same key and kind belongs to another item. The tarfile
  module takes a damaged header for the end, so the end is looked at.
  """
  items = {}
  try:
    with tarfile.open(fileobj=file, mode="r:") as tar:
      while (member := tar.next()) is not None:
        tar.members = []  # it keeps them all
        folder, base = os.path.split(member.name.removeprefix("./"))
        stem, _, ending = base.partition(".")
        if not member.isfile() or not stem:
          continue
        key = os.path.join(folder, stem)
        kind = "image" if f".{ending.lower()}" in ENDINGS else ending.lower()
        count = 0
        while kind in items.get((key, count), ()):
          count += 1
        places = items.setdefault((key, count), {})
        if kind in ("image", "txt", "json"):
          places[kind] = (member.offset_data, member.size)
      end = tar.offset
  except tarfile.TarError:
    return items, False
  return items, _bytes_at(file, end, BLOCK) == bytes(BLOCK)


def _bytes_at(file, offset: int, size: int) -> bytes:
  file.seek(offset)
  return file.read(size)


def _beside(path: str) -> dict[str, bytes]:
  """The text files beside an image."""
  texts = {x: pathlib.Path(path).with_suffix(f".{x}") for x in ("txt", "json")}
  return {x: file.read_bytes() for x, file in texts.items() if file.is_file()}


def _captions(files: Mapping[str, bytes]) -> list[str]:
  """The caption in files by their kind."""
  if "txt" in files:
    return fields.captions_of(files, "txt")
  try:
    found = json.loads(files.get("json", b"{}"))
  except ValueError:
    return []
  return fields.captions_of(found, "caption") if type(found) is dict else []


def _parquet_item(key, path, batch, at, image, caption) -> Item | Rejected:
  """One row of a batch."""
  try:
    row = {name: batch.column(name)[at].as_py() for name in batch.schema.names}
  except UnicodeDecodeError:
    return Rejected(key, path, BROKEN_ROW)
  key = str(row.get("key") or key)
  data = row[image]
  data = data.get("bytes") if isinstance(data, dict) else data
  if not data:
    return Rejected(key, path, NO_IMAGE)
  return Item(key, path, data, fields.captions_of(row, caption))

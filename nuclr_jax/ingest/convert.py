"""Converts TFDS data sets from TFRecord files to array_record, once.

A record is the same bytes in both formats, but only array_record files can be
read in random order. Neither reading nor writing needs TensorFlow.
"""

from collections.abc import Iterator
import json
import logging
import os
import pathlib
import shutil
import struct

from nuclr_jax import files
from nuclr_jax.data.tfds_reader import (
  INFO,
  TEMPLATE,
  cache_dir,
  record_writer,
)

log = logging.getLogger(__name__)

OLD, NEW = "tfrecord", "array_record"


def convert(
  folder: str | os.PathLike, data_dir: str | os.PathLike | None = None
) -> pathlib.Path:
  """Copies a prepared data set from TFRecord to array_record files.

  Args:
    folder: The folder of a version, such as "/data/tfds/food101/2.0.0".
    data_dir: Folder of prepared data sets; the copy goes into its
      NAME/[CONFIGURATION/]VERSION.

  Returns:
    The folder of the copy. If it exists already, nothing is done.

  Raises:
    ValueError: If there is no such data set, it is in another format, or a
      file is incomplete.

  Example:
    >>> folder = convert("/data/tfds/food101/2.0.0")  # doctest: +SKIP
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  path = folder / INFO
  if not path.exists():
    raise ValueError(
      f"{folder} is not a prepared TFDS data set, {path.name} is missing; name "
      "the folder of a version, such as food101/2.0.0"
    )
  info = json.loads(path.read_text())
  if info.get("fileFormat", OLD) != OLD:
    kind = info["fileFormat"]
    raise ValueError(
      f"{folder} is in the format {kind}, "
      + ("which needs no conversion" if kind == NEW else f"not {OLD}")
    )
  names = [info["name"], info.get("configName"), info["version"]]
  target = cache_dir(data_dir).joinpath(*filter(None, names))
  if target.exists():
    log.info("%s exists already", target)
    return target
  for split in info["splits"]:
    _check_template(folder, split)
  with files.complete_folder(target) as work:
    for split in info["splits"]:
      lengths = [int(x) for x in split["shardLengths"]]
      stem = f"{info['name']}-{split['name']}"
      for i, length in enumerate(lengths):
        name = f"{stem}.{OLD}-{i:05d}-of-{len(lengths):05d}"
        _copy(folder / name, work / name.replace(OLD, NEW), length)
      log.info("split %s: %d records", split["name"], sum(lengths))
    for entry in folder.iterdir():  # features, names of labels
      if entry.is_file() and f".{OLD}-" not in entry.name:
        shutil.copy(entry, work)
    (work / INFO).write_text(json.dumps(info | {"fileFormat": NEW}, indent=2))
  return target


def _check_template(folder, split) -> None:
  template = split.get("filepathTemplate", TEMPLATE)
  if template != TEMPLATE:
    raise ValueError(
      f"{folder} names its files {template}, but only {TEMPLATE} is known; "
      "prepare the data set again with file_format='array_record'"
    )


def _copy(old: pathlib.Path, new: pathlib.Path, length: int) -> None:
  """Copies the records of a file, which must have `length` of them."""
  count = 0
  with record_writer(new) as writer:
    for record in _records(old):
      writer.write(record)
      count += 1
  if count != length:
    raise ValueError(
      f"{old} holds {count} records instead of {length}; prepare the data set "
      "again"
    )


def _records(path: pathlib.Path) -> Iterator[bytes]:
  """Yields the records of a TFRecord file.

  A record is stored as its length, a checksum of the length, its bytes and a
  checksum of the bytes; the checksums are skipped.

  Raises:
    ValueError: If the file ends within a record.
  """
  with path.open("rb") as file:
    while head := file.read(12):
      (size,) = struct.unpack("<Q", head[:8].ljust(8, b"\0"))
      record = file.read(size)
      if len(head) < 12 or len(record) < size or len(file.read(4)) < 4:
        raise ValueError(f"{path} is cut off; copy the file again")
      yield record

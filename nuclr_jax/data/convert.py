"""TFDS data sets in TFRecord files, once and for all to array_record.

A record is the same bytes in both formats; only array_record files can be read
at random places. Neither reading nor writing needs TensorFlow.
"""

from collections.abc import Iterator
import json
import logging
import os
import pathlib
import shutil
import struct

from nuclr_jax import host
from nuclr_jax.data import prepared, sources

log = logging.getLogger(__name__)

OLD, NEW = "tfrecord", "array_record"


def convert(
  folder: str | os.PathLike, data_dir: str | os.PathLike | None = None
) -> pathlib.Path:
  """Copies a prepared data set from TFRecord to array_record files.

  Args:
    folder: Of its version, such as "/data/tfds/food101/2.0.0".
    data_dir: Where the copy goes, as NAME/[CONFIGURATION/]VERSION.

  Returns:
    The folder of the copy. If it is there already, nothing is done.

  Raises:
    ValueError: If there is no such data set, it is in another format, or a
      file does not hold what it should.

  Example:
    >>> folder = convert("/data/tfds/food101/2.0.0")  # doctest: +SKIP
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  path = folder / prepared.INFO
  if not path.exists():
    raise ValueError(
      f"{folder} is no prepared TFDS data set, {path.name} is missing; name "
      "the folder of its version, such as food101/2.0.0"
    )
  info = json.loads(path.read_text())
  if info.get("fileFormat", OLD) != OLD:
    found = info["fileFormat"]
    raise ValueError(
      f"{folder} is in the format {found}, "
      + ("which needs no conversion" if found == NEW else f"not {OLD}")
    )
  names = [info["name"], info.get("configName"), info["version"]]
  target = sources.cache_dir(data_dir).joinpath(*filter(None, names))
  if target.exists():
    log.info("%s is there already", target)
    return target
  for split in info["splits"]:
    _check_template(folder, split)
  with host.complete_folder(target) as work:
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
    (work / prepared.INFO).write_text(
      json.dumps(info | {"fileFormat": NEW}, indent=2)
    )
  return target


def _check_template(folder, split) -> None:
  found = split.get("filepathTemplate", prepared.TEMPLATE)
  if found != prepared.TEMPLATE:
    raise ValueError(
      f"{folder} names its files {found}, known is {prepared.TEMPLATE} only"
    )


def _copy(old: pathlib.Path, new: pathlib.Path, length: int) -> None:
  """Copies the records of a file; there must be `length` of them."""
  count = 0
  with prepared.record_writer(new) as writer:
    for record in _records(old):
      writer.write(record)
      count += 1
  if count != length:
    raise ValueError(f"{old} holds {count} records instead of {length}")


def _records(path: pathlib.Path) -> Iterator[bytes]:
  """Records of a TFRecord file: length, its check sum, bytes, their check sum.

  Raises:
    ValueError: If the file ends within a record.
  """
  with path.open("rb") as file:
    while head := file.read(12):
      (size,) = struct.unpack("<Q", head[:8].ljust(8, b"\0"))
      record = file.read(size)
      if len(head) < 12 or len(record) < size or len(file.read(4)) < 4:
        raise ValueError(f"{path} is cut off")
      yield record

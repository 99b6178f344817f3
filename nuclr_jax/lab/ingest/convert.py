"""Converts TFDS data sets from TFRecord files to array_record, once.

A record is the same bytes in both formats, but only array_record files can be
read in random order. Neither reading nor writing needs TensorFlow.
"""

from collections.abc import Iterator
import json
import logging
import os
import pathlib
import re
import shutil
import struct
from typing import Any, NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.data.places import data_set_path
from nuclr_jax.lab.data.tfds_reader import INFO, TEMPLATE, record_writer
from nuclr_jax.lab.files.checksum import crc32c

log = logging.getLogger(__name__)

OLD, NEW = "tfrecord", "array_record"
NAME = re.compile(r"\w[\w.+-]*")  # becomes part of a path
HEAD, FOOT = struct.Struct("<QI"), struct.Struct("<I")  # around a record


class Info(NamedTuple):
  """What a dataset_info.json says, checked."""

  names: tuple[str, ...]  # data set, configuration if there is one, version
  shards: dict[str, list[int]]  # the records of each file, by split
  content: dict[str, Any]  # all of the file


def convert(
  folder: str | os.PathLike, data_dir: str | os.PathLike | None = None
) -> str | pathlib.Path:
  """Copies a prepared data set from TFRecord to array_record files.

  Args:
    folder: The folder of a version, such as "/data/tfds/food101/2.0.0".
    data_dir: Folder of prepared data sets; the copy goes into its
      NAME/[CONFIGURATION/]VERSION.

  Returns:
    The folder of the copy. If it exists already, nothing is done.

  Raises:
    ValueError: If there is no such data set, it is in another format, or a
      file is incomplete or damaged.

  Example:
    >>> folder = convert("/data/tfds/food101/2.0.0")  # doctest: +SKIP
  """
  folder = files.remote.fetch(folder).expanduser().absolute()
  if not (folder / INFO).exists():
    raise ValueError(
      f"{folder} is not a prepared TFDS data set, {INFO} is missing; name "
      "the folder of a version, such as food101/2.0.0"
    )
  info = _read_info(folder)
  target = data_set_path(data_dir, "/".join(info.names))
  if files.bucket.exists(target):
    log.info("%s exists already", target)
    return target
  if isinstance(target, pathlib.Path):
    *above, _ = info.names
    files.folder_in(target.parents[len(above)], *above)
  with files.remote.new_folder(target) as work:
    for split, lengths in info.shards.items():
      for i, length in enumerate(lengths):
        stem, shard = (
          f"{info.names[0]}-{split}",
          f"{i:05d}-of-{len(lengths):05d}",
        )
        old, new = (f"{stem}.{kind}-{shard}" for kind in (OLD, NEW))
        _copy(_checked(folder / old, folder), work / new, length)
      log.info("split %s: %d records", split, sum(lengths))
    for entry in folder.iterdir():  # features, names of labels
      if entry.is_file() and f".{OLD}-" not in entry.name:
        with files.replacing(work / entry.name) as new:
          shutil.copyfile(_checked(entry, folder), new)
    new_info = info.content | {"fileFormat": NEW}
    files.write_text(work / INFO, json.dumps(new_info, indent=2))
  return target


def _read_info(folder: pathlib.Path) -> Info:
  """Reads and checks what a dataset_info.json says about its files."""
  path = _checked(folder / INFO, folder)
  content = files.read_json(path)
  try:
    kind = content.get("fileFormat", OLD)
    names = content["name"], content.get("configName"), content["version"]
    splits = {x["name"]: x for x in content["splits"]}
    shards = {
      name: [int(length) for length in split["shardLengths"]]
      for name, split in splits.items()
    }
    templates = {x.get("filepathTemplate", TEMPLATE) for x in splits.values()}
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f"{path} is damaged: it lacks what TFDS writes ({error!r})"
    ) from error
  if kind != OLD:
    raise ValueError(
      f"{folder} is in the format {kind}, "
      + ("which needs no conversion" if kind == NEW else f"not {OLD}")
    )
  names = tuple(x for x in names if x)
  for name in (*names, *shards):
    if not isinstance(name, str) or not NAME.fullmatch(name):
      raise ValueError(
        f"{path} has the name {name!r}; names of data sets, versions and "
        "splits are letters, digits and _.+-, since folders are named by them"
      )
  if templates - {TEMPLATE}:
    raise ValueError(
      f"{folder} names its files {', '.join(map(str, templates))}, but only "
      f"{TEMPLATE} is known; prepare the data set again with "
      "file_format='array_record'"
    )
  return Info(names, shards, content)


def _checked(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Returns a path; raises ValueError if it leads elsewhere or to no file."""
  if not path.is_file():
    raise ValueError(f"{path} is missing; copy the data set again")
  if not files.inside(path, folder):
    raise ValueError(
      f"{path} is a link out of {folder}, and is not followed; copy the file "
      "in place of the link"
    )
  return path


def _copy(old: pathlib.Path, new: pathlib.Path, length: int) -> None:
  """Copies the records of a file, which must have `length` of them."""
  count = 0
  with files.replacing(new) as path, record_writer(path) as writer:
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
  checksum of the bytes.

  Raises:
    ValueError: If the file ends within a record, or a checksum is wrong.
  """
  left = path.stat().st_size
  with path.open("rb") as file:
    while left:
      left -= HEAD.size + FOOT.size
      if left < 0:
        raise ValueError(f"{path} is cut off; copy the file again")
      head = file.read(HEAD.size)
      size, of_size = HEAD.unpack(head)
      _verify(head[:8], of_size, path)  # before so many bytes are read
      left -= size
      if left < 0:
        raise ValueError(f"{path} is cut off; copy the file again")
      record = file.read(size)
      _verify(record, *FOOT.unpack(file.read(FOOT.size)), path)
      yield record


def _verify(data: bytes, checksum: int, path: pathlib.Path) -> None:
  """Raises ValueError if bytes do not have the checksum that they should."""
  if masked_crc(data) != checksum:
    raise ValueError(
      f"{path} is damaged: a checksum is wrong; copy the file again"
    )


def masked_crc(data: bytes) -> int:
  """Returns TFRecord's checksum of bytes: CRC-32C, rotated, plus a constant.

  Example:
    >>> masked_crc(bytes(8)).to_bytes(4, "little").hex()  # a length of zero
    '29039807'
  """
  crc = crc32c(data)
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

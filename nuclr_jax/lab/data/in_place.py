"""Images that stay in tar files, and are read from there.

`nuclr ingest --in_place` writes records without images. Such a record holds the
place of its image in a tar, and each file of records is about one tar. The tars
are listed in `tars-SPLIT.json`, in the order of these files:

  {"folder": "/data/cc3m", "tars": [["00000.tar", size, time], ...]}

If the tars move, also to a bucket, only `folder` needs to be changed. A changed
tar does not go unnoticed: the checksum of every image that is read is compared.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
import functools
import json
import os
import pathlib
import stat
from typing import Any, NamedTuple

from jaxtyping import Int
import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.data import tfds_reader
from nuclr_jax.lab.files import bucket, remote
from nuclr_jax.lab.files.checksum import crc32c

# The feature with the first byte, the size and the checksum (CRC-32C) of an
# image, int64 [3]; zeros if the record holds it.
PLACE = "place"
THREADS = 64  # that wait for reads at the same time
CHUNK = 4  # images that a thread reads one after another
OPEN_FILES = 256  # that a process keeps open

Row = Mapping[str, Any]


class Tar(NamedTuple):
  """A tar file, and what it was like when it was indexed."""

  path: str  # may be in a bucket
  stamp: list  # changes when the file does


class Tars(NamedTuple):
  """The tars of a split."""

  tars: list[Tar]
  # One more than the last record of each tar.
  ends: Int[np.ndarray, "tars"]
  listed: pathlib.Path  # the file that lists them


def place_of(offset: int, image: bytes) -> Int[np.ndarray, "3"]:
  """Returns the feature `PLACE` of an image that begins at a byte of its tar.

  Example:
    >>> place_of(512, b"JPEG")[:2].tolist()
    [512, 4]
  """
  checksum = crc32c(image)
  return np.array([offset, len(image), checksum], np.int64)


def write_tars(
  folder: pathlib.Path, split: str, tars: Sequence[Sequence]
) -> None:
  """Lists the tars of a split, relative to the folder that holds all of them.

  Args:
    folder: Folder of the data set.
    split: Name of the split.
    tars: Path and stamp of each tar, in the order of the files of records.

  Example:
    >>> tars = [["/data/a/0.tar", 10, 7], ["/data/b/0.tar", 20, 7]]
    >>> write_tars(tmp_path, "train", tars)
    >>> files.read_json(tmp_path / "tars-train.json")
    {'folder': '/data', 'tars': [['a/0.tar', 10, 7], ['b/0.tar', 20, 7]]}
  """
  home = os.path.commonprefix([x[0].rpartition("/")[0] + "/" for x in tars])
  home = home[: home.rindex("/") + 1]
  rows = [json.dumps([x[0].removeprefix(home), *x[1:]]) for x in tars]
  text = ",\n  ".join(rows)
  home = json.dumps(home.rstrip("/") or "/")
  text = f'{{"folder": {home}, "tars": [\n  {text}\n]}}\n'
  files.write_text(_list_of(folder, split), text)


def tars_of(folder: pathlib.Path, split: str) -> Tars | None:
  """Returns the tars of a split that was indexed in place.

  Args:
    folder: The folder of a prepared data set's version.
    split: A split such as "train", "train[:1000]" or "train+test".

  Returns:
    The tars; None if the records of the data set hold their images.

  Raises:
    ValueError: If the list of the tars is damaged.
  """
  info = tfds_reader.read_only_builder(folder).info
  if PLACE not in info.features:
    return None
  bases, tar_of = tfds_reader.bases_of(split), {}
  for base in bases:
    tar_of |= _tars_of(_list_of(folder, base), info.splits[base].filepaths)
  ranges = info.splits[split].file_instructions
  return Tars(
    [tar_of[x.filename] for x in ranges],
    np.cumsum([x.take for x in ranges]),
    _list_of(folder, bases[0] if len(bases) == 1 else "*"),
  )


def read_images(
  tars: Tars, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row]
) -> list[bytes]:
  """Reads images, many at the same time, which hides latency.

  Args:
    tars: The tars of the split.
    numbers: The numbers of records.
    rows: These records, as TFDS reads them.

  Raises:
    ValueError: If an image cannot be read, or has changed.
  """
  which = np.searchsorted(tars.ends, np.asarray(numbers), side="right")
  jobs = [
    (tars.tars[tar].path, row["image"], *map(int, row[PLACE]))
    for tar, row in zip(which, rows, strict=True)
  ]
  chunks = [jobs[i : i + CHUNK] for i in range(0, len(jobs), CHUNK)]
  read = _threads(os.getpid()).map(_read_chunk, chunks)
  return [image for chunk in read for image in chunk]


def check_tars(
  tars: Tars, read: Callable[[Sequence[int]], Sequence[Row]]
) -> None:
  """Raises ValueError if a tar is missing, or has changed since its indexing.

  Of a tar that seems to have changed, such as a copy, the last image decides:
  another size of anything before it would have moved it.

  Args:
    tars: The tars of a split.
    read: Reads records, as TFDS does.
  """
  places = dict.fromkeys(
    tar.path.rpartition("/")[0]
    for tar in tars.tars
    if bucket.is_remote(tar.path)
  )
  found = {
    f"{folder}/{name}": [stamp]
    for folder in places
    for name, stamp in bucket.names_in(folder).items()
  }
  changed = []
  for i, tar in enumerate(tars.tars):
    if not bucket.is_remote(tar.path):
      found[tar.path] = files.state_of(tar.path)
    if not found.get(tar.path):
      raise ValueError(
        f"{tar.path}, which holds images of this data set, is not there; if "
        f'the tars have moved, write their new "folder" into {tars.listed}'
      )
    if found[tar.path] != tar.stamp:
      changed.append(int(tars.ends[i]) - 1)
  for i in range(0, len(changed), tfds_reader.SCANNED):
    last = changed[i : i + tfds_reader.SCANNED]
    read_images(tars, last, read(last))


def _read_chunk(jobs: Sequence[tuple[str, bytes, int, int, int]]) -> list:
  return [_read_image(*job) for job in jobs]


def _read_image(
  path: str, image: bytes, offset: int, size: int, checksum: int
) -> bytes:
  """Returns the image of a record, from the record or from its tar."""
  if not size:
    return image
  if offset < 0 or size < 0:
    raise ValueError(
      f"a record has its image in {size} bytes from byte {offset} of {path} "
      "on, which is impossible: the data set is damaged; index the tars again"
    )
  image = _read_range(path, offset, min(size, files.MAX_IMAGE))
  if crc32c(image) != checksum:
    raise ValueError(
      f"{path} has changed since it was indexed: its bytes {offset} to "
      f"{offset + size} are not the image that they were; bring back the old "
      "file, or index the tars again, as another data set"
    )
  return image


def _read_range(path: str, offset: int, size: int) -> bytes:
  """Reads a part of a file, if necessary several times."""

  def read():
    if bucket.is_remote(path):
      return bucket.read_range(path, offset, size)
    file = _opened(path).number
    left = max(0, os.fstat(file).st_size - offset)  # memory for no more
    return os.pread(file, min(size, left), offset)

  # What was opened may be stale.
  return files.keep_trying(path, read, after_failure=_opened.cache_clear)


class _File:
  """A file that is open as long as somebody holds this object."""

  def __init__(self, path: str):
    # Without O_NONBLOCK, opening a pipe waits for whoever writes to it.
    self.number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(self.number).st_mode):
      raise ValueError(f"{path} is not a regular file; bring back the tar")

  def __del__(self):
    if hasattr(self, "number"):
      os.close(self.number)


@functools.lru_cache(OPEN_FILES)
def _opened(path: str) -> _File:
  """Opens a file; a process keeps those it used last open."""
  return _File(path)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
  """Makes the pool of a process, by its id: threads do not survive a fork."""
  del process
  return ThreadPoolExecutor(THREADS)


def _tars_of(path: pathlib.Path, records: Sequence[Any]) -> dict[str, Tar]:
  """Reads a split's list of tars; returns the tar of each file of records."""
  content = files.read_json(path)
  with files.reading(path):
    home = os.path.expanduser(content["folder"].rstrip("/"))
    for name in (x[0] for x in content["tars"]):
      if ".." in name.split("/") or bucket.is_remote(name):
        raise ValueError(f"it names {name!r}, which is not in its folder")
    tars = [Tar(f"{home}/{name}", stamp) for name, *stamp in content["tars"]]
    found = dict(zip(map(os.fspath, records), tars, strict=True))
  bucket.check_known(home, by=path, beside=[remote.original(path)])
  return found


def _list_of(folder: pathlib.Path, split: str) -> pathlib.Path:
  return folder / f"tars-{split}.json"

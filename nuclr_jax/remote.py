"""Files and folders in buckets (gs://, s3://), by copies on this machine.

The library works on local files. Of what is in a bucket it makes a copy that is
kept (`fetch`), and what it writes to a bucket is made here first, complete, and
then copied (`written`, `local_workdir`). A bucket has no renaming of folders
and no locks; in their place, the files that say "complete" are copied last.

fsspec speaks the protocols, with gcsfs for gs:// and s3fs for s3://, and finds
the credentials where these libraries look for them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
import tempfile
import threading
from typing import Any, NamedTuple

import jax

from nuclr_jax import files, progress

log = logging.getLogger(__name__)

LIBRARIES = {"gs": "gcsfs", "s3": "s3fs", "memory": "fsspec"}  # by scheme
CACHE = "NUCLR_REMOTE_CACHE"  # environment variable
PERIOD = 60.0  # seconds between two copies of a workdir to its bucket
# A folder that has one of these is complete only with it.
LAST = (files.DIGESTS, "_CHECKPOINT_METADATA", "dataset_info.json")
NOTES, PART = "notes.json", ".part"
# Names that are not copied.
UNFINISHED = (
  r"(^|[/.])incomplete([/.]|$)|orbax-checkpoint-tmp|\.(tmp|part|lock)$"
)

Names = Sequence[str]  # of files, relative to their folder
Choose = Callable[[Names], Names]


def is_remote(path: str | os.PathLike) -> bool:
  """Returns whether a path is in a bucket, which begins with a scheme.

  Example:
    >>> is_remote("gs://bucket/photos"), is_remote("/data/photos")
    (True, False)
  """
  return "://" in os.fspath(path)


def check(path: str | os.PathLike) -> None:
  """Raises ValueError for a scheme that is unknown, or lacks its library.

  Example:
    >>> check("hdfs://cluster/photos")
    Traceback (most recent call last):
    ValueError: hdfs://cluster/photos: hdfs:// cannot be read or written; give a
    local path, gs:// or s3://, or mount the storage as a folder
  """
  if is_remote(path):
    _open(path)


def _open(path: str | os.PathLike) -> tuple[Any, str]:
  """Returns the file system of a path in a bucket, and its name there."""
  import fsspec

  path = os.fspath(path)
  scheme, _, rest = path.partition("://")
  if scheme not in LIBRARIES:
    raise ValueError(
      f"{path}: {scheme}:// cannot be read or written; give a local path, "
      "gs:// or s3://, or mount the storage as a folder"
    )
  if not rest.strip("/"):
    raise ValueError(
      f"{path} names no bucket, such as {scheme}://BUCKET/FOLDER"
    )
  try:
    return fsspec.core.url_to_fs(path.rstrip("/"))
  except ImportError as error:
    raise ValueError(
      f"{path}: {scheme}:// needs {LIBRARIES[scheme]}; pip install "
      f'"nuclr_jax[{scheme}]"'
    ) from error


@contextlib.contextmanager
def _reaching(path: str | os.PathLike) -> Iterator[None]:
  """Turns what a library raises about a bucket into a ValueError."""
  try:
    yield
  except (FileNotFoundError, ValueError):
    raise
  except Exception as error:  # each library has errors of its own
    reason = progress.first_line(error)
    raise ValueError(
      f"{os.fspath(path)} cannot be reached: {type(error).__name__}: {reason}; "
      "check the name of the bucket and the credentials on this machine"
    ) from error


def exists(path: str | os.PathLike) -> bool:
  """Returns whether there is a file or folder at a path in a bucket."""
  system, name = _open(path)
  with _reaching(path):
    system.invalidate_cache()
    return system.exists(name)


def names_in(path: str | os.PathLike) -> dict[str, str]:
  """Lists the files of a folder in a bucket, and below.

  Args:
    path: The folder.

  Returns:
    Names relative to the folder, with a text for each that changes when the
    file does; {} if there is no such folder.
  """
  system, name = _open(path)
  with _reaching(path):
    system.invalidate_cache()
    found = system.find(name, detail=True)
  start = len(name.rstrip("/")) + 1
  return {
    place[start:]: _stamp(info)
    for place, info in sorted(found.items())
    if len(place) > start
  }


def _stamp(info: Mapping[str, Any]) -> str:
  """Returns a text that differs once a file has changed."""
  keys = ("size", "ETag", "etag", "generation", "mtime", "LastModified")
  keys += ("created",)
  facts = {key: str(info[key]) for key in keys if info.get(key) is not None}
  return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def read_range(path: str | os.PathLike, start: int, size: int) -> bytes:
  """Reads bytes of a file, local or in a bucket, without the rest of it.

  Args:
    path: The file.
    start: The first byte.
    size: The number of bytes; fewer are returned where the file ends.

  Raises:
    OSError: If a local file cannot be read.
    ValueError: If there is no such file in the bucket.

  Example:
    >>> _ = (tmp_path / "x").write_bytes(b"0123456789")
    >>> read_range(tmp_path / "x", 2, 3)
    b'234'
  """
  if not is_remote(path):
    with open(path, "rb") as file:
      file.seek(start)
      return file.read(size)
  system, name = _open(path)
  with _reaching(path):
    return system.cat_file(name, start=start, end=start + size)


def cache_dir() -> pathlib.Path:
  """Returns the folder of copies: $NUCLR_REMOTE_CACHE, or one in ~/.cache."""
  folder = os.environ.get(CACHE, "~/.cache/nuclr_jax_remote")
  return pathlib.Path(folder).expanduser().absolute()


class Copy(NamedTuple):
  """A file or folder in a bucket, and its copy on this machine."""

  path: str  # in the bucket
  local: pathlib.Path
  notes: pathlib.Path  # of each file, what the original and the copy were like


def fetch(
  path: str | os.PathLike,
  *,
  choose: Choose = lambda names: names,
) -> pathlib.Path:
  """Copies a file or folder to this machine, unless its copy is up to date.

  Args:
    path: A path in a bucket, or a local one, which is returned as it is.
    choose: Which files of a folder to copy, of their names.

  Returns:
    The copy, in `cache_dir`. It has the name of the original.

  Raises:
    ValueError: If there is no such file, or the bucket cannot be reached.

  Example:
    >>> fetch("/data/photos")
    PosixPath('/data/photos')
  """
  if not is_remote(path):
    return pathlib.Path(path)
  copy = _copy_of(path, "read")
  with files.locked(copy.notes.parent, wait=True):
    _pull(copy, choose)
  if not copy.local.exists():
    raise ValueError(f"{copy.path} does not exist, or is empty")
  return copy.local


def fetch_more(folder: pathlib.Path, names: Names) -> None:
  """Copies further files to a folder that `fetch` returned.

  Args:
    folder: The folder; one that is no copy is left as it is.
    names: The names of files in it.
  """
  notes = folder.parent / NOTES
  if not folder.is_relative_to(cache_dir()) or not notes.exists():
    return
  copy = Copy(files.read_json(notes)["path"], folder, notes)
  with files.locked(folder.parent, wait=True):
    _pull(copy, lambda known: [x for x in known if x in set(names)])


@contextlib.contextmanager
def written(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Yields where to write a file or folder that belongs at a path.

  For a local path that is the path itself. For one in a bucket, it is a place
  on this machine with the same name, which is copied to the bucket at the end
  of the block, and not at all if the block raises an error.

  Args:
    path: A path; in a bucket, nothing may be there yet.

  Raises:
    ValueError: If there is something at the path in a bucket.

  Example:
    >>> with written(tmp_path / "x.txt") as place:
    ...   _ = place.write_text("1 2 3")
    >>> (tmp_path / "x.txt").read_text()
    '1 2 3'
  """
  if not is_remote(path):
    yield pathlib.Path(path)
    return
  if exists(path):
    raise ValueError(f"{os.fspath(path)} exists already; choose another name")
  with tempfile.TemporaryDirectory(prefix="nuclr-") as folder:
    copy = _copy_of(path, "write", pathlib.Path(folder))
    copy.local.parent.mkdir()
    yield copy.local
    _push(copy)


@contextlib.contextmanager
def local_folder(
  path: str | os.PathLike,
  *,
  choose: Choose = lambda names: names,
  period: float | None = None,
) -> Iterator[pathlib.Path]:
  """Yields a folder on this machine for work on a folder in a bucket.

  What the bucket holds is copied here first. What has changed here at the end
  of the block is copied back, also if the block raises an error.

  Args:
    path: The folder, which need not exist; a local one is yielded as it is.
    choose: Which files to copy here, of their names.
    period: Seconds between copies to the bucket during the block, too; a
      machine that is lost then costs little, and another one can continue.

  Raises:
    ValueError: If the bucket cannot be reached, if another process on this
      machine works on the folder, or if several processes train together, which
      need a folder that all of them see.
  """
  if not is_remote(path):
    yield pathlib.Path(path)
    return
  if jax.process_count() > 1:
    raise ValueError(
      f"{os.fspath(path)}: processes that train together need a folder that "
      "all of them see; mount the bucket (gcsfuse, Mountpoint for Amazon S3), "
      "and give the folder"
    )
  copy = _copy_of(path, "read" if period is None else "write")
  with files.locked(copy.notes.parent):
    _pull(copy, choose)
    copy.local.mkdir(exist_ok=True)
    stop = threading.Event()
    thread = threading.Thread(target=_push_often, args=(copy, stop, period))
    if period is not None:
      log.warning(
        "a bucket has no locks: see that no other machine trains in %s",
        copy.path,
      )
      thread.start()
    try:
      yield copy.local
    finally:
      stop.set()
      if period is not None:
        thread.join()
      _push(copy)


def _push_often(copy: Copy, stop: threading.Event, period: float) -> None:
  while not stop.wait(period):
    try:
      _push(copy)
    except ValueError as error:  # the next time may succeed
      log.warning("%s", error)


def _copy_of(path, use: str, folder: pathlib.Path | None = None) -> Copy:
  """Returns where the copy of a path is, which depends on its use."""
  path = os.fspath(path).rstrip("/")
  _open(path)
  name = hashlib.sha256(f"{use} {path}".encode()).hexdigest()[:16]
  place = (folder or cache_dir()) / name
  return Copy(path, place / pathlib.PurePosixPath(path).name, place / NOTES)


def _pull(copy: Copy, choose: Choose) -> None:
  """Makes the copy equal to the chosen part of the original."""
  system, name = _open(copy.path)
  with _reaching(copy.path):
    system.invalidate_cache()
    if system.isfile(name):
      stamps = {"": _stamp(system.info(name))}
    else:
      stamps = names_in(copy.path)
    notes = _read_notes(copy)
    for old in _local_files(copy):
      if old not in stamps:
        (copy.local / old).unlink()
    todo = [
      x
      for x in choose(list(stamps))
      if notes.get(x) != [stamps[x], *_state(copy.local / x)]
    ]
    show = progress.reporter(f"files of {copy.path}", len(todo))
    try:
      for done, file in enumerate(todo, 1):
        place = copy.local / file
        if file and not files.inside(place, copy.local):
          raise ValueError(f"{copy.path} holds a file of the name {file!r}")
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}{PART}")
        system.get_file(f"{name}/{file}".rstrip("/"), os.fspath(part))
        part.replace(place)
        notes[file] = [stamps[file], *_state(place)]
        show(done)
    finally:
      _write_notes(copy, {x: notes[x] for x in notes if x in stamps})


def _push(copy: Copy) -> None:
  """Makes the original equal to the copy.

  Files that say that their folder is complete are copied last, and removed
  first. A file that vanishes meanwhile, such as one of an old checkpoint, is
  left out.
  """
  system, name = _open(copy.path)
  notes = _read_notes(copy)
  with _reaching(copy.path):
    states = {x: _state(copy.local / x) for x in _local_files(copy)}
    new = [x for x, state in states.items() if notes.get(x, [])[1:] != state]
    known = system.find(name) if notes else []
    old = [x for x in notes if x not in states and f"{name}/{x}" in known]
    show = progress.reporter(f"files copied to {copy.path}", len(new))
    try:
      for done, file in enumerate(sorted(new, key=_is_last), 1):
        place = f"{name}/{file}".rstrip("/")
        try:
          system.put_file(os.fspath(copy.local / file), place)
        except FileNotFoundError:
          continue
        system.invalidate_cache()
        notes[file] = [_stamp(system.info(place)), *states[file]]
        show(done)
      for file in sorted(old, key=_is_last, reverse=True):
        system.rm_file(f"{name}/{file}")
        del notes[file]
    finally:
      _write_notes(copy, notes)


def _is_last(name: str) -> bool:
  return pathlib.PurePosixPath(name).name in LAST


def _local_files(copy: Copy) -> list[str]:
  """Lists the complete files of a copy, by their names in it; "" is a file."""
  if copy.local.is_file():
    return [""]
  names = (x for x in copy.local.rglob("*") if x.is_file())
  names = (x.relative_to(copy.local).as_posix() for x in names)
  return sorted(x for x in names if not re.search(UNFINISHED, x))


def _state(path: pathlib.Path) -> list[int]:
  """Returns numbers that differ once a local file has changed."""
  try:
    found = path.stat()
  except FileNotFoundError:
    return []
  return [found.st_size, found.st_mtime_ns]


def _read_notes(copy: Copy) -> dict[str, list]:
  if not copy.notes.exists():
    return {}
  return files.read_json(copy.notes)["files"]


def _write_notes(copy: Copy, notes: Mapping[str, list]) -> None:
  copy.notes.parent.mkdir(parents=True, exist_ok=True)
  part = copy.notes.with_name(f"{NOTES}{PART}")
  part.write_text(json.dumps({"path": copy.path, "files": notes}))
  part.replace(copy.notes)

"""Copies of files and folders in buckets, and back.

The library works on local files. Of what is in a bucket it makes a copy that is
kept (`fetch`), and what it writes to a bucket is made here first, and then
copied (`new_folder`, `local_folder`). A bucket has no renaming of folders and
no locks; in their place, the files that say "complete" are copied last, and an
object says which machine is at work (`lease`).
"""

from collections.abc import Callable, Iterator
import contextlib
import json
import logging
import os
import pathlib
import tempfile
import time
from typing import Any
import uuid

import jax

from nuclr_jax.lab import progress
from nuclr_jax.lab.files import copies, lease, local
from nuclr_jax.lab.files.bucket import (
  Unreached,
  absolute,
  exists,
  is_remote,
  names_in,
  read_range,
  remove,
  upload,
)
from nuclr_jax.lab.files.copies import MARK, NOTES, Choose, Copy, Names
from nuclr_jax.lab.files.push import LAST, push
from nuclr_jax.lab.files.untrusted import parse_json
from nuclr_jax.lab.files.writing import write_text

__all__ = [
  "CACHE",
  "LAST",
  "MARK",
  "NOTES",
  "PERIOD",
  "cache_dir",
  "check_new",
  "fetch",
  "fetch_more",
  "local_folder",
  "new_folder",
  "original",
]

log = logging.getLogger(__name__)

CACHE = "NUCLR_REMOTE_CACHE"  # environment variable
PERIOD = 60.0  # seconds between two copies of a workdir to its bucket
LONGEST_MARK = 2**24  # bytes


def cache_dir() -> pathlib.Path:
  """Returns the folder of copies: $NUCLR_REMOTE_CACHE, or one in ~/.cache.

  Raises:
    ValueError: If it is in a bucket itself.
  """
  folder = os.environ.get(CACHE) or "~/.cache/nuclr_jax_remote"
  if is_remote(folder):
    raise ValueError(
      f"{CACHE}={folder} must be a folder on this machine, for copies of what "
      "is in buckets"
    )
  return pathlib.Path(folder).expanduser().absolute()


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
    ValueError: If there is no such file.
    Unreached: If the bucket cannot be reached.

  Example:
    >>> fetch("/data/photos")
    PosixPath('/data/photos')
  """
  if not is_remote(path):
    return pathlib.Path(path)
  copy = copies.copy_of(path, "read", cache_dir())
  with local.locked(copy.notes.parent, wait=True):
    changes = copies.holds_changes(copy)
    if not changes:
      copies.pull(copy, choose)
  if changes:
    log.warning(
      "%s has files that are not in %s yet, since they could not be copied; "
      "what is read is what the bucket has",
      copy.here,
      copy.path,
    )
    copy = copies.copy_of(path, "read apart", cache_dir())
    with local.locked(copy.notes.parent, wait=True):
      copies.pull(copy, choose)
  copies.check_there(copy)
  return copy.here


def fetch_more(folder: pathlib.Path, names: Names) -> None:
  """Copies further files to a folder that `fetch` returned, or in one.

  Args:
    folder: The folder; one that is not a copy is left as it is.
    names: The names of files in it.
  """
  copy = copies.find_copy(folder, cache_dir())
  if copy is None:
    return
  within = folder.relative_to(copy.here)
  wanted = {(within / x).as_posix() for x in names}
  with local.locked(copy.notes.parent, wait=True):
    copies.pull(copy, lambda known: [x for x in known if x in wanted])


def original(path: pathlib.Path) -> str:
  """Returns where a copy comes from, or goes to; other paths as they are.

  Example:
    >>> original(pathlib.Path("/data/photos"))
    '/data/photos'
  """
  copy = copies.find_copy(path, cache_dir())
  if copy is None:
    return os.fspath(path)
  within = path.relative_to(copy.here).as_posix()
  return f"{copy.path}/{within}".removesuffix("/.")


def check_new(path: str | os.PathLike) -> None:
  """Raises ValueError if there is something already where a folder is to be.

  A folder in a bucket that was only copied in part does not count.

  Args:
    path: The folder to make, here or in a bucket.

  Example:
    >>> check_new(tmp_path / "not there")
  """
  path = absolute(path)
  if not exists(path):
    return
  if is_remote(path) and exists(f"{path}/{MARK}"):
    _interrupted(path)
    log.warning("%s is incomplete, and is written again", path)
    return
  raise ValueError(f"{path} exists already; choose another place")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Yields a folder to write into, which gets its place when it is complete.

  A local folder then gets its name (`complete_folder`), and one for a bucket is
  copied there. If the block raises an error, nothing is left.

  Args:
    path: The folder to make, where nothing may be yet.

  Raises:
    ValueError: If there is something already.
    Unreached: If the bucket cannot be reached.

  Example:
    >>> with new_folder(tmp_path / "new") as work:
    ...   _ = (work / "numbers").write_text("1 2 3")
    >>> (tmp_path / "new" / "numbers").read_text()
    '1 2 3'
  """
  path = absolute(path)
  check_new(path)
  if isinstance(path, pathlib.Path):
    with local.complete_folder(path) as work:
      yield work
    return
  with tempfile.TemporaryDirectory(prefix="nuclr-") as place:
    copy = copies.copy_of(path, "new", pathlib.Path(place))
    copies.write_notes(copy, {})
    with local.complete_folder(copy.here) as work:
      yield work
    check_new(path)
    for name in _interrupted(path):
      remove(f"{path}/{name}")
    mark, names = pathlib.Path(place) / MARK, copies.files_here(copy)
    text = json.dumps({"by": uuid.uuid4().hex, "names": names})
    mark.write_text(text)
    upload(mark, f"{path}/{MARK}")
    push(copy)
    found = read_range(f"{path}/{MARK}", 0, LONGEST_MARK)
    if found != text.encode():
      raise ValueError(
        f"another process has written to {path} meanwhile; delete it, and run "
        "the command again"
      )
    remove(f"{path}/{MARK}")


def _interrupted(path: str) -> list[str]:
  """Returns the files that an interrupted copy has left in a bucket's folder.

  Raises:
    ValueError: If the folder holds others.
  """
  names = names_in(path).keys() - {MARK}
  if not names:
    return []
  try:
    listed = set(
      parse_json(read_range(f"{path}/{MARK}", 0, LONGEST_MARK))["names"]
    )
  except (FileNotFoundError, ValueError, KeyError, TypeError):
    listed = set()  # of an earlier version, or not what nuclr writes
  if others := sorted(names - listed):
    raise ValueError(
      f"{path} is incomplete, and holds {len(others)} file(s), such as "
      f"{others[0]!r}, that the interrupted copy is not known to have left: "
      "delete what is not needed there, or choose another place"
    )
  return sorted(names)


@contextlib.contextmanager
def local_folder(
  path: str | os.PathLike,
  *,
  choose: Choose = lambda names: names,
  period: float | None = None,
  alone: bool = False,
) -> Iterator[pathlib.Path]:
  """Yields a folder on this machine for work on a folder in a bucket.

  The files in the bucket are copied here first. Those that have changed here at
  the end of the block are copied back, also if the block raises an error. If
  that fails, they are kept here, and copied back the next time. If the same
  files have changed in the bucket by then, those here are set aside, and a
  warning says where.

  Args:
    path: The folder, which need not exist; a local one is yielded as it is.
    choose: Which files to copy here, of their names.
    period: Seconds between copies to the bucket during the block, too; a
      machine that is lost then costs little, and another one can continue.
    alone: Whether no other machine may work on the folder meanwhile that wants
      to be alone as well, see `lease`.

  Raises:
    ValueError: If another process on this machine works on the folder, or
      another machine holds its lease, or takes it over; or if several processes
      train together, which need a folder that all of them see.
    Unreached: If the bucket cannot be reached.
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
  use = "read" if period is None else "write"
  copy = copies.copy_of(path, use, cache_dir())
  with local.locked(copy.notes.parent), _held(copy, alone, period) as held:
    copies.pull(copy, choose)
    copy.here.mkdir(parents=True, exist_ok=True)
    with _stays(copy) as stays:
      yield from _pushing(copy, lambda: (held(), stays()), period)


def _pushing(
  copy: Copy, check: Callable[[], Any], period: float | None
) -> Iterator[pathlib.Path]:
  """Yields a copy, copies it to the bucket often, and once more at the end."""
  often = contextlib.nullcontext()
  if period is not None:
    often = progress.every_period(
      lambda: _try_to_push(copy, check, period), period=period
    )
  try:
    with often:
      yield copy.here
  finally:
    try:
      check()
      push(copy, check=check)
    except (lease.Taken, Unreached):
      log.error("what is not in %s yet is kept in %s", copy.path, copy.here)
      raise


@contextlib.contextmanager
def _stays(copy: Copy) -> Iterator[Callable[[], None]]:
  """Yields a function that raises ValueError once somebody deletes a copy.

  Nothing is removed from the bucket then.
  """
  folder = os.open(copy.here, os.O_RDONLY)  # keeps its number from a new one
  began = os.fstat(folder)

  def check() -> None:
    if not copy.here.exists() or not os.path.samestat(began, copy.here.stat()):
      raise ValueError(
        f"{copy.here} was deleted while it was in use; what was not copied "
        f"yet is lost, and {copy.path} is left as it is"
      )

  try:
    yield check
  finally:
    os.close(folder)


def _held(copy: Copy, alone: bool, period: float | None):
  """Holds the lease of a copy's original, if it is wanted."""
  if not alone:
    return contextlib.nullcontext(lambda: None)
  owner = copy.notes.with_name("owner")
  if not owner.exists():
    write_text(owner, uuid.uuid4().hex)
  return lease.held(copy.path, owner=owner.read_text(), period=period or PERIOD)


def _try_to_push(copy: Copy, check: Callable[[], Any], period: float) -> None:
  began = time.monotonic()
  try:
    push(copy, check=check, running=True)
  except (OSError, ValueError) as error:  # the next time may succeed
    log.warning("%s", error)
  took = time.monotonic() - began
  if took > period:
    log.warning(
      "copying to %s took %s: the bucket is that far behind, and a machine "
      "that is lost costs as much; a larger checkpoint_every copies less",
      copy.path,
      progress.duration(took),
    )

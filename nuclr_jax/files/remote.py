"""Copies of files and folders in buckets, and back.

The library works on local files. Of what is in a bucket it makes a copy that is
kept (`fetch`), and what it writes to a bucket is made here first, and then
copied (`new_folder`, `local_folder`). A bucket has no renaming of folders and
no locks; in their place, the files that say "complete" are copied last.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import hashlib
import json
import logging
import os
import pathlib
import re
import tempfile
from typing import NamedTuple

import jax

from nuclr_jax import progress
from nuclr_jax.files import local
from nuclr_jax.files.bucket import (
  Unreached,
  absolute,
  download,
  exists,
  is_remote,
  names_in,
  open_system,
  reaching,
  remove,
  stamp_of,
  upload,
)

log = logging.getLogger(__name__)

CACHE = "NUCLR_REMOTE_CACHE"  # environment variable
PERIOD = 60.0  # seconds between two copies of a workdir to its bucket
# A folder that has one of these is complete only with it.
LAST = (local.DIGESTS, "_CHECKPOINT_METADATA", "dataset_info.json")
NOTES = "notes.json"
MARK = "_INCOMPLETE"  # a file in a folder that is being copied to a bucket
# Names that are not copied.
UNFINISHED = (
  r"(^|[/.])incomplete([/.]|$)|orbax-checkpoint-tmp|\.(tmp|part|lock)$"
)

Names = Sequence[str]  # of files, relative to their folder
Choose = Callable[[Names], Names]


def cache_dir() -> pathlib.Path:
  """Returns the folder of copies: $NUCLR_REMOTE_CACHE, or one in ~/.cache."""
  folder = os.environ.get(CACHE) or "~/.cache/nuclr_jax_remote"
  return pathlib.Path(folder).expanduser().absolute()


class Copy(NamedTuple):
  """A file or folder in a bucket, and its copy on this machine."""

  path: str  # in the bucket
  here: pathlib.Path  # the copy
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
    ValueError: If there is no such file.
    Unreached: If the bucket cannot be reached.

  Example:
    >>> fetch("/data/photos")
    PosixPath('/data/photos')
  """
  if not is_remote(path):
    return pathlib.Path(path)
  copy = _copy_of(path, "read")
  with local.locked(copy.notes.parent, wait=True):
    _pull(copy, choose)
  if not copy.here.exists():
    raise ValueError(f"{copy.path} does not exist, or is empty")
  return copy.here


def fetch_more(folder: pathlib.Path, names: Names) -> None:
  """Copies further files to a folder that `fetch` returned, or in one.

  Args:
    folder: The folder; one that is no copy is left as it is.
    names: The names of files in it.
  """
  copy = _find_copy(folder)
  if copy is None:
    return
  within = folder.relative_to(copy.here)
  wanted = {(within / x).as_posix() for x in names}
  with local.locked(copy.notes.parent, wait=True):
    _pull(copy, lambda known: [x for x in known if x in wanted])


def original(path: pathlib.Path) -> str:
  """Returns where a copy comes from, or goes to; other paths as they are.

  Example:
    >>> original(pathlib.Path("/data/photos"))
    '/data/photos'
  """
  copy = _find_copy(path)
  if copy is None:
    return os.fspath(path)
  within = path.relative_to(copy.here).as_posix()
  return f"{copy.path}/{within}".removesuffix("/.")


def _find_copy(path: pathlib.Path) -> Copy | None:
  """Returns the copy that a path is, or is in."""
  if path.is_relative_to(cache_dir()):
    for here in (path, *path.parents):
      notes = here.parent / NOTES
      if notes.exists():
        return Copy(local.read_json(notes)["path"], here, notes)
  return None


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
    copy = _copy_of(path, "new", pathlib.Path(place))
    _write_notes(copy, {})
    with local.complete_folder(copy.here) as work:
      yield work
    check_new(path)
    remove(path)  # what an interrupted copy has left
    mark = pathlib.Path(place) / MARK
    mark.write_text("")
    upload(mark, f"{path}/{MARK}")
    _push(copy)
    remove(f"{path}/{MARK}")


@contextlib.contextmanager
def local_folder(
  path: str | os.PathLike,
  *,
  choose: Choose = lambda names: names,
  period: float | None = None,
) -> Iterator[pathlib.Path]:
  """Yields a folder on this machine for work on a folder in a bucket.

  What the bucket holds is copied here first. What has changed here at the end
  of the block is copied back, also if the block raises an error. If that fails,
  it is kept here, and copied back the next time, unless the bucket has changed.

  Args:
    path: The folder, which need not exist; a local one is yielded as it is.
    choose: Which files to copy here, of their names.
    period: Seconds between copies to the bucket during the block, too; a
      machine that is lost then costs little, and another one can continue.

  Raises:
    ValueError: If another process on this machine works on the folder, or if
      several processes train together, which need a folder that all of them
      see.
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
  copy = _copy_of(path, "read" if period is None else "write")
  with local.locked(copy.notes.parent):
    _pull(copy, choose, keep=True)
    copy.here.mkdir(parents=True, exist_ok=True)
    often = contextlib.nullcontext()
    if period is not None:
      log.warning(
        "a bucket has no locks: see that no other machine trains in %s",
        copy.path,
      )
      often = progress.every_period(lambda: _try_to_push(copy), period=period)
    try:
      with often:
        yield copy.here
    finally:
      _push(copy)


def _try_to_push(copy: Copy) -> None:
  try:
    _push(copy)
  except Unreached as error:  # the next time may succeed
    log.warning("%s", error)


def _copy_of(path, use: str, folder: pathlib.Path | None = None) -> Copy:
  """Returns where the copy of a path is, which depends on its use."""
  open_system(path)
  path = os.fspath(path).rstrip("/")
  name = hashlib.sha256(f"{use} {path}".encode()).hexdigest()[:16]
  place = (folder or cache_dir()) / name
  return Copy(path, place / pathlib.PurePosixPath(path).name, place / NOTES)


def _pull(copy: Copy, choose: Choose, *, keep: bool = False) -> None:
  """Makes the copy equal to the chosen part of the original.

  Args:
    copy: The copy.
    choose: Which files to copy.
    keep: Whether to leave the copy as it is if nobody has changed the original
      since: then it may have what could not be copied to the bucket.
  """
  stamps, notes = _stamps(copy.path), _read_notes(copy)
  chosen = {x: stamps[x] for x in choose(list(stamps))}
  _check_complete(copy.path, stamps)
  if keep and _is_left_alone(notes, stamps, chosen):
    todo = {x for x in chosen if not (copy.here / x).exists()}
  else:
    for old in set(_files_here(copy)) - stamps.keys():
      (copy.here / old).unlink()
      _remove_empty(copy.here, (copy.here / old).parent)
    todo = {
      x
      for x, stamp in chosen.items()
      if notes.get(x) != [stamp, *local.state_of(copy.here / x)]
    }
  show = progress.reporter(f"files of {copy.path}", len(todo))
  try:
    for done, file in enumerate(sorted(todo), 1):
      place = copy.here / file
      if file and not local.inside(place, copy.here):
        raise ValueError(f"{copy.path} holds a file of the name {file!r}")
      download(f"{copy.path}/{file}".rstrip("/"), place)
      notes[file] = [stamps[file], *local.state_of(place)]
      show(done)
  finally:
    # What is not here was not removed from the original, but not copied.
    there = {x for x in stamps if (copy.here / x).exists()}
    _write_notes(copy, {x: notes[x] for x in notes if x in there})


def _stamps(path: str) -> dict[str, str]:
  """Returns `names_in` of a folder; a file has the name ""."""
  system, name = open_system(path)
  with reaching(path):
    system.invalidate_cache()
    if system.isfile(name):
      return {"": stamp_of(system.info(name))}
  return names_in(path)


def _is_left_alone(
  notes: Mapping[str, list],
  stamps: Mapping[str, str],
  chosen: Mapping[str, str],
) -> bool:
  """Returns whether nobody but this machine has changed an original.

  A file that was being copied to the bucket when the process ended has no
  stamp, and may be there or not.
  """
  known = {x: note[0] for x, note in notes.items()}
  nothing_new = all(
    known.get(x, "") in (stamp, None) for x, stamp in chosen.items()
  )
  nothing_gone = all(stamp is None or x in stamps for x, stamp in known.items())
  return nothing_new and nothing_gone


def _check_complete(path: str, names: Collection[str]) -> None:
  if MARK in names:
    raise ValueError(
      f"{path} is incomplete: the command that wrote it was interrupted while "
      "it copied the files to the bucket; run it again"
    )


def _remove_empty(root: pathlib.Path, folder: pathlib.Path) -> None:
  """Removes a folder in another one if it is empty, and those around it."""
  while folder != root.parent and not any(folder.iterdir()):
    folder.rmdir()
    folder = folder.parent


def _push(copy: Copy) -> None:
  """Makes the original equal to the copy.

  Files that say that their folder is complete are copied last, and removed
  first. A file that vanishes meanwhile, such as one of an old checkpoint, is
  left out.
  """
  notes = _read_notes(copy)
  states = {x: local.state_of(copy.here / x) for x in _files_here(copy)}
  new = [
    x
    for x, state in states.items()
    if notes.get(x, [None])[0] is None or notes[x][1:] != state
  ]
  old = [x for x in notes if x not in states]
  if not new and not old:
    return
  # Whoever comes after this process was killed can tell what it was copying.
  _write_notes(copy, notes | {x: [None, *states[x]] for x in new})
  show, pushed = progress.reporter(f"files copied to {copy.path}", len(new)), []
  try:
    for done, file in enumerate(sorted(new, key=_is_last), 1):
      with contextlib.suppress(FileNotFoundError):
        upload(copy.here / file, f"{copy.path}/{file}")
        pushed.append(file)
      show(done)
    for file in sorted(old, key=_is_last, reverse=True):
      remove(f"{copy.path}/{file}")
      del notes[file]
  finally:
    stamps = names_in(copy.path)
    for file in new:
      stamp = stamps.get(file) if file in pushed else None
      notes[file] = [stamp, *states[file]]
    _write_notes(copy, notes)


def _is_last(name: str) -> bool:
  return pathlib.PurePosixPath(name).name in LAST


def _files_here(copy: Copy) -> list[str]:
  """Lists the complete files of a copy, by their names in it; "" is a file."""
  if copy.here.is_file():
    return [""]
  names = (x for x in copy.here.rglob("*") if x.is_file())
  names = (x.relative_to(copy.here).as_posix() for x in names)
  return sorted(x for x in names if not re.search(UNFINISHED, x))


def _read_notes(copy: Copy) -> dict[str, list]:
  if not copy.notes.exists():
    return {}
  return local.read_json(copy.notes)["files"]


def _write_notes(copy: Copy, notes: Mapping[str, list]) -> None:
  copy.notes.parent.mkdir(parents=True, exist_ok=True)
  part = copy.notes.with_name(f"{NOTES}.part")
  part.write_text(json.dumps({"path": copy.path, "files": notes}))
  part.replace(copy.notes)

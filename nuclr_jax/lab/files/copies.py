"""The copy of a file or folder in a bucket, and what is known of its files.

Beside each copy are notes. They say of each file which version of the original
it is. The cache may hold the only copy of somebody's work: a file is deleted or
overwritten here only if the notes say that it came from the bucket or has
arrived there, and has not changed since. Anything else is kept, and where the
bucket has something else by now, set aside.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import hashlib
import json
import logging
import os
import pathlib
import re
from typing import Any, NamedTuple

from nuclr_jax.lab import progress
from nuclr_jax.lab.files import checksum, lease, local
from nuclr_jax.lab.files.bucket import (
  download,
  exists,
  infos_in,
  not_as_stated,
  open_system,
  reaching,
  stamp_of,
)
from nuclr_jax.lab.files.writing import write_text

log = logging.getLogger(__name__)

NOTES = "notes.json"
MARK = "_INCOMPLETE"  # a file in a folder that is being copied to a bucket
# Names that are not copied to a bucket.
UNFINISHED = (
  r"(^|[/.])incomplete([/.]|$)|orbax-checkpoint-tmp|\.(tmp|part|lock)$"
)
TRIES = 3  # to copy a folder whose files vanish meanwhile

Names = Sequence[str]  # of files, relative to their folder
Choose = Callable[[Names], Names]


class Copy(NamedTuple):
  """A file or folder in a bucket, and its copy on this machine."""

  path: str  # in the bucket
  here: pathlib.Path  # the copy
  notes: pathlib.Path  # of each file, what the original and the copy were like


class Note(NamedTuple):
  """What is known of a file of a copy."""

  stamp: str  # of the original that the file was last equal to; "" = of none
  state: list[int]  # of the file then; [] = it is being copied here
  pushing: bool = False  # whether it is being copied to the bucket


def copy_of(path: str | os.PathLike, use: str, cache: pathlib.Path) -> Copy:
  """Returns where the copy of a path is, which depends on its use."""
  open_system(path)
  path = os.fspath(path).rstrip("/")
  name = hashlib.sha256(f"{use} {path}".encode()).hexdigest()[:16]
  return _copy_in(cache / name, path)


def find_copy(path: pathlib.Path, cache: pathlib.Path) -> Copy | None:
  """Returns the copy that a local path is, or is in."""
  parts = path.relative_to(cache).parts if path.is_relative_to(cache) else ()
  if len(parts) < 2:
    return None
  copy = _copy_in(cache / parts[0], parts[1])
  try:
    original = local.read_json(copy.notes)["path"]
  except (local.UnreadableError, KeyError):
    return None
  return copy._replace(path=str(original))


def _copy_in(folder: pathlib.Path, path: str) -> Copy:
  """Returns the copy of a path in a folder of the cache.

  Its notes are in another folder, so that no file of a bucket can have the name
  of one of the cache's.
  """
  notes = folder.with_name(f"{folder.name}.notes") / NOTES
  return Copy(path, folder / pathlib.PurePosixPath(path).name, notes)


def holds_changes(copy: Copy) -> bool:
  """Returns whether a copy has files that the bucket has not."""
  _take_over_old_notes(copy)
  notes = read_notes(copy)
  if not _unclean(copy, notes):
    return False
  changed = _changed(copy, notes, list_original(copy.path))
  write_notes(copy, notes)
  return bool(changed)


def pull(copy: Copy, choose: Choose) -> None:
  """Makes the copy equal to the chosen part of the original.

  Files that have changed here and not in the bucket are kept as they are, since
  they could not be copied there. If any of them has changed there as well, all
  of them are set aside.
  """
  _take_over_old_notes(copy)
  for attempt in range(TRIES):
    try:
      return _pull(copy, choose)
    except FileNotFoundError:  # of a run that goes on elsewhere, for instance
      if attempt + 1 == TRIES:
        raise


def _pull(copy: Copy, choose: Choose) -> None:
  infos = list_original(copy.path)
  _check_names(copy.path, infos)
  stamps = {x: stamp_of(info) for x, info in infos.items()}
  notes = read_notes(copy)
  chosen = choose(list(stamps))
  changed = _keep_changes(copy, notes, infos)
  for old in notes.keys() - changed:
    if old not in stamps or (not notes[old].state and old not in chosen):
      (copy.here / old).unlink(missing_ok=True)
      _remove_empty(copy.here, (copy.here / old).parent)
      del notes[old]
  todo = [
    x
    for x in sorted(chosen)
    if x not in changed
    and notes.get(x) != Note(stamps[x], local.state_of(copy.here / x))
  ]
  # Whoever comes after this process was killed can tell what came from there.
  write_notes(copy, notes | {x: Note(stamps[x], []) for x in todo})
  show = progress.reporter(f"files of {copy.path}", len(todo))
  try:
    for done, file in enumerate(todo, 1):
      place = copy.here / file
      notes[file] = Note(stamps[file], [])
      download(f"{copy.path}/{file}".rstrip("/"), place)
      notes[file] = Note(stamps[file], local.state_of(place))
      show(done)
  finally:
    # What is not here was not removed from the original, but not copied.
    write_notes(copy, {x: n for x, n in notes.items() if _lies(copy.here / x)})


def _keep_changes(
  copy: Copy, notes: dict[str, Note], infos: Mapping[str, Mapping[str, Any]]
) -> set[str]:
  """Returns the files that have changed here only; sets others aside.

  Notes of files that turn out to have arrived in the bucket are corrected.
  """
  changed = _changed(copy, notes, infos)
  before = {x: notes[x].stamp if x in notes else "" for x in changed}
  now = {x: stamp_of(infos[x]) if x in infos else "" for x in changed}
  if before == now:
    if changed:
      log.warning(
        "%s: %d file(s) here, such as %s, are not in the bucket yet; the "
        "command that made them copies them there",
        copy.path,
        len(changed),
        min(changed),
      )
    return changed
  _set_aside(copy, changed, min(x for x in changed if before[x] != now[x]))
  for x in changed & notes.keys():
    del notes[x]
  return set()


def _changed(
  copy: Copy, notes: dict[str, Note], infos: Mapping[str, Mapping[str, Any]]
) -> set[str]:
  """Returns the files that the bucket has not, and corrects notes of others."""
  changed = _unclean(copy, notes)
  for x in changed & infos.keys():
    state = _arrived_state(copy, notes.get(x), infos[x], x)
    if state is not None:
      notes[x] = Note(stamp_of(infos[x]), state)
  return {x for x in changed if not is_clean(copy, notes, x)}


def _unclean(copy: Copy, notes: Mapping[str, Note]) -> set[str]:
  found = {*files_here(copy), *(x for x in notes if _lies(copy.here / x))}
  return {x for x in found if not is_clean(copy, notes, x)}


def _arrived_state(
  copy: Copy, note: Note | None, info: Mapping[str, Any], file: str
) -> list[int] | None:
  """Returns the state in which a file of a copy came into the bucket, if ever.

  It did if a process was killed after it had copied the file there, or after it
  had copied it here. The file may have been written to since.
  """
  state, place = local.state_of(copy.here / file), f"{copy.path}/{file}"
  pushing = note is not None and note.pushing
  if checksum.stated(info)[0] and not (pushing and note.state != state):
    differs = not_as_stated(place.rstrip("/"), info, copy.here / file)
    return None if differs else state
  return note.state if pushing and note.state[0] == int(info["size"]) else None


def _set_aside(copy: Copy, names: Collection[str], witness: str) -> None:
  """Moves files out of a copy, to a folder where nothing is ever deleted."""
  folder, count = copy.here.parent, 1
  while (aside := folder.with_name(f"{folder.name}.kept{count}")).exists():
    count += 1
  for name in sorted(names):
    goal = aside / copy.here.name / name
    goal.parent.mkdir(parents=True, exist_ok=True)
    (copy.here / name).rename(goal)
    _remove_empty(copy.here, (copy.here / name).parent)
  log.warning(
    "%s: %d file(s) were changed here and did not reach the bucket, which has "
    "changed as well (%s): what the bucket has is used, and these files are "
    "kept in %s; delete that folder when you do not need them",
    copy.path,
    len(names),
    witness or copy.here.name,
    aside,
  )


def is_clean(copy: Copy, notes: Mapping[str, Note], file: str) -> bool:
  """Returns whether a file of a copy is one that the bucket has, or had."""
  note = notes.get(file)
  if note is None or note.pushing:
    return False
  return not note.state or note.state == local.state_of(copy.here / file)


def list_original(path: str) -> dict[str, Mapping[str, Any]]:
  """Returns `infos_in` of a folder; a file has the name "".

  Raises:
    ValueError: If it was not copied there in full.
  """
  system, name = open_system(path)
  with reaching(path):
    system.invalidate_cache()
    if system.isfile(name):
      return {"": system.info(name)}
  infos = infos_in(path)
  if MARK in infos:
    raise ValueError(
      f"{path} is incomplete: the command that wrote it was interrupted while "
      "it copied the files to the bucket; run it again"
    )
  infos.pop(lease.NAME, None)
  return infos


def check_there(copy: Copy) -> None:
  """Raises ValueError if a copy has nothing, since the original has nothing."""
  if not copy.here.exists():
    empty = exists(copy.path)
    what = "is an empty folder" if empty else "does not exist, or is empty"
    raise ValueError(f"{copy.path} {what}")


def _check_names(path: str, names: Collection[str]) -> None:
  """Raises ValueError if files of a bucket cannot be files of a folder here."""
  folders = {
    os.fspath(x) for name in names for x in pathlib.PurePosixPath(name).parents
  }
  for name in names:
    parts = name.split("/")
    if name and not {"", ".", ".."}.isdisjoint(parts):
      raise ValueError(
        f"{path} holds a file of the name {name!r}, which no folder here can "
        "hold; rename or delete it in the bucket"
      )
    if name in folders:
      raise ValueError(
        f"{path} holds {name!r} both as a file and as a folder, which no "
        "folder here can hold; rename or delete one of them in the bucket"
      )


def _remove_empty(root: pathlib.Path, folder: pathlib.Path) -> None:
  """Removes a folder in another one if it is empty, and those around it."""
  while folder != root.parent and folder.is_dir() and not any(folder.iterdir()):
    folder.rmdir()
    folder = folder.parent


def _lies(path: pathlib.Path) -> bool:
  return bool(local.state_of(path))


def files_here(copy: Copy) -> list[str]:
  """Lists the complete files of a copy, by their names in it; "" is a file."""
  if copy.here.is_file():
    return [""]
  names = (x for x in copy.here.rglob("*") if x.is_file())
  names = (x.relative_to(copy.here).as_posix() for x in names)
  return sorted(x for x in names if not re.search(UNFINISHED, x))


def _take_over_old_notes(copy: Copy) -> None:
  """Moves the notes of an earlier version, which lay beside the copy."""
  old = copy.here.with_name(NOTES)
  if copy.notes.exists() or copy.here.name == NOTES or not old.is_file():
    return
  old.replace(copy.notes)


def read_notes(copy: Copy) -> dict[str, Note]:
  """Reads the notes of a copy; damaged ones say nothing.

  Files of which nothing is known are then compared with the original.
  """
  if not copy.notes.exists():
    return {}
  try:
    content = local.read_json(copy.notes)
    if content["path"] != copy.path:
      raise ValueError(f"they are those of {content['path']}")
    return {x: _note(note) for x, note in content["files"].items()}
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    log.warning(
      "%s, the notes of what was copied from %s, cannot be read (%s); all "
      "files are compared with those in the bucket",
      copy.notes,
      copy.path,
      progress.first_line(error),
    )
    return {}


def _note(value: Any) -> Note:
  """Reads a note: [stamp, *state] or [stamp, *state, True]."""
  stamp, *state = value
  pushing = stamp is None or state[2:] == [True]  # None: of earlier versions
  state = state[:2] if pushing else state
  numbers = all(type(x) is int for x in state)
  sizes = (2,) if pushing else (0, 2)
  if (
    not numbers or len(state) not in sizes or not isinstance(stamp, str | None)
  ):
    raise ValueError(f"{value!r:.100} is not a note")
  return Note(stamp or "", state, pushing)


def write_notes(copy: Copy, notes: Mapping[str, Note]) -> None:
  """Writes the notes of a copy, so that they are never seen half-written."""
  copy.notes.parent.mkdir(parents=True, exist_ok=True)
  files = {
    x: [note.stamp, *note.state, *([True] if note.pushing else [])]
    for x, note in notes.items()
  }
  write_text(copy.notes, json.dumps({"path": copy.path, "files": files}))

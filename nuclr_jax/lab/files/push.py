"""Copies what has changed in a copy to its bucket, while a run goes on there.

A run replaces its checkpoints. A snapshot of hard links is therefore copied, in
which no file vanishes; and files that the run has deleted are removed from the
bucket only once a listing shows that those that replace them are there. Once
there was a complete checkpoint in the bucket, there is one at any time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
import contextlib
import itertools
import logging
import os
import pathlib
import shutil
import tempfile
from typing import NamedTuple

from nuclr_jax.lab import progress
from nuclr_jax.lab.files import local
from nuclr_jax.lab.files.bucket import (
  Unreached,
  infos_in,
  not_as_stated,
  remove,
  stamp_of,
  upload,
)
from nuclr_jax.lab.files.copies import (
  Copy,
  Note,
  files_here,
  is_clean,
  read_notes,
  write_notes,
)

log = logging.getLogger(__name__)

# A folder that has one of these is complete only with it; the later, the more.
LAST = (local.DIGESTS, "_CHECKPOINT_METADATA", "dataset_info.json")
NO_FILE = [-1, -1]  # a state that no file has


class Snapshot(NamedTuple):
  """What is to be done to make the original equal to a copy."""

  states: Mapping[str, list[int]]  # of all files that are here
  new: Mapping[str, pathlib.Path]  # files to copy, and where they are
  old: Collection[str]  # files to remove
  leaving: set[str | None]  # units that are being deleted, which must wait


def push(
  copy: Copy,
  *,
  check: Callable[[], None] = lambda: None,
  running: bool = False,
) -> None:
  """Makes the original equal to the copy.

  Files that say that their folder is complete are copied last, and removed
  first. Such a folder is removed only if another one beside it is complete in
  the bucket.

  Args:
    copy: The copy.
    check: Is called before each change of the original, and may raise.
    running: Whether files are written and deleted meanwhile.

  Raises:
    Unreached: If the bucket cannot be reached, or a file has not arrived as it
      was sent.
  """
  notes = read_notes(copy)
  with _snapshot(copy, notes, running=running) as snapshot:
    states, new = snapshot.states, snapshot.new
    if not new and not snapshot.old:
      return
    # Whoever comes after this process was killed can tell what it was copying.
    for file in new:
      stamp = notes[file].stamp if file in notes else ""
      notes[file] = Note(stamp, states[file], True)
    write_notes(copy, notes)
    show, count = progress.reporter(f"files copied to {copy.path}", len(new)), 0
    for files in _in_order(new, states):
      sent = []
      try:
        for file in files:
          check()
          upload(new[file], f"{copy.path}/{file}")
          sent.append(file)
          show(count + len(sent))
      except BaseException:
        with contextlib.suppress(Unreached):
          _note_arrived(copy, notes, snapshot, sent)
        raise
      count += len(sent)
      _note_arrived(copy, notes, snapshot, sent)
    _remove_old(copy, notes, snapshot, check)


@contextlib.contextmanager
def _snapshot(
  copy: Copy, notes: Mapping[str, Note], *, running: bool
) -> Iterator[Snapshot]:
  """Yields what to copy and to remove; the files to copy stay there meanwhile.

  While a run goes on, a unit of which files are missing already is being
  deleted: it is neither copied nor removed until it has gone.
  """
  states = {x: local.state_of(copy.here / x) for x in files_here(copy)}
  states = {x: state for x, state in states.items() if state}
  old = [x for x in notes if not (copy.here / x).exists()]
  new = {x: copy.here / x for x in states if not is_clean(copy, notes, x)}
  if not running:
    yield Snapshot(states, new, old, set())
    return
  leaving = {_unit(x, states) for x in old} | _units_with_gaps(copy, states)
  with tempfile.TemporaryDirectory(dir=copy.notes.parent) as folder:
    for file in new:
      unit, new[file] = _unit(file, states), pathlib.Path(folder) / file
      new[file].parent.mkdir(parents=True, exist_ok=True)
      try:
        # What is outside a unit, such as a log, may be written to meanwhile.
        _link_or_copy(copy.here / file, new[file], link=unit is not None)
      except FileNotFoundError:
        leaving.add(unit)
    leaving.discard(None)
    new = {
      x: path
      for x, path in new.items()
      if _unit(x, states) not in leaving and path.exists()
    }
    yield Snapshot(states, new, old, leaving)


def _link_or_copy(
  source: pathlib.Path, goal: pathlib.Path, *, link: bool
) -> None:
  """Makes a hard link, or a copy; not every file system has links."""
  if link:
    try:
      return os.link(source, goal)
    except FileNotFoundError:
      raise
    except OSError as error:
      log.debug("no hard links (%s)", error)
  shutil.copy2(source, goal)


def _unit(name: str, names: Collection[str]) -> str | None:
  """Returns the folder that a file is a part of, and that is complete or not.

  Args:
    name: The name of the file.
    names: Names of all files.

  Returns:
    The outermost folder with a file of `LAST`, or None.

  Example:
    >>> _unit("a/5/x", ["a/5/x", "a/5/SHA256SUMS"])
    'a/5'
  """
  for folder in reversed(pathlib.PurePosixPath(name).parents):
    if any(os.fspath(folder / x) in names for x in LAST):
      return os.fspath(folder)
  return None


def _units_with_gaps(copy: Copy, states: Collection[str]) -> set[str]:
  """Returns the units of which files that have a digest are missing."""
  gaps = set()
  for name in states:
    path = pathlib.PurePosixPath(name)
    if path.name == local.DIGESTS:
      try:
        text = (copy.here / name).read_text(encoding="utf-8", errors="replace")
      except OSError:
        gaps.add(_unit(name, states))
        continue
      listed = [x.partition("  ")[2] for x in text.splitlines()[1:]]
      if any(os.fspath(path.parent / x) not in states for x in listed):
        gaps.add(_unit(name, states))
  return gaps


def _in_order(new: Collection[str], names: Collection[str]) -> list[list[str]]:
  """Sorts files into groups: what is in no unit, then the units, newest first.

  Each file that says that a unit is complete is a group after the others.
  """

  def key(name):
    unit = _unit(name, names)
    number = os.path.basename(unit or "")
    newest = -int(number) if number.isdigit() else 0
    return unit is not None, newest, unit or "", _rank(name)

  by_key = itertools.groupby(sorted(new, key=key), key)
  return [sorted(group) for _, group in by_key]


def _rank(name: str) -> int:
  """Returns 0 for most files, and more for those that must come later."""
  name = pathlib.PurePosixPath(name).name
  return LAST.index(name) + 1 if name in LAST else 0


def _note_arrived(
  copy: Copy,
  notes: dict[str, Note],
  snapshot: Snapshot,
  sent: Collection[str],
) -> None:
  """Notes which files are in the bucket as they are here.

  One that was written to meanwhile is copied again the next time.

  Raises:
    Unreached: If others are not.
  """
  infos, wrong = infos_in(copy.path), []
  for file in sent:
    path, state = snapshot.new[file], snapshot.states[file]
    differs = "it is not there"
    if file in infos:
      differs = not_as_stated(f"{copy.path}/{file}", infos[file], path)
    if local.state_of(path) != state:
      continue
    if not differs:
      notes[file] = Note(stamp_of(infos[file]), state)
    else:
      wrong.append(f"{file} ({differs})")
      if file in infos:  # of which nothing here is a copy
        notes[file] = Note(stamp_of(infos[file]), NO_FILE)
  write_notes(copy, notes)
  if wrong:
    raise Unreached(
      f"{copy.path}: {len(wrong)} file(s) did not arrive as they were sent, "
      f"such as {wrong[0]}; they are copied again the next time"
    )


def _remove_old(
  copy: Copy,
  notes: dict[str, Note],
  snapshot: Snapshot,
  check: Callable[[], None],
) -> None:
  """Removes from the bucket what is no longer here, if it was replaced."""
  if not snapshot.old:
    return
  infos = infos_in(copy.path)
  states, names = snapshot.states, {*notes, *snapshot.states}
  there = {
    x: x in infos and notes[x] == Note(stamp_of(infos[x]), states[x])
    for x in states
    if x in notes
  }
  units = {x: _unit(x, names) for x in names}
  missing = {units[x] for x in states if not there.get(x)} | snapshot.leaving
  complete = {units[x] for x in states if _rank(x)} - missing

  def is_replaced(unit: str | None) -> bool:
    if unit is None or unit in complete:
      return True
    beside = (os.path.dirname(x) for x in complete if x is not None)
    return os.path.dirname(unit) in beside

  todo = [x for x in snapshot.old if units[x] not in snapshot.leaving]
  kept = sorted({units[x] for x in todo if not is_replaced(units[x])})
  if kept:
    log.warning(
      "%s: %s is kept in the bucket, though no longer here: nothing that could "
      "replace it is complete there",
      copy.path,
      ", ".join(kept),
    )
  todo = [x for x in todo if units[x] not in kept]
  try:
    for file in sorted(todo, key=_rank, reverse=True):
      check()
      remove(f"{copy.path}/{file}")
      del notes[file]
  finally:
    write_notes(copy, notes)

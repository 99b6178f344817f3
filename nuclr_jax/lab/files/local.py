"""Files and folders that are never seen half-written, or damaged unnoticed.

A flipped bit in a checkpoint is a number like any other: a run would train on
with it. `write_digests` therefore records SHA-256 of every file, in the format
of `sha256sum --check SHA256SUMS`, and `damage` compares. It does not protect
from somebody who changes both.
"""

from collections.abc import Callable, Collection, Iterator
from concurrent import futures
import contextlib
import fcntl
import glob
import hashlib
import logging
import os
import pathlib
import re
import resource
import shlex
import shutil
import socket
import stat
import sys
import time
from typing import Any, TextIO
import zipfile

import numpy as np

from nuclr_jax.lab import distributed, progress
from nuclr_jax.lab.files.untrusted import (
  LITTLE,
  MAX_EXPANSION,
  check_size,
  parse_json,
  without_panics,
)
from nuclr_jax.lab.files.writing import (
  check_no_link,
  folder_in,
  open_in_place,
  write_text,
)

DIGESTS, LOCK = "SHA256SUMS", ".lock"
TRIES = 4  # to read
PAUSE = 0.5  # seconds before the second try, and then twice as many each time

log = logging.getLogger(__name__)


def keep_trying(
  path: str | os.PathLike,
  read: Callable[[], Any],
  *,
  after_failure: Callable[[], Any] = lambda: None,
) -> Any:
  """Reads from a file, if necessary several times, with pauses between.

  Args:
    path: The file, which the message names.
    read: Reads and returns what was read.
    after_failure: Called after each failed attempt.

  Raises:
    ValueError: If all attempts have failed.

  Example:
    >>> keep_trying(tmp_path / "x", lambda: b"content")
    b'content'
  """
  for attempt in range(TRIES):
    try:
      return read()
    except OSError as error:
      failure = error
    after_failure()
    if attempt + 1 < TRIES:
      time.sleep(PAUSE * 2**attempt)
  raise ValueError(
    f"{os.fspath(path)} cannot be read, after {TRIES} attempts: "
    f"{progress.first_line(failure)}; once it can be, the same command "
    "continues a run"
  ) from failure


@contextlib.contextmanager
def locked(folder: pathlib.Path, *, wait: bool = False) -> Iterator[None]:
  """Keeps other processes out of a folder, by a lock on its file `.lock`.

  A process that dies leaves no lock behind. Where the file system has no locks,
  a warning says so, and nobody is kept out. Of several processes that train
  together, the first one locks for all.

  Args:
    folder: The folder; made if missing.
    wait: Whether to wait until the lock is free.

  Raises:
    ValueError: If another process has locked the folder and `wait` is False;
      the message says which one. If `.lock` is a link, or no regular file.

  Example:
    >>> with locked(tmp_path):
    ...   with locked(tmp_path):  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
    ValueError: ... is in use by process ...
  """
  if not distributed.is_first():
    yield
    return
  folder.mkdir(parents=True, exist_ok=True)
  try:
    file = _open_locked(folder / LOCK, wait=wait)
  except FileNotFoundError as error:
    raise ValueError(
      f"{folder} was in use by another process, which has just finished; run "
      "the same command again"
    ) from error
  with file:
    file.truncate(0)
    file.write(
      f"process {os.getpid()} on {socket.gethostname()} since "
      f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({shlex.join(sys.argv)[:200]})\n"
    )
    file.flush()
    yield


def _open_locked(path: pathlib.Path, *, wait: bool) -> TextIO:
  """Opens and locks `.lock`; one of several names (`cp -al`) is replaced."""
  for _ in range(TRIES):
    file = open_in_place(path, "a+", second_names=True)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
      file.close()
      holder = path.read_text(encoding="utf-8", errors="replace").strip()
      raise ValueError(
        f"{path.parent} is in use by {holder or 'another process'}; wait until "
        "it has finished, or choose another folder"
      ) from error
    except OSError as error:
      why = "the file system has no locks"
      warning = "%s: %s (%s); see that no other process works there"
      log.warning(warning, path.parent, why, error)
    state = path.lstat()
    if os.path.samestat(state, os.fstat(file.fileno())):
      if state.st_nlink == 1:
        return file
      write_text(path, "")
    file.close()
  raise ValueError(f"{path} has a second name; delete it")


@contextlib.contextmanager
def complete_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a folder that gets its name only when it is complete.

  Until then it is called `incomplete.NAME`. If the block raises an error,
  that folder is removed.

  Args:
    folder: The folder to make; it must not exist.

  Yields:
    The folder to write into.

  Raises:
    ValueError: If another process is making the folder, or has made it, or if
      there is a link of the name `incomplete.NAME`.

  Example:
    >>> with complete_folder(tmp_path / "data") as work:
    ...   _ = (work / "numbers").write_text("1 2 3")
    >>> (tmp_path / "data" / "numbers").read_text()
    '1 2 3'
  """
  work = folder_in(folder.parent, f"incomplete.{folder.name}")
  with locked(work):
    try:
      _check_absent(folder)  # before another process's work is touched
      for entry in work.iterdir():  # leftovers of a killed process
        if entry.is_dir() and not entry.is_symlink():
          shutil.rmtree(entry)
        elif entry.name != LOCK:
          entry.unlink()
      yield work
      _check_absent(folder)
      # The lock goes with the folder, and last: whoever got hold of it before
      # finds that the folder exists.
      work.rename(folder)
      (folder / LOCK).unlink()
    except BaseException:
      shutil.rmtree(work, ignore_errors=True)
      raise


class UnreadableError(ValueError):
  """A file that is missing or cannot be read; the message names it."""


@contextlib.contextmanager
def reading(
  path: str | os.PathLike, *, remedy: str = ""
) -> Iterator[pathlib.Path]:
  """Reads an untrusted file; whatever goes wrong is a ValueError.

  Libraries that read files raise many errors, and few of them name the file.

  Args:
    path: The file; `~` is expanded.
    remedy: What to do if its content is wrong, for the message.

  Yields:
    The path.

  Raises:
    ValueError: If there is no regular file (reading a pipe would wait forever,
      and a device fill the memory), or if the block raises an error.

  Example:
    >>> with reading(tmp_path):
    ...   pass  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nuclr_jax.lab.files.local.UnreadableError: ... is not a regular file
  """
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    why = "is not a regular file" if path.exists() else "does not exist"
    raise UnreadableError(f"{path} {why}")
  try:
    with without_panics():
      yield path
  except UnreadableError:  # of another file, which is the one to look at
    raise
  except Exception as error:
    reason = str(error) or type(error).__name__
    if remedy and not getattr(error, "errno", None):  # not the system's refusal
      reason = f"{reason}; {remedy}"
    raise UnreadableError(f"{path} cannot be read: {reason}") from error


def _check_absent(folder: pathlib.Path) -> None:
  check_no_link(folder)  # one that leads nowhere does not exist
  if folder.exists():
    raise ValueError(f"{folder} exists already: another process made it")


def read_json_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads a file of JSON objects, one in each line.

  A line that is none, for instance one cut off by a crash, is left out with a
  warning.

  Args:
    path: The file; if it does not exist, there are no lines.
  """
  if not path.exists():
    return []
  rows = []
  with reading(path):
    text = path.read_text(encoding="utf-8", errors="replace")
  for number, line in enumerate(text.splitlines(), 1):
    try:
      row = parse_json(line)
    except ValueError:
      row = None
    if isinstance(row, dict):
      rows.append(row)
    else:
      log.warning("%s: left out line %d, which is damaged", path, number)
  return rows


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON file that holds an object.

  Raises:
    ValueError: If there is none; the message names the file.

  Example:
    >>> _ = (tmp_path / "x.json").write_text("{")
    >>> read_json(tmp_path / "x.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nuclr_jax.lab.files.local.UnreadableError: ...x.json cannot be read: ...
  """
  with reading(path):
    check_size(path)
    content = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
      raise ValueError(f"it holds a {type(content).__name__}, not an object")
  return content


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Reads the arrays of an .npz file.

  Raises:
    ValueError: If it cannot be read, holds anything else, or would fill
      `MAX_EXPANSION` times its own size.

  Example:
    >>> np.savez(tmp_path / "x.npz", bias=np.zeros(3))
    >>> read_arrays(tmp_path / "x.npz")
    {'bias': array([0., 0., 0.])}
  """
  with reading(path) as path:
    with zipfile.ZipFile(path) as archive:
      size = sum(x.file_size for x in archive.infolist())
    if size > max(MAX_EXPANSION * path.stat().st_size, LITTLE):
      raise ValueError(f"its arrays claim to have {size:.2g} bytes")
    with np.load(path) as file:
      arrays = dict(file)
    if wrong := [k for k, x in arrays.items() if not hasattr(x, "dtype")]:
      raise ValueError(f"{wrong[0]} is not an array")
  return arrays


def state_of(path: str | os.PathLike) -> list[int]:
  """Returns size and time of a regular file, which differ once it has changed.

  Returns:
    Bytes, and nanoseconds since 1970; [] if there is no regular file.

  Example:
    >>> state_of("no such file")
    []
  """
  try:
    state = os.stat(path)
  except OSError:
    return []
  is_file = stat.S_ISREG(state.st_mode)
  return [state.st_size, state.st_mtime_ns] if is_file else []


def allow_open(count: int) -> None:
  """Lets this process keep many files open, as far as the system lets it.

  The usual limit, 1,024 on Linux and 256 on macOS, is one that a process may
  raise itself.

  Args:
    count: The number of files.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if 2 * count <= soft or soft == resource.RLIM_INFINITY:
    return
  # On macOS the hard limit is infinite, but no process may open that many; the
  # number that it may open is not told.
  goal = hard if hard != resource.RLIM_INFINITY else 2 * count
  with contextlib.suppress(ValueError):
    resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))


def inside(path: pathlib.Path, folder: pathlib.Path) -> bool:
  """Returns whether a path is in a folder once links have been followed.

  Example:
    >>> inside(tmp_path / "a" / ".." / "b", tmp_path)
    True
    >>> inside(tmp_path / ".." / "b", tmp_path)
    False
  """
  return path.resolve().is_relative_to(folder.resolve())


def as_pattern(
  text: str, exists: Callable[[str], bool] = os.path.exists
) -> str:
  """Escapes the part of a path that exists, as a whole and letter by letter.

  A folder may have the name `lr[1]`, which as a pattern would mean `lr1`.

  Args:
    text: A path, of which the rest may be a pattern of `glob`.
    exists: Says whether a path exists.

  Example:
    >>> (tmp_path / "lr[1]").mkdir()
    >>> as_pattern(f"{tmp_path}/lr[1]/[ab]*")[-14:]
    '/lr[[]1]/[ab]*'
    >>> as_pattern(f"{tmp_path}/lr[2]/*")[-8:]
    '/lr[2]/*'
  """
  path = pathlib.PurePosixPath(text)
  for start in map(os.fspath, (path, *path.parents)):
    if start != "." and exists(start):
      return glob.escape(start) + os.fspath(path)[len(start) :]
  return text


def write_digests(
  folder: pathlib.Path, *, besides: Collection[str] = ()
) -> None:
  """Writes the digests of all files in a folder and below.

  Args:
    folder: The folder, whose files are complete.
    besides: Names of files that will change.

  Example:
    >>> _ = (tmp_path / "weights").write_text("1 2 3")
    >>> write_digests(tmp_path)
    >>> damage(tmp_path)
    []
    >>> _ = (tmp_path / "weights").write_text("1 2 4")
    >>> damage(tmp_path)
    ['weights has changed']
  """
  names = [
    path.relative_to(folder).as_posix()
    for path in sorted(folder.rglob("*"))
    if path.is_file() and path.name not in (DIGESTS, LOCK, *besides)
  ]
  pairs = zip(_digests(folder, names), names, strict=True)
  lines = [_header(names), *(f"{digest}  {name}" for digest, name in pairs)]
  write_text(folder / DIGESTS, "\n".join(lines) + "\n")


def damage(folder: pathlib.Path, *, names: Collection[str] = ()) -> list[str]:
  """Compares the files of a folder with their digests.

  Args:
    folder: A folder with digests, see `has_digests`.
    names: The files to look at; none means all that have a digest.

  Returns:
    What is wrong, a text for each file; nothing if all files are as written.
    Files without a digest are not checked.
  """
  with reading(folder / DIGESTS) as path:
    text = path.read_text(encoding="utf-8", errors="replace")
  lines = text.splitlines() or [""]
  plain = re.match("[0-9a-f]{64} ", lines[0])  # by sha256sum: no header
  expected = {
    name: digest
    for digest, _, name in (x.partition("  ") for x in lines[not plain :])
  }
  if not plain and lines[0] != _header(expected):  # cut off, for instance
    return [f"{DIGESTS} cannot be read"]
  paths = {x for x in folder.rglob("*") if not x.is_file() and not x.is_dir()}
  if paths or not all(inside(folder / x, folder) for x in expected):
    strange = [str(x) for x in paths] or [f"a name in {DIGESTS}"]
    return [f"{strange[0]} is not a file of this folder"]
  if names:
    expected = {k: x for k, x in expected.items() if k in names}
  there = [x for x in expected if os.path.isfile(folder / x)]
  found = dict(zip(there, _digests(folder, there), strict=True))
  return [
    f"{name} {'has changed' if name in found else 'is missing'}"
    for name, digest in expected.items()
    if found.get(name) != digest
  ]


def has_digests(folder: pathlib.Path) -> bool:
  """Returns whether a folder has digests."""
  return (folder / DIGESTS).exists()  # a pipe, too, which `damage` refuses


def check_digests(folder: pathlib.Path, *names: str) -> None:
  """Raises ValueError if files of a folder are not as they were written.

  Args:
    folder: The folder; one without digests is not checked.
    names: The files to look at; none means all that have a digest.
  """
  if has_digests(folder) and (wrong := damage(folder, names=names)):
    raise ValueError(
      f"{folder} is damaged: {join_damage(wrong)}; write or copy it again (or "
      f"delete {DIGESTS}, if you have changed these files yourself)"
    )


def join_damage(damage: Collection[str]) -> str:
  """Joins the texts of `damage`; of many, the first three."""
  first, more = list(damage)[:3], len(damage) - 3
  return "; ".join(first) + (f"; and {more} more" if more > 0 else "")


def _header(names: Collection[str]) -> str:
  """Returns the first line, a comment."""
  return f"# {len(names)} files"


def _digests(folder, names) -> list[str]:
  """Computes digests in threads; hashing does not hold Python's lock."""

  def digest(name: str) -> str:
    with (folder / name).open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()

  with futures.ThreadPoolExecutor() as pool:
    return list(pool.map(digest, names))

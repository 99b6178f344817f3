"""Writes files and folders that others may have prepared for us.

A run that was unpacked from an archive may hold links, and whoever writes
through one changes a file somewhere else. Nothing here does. A file is written
under a name that nobody can foresee and then takes its place, also that of a
link; a folder that is a link is refused. Only the folder that the user names,
and those above it, may be links, for instance to another disk.
"""

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import re
import shutil
import stat
from typing import TextIO
import uuid

from nuclr_jax.lab import distributed

NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
LONGEST = 40  # characters of a name that are repeated in that of its new file


def folder_in(root: pathlib.Path, *names: str) -> pathlib.Path:
  """Makes a folder, and those around it, unless they exist.

  Args:
    root: A folder that the user named, which may be a link.
    names: The folder in it, then the one in that, and so on.

  Returns:
    The last folder.

  Raises:
    ValueError: If one of `names` is a link, or leads out of `root`.

  Example:
    >>> folder_in(tmp_path, "a", "b").relative_to(tmp_path)
    PosixPath('a/b')
    >>> (tmp_path / "c").symlink_to(tmp_path / "a")
    >>> folder_in(tmp_path, "c", "b")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: .../c is a link to ..., and nothing is written through it; ...
  """
  root.mkdir(parents=True, exist_ok=True)
  for name in names:
    if name in ("", ".", "..") or "/" in name:
      raise ValueError(f"{name!r} cannot be the name of a folder in {root}")
    root /= name
    check_no_link(root)
    root.mkdir(exist_ok=True)
  return root


def check_no_link(path: pathlib.Path) -> None:
  """Raises ValueError if a path is a link."""
  if path.is_symlink():
    raise ValueError(
      f"{path} is a link to {os.readlink(path)}, and nothing is written "
      "through it; remove the link, or put what it leads to in its place"
    )


def check_no_links(folder: pathlib.Path) -> None:
  """Raises ValueError if a folder, or anything in it and below, is a link.

  For folders that a library writes in, which may follow links.

  Args:
    folder: The folder, which need not exist.
  """
  check_no_link(folder)
  for place, folders, names in os.walk(folder):
    for name in (*folders, *names):
      check_no_link(pathlib.Path(place, name))


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Makes a file that gets its name only when it is complete.

  If the block raises an error, the file is removed, and what had the name
  stays.

  Args:
    path: The file. If it is a link, the link is replaced.

  Yields:
    A new and empty file in the same folder, to be written.

  Example:
    >>> with replacing(tmp_path / "numbers") as new:
    ...   _ = new.write_text("1 2 3")
    >>> (tmp_path / "numbers").read_text()
    '1 2 3'
  """
  path = pathlib.Path(path)
  _remove_leftovers(path)
  new = path.with_name(f"{path.name[:LONGEST]}.{uuid.uuid4().hex}.tmp")
  file = os.open(new, NEW, 0o666)
  try:
    with contextlib.suppress(OSError):  # not every file system has locks
      fcntl.flock(file, fcntl.LOCK_EX)
    yield new
    os.replace(new, path)
  finally:
    os.close(file)
    with contextlib.suppress(FileNotFoundError):
      os.unlink(new)


def _remove_leftovers(path: pathlib.Path) -> None:
  """Removes what killed processes have left of a file; others hold a lock."""
  name = re.compile(rf"{re.escape(path.name[:LONGEST])}\.[0-9a-f]{{32}}\.tmp")
  with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
    for left in [x.path for x in entries if name.fullmatch(x.name)]:
      with contextlib.suppress(OSError, ValueError):  # a lock, or no plain file
        with open_in_place(pathlib.Path(left), "r") as file:
          fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
          os.unlink(left)


@contextlib.contextmanager
def fresh_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a folder that gets its name only when it is complete.

  If another process has made it meanwhile, that one stays.

  Args:
    folder: The folder; the ones around it are made, too.

  Yields:
    A new and empty folder beside it, to be filled.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  new = folder.with_name(f"incomplete.{folder.name}.{uuid.uuid4().hex}")
  new.mkdir()
  try:
    yield new
    new.rename(folder)
  except BaseException as error:
    shutil.rmtree(new, ignore_errors=True)
    if not (isinstance(error, OSError) and folder.exists()):
      raise


def open_in_place(
  path: pathlib.Path, mode: str, *, second_names: bool = False
) -> TextIO:
  """Opens a text file whose content is changed, not replaced.

  Args:
    path: The file.
    mode: "a" or "a+", where it is made if missing, or "r".
    second_names: Whether it may have other names (hard links), which the caller
      must not write through.

  Raises:
    ValueError: If it is a link, is not a regular file, or has a second name.
  """

  def opened(name: str, flags: int) -> int:
    # Opening a pipe would wait for whoever reads it.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    number = os.open(name, flags, 0o666)
    state = os.fstat(number)
    if not stat.S_ISREG(state.st_mode) or (
      state.st_nlink > 1 and not second_names
    ):
      os.close(number)
      raise ValueError(
        f"{path} is not a file of this folder alone (it is a pipe or a device, "
        "or has a second name), and is not written; delete it"
      )
    return number

  try:
    return open(path, mode, encoding="utf-8", opener=opened)
  except OSError as error:
    if error.errno == errno.ELOOP:
      check_no_link(path)
    raise


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never seen half-written."""
  with replacing(path) as new:
    new.write_text(text, encoding="utf-8")


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never seen half-written; only process 0 writes."""
  if distributed.is_first():
    write_text(path, text)


def write_json(path: pathlib.Path, value) -> None:
  """Writes a value as indented JSON, atomically."""
  write_atomically(path, json.dumps(value, indent=2) + "\n")

"""Files and folders that are never seen half-written."""

from collections.abc import Iterator
import contextlib
import json
import logging
import os
import pathlib
import shutil
from typing import Any

from nuclr_jax import distributed

log = logging.getLogger(__name__)


@contextlib.contextmanager
def complete_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a folder that gets its name only when it is complete.

  Until then it is called `incomplete.NAME`. If the block raises an error,
  that folder is removed.

  Args:
    folder: The folder to make; it must not exist.

  Yields:
    The folder to write into.

  Example:
    >>> with complete_folder(tmp_path / "data") as work:
    ...   _ = (work / "numbers").write_text("1 2 3")
    >>> (tmp_path / "data" / "numbers").read_text()
    '1 2 3'
  """
  work = folder.with_name(f"incomplete.{folder.name}")
  shutil.rmtree(work, ignore_errors=True)  # leftovers of a killed process
  work.mkdir(parents=True)
  try:
    yield work
    work.rename(folder)
  finally:
    shutil.rmtree(work, ignore_errors=True)


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads a file of JSON lines; a line cut off by a crash is left out.

  Args:
    path: The file; if it does not exist, there are no lines.
  """
  rows = []
  text = path.read_text(encoding="utf-8") if path.exists() else ""
  for line in text.splitlines():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      log.warning("%s: left out a line that was cut off", path)
  return rows


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file that is never seen half-written; only process 0 writes."""
  if not distributed.is_first():
    return
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def write_json(path: pathlib.Path, value) -> None:
  """Writes a value as indented JSON, atomically."""
  write_atomically(path, json.dumps(value, indent=2) + "\n")

"""The journal of a run: by which command, where and with what it was trained.

`journal.jsonl` gets a line when training begins or goes on, and one when it
ends; `console.log` keeps what the library has logged meanwhile.
"""

from collections.abc import Iterator, Mapping
import contextlib
import datetime
import importlib.metadata
import json
import logging
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time
from typing import Any, TextIO

import jax
from jax.sharding import Mesh

from nuclr_jax.lab import distributed, files, progress
from nuclr_jax.lab.train import records
from nuclr_jax.types import Metrics

JOURNAL, LOG = "journal.jsonl", "console.log"
LIBRARIES = ("nuclr_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy")
GIT_SECONDS = 5  # to wait for git
SHOWN = 4  # scores at the end


class _Handler(logging.StreamHandler):
  """Writes a log to a file; a full disk is reported by what needs it more."""

  def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
    del record


def describe(mesh: Mesh) -> dict[str, Any]:
  """Returns the command, the hardware and the versions of this process.

  Args:
    mesh: The devices that train.

  Example:
    >>> from nuclr_jax import sharding
    >>> found = describe(sharding.make_mesh())
    >>> found["devices"] == jax.device_count(), sorted(found)[:3]
    (True, ['command', 'commit', 'cores'])
  """
  return {
    "command": shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]),
    "device": mesh.devices.flat[0].device_kind,
    "devices": mesh.size,
    "processes": jax.process_count(),
    "cores": os.cpu_count(),
    "platform": platform.platform(),
    "python": platform.python_version(),
    "versions": dict(zip(LIBRARIES, map(_version, LIBRARIES), strict=True)),
    "matmul_precision": jax.config.jax_default_matmul_precision,
    "commit": commit(),
  }


def _version(library: str) -> str | None:
  try:
    return importlib.metadata.version(library)
  except importlib.metadata.PackageNotFoundError:
    return None


def commit() -> str | None:
  """Returns the commit of the library's code, if it is a clone.

  It ends with a plus if files differ from the commit.
  """
  folder = pathlib.Path(__file__).resolve().parents[3]
  if not (folder / ".git").exists():  # an installed copy, maybe within a clone
    return None

  def git(*words: str) -> str:
    return subprocess.run(
      ["git", "-C", os.fspath(folder), *words],
      capture_output=True,
      check=True,
      text=True,
      timeout=GIT_SECONDS,
    ).stdout.strip()

  try:
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", "HEAD") + "+" * bool(changed)
  except (OSError, subprocess.SubprocessError):
    return None


@contextlib.contextmanager
def keep(workdir: pathlib.Path, mesh: Mesh, *, step: int) -> Iterator[None]:
  """Writes the journal while a block trains; the first process does so.

  Args:
    workdir: Folder of the run.
    mesh: The devices that train.
    step: The step that training starts from.
  """
  if not distributed.is_first():
    yield
    return
  began = time.monotonic()
  with (
    files.open_in_place(workdir / JOURNAL, "a+") as journal,
    files.open_in_place(workdir / LOG, "a") as console,
  ):

    def note(event: str, what: Mapping[str, Any]) -> None:
      now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
      line = {"event": event, "time": now} | what
      journal.write(json.dumps(line) + "\n")
      journal.flush()

    _end_line(journal)
    handler = _Handler(console)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    note("begin", {"step": step} | describe(mesh))
    logger = logging.getLogger("nuclr_jax")
    logger.addHandler(handler)
    try:
      yield
    finally:
      logger.removeHandler(handler)
      with contextlib.suppress(OSError):
        note("end", {"seconds": round(time.monotonic() - began, 1)})


def _end_line(file: TextIO) -> None:
  """Ends a line that a crash has cut off."""
  file.seek(0)
  text = file.read()
  if text and not text.endswith("\n"):
    file.write("\n")


def print_end(metrics: Metrics, workdir: str) -> None:
  """Prints a few scores of a finished run, and where to find the others.

  Args:
    metrics: The final metrics.
    workdir: The workdir, as the command names it.
  """
  if not distributed.is_first():
    return
  names, folder = records.headlines(metrics)[:SHOWN], workdir.rstrip("/")
  progress.print_table(
    {x: metrics[x] for x in ("step", *names) if x in metrics}
  )
  print(f"all {len(metrics)} metrics: {folder}/{records.METRICS}")
  print(f"curves, alarms and examples: nuclr report --workdir={folder}")


def read(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the lines of the journal; none of a run that has no journal.

  Args:
    workdir: Folder of the run.
  """
  return [x for x in files.read_json_lines(workdir / JOURNAL) if _is_line(x)]


def _is_line(line: Mapping[str, Any]) -> bool:
  """Returns whether a line says what lines of a journal say."""
  return (
    line.get("event") in ("begin", "end")
    and isinstance(line.get("seconds", 0), int | float)
    and isinstance(line.get("versions", {}), Mapping)
  )

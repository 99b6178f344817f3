"""Runs a command in a process of its own: its time, and its peak of memory."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUCLR = "from nuclr_jax.lab.cli import run; sys.exit(run())"
# The peak of this program alone: ru_maxrss has that of its parent in it.
NOTE = """
import atexit, os, pathlib, re, sys

def note(path=os.environ["PEAK"]):
  text = pathlib.Path("/proc/self/status").read_text()
  pathlib.Path(path).write_text(re.search(r"VmHWM:\\s+(\\d+)", text)[1])

atexit.register(note)
"""


def timed(
  *arguments: str | os.PathLike, program: str = NUCLR
) -> dict[str, Any]:
  """Runs a program on Linux.

  Args:
    *arguments: Of the program.
    program: Python; by default the command `nuclr`.

  Returns:
    Its `seconds` and `processor_seconds`, and `peak_mib`, the peak of its own
    resident memory, with JAX and the pages of files that it maps, but without
    the processes that it starts.

  Raises:
    RuntimeError: If the program fails.

  Example:
    >>> sorted(timed(program="pass"))
    ['peak_mib', 'processor_seconds', 'seconds']
  """
  if not pathlib.Path("/proc/self/status").exists():
    raise RuntimeError("the peak of memory is read from /proc: run it on Linux")
  paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
  with tempfile.TemporaryDirectory() as place:
    peak = pathlib.Path(place, "peak")
    where = {"PYTHONPATH": os.pathsep.join(paths), "PEAK": str(peak)}
    began = time.perf_counter()
    process = subprocess.Popen(
      [sys.executable, "-c", NOTE + program, *map(os.fspath, arguments)],
      env=os.environ | where,
      stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took = time.perf_counter() - began
    if process.returncode:
      raise RuntimeError(f"{' '.join(map(str, arguments))} failed")
    kib = int(peak.read_text())
  return {
    "seconds": round(took, 1),
    "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
    "peak_mib": kib // 2**10,
  }

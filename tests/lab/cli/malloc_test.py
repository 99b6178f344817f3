"""What glibc does with freed memory, counted in page faults."""

import os
import subprocess
import sys
import types

import pytest

from nuclr_jax.lab.cli import malloc

# A thread, as those of XLA, allocates and frees 128 MiB, ten times.
PROGRAM = """
import ctypes, resource, sys, threading

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def allocate():
  for _ in range(10):
    place = libc.malloc(ctypes.c_size_t(2**27))
    ctypes.memset(place, 1, 2**27)
    libc.free(place)

if sys.argv[1] == "keep":
  from nuclr_jax.lab.cli import malloc

  malloc.keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print((after - before) * resource.getpagesize() / 2**27)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_thread_gets_its_memory_back():
  names = [name for _, _, name, _ in malloc.SETTINGS]
  clean = {k: x for k, x in os.environ.items() if k not in names}
  found = {}
  for what in ("keep", "free"):
    command = [sys.executable, "-c", PROGRAM, what]
    printed = subprocess.check_output(command, text=True, env=clean)
    found[what] = float(printed)
  if found["free"] < 5:
    pytest.skip("this system keeps memory by itself")
  assert found["keep"] < 2


def test_processes_that_are_started_keep_theirs(monkeypatch):
  for _, _, name, _ in malloc.SETTINGS[1:]:
    monkeypatch.setenv(name, "1")  # taken back after the test
    monkeypatch.delenv(name)
  monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
  called = []
  library = types.SimpleNamespace(mallopt=lambda *x: called.append(x))
  monkeypatch.setattr(malloc.ctypes, "CDLL", lambda _: library)
  malloc.keep_memory()
  assert called == [(-1, -1), (-3, 2**30)]
  names = ("ARENA_MAX", "TRIM_THRESHOLD_", "MMAP_THRESHOLD_")
  found = [os.environ[f"MALLOC_{name}"] for name in names]
  assert found == ["3", str(2**62), str(2**30)]


def test_a_command_begins_with_it():
  """Threads that allocate before it is called have arenas of their own."""
  program = """
import sys, threading
from nuclr_jax.lab import cli
from nuclr_jax.lab.cli import malloc

def keep():
  print("numpy" in sys.modules, threading.active_count())
  sys.exit()

malloc.keep_memory = keep
cli.run()
"""
  command = [sys.executable, "-c", program]
  found = subprocess.check_output(command, text=True)
  assert found == "False 1\n"

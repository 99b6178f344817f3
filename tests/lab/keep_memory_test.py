"""What glibc does with freed memory, counted in page faults."""

import subprocess
import sys

import pytest

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
  from nuclr_jax.lab import distributed

  distributed.keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print((after - before) * resource.getpagesize() / 2**27)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_thread_gets_its_memory_back():
  found = {}
  for what in ("keep", "free"):
    command = [sys.executable, "-c", PROGRAM, what]
    found[what] = float(subprocess.check_output(command, text=True))
  if found["free"] < 5:
    pytest.skip("this system keeps memory by itself")
  assert found["keep"] < 2

"""Tests the peak of memory against what Linux says of it elsewhere."""

import pathlib
import re

import peak_memory
import pytest

STATUS = pathlib.Path("/proc/self/status")


@pytest.mark.skipif(not STATUS.exists(), reason="Linux only")
def test_the_peak_is_that_of_the_kernel():
  peak = peak_memory.peak_bytes()
  kib = int(re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())[1])
  # A process has the peak of the one that started it at least.
  assert peak >= 0.99 * kib * 2**10
  assert peak < 2**40


def test_units():
  """From the manual pages getrusage(2) of both systems."""
  assert peak_memory.unit("linux") == 1024
  assert peak_memory.unit("darwin") == 1

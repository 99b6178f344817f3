"""The most memory that a process has had, in bytes on every system."""

import resource
import sys


def unit(system: str = sys.platform) -> int:
  """Returns how many bytes `ru_maxrss` counts as one.

  Args:
    system: As `sys.platform` names it; "darwin" is macOS.
  """
  return 1 if system == "darwin" else 2**10


def peak_bytes(usage: resource.struct_rusage | None = None) -> int:
  """Returns the peak of what a process had in memory.

  Args:
    usage: What `os.wait4` says of the process; None means this one.
  """
  usage = usage or resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_maxrss * unit()

"""What glibc does with freed memory: it keeps it for the next step.

XLA allocates its buffers again at every step, and does so on threads, to which
glibc gives arenas that hand large blocks back to the system. On a CPU, the
resulting page faults took a quarter of the time of icons at batch 512. So there
is one arena, which is never trimmed; blocks above a GiB are still handed back.
"""

import ctypes
import os

# Of each setting, the number and the value for `mallopt`, and the environment.
SETTINGS = (
  (-8, 1, "MALLOC_ARENA_MAX", "1"),
  (-1, -1, "MALLOC_TRIM_THRESHOLD_", str(2**62)),
  (-3, 2**30, "MALLOC_MMAP_THRESHOLD_", str(2**30)),
)


def keep_memory() -> None:
  """Keeps the freed memory of this process, and of those that it starts.

  Call it before other threads allocate anything: they have arenas of their own
  from then on. What the environment sets already is left as it is. Without
  glibc, nothing happens.
  """
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  for number, value, name, text in SETTINGS:
    if name not in os.environ:
      os.environ[name] = text
      if mallopt is not None:
        mallopt(number, value)

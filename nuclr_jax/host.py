"""The process and its host: memory, messages and signals."""

from collections.abc import Callable, Iterator
import contextlib
import ctypes
import logging
import signal
import threading

log = logging.getLogger(__name__)


def show_progress(*, process: int = 0) -> None:
  """Sends the library's messages to standard error, with the time.

  Of several processes only the first says more than warnings.
  """
  handler, name = logging.StreamHandler(), f"[process {process}] "
  line = f"%(asctime)s {name if process else ''}%(message)s"
  handler.setFormatter(logging.Formatter(line, "%H:%M:%S"))
  logger = logging.getLogger("nuclr_jax")
  logger.addHandler(handler)
  logger.setLevel(logging.WARNING if process else logging.INFO)
  logger.propagate = False


def keep_memory() -> None:
  """Lets glibc keep freed memory instead of handing it back to the system.

  XLA allocates its buffers anew at every step; on a CPU the page faults of
  that took a third of the step's time.
  """
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  if mallopt is not None:
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**30)  # M_MMAP_THRESHOLD


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
  """Yields whether SIGTERM or SIGINT came; a second one acts as usual."""
  received = []
  signals = (signal.SIGTERM, signal.SIGINT)
  if threading.current_thread() is not threading.main_thread():
    yield lambda: False  # only the main thread may handle signals
    return
  before = {number: signal.getsignal(number) for number in signals}

  def handle(number, frame):
    del frame
    log.info("%s: saving, then stopping", signal.Signals(number).name)
    received.append(number)
    signal.signal(number, before[number])

  for number in signals:
    signal.signal(number, handle)
  try:
    yield lambda: bool(received)
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)

"""Stopping at the end of a step when the system asks for it."""

from collections.abc import Callable, Iterator
import contextlib
import logging
import signal
import threading

log = logging.getLogger(__name__)


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

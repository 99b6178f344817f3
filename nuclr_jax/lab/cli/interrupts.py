"""Ctrl-C and SIGTERM: answered at once, even while XLA compiles.

Python runs the handler of a signal in the main thread, once that has come back
from what it called, which may take many seconds. So a thread waits for signals,
too. It says that one has come and what happens now, and ends the process when
another one comes.
"""

from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import threading
import time

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
ECHO = 0.1  # seconds in which a terminal and a parent may send the same signal
PAUSE = 0.05  # seconds, for the thread to answer a signal
AGAIN = 0.1  # seconds before an exception that was lost is raised again
INTERRUPTED = 130  # exit code of a command that a signal stopped

_came: list[float] = []  # when signals have come
_answers: list[str] = []  # what happens then; none while nothing is begun
_own: list[int] = []  # signals that this process is sending itself
_raised: list[int] = []  # signals that have raised KeyboardInterrupt
_lost: list[bool] = []  # one, while Python has ignored that exception


def listen() -> None:
  """Answers signals from now on.

  The first one ends the process, or raises KeyboardInterrupt within `work`. A
  handler that does something else says what, by its attribute `answer`, a
  function that returns a text. A signal that this process ignores, as Ctrl-C in
  what a shell starts in the background, remains ignored.
  """
  numbers = [x for x in NAMES if signal.getsignal(x) is not signal.SIG_IGN]
  is_main = threading.current_thread() is threading.main_thread()
  if not is_main or _interrupt in map(signal.getsignal, NAMES):
    return
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  os.register_at_fork(after_in_child=_forget)
  threading.Thread(target=_watch, args=[reader], daemon=True).start()
  sys.unraisablehook = _unraisable
  for number in numbers:
    signal.signal(number, _interrupt)


@contextlib.contextmanager
def work(answer: str) -> Iterator[None]:
  """Lets a block clean up after a signal, whose answer is a text."""
  _answers.append(answer)
  try:
    yield
  finally:
    _answers.remove(answer)


def was_raised() -> bool:
  """Returns whether a signal has raised KeyboardInterrupt.

  Some libraries make another error of it.
  """
  return bool(_raised)


def _watch(reader: int) -> None:
  """Waits for signals."""
  while number := os.read(reader, 1)[0]:
    if number in _own:
      _own.remove(number)
      continue
    if number not in NAMES:
      continue
    _came.append(time.monotonic())
    if len(_came) > 1:
      if _came[-1] - _came[0] > ECHO:
        _exit("stopped at once")
      continue
    what = f"{NAMES[number]} was heard"
    answer = getattr(signal.getsignal(number), "answer", None)
    if not _answers:
      _exit(f"{what}: stopped")
    what = f"{what}: {answer() if answer else _answers[-1]}"
    _say(f"{what}; a second one stops at once")


def _interrupt(number, frame) -> None:
  """The handler in the main thread.

  It raises once, however often the signal came: `timeout` sends it to the
  process and, at the same time, to its group.
  """
  del frame
  time.sleep(PAUSE)
  if _answers and (not _raised or _lost):
    _lost.clear()
    _raised.append(number)
    raise KeyboardInterrupt


def _unraisable(raised) -> None:
  """Raises KeyboardInterrupt again where Python ignored it.

  It does so in callbacks, such as those of garbage collection.
  """
  if raised.exc_type is not KeyboardInterrupt:
    sys.__unraisablehook__(raised)
    return

  def send():
    _own.append(signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)

  _lost.append(True)
  threading.Timer(AGAIN, send).start()


def _forget() -> None:
  """Lets a process that was forked from this one be ended as any other."""
  signal.set_wakeup_fd(-1)
  for number in NAMES:
    if signal.getsignal(number) is _interrupt:
      signal.signal(number, signal.SIG_DFL)


def _say(text: str) -> None:
  """Writes to standard error, whoever else is writing there."""
  os.write(2, f"\nnuclr: {text}\n".encode())


def _exit(text: str) -> None:
  _say(text)
  os._exit(INTERRUPTED)

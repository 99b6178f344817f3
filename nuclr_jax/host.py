"""The process and its host: memory, messages and signals."""

from collections.abc import Callable, Iterator
from concurrent import futures
import contextlib
import ctypes
import logging
import math
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
import time

REPORTED = 10.0  # seconds between two lines about long work

log = logging.getLogger(__name__)


def show_progress(*, process: int = 0) -> None:
  """Sends the library's messages to standard error, with the time.

  Of several processes only the first says more than warnings. A second call
  takes the place of the first.
  """
  handler, name = logging.StreamHandler(), f"[process {process}] "
  handler.name = "nuclr_jax"
  line = f"%(asctime)s {name if process else ''}%(message)s"
  handler.setFormatter(logging.Formatter(line, "%H:%M:%S"))
  logger = logging.getLogger("nuclr_jax")
  for old in [x for x in logger.handlers if x.name == handler.name]:
    logger.removeHandler(old)
  logger.addHandler(handler)
  logger.setLevel(logging.WARNING if process else logging.INFO)
  logger.propagate = False


def progress(
  what: str, total: int | None = None, *, start: int = 0
) -> Callable[..., None]:
  """Makes `show(done, more)`, which logs how far work is, some seconds apart.

  Args:
    what: What is counted, such as "records of cc3m".
    total: How many there are, if that is known; then an ETA is logged.
    start: How many were done before.

  Example:
    >>> show = progress("records", 3)
    >>> for done in (1, 2, 3):
    ...   show(done)
  """
  began = shown = time.monotonic()

  def show(done: int, more: str = "") -> None:
    nonlocal shown
    now = time.monotonic()
    if now < shown + REPORTED and done != total:
      return
    shown, rate = now, (done - start) / max(now - began, 1e-9)
    if total is None:
      log.info("%d %s  %.3g/s  %s", done, what, rate, more)
    else:
      left = duration((total - done) / rate if rate else math.inf)
      line = "%d of %d %s  %.3g/s  %s  ETA %s"
      log.info(line, done, total, what, rate, more, left)

  return show


def duration(seconds: float) -> str:
  """Minutes and seconds, or hours too.

  Example:
    >>> duration(62), duration(3600), duration(float("inf"))
    ('1:02', '1:00:00', 'an unknown time')
  """
  if not math.isfinite(seconds):
    return "an unknown time"
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours}:{minutes:02d}:{rest:02d}"
  return f"{minutes}:{rest:02d}"


def first_line(error: BaseException) -> str:
  r"""The first line of an error's message, or its kind.

  Example:
    >>> first_line(ValueError("not so\nbecause")), first_line(KeyError())
    ('not so', 'KeyError')
  """
  return (str(error).strip().splitlines() or [type(error).__name__])[0]


def num_cores() -> int:
  """How many cores this process may use."""
  return len(os.sched_getaffinity(0))


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
def worker_pool(
  workers: int, *, compiled: str | None = None
) -> Iterator[futures.ProcessPoolExecutor]:
  """Processes that share the cores, and end with this one.

  Also if this one is killed: a worker of `concurrent.futures` would go on. An
  error, or Ctrl-C, ends them at once.

  Args:
    workers: How many; what they run is imported anew in each.
    compiled: Folder where they keep what JAX compiled, for each other.
  """
  given = {"NPROC": str(max(1, num_cores() // workers))}  # XLA's threads
  if compiled is not None:
    given["JAX_COMPILATION_CACHE_DIR"] = compiled
    given["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
  before = {name: os.environ.get(name) for name in given}
  context = multiprocessing.get_context("spawn")
  listen, alive = context.Pipe(duplex=False)
  pool = futures.ProcessPoolExecutor(
    workers, mp_context=context, initializer=_end_with, initargs=(listen,)
  )
  os.environ.update(given)
  try:
    yield pool
    pool.shutdown()
  finally:
    alive.close()  # ends the workers
    pool.shutdown(cancel_futures=True)
    listen.close()
    for name, value in before.items():
      if value is None:
        del os.environ[name]
      else:
        os.environ[name] = value


def _end_with(listen) -> None:
  """Ends this process when the other end of a pipe is closed."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides

  def watch():
    with contextlib.suppress(EOFError, OSError):
      listen.recv()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def complete_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder that has its name when it is complete; nothing stays of another.

  Until then it is `incomplete.NAME`, which `prepared.find` does not find.

  Args:
    folder: Must not be there.

  Example:
    >>> with complete_folder(tmp_path / "data") as work:
    ...   _ = (work / "numbers").write_text("1 2 3")
    >>> (tmp_path / "data" / "numbers").read_text()
    '1 2 3'
  """
  work = folder.with_name(f"incomplete.{folder.name}")
  shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
  work.mkdir(parents=True)
  try:
    yield work
    work.rename(folder)
  finally:
    shutil.rmtree(work, ignore_errors=True)


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

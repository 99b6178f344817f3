"""Log lines about long operations, with the rate and the remaining time."""

from collections.abc import Callable, Iterator
import logging
import math
import time

PERIOD = 10.0  # seconds between two lines about a long operation

log = logging.getLogger(__name__)


def duration(seconds: float) -> str:
  """Formats seconds as minutes and seconds, with hours if there are any.

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


def reporter(
  what: str, total: int | None = None, *, start: int = 0, brief: bool = False
) -> Callable[..., None]:
  """Makes `show(done, more)`, which logs progress every few seconds.

  Args:
    what: What is counted, such as "records of cc3m".
    total: The total number, if it is known; an ETA is then logged.
    start: The number done before this call, which the rate leaves out.
    brief: Whether to log nothing if all of it takes only a few seconds.

  Returns:
    `show(done, more="")`, where `more` is added to the line.

  Example:
    >>> show = reporter("records", 3)
    >>> for done in (1, 2, 3):
    ...   show(done)
  """
  began = shown = time.monotonic()

  def show(done: int, more: str = "") -> None:
    nonlocal shown
    now = time.monotonic()
    ends = done == total and not (brief and shown == began)
    if now < shown + PERIOD and not ends:
      return
    shown, rate = now, (done - start) / max(now - began, 1e-9)
    if total is None:
      log.info("%d %s  %.3g/s  %s", done, what, rate, more)
    else:
      left = duration((total - done) / rate if rate else math.inf)
      line = "%d of %d %s  %.3g/s  %s  ETA %s"
      log.info(line, done, total, what, rate, more, left)

  return show


def slices(what: str, total: int, size: int) -> Iterator[slice]:
  """Yields slices of a range, and logs progress if they take long.

  Args:
    what: What is counted, such as "images compared".
    total: The length of the range.
    size: The length of a slice; at least 1 is used.

  Example:
    >>> [(part.start, part.stop) for part in slices("rows", 5, 2)]
    [(0, 2), (2, 4), (4, 5)]
  """
  show = reporter(what, total, brief=True)
  for start in range(0, total, max(1, size)):
    end = min(start + max(1, size), total)
    yield slice(start, end)
    show(end)

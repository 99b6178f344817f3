r"""What the terminal shows: log lines, the clock of a run, and ETAs.

Names of files, captions and messages about them are text of whoever made them.
On its way to the terminal, it is made harmless (`plain`, `paragraph`): what
would move the cursor, ring, or turn the direction of the text is shown as an
escape such as \x1b, and no text looks like a line of the log.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import inspect
import logging
import os
import shutil
import sys
import threading
import time
from typing import Any, NamedTuple, TextIO
import unicodedata
import warnings

from nuclr_jax.popularity.progress import PERIOD, duration
from nuclr_jax.popularity.progress import reporter as reporter
from nuclr_jax.popularity.progress import slices as slices

# What a clock measures; the remaining time is that of the steps.
PARTS = ("data", "evaluation", "saving")

REDRAWN = 0.2  # seconds between two states of the line that is redrawn

# Kinds of characters that are escaped: controls, marks of direction and other
# invisible ones, halves of characters, and ends of lines.
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"  # of letters, in many scripts

log = logging.getLogger(__name__)


def print_table(metrics: Mapping[str, Any]) -> None:
  """Prints metrics, one per line; several values of one are in columns.

  Example:
    >>> print_table({"interpolate": ["0", "0.5"], "top1": [0.25, 0.75]})
    interpolate  0       0.5
    top1         0.2500  0.7500
  """
  shown = {plain(k, keep=""): x for k, x in metrics.items()}
  width = max(map(len, shown), default=0)
  for name, x in shown.items():
    values = map(_shown, x if isinstance(x, list) else [x])
    line = "  ".join(f"{value:<6}" for value in values)
    print(f"{name:<{width}}  {line}".rstrip())


def _shown(value: Any) -> str:
  if not isinstance(value, float):
    return str(value)
  return f"{value:.4g}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def plain(text: str, *, keep: str = "\n\t") -> str:
  r"""Returns a text with escapes in place of what a terminal would obey.

  Args:
    text: A text that may come from untrusted sources.
    keep: Characters that stay as they are.

  Example:
    >>> plain("\x1b[2J cat"), plain("1\n2", keep="")
    ('\\x1b[2J cat', '1\\n2')
  """
  if text.isprintable():
    return text
  return "".join(
    x.encode("unicode_escape").decode()
    if unicodedata.category(x) in HIDDEN and x not in keep + JOINERS
    else x
    for x in text
  )


def paragraph(text: str) -> str:
  r"""Returns a text, made `plain`, whose lines after the first are indented.

  So its lines cannot pass for messages of their own.

  Example:
    >>> paragraph("no file\n12:00:00 all is well")
    'no file\n  12:00:00 all is well'
  """
  first, *rest = plain(text).split("\n")
  indented = (x if x.startswith("  ") else f"  {x}" for x in rest)
  return "\n".join([first, *indented])


class Guarded:
  r"""A stream to a terminal, to which everything is written as `plain` text.

  A text that begins with \r may replace a line, but only one that consists of
  such texts: libraries draw their progress bars in this way.
  """

  def __init__(self, stream: TextIO):
    self._stream, self._is_bar = stream, True

  def write(self, text: str) -> int:
    """Writes a text; returns its length."""
    redrawn = self._is_bar and text.startswith("\r")
    self._stream.write("\r" * redrawn + plain(text[redrawn:]))
    if "\n" in text:
      self._is_bar = text.endswith("\n")
    elif text:
      self._is_bar = redrawn
    return len(text)

  def writelines(self, lines: Iterable[str]) -> None:
    """Writes several texts."""
    for line in lines:
      self.write(line)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def guard_terminal() -> None:
  """Makes whatever this process prints `plain`, also what libraries print."""
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    if stream is not None and not isinstance(stream, Guarded):
      setattr(sys, name, Guarded(stream))


class _Lines(logging.Formatter):
  """Formats messages as paragraphs."""

  def format(self, record: logging.LogRecord) -> str:
    return paragraph(super().format(record))


class _Terminal(logging.StreamHandler):
  """Shows log lines, and below them, in a terminal, one line that is redrawn.

  Records that are `live` say what that line says: they are shown only where
  there is none, in a file or a pipe.
  """

  def __init__(self):
    super().__init__()
    self.width = 0  # of the line that is there now
    self.drawn = 0.0  # when it was drawn

  def emit(self, record: logging.LogRecord) -> None:
    """Shows a record."""
    if not (self.is_live() and getattr(record, "live", False)):
      self.draw("")
      super().emit(record)

  def is_live(self) -> bool:
    """Returns whether a line can be redrawn."""
    with contextlib.suppress(AttributeError, ValueError):  # it may be closed
      return self.stream.isatty()
    return False

  def columns(self) -> int:
    """Returns how many characters fit into a line."""
    try:
      return os.get_terminal_size(self.stream.fileno()).columns
    except (OSError, ValueError):
      return shutil.get_terminal_size().columns

  def draw(self, text: str) -> None:
    """Draws the line in place of the one that is there; "" removes it."""
    now = time.monotonic()
    if not (text or self.width) or (text and now < self.drawn + REDRAWN):
      return
    with self.lock:
      self.drawn = now if text else 0.0
      with contextlib.suppress(OSError, ValueError):  # a closed terminal
        most = self.columns() - 1
        text = text[:most]
        self.stream.write("\r" + text.ljust(min(self.width, most)))
        self.stream.write("\r")  # what is printed next takes its place
        self.stream.flush()
      self.width = len(text)


def _terminal() -> _Terminal | None:
  """Returns the handler of `log_to_stderr` if its last line can be redrawn."""
  logger = logging.getLogger("nuclr_jax")
  for handler in logger.handlers if logger.isEnabledFor(logging.INFO) else ():
    if isinstance(handler, _Terminal) and handler.is_live():
      return handler
  return None


def log_to_stderr(*, process: int = 0) -> None:
  """Sends the library's log messages to standard error, with the time.

  In a terminal, the last line shows how far a run is, and is redrawn. Calling
  it again replaces the handler of the first call.

  Args:
    process: The number of this process. Only process 0 logs more than
      warnings; other processes put their number in front of each line.
  """
  handler, name = _Terminal(), f"[process {process}] "
  handler.name = "nuclr_jax"
  line = f"%(asctime)s {name if process else ''}%(message)s"
  handler.setFormatter(_Lines(line, "%H:%M:%S"))
  logger = logging.getLogger("nuclr_jax")
  for old in [x for x in logger.handlers if x.name == handler.name]:
    logger.removeHandler(old)
  logger.addHandler(handler)
  logger.setLevel(logging.WARNING if process else logging.INFO)
  logger.propagate = False


def open_terminal() -> None:
  """Guards the terminal and logs to it, before anything is known of processes.

  Then what is found while a command is read is shown, too.
  """
  guard_terminal()
  log_to_stderr()


@contextlib.contextmanager
def every_period(
  call: Callable[[], None], *, period: float = PERIOD
) -> Iterator[None]:
  """Calls a function every few seconds, in a thread, while a block runs.

  Args:
    call: For instance a `reporter` of what other processes have done.
    period: Seconds between the end of a call and the next one.

  Example:
    >>> with every_period(lambda: print("10 seconds have passed")):
    ...   pass
  """
  ended = threading.Event()

  def watch() -> None:
    while not ended.wait(period):
      call()

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


class _Mark(NamedTuple):
  """A call of `Clock.show`."""

  time: float
  step: int
  loss: float


class Clock(NamedTuple):
  """Measures what a run spends its time on; see `start_clock`."""

  # `with during(part)` counts the time of its block towards a part.
  during: Callable[[str], contextlib.AbstractContextManager[None]]
  # `show(step, loss)` logs a line and returns the numbers since the last call.
  show: Callable[[int, float], dict[str, float]]


def start_clock(*, num_steps: int, batch_size: int) -> Clock:
  """Starts the clock of a run.

  `show` logs the step, the loss, the speed since the last call and the ETA; in
  a terminal, a line with a bar shows them all the time instead. It returns
  `pairs_per_second`, which leaves out evaluation and saving, and
  `share/<part>`, the share of the time in [0, 1] that each part in `PARTS` and
  "step" took. Speed, ETA and these numbers start with the second call, so that
  compilation does not distort them.

  Devices work asynchronously: wait for them before calling `show` and before
  starting a part that needs them. The share of "data" is the time spent waiting
  for batches, not the time spent making them.

  Args:
    num_steps: The number of steps in the whole run, for the ETA.
    batch_size: The number of pairs per step, for the speed.

  Example:
    >>> clock = start_clock(num_steps=10, batch_size=8)
    >>> with clock.during("data"):
    ...   pass
    >>> clock.show(1, 0.5)
    {}
    >>> sorted(clock.show(2, 0.4))[:2]
    ['pairs_per_second', 'share/data']
  """
  marks: list[_Mark] = []  # of the first call and of the last
  spent = dict.fromkeys(PARTS, 0.0)  # since the last call
  ended = dict.fromkeys(PARTS, 0)  # blocks since the last call

  @contextlib.contextmanager
  def during(part: str) -> Iterator[None]:
    began = time.monotonic()
    unfinished = marks and marks[-1].step < num_steps
    if unfinished and (terminal := _terminal()):
      terminal.draw(live_line(part, began))
    try:
      yield
    finally:
      spent[part] += time.monotonic() - began
      ended[part] += 1

  def live_line(part: str, now: float) -> str:
    """Says how far the run is; each step reads its data once."""
    first, last = marks[0], marks[-1]
    step = min(last.step + ended["data"], num_steps)
    mean = (step - first.step) / max(now - first.time, 1e-9)
    text = f"{bar(step / num_steps)} step {step}/{num_steps}"
    text += f"  loss {last.loss:.4f}"
    if step > first.step:
      text += f"  {mean * batch_size:,.0f} pairs/s"
      text += f"  ETA {duration((num_steps - step) / mean)}"
    return text + ("" if part == "data" else f"  ({part})")

  def show(step: int, loss: float) -> dict[str, float]:
    now, numbers = time.monotonic(), {}
    line = f"step {step}/{num_steps} ({100 * step // num_steps} %)"
    line += f"  loss {loss:.4f}"
    if marks:
      first, last = marks[0], marks[-1]
      took = max(now - last.time, 1e-9)
      training = max(took - spent["evaluation"] - spent["saving"], 1e-9)
      rate = (step - last.step) / training
      mean = (step - first.step) / max(now - first.time, 1e-9)
      numbers = {"pairs_per_second": rate * batch_size}
      numbers |= {f"share/{part}": x / took for part, x in spent.items()}
      numbers["share/step"] = 1 - sum(spent.values()) / took
      line += f"  {rate:.1f} steps/s  {rate * batch_size:,.0f} pairs/s"
      waits = [
        f"{100 * x / took:.0f} % {part}"
        for part, x in spent.items()
        if x > 0.05 * took
      ]
      line += f"  ({', '.join(waits)})" if waits else ""
      line += f"  ETA {duration((num_steps - step) / mean)}"
    log.info(line, extra={"live": step < num_steps})
    spent.update(dict.fromkeys(PARTS, 0.0))
    ended.update(dict.fromkeys(PARTS, 0))
    marks[1:] = [_Mark(now, step, loss)]
    return numbers

  return Clock(during, show)


def bar(share: float, *, width: int = 20) -> str:
  """Draws a share as a bar.

  Args:
    share: The share, in [0, 1].
    width: The characters of the whole bar.

  Example:
    >>> bar(0.25, width=8)
    '[##......]'
  """
  done = int(share * width)
  return f"[{'#' * done}{'.' * (width - done)}]"


def hide_what_threads_say() -> None:
  """Keeps threads from showing an error that the command will end with.

  If a disk is full, each of Orbax's and TensorStore's threads would show a
  traceback, hundreds of lines before the one that says what to do.
  """
  logging.getLogger("asyncio").setLevel(logging.CRITICAL)

  def without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    record.msg, record.args = record.getMessage().partition("\n")[0], ()
    return True

  def unraisable(raised):
    if not (
      inspect.iscoroutine(raised.object)
      or str(raised.exc_value) == "Event loop is closed"
    ):
      before(raised)

  before = sys.unraisablehook
  logging.getLogger("absl").addFilter(without_traceback)
  sys.unraisablehook = unraisable
  warnings.filterwarnings("ignore", "coroutine .* was never awaited")


def first_line(error: BaseException) -> str:
  r"""Returns the first line of an error's message, or its type if it has none.

  Example:
    >>> first_line(ValueError("not so\nbecause")), first_line(KeyError())
    ('not so', 'KeyError')
  """
  return (str(error).strip().splitlines() or [type(error).__name__])[0]

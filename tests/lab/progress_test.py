"""The line of a terminal that is redrawn, and the same run in a pipe."""

import io
import re
import time

import pytest

from nuclr_jax.lab import progress


class Stream(io.TextIOWrapper):
  """A stream, and what was written to it."""

  def __init__(self):
    buffer = io.BytesIO()
    buffer.name = "standard error"
    super().__init__(buffer, "utf-8", newline="", write_through=True)
    self.mode = "w"

  def getvalue(self):
    return self.buffer.getvalue().decode()


class Terminal(Stream):
  """It says that it is a terminal, and what is to be seen of it."""

  def isatty(self):
    return True

  @property
  def screen(self):
    lines = []
    for line in self.getvalue().split("\n"):
      shown = ""
      for text in line.split("\r"):
        shown = text + shown[len(text) :]
      lines.append(shown.rstrip())
    return lines


@pytest.fixture
def clock_of(monkeypatch):
  """Makes a clock of 20 steps whose lines go to a stream; time is made up."""
  now = [0.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  monkeypatch.setenv("COLUMNS", "100")

  def make(stream):
    monkeypatch.setattr("sys.stderr", progress.Guarded(stream))
    progress.log_to_stderr()
    return now, progress.start_clock(num_steps=20, batch_size=8)

  return make


def train(now, clock, last=20):
  """A step a second, a loss every ten."""
  for step in range(1, last + 1):
    with clock.during("data"):
      now[0] += 1.0
    if step % 10 == 0:
      clock.show(step, 1 / step)


def test_a_terminal_has_one_line_for_all_steps(clock_of):
  stream = Terminal()
  now, clock = clock_of(stream)
  train(now, clock, last=15)
  *above, live = stream.screen
  assert above == []
  line = r"\[#{14}\.{6}\] step 14/20  loss 0\.1000  8 pairs/s  ETA 0:06"
  assert re.fullmatch(line, live)
  with clock.during("evaluation"):
    assert stream.screen[-1].endswith("ETA 0:05  (evaluation)")
  # A message takes its place, and stands above it from then on.
  progress.log.info("a score")
  now[0] += 1
  with clock.during("data"):
    pass
  message, live = stream.screen
  assert message.endswith("a score") and live.startswith("[###")


def test_the_end_of_a_run_stays(clock_of):
  stream = Terminal()
  train(*clock_of(stream))
  line, rest = stream.screen
  assert "step 20/20 (100 %)  loss 0.0500" in line and rest == ""


def test_it_is_not_redrawn_all_the_time(clock_of):
  stream = Terminal()
  now, clock = clock_of(stream)
  clock.show(1, 0.5)
  for _ in range(1_000):
    with clock.during("data"):
      now[0] += 0.001
  assert 4 <= stream.getvalue().count("step ") <= 6


def test_it_fits_into_the_terminal(clock_of, monkeypatch):
  stream = Terminal()
  now, clock = clock_of(stream)
  monkeypatch.setenv("COLUMNS", "30")
  train(now, clock, last=15)
  assert max(map(len, stream.getvalue().split("\r"))) == 29


def test_a_pipe_has_lines(clock_of):
  stream = Stream()
  train(*clock_of(stream))
  first, last = stream.getvalue().splitlines()
  assert "step 10/20 (50 %)  loss 0.1000" in first
  assert "1.0 steps/s  8 pairs/s" in last and "\r" not in stream.getvalue()

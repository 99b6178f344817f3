"""Draws many icons in processes that may be killed, one bad icon at a time."""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from typing import NamedTuple

import numpy as np

from nuclr_jax.lab.data.icons import render
from nuclr_jax.lab.data.icons.render import Icon

IN_FLIGHT = 64  # icons that a process is sent before it has answered


class Drawings(NamedTuple):
  """What has been drawn of some icons."""

  images: np.ndarray  # uint8 [n, size, size, 1], of those that were drawn
  drawn: list[int]  # their numbers
  reasons: dict[int, str]  # why the others were not


class Painter:
  """A process that draws icons, and is started anew when it has ended."""

  def __init__(self, size: int):
    self._size, self._process, self._ended = size, None, False

  def __call__(self, icons: Sequence[Icon]) -> Drawings:
    """Draws icons; what ends the process is left out, like other bad icons."""
    images, drawn, reasons = [], [], {}
    at = 0
    while at < len(icons) and not self._ended:
      for answer in self._answers(icons[at:]):
        if isinstance(answer, str):
          reasons[at] = answer
        else:
          images.append(answer)
          drawn.append(at)
        at += 1
    shape = (self._size, self._size, 1)
    pixels = np.frombuffer(b"".join(images), np.uint8)
    return Drawings(pixels.reshape(-1, *shape), drawn, reasons)

  def end(self) -> None:
    """Ends the process for good; what is being drawn may remain incomplete."""
    self._ended = True
    if self._process is not None:
      self._process.kill()

  def close(self) -> None:
    """Closes the pipes of an ended process, which nothing reads any more."""
    if self._process is not None:
      _kill(self._process)

  def _start(self) -> subprocess.Popen:
    """Starts the process; ValueError if it cannot draw anything."""
    with tempfile.TemporaryFile() as said:
      # With -P, the folder in which the user is has no modules for it.
      process = subprocess.Popen(
        [sys.executable, "-P", render.__file__, str(self._size)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        start_new_session=True,  # Ctrl-C is for this process, which ends it
      )
      if process.stdout.read(1) != render.READY:
        _kill(process)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit {process.returncode}"
        raise ValueError(f"the process that draws icons ended: {reason}")
    return process

  def _answers(self, icons: Sequence[Icon]) -> Iterator[bytes | str]:
    """Yields images and reasons; after an icon that ends it, no more."""
    if self._process is None:
      self._process = self._start()
    process, asked = self._process, 0
    for answered in range(len(icons)):
      if asked == answered:  # all answers are in
        asked = min(answered + IN_FLIGHT, len(icons))
        with contextlib.suppress(BrokenPipeError):
          self._send(icons[answered:asked])
      answer = self._receive()
      if answer is None:
        _kill(process)
        self._process = None
        yield _reason_of_end(process.returncode)
        return
      yield answer

  def _send(self, icons: Sequence[Icon]) -> None:
    # In a thread: the process answers meanwhile, and pipes hold little.
    lines = "".join(json.dumps(icon) + "\n" for icon in icons).encode()
    process = self._process

    def write():
      with contextlib.suppress(OSError, ValueError):  # it has ended
        process.stdin.write(lines)
        process.stdin.flush()

    threading.Thread(target=write, daemon=True).start()

  def _receive(self) -> bytes | str | None:
    """Reads an answer; None if the process has ended without one."""
    file = self._process.stdout
    kind = file.read(1)
    if kind == render.DRAWN:
      pixels = file.read(self._size**2)
      return pixels if len(pixels) == self._size**2 else None
    if kind == render.LEFT_OUT:
      length = file.read(2)
      if len(length) == 2:
        return file.read(*struct.unpack("<H", length)).decode(errors="replace")
    return None


def _kill(process: subprocess.Popen) -> None:
  """Ends a process, unless it has ended, and closes its pipes."""
  process.kill()
  process.communicate()


def _reason_of_end(code: int) -> str:
  """Says why a process has ended on an icon."""
  if code == -signal.SIGXCPU:
    return f"it takes more than {render.SECONDS} seconds to draw"
  name = signal.Signals(-code).name if code < 0 else f"exit {code}"
  return f"it ended the process that drew it ({name}), or filled its memory"


@contextlib.contextmanager
def painters(
  count: int, size: int
) -> Iterator[Callable[[Sequence[Icon]], futures.Future[Drawings]]]:
  """Starts processes that draw icons.

  Args:
    count: The number of processes.
    size: Height and width of the images, in pixels.

  Yields:
    `draw(icons)`, which returns a future of `Drawings` at once. An icon's image
    depends on nothing but the icon.

  Example:
    >>> icon = Icon("dot", '<path d="M0 0h4v4H0z"/>', (0.0, 0.0, 4.0, 4.0))
    >>> with painters(1, 8) as draw:
    ...   drawings = draw([icon, icon._replace(body="<script/>")]).result()
    >>> drawings.images.shape, drawings.reasons
    ((1, 8, 8, 1), {1: 'the element script is not allowed'})
  """
  mine, all_painters = threading.local(), []

  def start():
    mine.painter = Painter(size)
    all_painters.append(mine.painter)

  pool = futures.ThreadPoolExecutor(count, initializer=start)
  try:
    yield lambda icons: pool.submit(lambda: mine.painter(icons))
  finally:
    pool.shutdown(wait=False, cancel_futures=True)
    for painter in all_painters:
      painter.end()
    pool.shutdown()
    for painter in all_painters:
      painter.close()

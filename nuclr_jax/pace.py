"""How fast a run goes, and what its time is spent on."""

from collections.abc import Callable, Iterator
import contextlib
import logging
import time
from typing import NamedTuple

from nuclr_jax import host
from nuclr_jax.types import Metrics

log = logging.getLogger(__name__)

PARTS = ("data", "evaluation", "saving")  # what is left is the steps


class Pace(NamedTuple):
  """The clock of a run."""

  # `with during(part)`: this time is spent on one of `PARTS`.
  during: Callable[[str], contextlib.AbstractContextManager[None]]
  # (step, loss): logs a line; the numbers of the time since the call before.
  show: Callable[[int, float], Metrics]


def start(*, num_steps: int, batch_size: int) -> Pace:
  """Starts the clock.

  `show` logs the step, the loss, the speed since the call before and the ETA.
  Both appear from the second call on, so that compilation does not distort
  them, and so do its numbers: `pairs_per_second` of the steps alone, and
  `share/<part>` of the time, in [0, 1], with "step" for what no part took.

  Work on devices goes on while Python runs ahead: call `show`, and begin a part
  that needs the devices, once they are done. The share of "data" is what is
  spent waiting for batches, not on making them.

  Args:
    num_steps: Of the whole run.
    batch_size: Pairs of a step.

  Example:
    >>> pace = start(num_steps=10, batch_size=8)
    >>> with pace.during("data"):
    ...   pass
    >>> pace.show(1, 0.5)
    {}
    >>> sorted(pace.show(2, 0.4))[:2]
    ['pairs_per_second', 'share/data']
  """
  marks = []  # (time, step) of the first call and of the last
  spent = dict.fromkeys(PARTS, 0.0)  # since the last call

  @contextlib.contextmanager
  def during(part: str) -> Iterator[None]:
    began = time.monotonic()
    try:
      yield
    finally:
      spent[part] += time.monotonic() - began

  def show(step: int, loss: float) -> Metrics:
    now, found = time.monotonic(), {}
    line = f"step {step}/{num_steps} ({100 * step // num_steps} %)"
    line += f"  loss {loss:.4f}"
    if marks:
      (first_time, first_step), (last_time, last_step) = marks[0], marks[-1]
      took = max(now - last_time, 1e-9)
      steps = max(took - spent["evaluation"] - spent["saving"], 1e-9)
      rate = (step - last_step) / steps
      mean = (step - first_step) / max(now - first_time, 1e-9)
      found = {"pairs_per_second": rate * batch_size}
      found |= {f"share/{part}": x / took for part, x in spent.items()}
      found["share/step"] = 1 - sum(spent.values()) / took
      line += f"  {rate:.1f} steps/s  {rate * batch_size:,.0f} pairs/s"
      waits = [
        f"{100 * x / took:.0f} % {part}"
        for part, x in spent.items()
        if x > 0.05 * took
      ]
      line += f"  ({', '.join(waits)})" if waits else ""
      line += f"  ETA {host.duration((num_steps - step) / mean)}"
    log.info(line)
    spent.update(dict.fromkeys(PARTS, 0.0))
    marks[1:] = [(now, step)]
    return found

  return Pace(during, show)

"""What the benchmarks share: a loss step, and where they ran."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
import gc
import os
import platform

from absl import flags
import jax
import numpy as np

from nuclr_jax import Pairs, host
from nuclr_jax.objectives import Objective


def machine() -> dict:
  """Device, processor and versions, for the JSON."""
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "machine": platform.processor() or platform.machine(),
    "cores": len(os.sched_getaffinity(0)),
    "jax": jax.__version__,
  }


def one_of(
  flag: str, known: Collection[str], *, first: str | None = None
) -> None:
  """Refuses a list with other names, or without the first, at once.

  Args:
    flag: Of a list of names.
    known: The names.
    first: What the others are compared with.
  """
  message = f"must be of {', '.join(known)}"
  flags.register_validator(
    flag,
    lambda names: (
      names is None or (set(names) <= set(known) and first in (None, *names))
    ),
    message=message + (f", {first} among them" if first else ""),
  )


def take_turns(
  runs: Mapping[Hashable, Callable[[], float]], rounds: int
) -> dict[Hashable, list[float]]:
  """The times of runs that take turns, since machines are noisy.

  Args:
    runs: Each does its steps and returns its time.
    rounds: How often.
  """
  times = {name: [] for name in runs}
  show = host.progress("rounds", rounds)
  for i in range(rounds):
    for name, run in runs.items():
      times[name].append(run())
      gc.collect()
    show(i + 1)
  return times


def ratio(times: Sequence[float], others: Sequence[float]) -> float:
  """The median of the ratios of each round."""
  return float(np.median(np.divide(times, others)))


def loss_step(objective: Objective, **options):
  """Compiles `(state, [image, text], ids) -> (state, gradient)`.

  The state is donated; the options are those of `jax.jit`.
  """

  def step(state, vectors, ids):
    def loss(vectors):
      return objective.apply({}, state, Pairs(*vectors, ids))

    gradient, (state, _) = jax.grad(loss, has_aux=True)(vectors)
    return state, gradient

  return jax.jit(step, donate_argnums=0, **options)

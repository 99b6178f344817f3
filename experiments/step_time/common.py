"""What the benchmarks share: a loss step, and where they ran."""

import os
import platform

import jax

from nuclr_jax import Pairs
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

"""The loss step that several benchmarks time or compile."""

import jax

from nuclr_jax import Pairs, objectives
from nuclr_jax.objectives import Objective, zeta_rules

RECIPE = dict(temperature=0.01, gamma=0.8)  # of configs/cc3m.py
MEMORY = dict(size=16_384, rate=0.3)


def recipe(num_pairs: int, dim: int) -> Objective:
  """Makes NUCLR as in configs/cc3m.py, which needs more libraries to read."""
  queue = zeta_rules.queue(dim=dim, **MEMORY)
  return objectives.nuclr(num_pairs=num_pairs, zeta=queue, **RECIPE)


def loss_step(objective: Objective, **options):
  """Makes a jitted `(state, [image, text], ids) -> (state, gradient)`.

  The state is donated.

  Args:
    objective: An objective without params.
    **options: Options of `jax.jit`.
  """

  def step(state, vectors, ids):
    def loss(vectors):
      return objective.apply({}, state, Pairs(*vectors, ids))

    gradient, (state, _) = jax.grad(loss, has_aux=True)(vectors)
    return state, gradient

  return jax.jit(step, donate_argnums=0, **options)

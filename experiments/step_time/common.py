"""The loss step that several benchmarks time or compile."""

import jax

from nuclr_jax import Pairs
from nuclr_jax.objectives import Objective


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

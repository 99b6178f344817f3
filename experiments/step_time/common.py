"""The loss step that several benchmarks time or compile."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from nuclr_jax import Pairs, objectives, sharding
from nuclr_jax.objectives import Objective, zeta_rules
from nuclr_jax.types import State

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


def trace_step(
  objective: Objective,
  mesh: Mesh,
  batch: int,
  dim: int,
  *,
  offload_rows: bool = False,
):
  """Traces a loss step on a mesh as a run lays it out; nothing is allocated.

  Every pair has an id of its own, and ids of its image and its text.

  Args:
    objective: Any objective; the gradient is that of params and embeddings.
    mesh: The mesh, which must be entered.
    batch: The global batch size.
    dim: The width of the embeddings.
    offload_rows: Whether rows of state are in the hosts' memory.

  Returns:
    What `jax.jit(...).trace` returns.
  """
  split, whole = (
    NamedSharding(mesh, spec) for spec in (sharding.ROWS, sharding.REPLICATED)
  )
  layout = State(
    sharding.on_host(split) if offload_rows else split, split, whole
  )

  def step(params, state, pairs):
    def loss(inputs):
      params, image, text = inputs
      whole_batch = pairs._replace(image=image, text=text)
      return objective.apply(params, state, whole_batch)

    inputs = params, pairs.image, pairs.text
    return jax.value_and_grad(loss, has_aux=True)(inputs)

  def first():
    params, state = objective.init()
    sample = sharding.pad_rows(state.sample)
    memory = sharding.pad_rows(state.memory, sharding.padded_memory)
    return params, state._replace(sample=sample, memory=memory)

  params, state = jax.eval_shape(first)
  state = jax.tree.map(
    lambda x, y: x.update(sharding=y),
    state,
    jax.tree.broadcast(layout, state),
  )
  vectors = jax.ShapeDtypeStruct((batch, dim), jnp.float32)
  ids = jax.ShapeDtypeStruct((batch,), jnp.int32)
  jitted = jax.jit(
    step,
    in_shardings=(whole, layout, split),
    out_shardings=((whole, (layout, whole)), (whole, split, split)),
    donate_argnums=1,
  )
  return jitted.trace(params, state, Pairs(vectors, vectors, ids, ids, ids))

"""An objective's gradients, as a training step takes them."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from nuclr_jax import Pairs, sharding
from nuclr_jax.objectives import State


def make_step(objective):
  """`(params, state, pairs) -> ((loss, (state, metrics)), gradients)`.

  The gradients are those of params, image and text.
  """

  def loss_fn(inputs, state, pairs):
    params, image, text = inputs
    pairs = pairs._replace(image=image, text=text)
    return objective.apply(params, state, pairs)

  def step(params, state, pairs):
    inputs = (params, pairs.image, pairs.text)
    return jax.value_and_grad(loss_fn, has_aux=True)(inputs, state, pairs)

  return step


def first_state(objective):
  params, state = objective.init()
  sample = sharding.pad_rows(state.sample)
  memory = sharding.pad_rows(state.memory, sharding.padded_memory)
  return params, state._replace(sample=sample, memory=memory)


def rows(mesh):
  return NamedSharding(mesh, sharding.ROWS)


def everywhere(mesh):
  return NamedSharding(mesh, sharding.REPLICATED)


def layout(mesh, *, on_host=False):
  sample = sharding.on_host(rows(mesh)) if on_host else rows(mesh)
  return State(sample, memory=rows(mesh), shared=everywhere(mesh))


def on_mesh(objective, mesh, *, on_host=False, **options):
  """The step compiled for a mesh as `fit` lays it out."""
  whole, split = everywhere(mesh), rows(mesh)
  state = layout(mesh, on_host=on_host)
  return jax.jit(
    make_step(objective),
    in_shardings=(whole, state, split),
    out_shardings=((whole, (state, whole)), (whole, split, split)),
    **options,
  )


def trace_step(objective, mesh, batch, dim, *, on_host=False):
  """Traces the step on a mesh, which must be entered; nothing is allocated.

  Every pair has an id of its own, and ids of its image and its text.
  """
  params, state = jax.eval_shape(lambda: first_state(objective))
  state = jax.tree.map(
    lambda x, y: x.update(sharding=y),
    state,
    jax.tree.broadcast(layout(mesh, on_host=on_host), state),
  )
  vectors = jax.ShapeDtypeStruct((batch, dim), jnp.float32)
  ids = jax.ShapeDtypeStruct((batch,), jnp.int32)
  step = on_mesh(objective, mesh, on_host=on_host, donate_argnums=1)
  return step.trace(params, state, Pairs(vectors, vectors, ids, ids, ids))

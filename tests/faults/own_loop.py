"""A user's own training loop in several processes, as the guide shows it.

Each process reads its own rows of every batch.
"""

from functools import partial
import pathlib
import pickle
import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from nuclr_jax import Pairs, objectives, sharding
from nuclr_jax.types import State

N, B, DIM = 48, 16, 8
LAYOUT = P(), State(sample=P("data"), memory=P("data"), shared=P())
# All at once, so that there is one program to compile.
OBJECTIVE = objectives.add(
  clip=objectives.clip(),
  sogclr=objectives.sogclr(num_pairs=N, temperature=0.1),
  nuclr=objectives.nuclr(num_pairs=N, temperature=0.1),
)


def data():
  noise = np.random.default_rng(0)
  image = noise.normal(size=(N, DIM)).astype(np.float32)
  return image, image + noise.normal(size=(N, DIM)).astype(np.float32)


@partial(jax.jit, donate_argnums=(0, 1))
def step(learned, state, image, text, ids):
  """Moves the weights of one layer and the params; donates both and state."""

  def loss_fn(learned):
    weights, params = learned

    def embed(x):
      z = x @ weights
      return z / jnp.linalg.norm(z, axis=1, keepdims=True)

    pairs = Pairs(embed(image), embed(text), ids)
    return OBJECTIVE.apply(params, state, pairs)

  (loss, (state, _)), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
    learned
  )
  moved = jax.tree.map(lambda x, g: x - 0.1 * g, learned, gradient)
  return moved, state, loss, gradient


def train(learned, state, put):
  """Returns what every step found, and the state in the end."""
  image, text = data()
  found = []
  for ids in np.arange(N, dtype=np.int32).reshape(-1, B):
    own = np.split(ids, jax.process_count())[jax.process_index()]
    learned, state, loss, gradient = step(
      learned, state, put(image[own]), put(text[own]), put(own)
    )
    found.append((float(loss), sharding.fetch(gradient)))
  return found, sharding.fetch(state)


def with_a_mesh_in_context():
  mesh = jax.make_mesh((jax.device_count(),), ("data",))  # Explicit axes
  rows = NamedSharding(mesh, P("data"))
  with jax.set_mesh(mesh):
    params, state = jax.jit(OBJECTIVE.init, out_shardings=LAYOUT)()
    weights = jax.jit(lambda: jnp.eye(DIM), out_shardings=P())()
    put = partial(jax.make_array_from_process_local_data, rows)
    return train((weights, params), state, put)


def with_arrays_on_a_mesh(kind):
  """The mesh is not in context, and the state is not on it."""
  mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(kind,))
  rows, whole = (NamedSharding(mesh, spec) for spec in (P("data"), P()))
  params, state = OBJECTIVE.init()
  learned = jax.device_put((jnp.eye(DIM), params), whole)
  put = partial(jax.make_array_from_process_local_data, rows)
  return train(learned, state, put)


def of_one_process():
  params, state = OBJECTIVE.init()
  return train((jnp.eye(DIM), params), state, jnp.asarray)


if __name__ == "__main__":
  address, number, file = sys.argv[1:]
  jax.distributed.initialize(address, 2, int(number))
  found = (
    with_a_mesh_in_context(),
    with_arrays_on_a_mesh(AxisType.Explicit),
    with_arrays_on_a_mesh(AxisType.Auto),
  )
  if jax.process_index() == 0:
    file = pathlib.Path(file)
    file.write_bytes(pickle.dumps([jax.tree.leaves(x) for x in found]))

"""A small network that predicts popularities from embeddings.

It keeps no row per sample, so it predicts zeta of unseen samples too.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import optax

from nuclr_jax.types import AnyArray

# Scales the initial kernel: zeta changes over short distances, so the features
# must be steep.
SHARPNESS = 10.0


class Network(NamedTuple):
  """The weights of a network with one hidden layer; see `predict_zeta`."""

  kernel: Float[Array, "dim width"]
  bias: Float[Array, "width"]
  readout: Float[Array, "width"]
  offset: Float[Array, ""]


def predict_zeta(
  network: Network, embedding: Float[AnyArray, "rows dim"]
) -> Float[Array, "rows"]:
  """Predicts zeta = gelu(embedding kernel + bias) . readout + offset.

  Example:
    >>> network = Network(jnp.eye(2), jnp.zeros(2), jnp.ones(2), jnp.array(0.5))
    >>> print(predict_zeta(network, jnp.zeros((1, 2))))
    [0.5]
  """
  hidden = jax.nn.gelu(embedding @ network.kernel + network.bias[None, :])
  return hidden @ network.readout + network.offset


def fit_network(
  key: Array,
  embedding: Float[AnyArray, "rows dim"],
  zeta: Float[AnyArray, "rows"],
  *,
  temperature: float,
  width: int = 1024,
  num_steps: int = 3000,
  batch_size: int = 1024,
  learning_rate: float = 3e-3,
  weight_decay: float = 0.1,
) -> Network:
  """Distills exact (or learned) popularities of one side into a network.

  Minimizes the squared error in units of the temperature, with AdamW and a
  cosine decay of the learning rate to 0.

  Args:
    key: Decides the initial weights and the batches.
    embedding: Unit-norm embeddings, one row per id.
    zeta: The popularity of each row.
    temperature: The temperature of the objective.
    width: Number of hidden features.
    num_steps: Number of steps of the optimizer.
    batch_size: Rows per step, drawn with replacement.
    learning_rate: The rate of the first step.
    weight_decay: The weight decay of AdamW.

  Returns:
    A `Network` with which `predict_zeta` predicts zeta of the same side.

  Example:
    >>> x = jax.random.normal(jax.random.key(0), (64, 4))
    >>> zeta = 0.1 * x[:, 0]
    >>> network = fit_network(
    ...   jax.random.key(1), x, zeta, temperature=0.1, width=32, num_steps=500
    ... )
    >>> error = predict_zeta(network, x) - zeta
    >>> bool(jnp.mean(error**2) < 1e-4)
    True
  """
  embedding, zeta = jnp.asarray(embedding), jnp.asarray(zeta, jnp.float32)
  dim = embedding.shape[1]
  init_key, steps_key = jax.random.split(key)
  first = Network(
    SHARPNESS / jnp.sqrt(dim) * jax.random.normal(init_key, (dim, width)),
    jnp.zeros(width),
    jnp.zeros(width),
    jnp.mean(zeta) / temperature,
  )
  schedule = optax.cosine_decay_schedule(learning_rate, num_steps)
  optimizer = optax.adamw(schedule, weight_decay=weight_decay)

  def loss(network, rows):
    predicted = predict_zeta(network, embedding[rows])
    return jnp.mean((predicted - zeta[rows] / temperature) ** 2)

  def step(carry, key):
    network, state = carry
    rows = jax.random.randint(key, (batch_size,), 0, len(zeta))
    updates, state = optimizer.update(
      jax.grad(loss)(network, rows), state, network
    )
    return (optax.apply_updates(network, updates), state), None

  keys = jax.random.split(steps_key, num_steps)
  carry = (first, optimizer.init(first))
  (network, _), _ = jax.jit(partial(jax.lax.scan, step))(carry, keys)
  return network._replace(
    readout=temperature * network.readout, offset=temperature * network.offset
  )


def r_squared(
  predicted: Float[AnyArray, "rows"], actual: Float[AnyArray, "rows"]
) -> float:
  """Returns the fraction of variance that a prediction explains, at most 1.

  Example:
    >>> r_squared(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 4.0]))
    0.7857142686843872
  """
  error = jnp.mean((jnp.asarray(predicted) - actual) ** 2)
  return float(1 - error / jnp.var(jnp.asarray(actual)))

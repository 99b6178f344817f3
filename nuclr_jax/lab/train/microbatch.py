"""Large batches, which encoders see in pieces and objectives as a whole."""

import jax
from jax import lax
import jax.numpy as jnp

from nuclr_jax import sharding
from nuclr_jax.lab.models.base import Model
from nuclr_jax.types import PyTree


def microbatched(model: Model, count: int) -> Model:
  """Embeds training batches in `count` pieces, one after the other.

  Only the embeddings of the whole batch are kept; the backward pass embeds each
  piece again and adds up the gradients of the parameters. The encoders need the
  memory of a single piece and a third more time, and the objective, with its
  per-sample state, sees the whole batch once.

  Piece i holds the rows i, i + count, i + 2 count, ... of the batch, on any
  number of devices. Embeddings and gradients are those of the whole batch up to
  rounding, except with layers that mix rows: batch normalization takes its
  statistics from one piece (over all devices), and its running averages move
  once per batch, to the mean of where the pieces would move them. Each piece
  has its own dropout key.

  Args:
    model: Any model.
    count: The number of pieces; it must divide the rows that a device holds.

  Raises:
    ValueError: If `count` is not a positive integer; from `apply`, if it does
      not divide the batch.

  Example:
    >>> from nuclr_jax.lab import models
    >>> model = models.small(image_shape=(8, 8, 1), vocab_size=9, length=4)
    >>> model = microbatched(model, 4)

  Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under
    Memory Limited Setup, RepL4NLP 2021 (GradCache).
  """
  if not isinstance(count, int) or isinstance(count, bool) or count < 1:
    raise ValueError(
      f"num_microbatches must be a whole number of at least 1, got {count!r}"
    )
  if count == 1:
    return model

  def apply(params, model_state, batch, *, key=None, train=False):
    if not train:
      return model.apply(params, model_state, batch, key=key, train=False)

    @jax.checkpoint
    def piece(params, key, part):
      return model.apply(params, model_state, part, key=key, train=True)

    keys = None if key is None else jax.random.split(key, count)
    pairs, states = lax.map(
      lambda x: piece(params, *x), (keys, _cut(batch, count))
    )
    return _join(pairs), jax.tree.map(_mean, states)

  return model._replace(apply=apply)


def _cut(batch: PyTree, count: int) -> PyTree:
  """Reshapes [batch, ...] to [count, batch / count, ...] without moving a row.

  Each device cuts its own rows, which stay where they are.
  """

  def cut(x):
    rows = len(x) // sharding.num_devices(len(x))
    if rows % count:
      raise ValueError(
        f"num_microbatches must divide the {rows} rows of the batch that a "
        f"device has, got {count}"
      )
    x = jnp.asarray(x).reshape(-1, count, *x.shape[1:])
    return sharding.constrain(jnp.swapaxes(x, 0, 1), sharding.SECOND_AXIS)

  return jax.tree.map(cut, batch)


def _join(pieces: PyTree) -> PyTree:
  """Inverts `_cut`."""

  def join(x):
    x = jnp.swapaxes(x, 0, 1)
    return sharding.constrain(x.reshape(-1, *x.shape[2:]), sharding.ROWS)

  return jax.tree.map(join, pieces)


def _mean(states):
  """Returns the mean over pieces; counters are the same in all of them."""
  floating = jnp.issubdtype(states.dtype, jnp.floating)
  return jnp.mean(states, axis=0) if floating else states[0]

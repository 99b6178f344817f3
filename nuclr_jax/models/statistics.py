"""Batch statistics at given weights, in place of averages along a training."""

import jax
import jax.numpy as jnp

from nuclr_jax.models.base import Key, Model
from nuclr_jax.types import Batch, Params, PyTree

HUGE = 2.0**60  # a power of two, so that scaling by it does not round


def batch_statistics(
  model: Model,
  params: Params,
  model_state: PyTree,
  batch: Batch,
  *,
  key: Key | None = None,
) -> tuple[PyTree, PyTree]:
  """Computes the statistics that normalization layers take of a batch.

  In training, a layer such as batch normalization moves each entry s of the
  model's state by

    s <- m s + (1 - m) b,

  where b is the statistic of the batch and m the layer's momentum. After many
  steps s is an average over *earlier* weights, which can be far off the present
  ones while the learning rate is high. The mean of b over some batches, all at
  the present weights, is what evaluation should use.

  One forward pass yields both, for any layer: b from the state that follows on
  s = 0, and m from the one that follows on an s beside which b vanishes.

  Args:
    model: Any model whose state consists of running averages, as above.
    params: The model's parameters.
    model_state: The model's state. Only its shapes matter, except for entries
      that do not move.
    batch: A batch of training data.
    key: The random key of dropout; it may be None for models without.

  Returns:
    `(statistics, momentum)`, both like `model_state`: b and m. Entries that do
    not move, such as those of a frozen tower, and integers, such as counters,
    have m = 1 and keep the value that they have in `model_state`.

  Example:
    >>> from nuclr_jax import models
    >>> model = models.small(image_shape=(8, 8, 1), vocab_size=9, length=4)
    >>> params, state = model.init(jax.random.key(0))
    >>> images = np.arange(7 * 64, dtype=np.uint8).reshape(7, 8, 8, 1)
    >>> batch = Batch(images, jnp.ones((7, 4), int), None)
    >>> state, momentum = batch_statistics(model, params, state, batch)
    >>> pairs, _ = model.apply(params, state, batch)  # in evaluation mode
    >>> print(momentum["image"]["layers"][1]["mean"][0])
    0.9

  Reference: Wu and Johnson, Rethinking "Batch" in BatchNorm, arXiv:2105.07576,
    Section 3 ("PreciseBN").
  """
  leaves, structure = jax.tree.flatten(model_state)
  is_average = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]

  def next_averages(first):
    """Returns where the averages go that all start with the value `first`."""
    state = structure.unflatten(
      jnp.full_like(x, first) if average else x
      for x, average in zip(leaves, is_average, strict=True)
    )
    return model.apply(params, state, batch, key=key, train=True)[1]

  # What does not depend on the state, so all layers in training, is run once.
  state = jax.vmap(next_averages)(jnp.array([0.0, HUGE]))
  statistics, momenta = [], []
  found = jax.tree.leaves(state)
  for x, average, moved in zip(leaves, is_average, found, strict=True):
    momentum = moved[1] / HUGE if average else jnp.ones_like(x)
    moves = momentum < 1
    statistic = moved[0] / jnp.where(moves, 1 - momentum, 1)
    statistics.append(jnp.where(moves, statistic, x))
    momenta.append(momentum)
  return structure.unflatten(statistics), structure.unflatten(momenta)

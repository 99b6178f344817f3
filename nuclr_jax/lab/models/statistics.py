"""Batch statistics at given weights, in place of averages during training."""

import jax
import jax.numpy as jnp

from nuclr_jax.lab.models.base import Key, Model
from nuclr_jax.types import Batch, Params, PyTree

HUGE = 2.0**60  # a power of two, so that scaling by it does not round
TOLERANCE = 0.01  # what an average may be off, relative to the largest of all


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

  The state that follows on s = 0 yields b, and the one that follows on an s
  beside which b vanishes yields m. Such layers do not read their state in
  training, so one forward pass serves for both. If the embeddings of a training
  step do depend on the state, as with a codebook that lives there, then all of
  the state keeps its values.

  Args:
    model: Any model.
    params: The model's parameters.
    model_state: The model's state. Its averages do not matter.
    batch: A batch of training data.
    key: The random key of dropout; it may be None for models without.

  Returns:
    `(statistics, momentum)`, both like `model_state`: b and m. Whatever does
    not move as above has m = 1 and keeps its value: the state of a frozen
    tower, integers such as counters, arrays that are not running averages, and
    all of a state that training reads.

  Example:
    >>> from nuclr_jax.lab import models
    >>> model = models.small(
    ...   image_shape=(8, 8, 1),
    ...   vocab_size=9,
    ...   length=4,
    ...   image_stages=((4, 1, 8),),
    ... )
    >>> params, state = jax.jit(model.init)(jax.random.key(0))
    >>> images = np.arange(7 * 64, dtype=np.uint8).reshape(7, 8, 8, 1)
    >>> batch = Batch(images, jnp.ones((7, 4), int), None)
    >>> statistics = jax.jit(batch_statistics, static_argnums=0)
    >>> state, momentum = statistics(model, params, state, batch)
    >>> pairs, _ = model.apply(params, state, batch)  # in evaluation mode
    >>> print(momentum["image"]["layers"][1]["mean"][0])
    0.9

  Reference: Wu and Johnson, Rethinking "Batch" in BatchNorm, arXiv:2105.07576,
    Section 3 ("PreciseBN").
  """

  def following(state):
    return model.apply(params, state, batch, key=key, train=True)

  _, after = following(model_state)
  fixed = jax.tree.map(lambda x, y: x == y, model_state, after)

  def after_probe(value):
    """Returns what follows if everything that moves starts with a value."""

    def start(x, fixed):
      if not _is_floating(x):
        return x
      return jnp.where(fixed, x, jnp.asarray(value, x.dtype))

    return following(jax.tree.map(start, model_state, fixed))

  # What does not depend on the state, so all layers in training, is run once.
  pairs, probes = jax.vmap(after_probe)(jnp.array([0.0, HUGE]))
  is_read = [jnp.any(x[0] != x[1]) for x in jax.tree.leaves(pairs)]
  unread = ~jnp.any(jnp.array(is_read))
  structure = jax.tree.structure(model_state)
  leaves = map(jax.tree.leaves, (model_state, after, fixed, probes))
  found = [_separate(*x, unread) for x in zip(*leaves, strict=True)]
  return (
    structure.unflatten([statistic for statistic, _ in found]),
    structure.unflatten([momentum for _, momentum in found]),
  )


def _separate(x, after, fixed, probes, unread):
  """Returns b and m of an average, the array and 1 of any other array."""
  if not _is_floating(x):
    return x, jnp.ones_like(x)
  momentum = probes[1] / HUGE
  statistic = probes[0] / jnp.where(momentum < 1, 1 - momentum, 1)
  # An average of the present values must follow on them, too.
  terms = momentum * x, (1 - momentum) * statistic
  off = jnp.abs(after - sum(terms))
  scale = jnp.max(sum(map(jnp.abs, terms)), initial=0.0)
  is_share = (momentum > -1 / HUGE**0.5) & (momentum < 1)  # 0 within rounding
  fits = is_share & (off <= TOLERANCE * scale)
  moves = ~fixed & jnp.all(fits | fixed) & unread
  return jnp.where(moves, statistic, x), jnp.where(moves, momentum, 1)


def _is_floating(x) -> bool:
  return jnp.issubdtype(x.dtype, jnp.floating)

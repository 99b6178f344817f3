"""Sums of a function over all similarities."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax import sharding
from nuclr_jax.pairwise import batch, tiles
from nuclr_jax.types import Pairs, Sides, each


def sum_over_negatives(
  pairs: Pairs,
  f: Callable[..., Array],
  *params: Float[Array, ""],
  tile: int | None = None,
) -> Float[Array, ""]:
  """Sums f(sim_ij, *params) over all images i and texts j that are negatives.

  The sum is differentiable in the embeddings and in `params`. Its gradient is
  accumulated in the forward pass, tile by tile.

  Args:
    pairs: The batch.
    f: An elementwise function, finite everywhere; values that it closes over
      are constants.
    *params: Scalars to pass to `f`.
    tile: Rows and columns of a tile; None means the default of the backend.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> print(sum_over_negatives(pairs, lambda sim: sim + 1))  # 3 x 2 zeros
    6.0
  """
  sides = batch.both_sides(pairs)
  # One copy per row, which tiles can slice; autodiff of `spread` adds up the
  # gradients of the copies.
  params = tuple(batch.spread(x, sides.image.own) for x in params)
  inputs, stop = (batch.embeddings(pairs), params), jax.lax.stop_gradient
  sides = stop(sides)
  value, gradient = _sum_and_gradient(f, tile, *stop(inputs), sides)
  return batch.with_gradient(
    partial(_gradient, f, tile), value, inputs, sides, gradient
  )


def _gradient(f, tile, inputs, constants):
  """Returns the gradient of the sum in (vectors, params)."""
  return _sum_and_gradient(f, tile, *inputs, constants)[1]


def _sum_and_gradient(f, tile, vectors, params, sides):
  """Returns the sum, and its gradient with respect to vectors and params."""
  image, text = each(lambda side, x: side._replace(vector=x), sides, vectors)
  text = text._replace(vector=sharding.gather(text.vector))
  sides = Sides(image._replace(extra=params), text)

  def step(tile, image_sums, text_sums):
    negative = batch.is_negative(batch.broadcastable(tile))

    def masked(sim, params):
      params = (x[:, None] for x in params)
      return jnp.where(negative, f(sim, *params), 0.0)

    values, pull_back = jax.vjp(
      masked, batch.similarity(tile), tile.image.extra
    )
    d_sim, d_params = pull_back(jnp.ones_like(values))
    of_image = (
      tiles.product(d_sim, tile.text.vector),
      jnp.sum(values, axis=1),
      d_params,
    )
    nothing = jnp.zeros_like(tile.text.own)
    of_text = tiles.product(d_sim.T, tile.image.vector), nothing, ()
    return jax.tree.map(jnp.add, (image_sums, text_sums), (of_image, of_text))

  def zero(side):
    return jax.tree.map(jnp.zeros_like, (side.vector, side.own, side.extra))

  image, text = batch.over_tiles(step, zero, sides, tile=tile)
  (d_image, values, d_params), (d_text, *_) = image, text
  return jnp.sum(values), (Sides(d_image, d_text), d_params)

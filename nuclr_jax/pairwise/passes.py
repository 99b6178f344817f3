"""The two passes over the exponentials of all logits."""

from functools import partial
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.pairwise import batch, tiles
from nuclr_jax.types import Pairs, Sides, Temperature, each, swap


class Weighted(NamedTuple):
  """What the second pass returns."""

  surrogate: Float[Array, ""]  # carries the gradient
  contrast_sums: Sides  # [batch] each; .text: sums over image anchors
  mean_logit: Sides  # [batch] each; .image: images as anchors


def log_sum_exp(
  pairs: Pairs,
  *,
  temperature: Temperature,
  bias: Sides | None = None,
  tile: int | None = None,
) -> Sides:
  r"""Computes log-sum-exp of every anchor's logits over its negatives.

  For images as anchors, it is log sum_{j negative of i} exp(L_ij) with
  L_ij = (sim_ij - sim_ii - bias.text_j) / temperature.image_i; for texts as
  anchors, `bias.image` and `temperature.text` are used instead.

  Args:
    pairs: The batch, with unit-norm embeddings.
    temperature: A scalar, or `Sides` of scalars or [batch] arrays (one per
      anchor); greater than 0.
    bias: `Sides` of [batch] arrays, subtracted from the similarities of that
      side *as contrast*; None means 0.
    tile: Rows and columns of a tile; None means the default of the backend.

  Returns:
    `Sides` of [batch] arrays; -inf where an anchor has no negative. No
    gradient flows through them.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> log_sum_exp(pairs, temperature=0.5).image  # log(2 exp(-1 / 0.5))
    Array([-1.3068528, -1.3068528, -1.3068528], dtype=float32)
  """

  def step(image, text, image_sums, text_sums):
    logits = _logits(image, text)
    return (
      tiles.add_terms(image_sums, logits.image, axis=1),
      tiles.add_terms(text_sums, logits.text, axis=0),
    )

  sums = batch.over_tiles(
    step,
    lambda side: tiles.no_terms(side.own),
    lax.stop_gradient(batch.both_sides(pairs, temperature, bias)),
    tile=tile,
    scatter=batch.scatter_log_sum,
  )
  return each(tiles.log_total, sums)


def weighted(
  pairs: Pairs,
  *,
  temperature: Temperature,
  row_log_weight: Sides,
  contrast_log_weight: Sides | None = None,
  bias: Sides | None = None,
  tile: int | None = None,
) -> Weighted:
  r"""Sums all exponentials with a weight per anchor; differentiates the sum.

  With w_ij = exp(L_ij + row_log_weight_i) over the negatives j of i,

    surrogate       = sum_ij w_ij, summed over both sides;
    mean_logit_i    = sum_j w_ij L_ij;
    contrast_sums_j = sum_i exp(L_ij + contrast_log_weight_i).

  The gradient of `surrogate` reaches the embeddings and `temperature`; weights
  and biases are treated as constants, and the other two results carry no
  gradient. It is accumulated in the forward pass, so that nothing of size
  [batch, batch] is kept for the backward pass.

  Args:
    pairs: The batch, with unit-norm embeddings.
    temperature: A scalar, or `Sides` of scalars or [batch] arrays (one per
      anchor); greater than 0.
    row_log_weight: `Sides` of [batch] arrays, one log weight per anchor (-inf
      removes the anchor).
    contrast_log_weight: The log weights for `contrast_sums`; None means
      `row_log_weight`.
    bias: `Sides` of [batch] arrays, subtracted from the similarities of that
      side *as contrast*; None means 0.
    tile: Rows and columns of a tile; None means the default of the backend.

  Returns:
    `Weighted(surrogate, contrast_sums, mean_logit)`.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> lse = log_sum_exp(pairs, temperature=0.5)
    >>> weight = jax.tree.map(jnp.negative, lse)  # softmax over negatives
    >>> out = weighted(pairs, temperature=0.5, row_log_weight=weight)
    >>> print(out.surrogate, out.mean_logit.image)  # 3 rows x 2 sides
    6.0 [-2. -2. -2.]
  """
  if contrast_log_weight is None:
    contrast_log_weight = row_log_weight
  sides = each(
    lambda side, *weights: side._replace(extra=weights),
    batch.both_sides(pairs, temperature, bias),
    row_log_weight,
    contrast_log_weight,
  )
  inputs = each(lambda side: (side.vector, side.scale), sides)
  surrogate, *rest = _weighted(tile, inputs, lax.stop_gradient(sides))
  return Weighted(surrogate, *lax.stop_gradient(rest))


class _Sums(NamedTuple):
  """What the second pass adds up for one side."""

  weight: Float[Array, "rows"]  # as anchor: sum_j w_ij
  logit: Float[Array, "rows"]  # as anchor: sum_j w_ij L_ij
  contrast: Float[Array, "rows"]  # as contrast: `contrast_sums`
  vector: Float[Array, "rows dim"]  # d surrogate / d vector via sim_ij, i != j


def _logits(image: batch.Side, text: batch.Side) -> Sides:
  """Returns the logits [image, text] of both sides; -inf except for negatives.

  The rows are the anchors of `.image`, the columns those of `.text`.
  """
  sim = tiles.matmul(image.vector, text.vector.T)
  negative = batch.is_negative(image, text)

  def side(anchor, contrast):
    logits = (sim - anchor.own - contrast.bias) * anchor.scale
    return jnp.where(negative, logits, -jnp.inf)

  tile = batch.broadcastable(image, text)
  return each(side, tile, swap(tile))


def _exp(logits, log_weight):
  """Returns exp(logits + log_weight); 0 where the logit is -inf."""
  # The weight of an anchor without negatives may be inf: -inf + inf is NaN.
  return jnp.where(logits == -jnp.inf, 0.0, jnp.exp(logits + log_weight))


def _times(weights, logits):
  """Multiplies weights and logits; 0 where the logit is -inf."""
  return jnp.where(logits == -jnp.inf, 0.0, weights * logits)


def _add_tile(image, text, image_sums, text_sums):
  """Adds the terms of a tile to both sums."""
  logits = _logits(image, text)
  tile = batch.broadcastable(image, text)
  w = each(lambda x, side: _exp(x, side.extra[0]), logits, tile)
  w_contrast = each(lambda x, side: _exp(x, side.extra[1]), logits, tile)
  w_logit = each(_times, w, logits)
  d_sim = w.image * tile.image.scale + w.text * tile.text.scale
  of_image = _Sums(
    weight=jnp.sum(w.image, axis=1),
    logit=jnp.sum(w_logit.image, axis=1),
    contrast=jnp.sum(w_contrast.text, axis=1),
    vector=tiles.matmul(d_sim, text.vector),
  )
  of_text = _Sums(
    weight=jnp.sum(w.text, axis=0),
    logit=jnp.sum(w_logit.text, axis=0),
    contrast=jnp.sum(w_contrast.image, axis=0),
    vector=tiles.matmul(d_sim.T, image.vector),
  )
  add = partial(jax.tree.map, jnp.add)
  return add(image_sums, of_image), add(text_sums, of_text)


def _zero(side: batch.Side) -> _Sums:
  zeros = jnp.zeros_like(side.own)
  return _Sums(zeros, zeros, zeros, jnp.zeros_like(side.vector))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted(tile, inputs, sides):
  """Returns `Weighted`; the gradient reaches `inputs`, not `sides`."""
  return _weighted_forward(tile, inputs, sides)[0]


def _weighted_forward(tile, inputs, sides):
  sides = each(
    lambda side, x: side._replace(vector=x[0], scale=x[1]), sides, inputs
  )
  sums = batch.over_tiles(_add_tile, _zero, sides, tile=tile)
  total = each(lambda x: jnp.sum(x.weight), sums)
  out = Weighted(
    surrogate=total.image + total.text,
    contrast_sums=each(lambda x: x.contrast, sums),
    mean_logit=each(lambda x: x.logit, sums),
  )
  # All logits of anchor i have the term -sim_ii, which depends on both vectors.
  by_own = each(lambda x, side: -x.weight * side.scale, sums, sides)
  d_own = (by_own.image + by_own.text)[:, None]

  def gradient(sums, side, other):  # d L_ij / d scale_i = L_ij / scale_i
    return sums.vector + d_own * other.vector, sums.logit / side.scale

  gradients = each(gradient, sums, sides, swap(sides))
  return out, _without_derivative(gradients)


def _weighted_backward(tile, gradients, cotangent):
  del tile
  return jax.tree.map(lambda x: cotangent.surrogate * x, gradients), None


_weighted.defvjp(_weighted_forward, _weighted_backward)


@jax.custom_vjp
def _without_derivative(x):
  """Returns x; differentiating it raises an error instead of being wrong."""
  return x


def _refuse(_, cotangent):
  raise NotImplementedError(
    "the gradient of this objective has no derivative: its weights are "
    "treated as constants. Take finite differences of the gradient instead"
  )


_without_derivative.defvjp(lambda x: (x, None), _refuse)

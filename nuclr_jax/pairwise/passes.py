"""The logits of all pairs, and the two passes over their exponentials."""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.pairwise import batch, tiles
from nuclr_jax.types import Pairs, Sides, Temperature, each, swap


class Logits(NamedTuple):
  """The logits of all pairs of a batch, before they are computed."""

  # (vector, 1 / temperature) of each side, which the gradient reaches
  inputs: Sides
  sides: Sides  # the `Side` of images and that of texts, constant
  similarity: Float[Array, "batch batch"] | None  # if one tile holds all
  tile: int | None

  @property
  def own(self) -> Float[Array, "batch"]:
    """The similarity of each image and its own text; constant."""
    return self.sides.image.own


class Weighted(NamedTuple):
  """What the second pass returns."""

  surrogate: Float[Array, ""]  # carries the gradient
  mean_logit: Sides  # [batch] each; .image: images as anchors
  contrast_sums: Sides  # [batch] each; .text: sums over image anchors


def logits(
  pairs: Pairs,
  *,
  temperature: Temperature,
  bias: Sides | None = None,
  tile: int | None = None,
) -> Logits:
  r"""Prepares the logits of a batch for `log_sum_exp` and `weighted`.

  With images as anchors, L_ij = (sim_ij - sim_ii - bias.text_j) /
  temperature.image_i for the negatives j of i; with texts as anchors,
  `bias.image` and `temperature.text` are used instead. On a mesh, this is where
  texts cross devices. The similarities are computed here if one tile holds
  those of a device, else in each pass.

  Args:
    pairs: The batch, with unit-norm embeddings.
    temperature: A scalar, or `Sides` of scalars or [batch] arrays (one per
      anchor); greater than 0.
    bias: `Sides` of [batch] arrays, subtracted from the similarities of that
      side *as contrast*; None means 0.
    tile: Rows and columns of a tile; None means the default of the backend.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> print(logits(pairs, temperature=0.5).own)
    [1. 1. 1.]
  """
  sides = batch.both_sides(pairs, temperature, bias)
  inputs = each(
    lambda vector, side: (vector, side.scale), batch.embeddings(pairs), sides
  )
  sides = lax.stop_gradient(sides)
  return Logits(inputs, sides, batch.similarity_of_one_tile(sides, tile), tile)


def log_sum_exp(logits: Logits) -> Sides:
  r"""Computes log sum_{j negative of i} exp(L_ij) of every anchor i.

  Args:
    logits: What `logits` returned.

  Returns:
    `Sides` of [batch] arrays; -inf where an anchor has no negative. No
    gradient flows through them.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> log_sum_exp(logits(pairs, temperature=0.5)).image
    Array([-1.3068528, -1.3068528, -1.3068528], dtype=float32)
  """
  sums = batch.over_tiles(
    ADD_LOG_SUMS.value,
    lambda side: tiles.no_terms(side.own),
    logits.sides,
    similarity=logits.similarity,
    tile=logits.tile,
    add_up=batch.log_sums_of_devices,
  )
  return each(tiles.log_total, sums)


def weighted(
  logits: Logits,
  *,
  row_log_weight: Sides,
  contrast_factor: Sides | None = None,
) -> Weighted:
  r"""Sums all exponentials with a weight per anchor; differentiates the sum.

  With w_ij = exp(L_ij + row_log_weight_i) over the negatives j of i,

    surrogate       = sum_ij w_ij, summed over both sides;
    mean_logit_i    = sum_j w_ij L_ij;
    contrast_sums_j = sum_i contrast_factor_i w_ij.

  The gradient of `surrogate` reaches the embeddings and the temperature; the
  weights and the bias are treated as constants, and the other two results carry
  no gradient. It is accumulated in the forward pass, so that nothing of size
  [batch, batch] is kept for the backward pass.

  Args:
    logits: What `logits` returned.
    row_log_weight: `Sides` of [batch] arrays, one log weight per anchor (-inf
      removes the anchor).
    contrast_factor: `Sides` of [batch] arrays, finite; None means 1.

  Returns:
    `Weighted(surrogate, mean_logit, contrast_sums)`.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> all_logits = logits(pairs, temperature=0.5)
    >>> lse = log_sum_exp(all_logits)
    >>> weight = jax.tree.map(jnp.negative, lse)  # softmax over negatives
    >>> out = weighted(all_logits, row_log_weight=weight)
    >>> print(out.surrogate, out.mean_logit.image)  # 3 rows x 2 sides
    6.0 [-2. -2. -2.]
  """
  ones = each(jnp.ones_like, row_log_weight)
  weights = row_log_weight, contrast_factor or ones
  sides = each(lambda side, *x: side._replace(extra=x), logits.sides, *weights)
  constants = lax.stop_gradient((logits.inputs, sides, logits.similarity))
  out, gradient = _sums_and_gradient(logits.tile, *constants)
  surrogate = batch.with_gradient(
    _refuse, out.surrogate, logits.inputs, (), gradient
  )
  return out._replace(surrogate=surrogate)


class Sums(NamedTuple):
  """What the second pass adds up for one side."""

  weight: Float[Array, "rows"]  # as anchor: sum_j w_ij
  logit: Float[Array, "rows"]  # as anchor: sum_j w_ij L_ij
  contrast: Float[Array, "rows"]  # as contrast: `contrast_sums`
  vector: Float[Array, "rows dim"]  # d surrogate / d vector via sim_ij, i != j


def tile_logits(sim: Float[Array, "images texts"], sides: Sides) -> Sides:
  """Returns the logits [image, text] of both sides; -inf except for negatives.

  The rows are the anchors of `.image`, the columns those of `.text`.

  Args:
    sim: The similarities of a tile.
    sides: What `batch.broadcastable` returned.
  """
  negative = batch.is_negative(sides)

  def side(anchor, contrast):
    logits = (sim - anchor.own - contrast.bias) * anchor.scale
    return jnp.where(negative, logits, -jnp.inf)

  return each(side, sides, swap(sides))


def tile_weights(
  sim: Float[Array, "images texts"], sides: Sides
) -> tuple[Sides, Float[Array, "images texts"]]:
  """Returns the terms of `Sums` of both sides, and d surrogate / d sim.

  Args:
    sim: The similarities of a tile.
    sides: What `batch.broadcastable` returned, with the log weights and the
      factors of contrasts as `extra`.
  """
  logits = tile_logits(sim, sides)

  def weight(x, side):  # exp(-inf + inf) would be NaN
    return jnp.where(x == -jnp.inf, 0.0, jnp.exp(x + side.extra[0]))

  w = each(weight, logits, sides)
  w_logit = each(lambda x, w: jnp.where(x == -jnp.inf, 0.0, w * x), logits, w)
  w_contrast = each(lambda w, side: w * side.extra[1], w, sides)
  d_sim = w.image * sides.image.scale + w.text * sides.text.scale
  return each(lambda *x: x, w, w_logit, swap(w_contrast)), d_sim


def _add_log_sums(tile, *sums):
  """Adds the exponentials of a tile to both sums of the first pass."""
  logits = tile_logits(batch.similarity(tile), batch.broadcastable(tile))
  return each(tiles.add_terms, Sides(*sums), logits, Sides(1, 0))


def _add_weights(tile, *sums):
  """Adds the terms of a tile to both sums of the second pass."""
  sides = batch.broadcastable(tile)
  terms, d_sim = tile_weights(batch.similarity(tile), sides)
  d_vector = Sides(
    tiles.product(d_sim, tile.text.vector),
    tiles.product(d_sim.T, tile.image.vector),
  )

  def of_side(terms, vector, axis):
    return Sums(*(jnp.sum(x, axis) for x in terms), vector)

  new = each(of_side, terms, d_vector, Sides(1, 0))
  return jax.tree.map(jnp.add, Sides(*sums), new)


# What adds the terms of a tile, as `step` of `batch.over_tiles`. Within a
# context of `contrib.pallas_passes` these are kernels; `jax.jit` traces again.
ADD_LOG_SUMS = jax.make_user_context(_add_log_sums)
ADD_WEIGHTS = jax.make_user_context(_add_weights)


def _zero(side: batch.Side) -> Sums:
  return jax.tree.map(jnp.zeros_like, Sums(*[side.own] * 3, side.vector))


def _sums_and_gradient(tile, inputs, sides, similarity):
  """Returns `Weighted`, and the gradient of the surrogate in the inputs."""
  sums = batch.over_tiles(
    ADD_WEIGHTS.value, _zero, sides, similarity=similarity, tile=tile
  )
  out = Weighted(
    surrogate=jnp.sum(sums.image.weight + sums.text.weight),
    mean_logit=each(lambda x: x.logit, sums),
    contrast_sums=each(lambda x: x.contrast, sums),
  )
  # All logits of anchor i have the term -sim_ii, which depends on both vectors.
  by_own = each(lambda x, side: -x.weight * side.scale, sums, sides)
  d_own = (by_own.image + by_own.text)[:, None]

  def gradient(sums, side, other):  # d L_ij / d scale_i = L_ij / scale_i
    vector, _ = other
    return sums.vector + d_own * vector, sums.logit / side.scale

  gradients = each(gradient, sums, sides, swap(inputs))
  return out, gradients


def _refuse(inputs, constants):
  """Raises an error, since the derivative of the gradient would be wrong."""
  raise NotImplementedError(
    "the gradient of this objective has no derivative: its weights are "
    "treated as constants. Take finite differences of the gradient instead: "
    "(grad(x + h v) - grad(x - h v)) / (2 h) is a Hessian-vector product"
  )

"""The moving average u of every anchor's denominator, kept as log u.

SogCLR, iSogCLR and NUCLR share it. For images as anchors, with n pairs in the
data set, B in the batch and L_ij the logits of `pairwise`,

  phi_i  = (n - 1) / (B - 1) sum_{j != i} exp(L_ij)   (estimates the sum over
                                                       the whole data set)
  u_i   <- (1 - gamma) u_i + gamma phi_i
  loss   = mean_i temperature_i (log(epsilon_i + u_i) + offset)

and the same for texts. Rows never visited hold -inf and take phi.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from nuclr_jax import pairwise, sharding
from nuclr_jax.sample_state.table import log_mean_exp_by_id
from nuclr_jax.types import (
  Popularities,
  Scalar,
  Sides,
  Sizes,
  each,
  unzip,
)


class PairRows(NamedTuple):
  """State of a pair, one row per `pair_id`; .image: images as anchors."""

  log_u: Sides  # [num_pairs] each; -inf = never visited
  temperature: Sides | None = None  # only with individual temperatures
  temperature_momentum: Sides | None = None  # of the gradient of temperature


def unvisited(num_rows: Sides) -> Sides:
  """Returns the first log_u of both sides: -inf, never visited."""
  return each(lambda n: jnp.full(n, -jnp.inf, float), num_rows)


def log_ratio(sizes: Sizes, batch: int) -> float:
  """Returns log((n - 1) / (B - 1)): it scales a batch's sum to the data."""
  return math.log((sizes.num_pairs - 1) / max(batch - 1, 1))


def estimate(logits: pairwise.Logits, sizes: Sizes) -> Sides:
  """Estimates log phi_i of every anchor; -inf where it has no negative."""
  ratio = log_ratio(sizes, len(logits.own))
  return each(lambda x: x + ratio, pairwise.log_sum_exp(logits))


def has_negative(log_phi: Sides) -> Bool[Array, "batch"]:
  """Returns which rows have a negative; it is the same in both directions."""
  return log_phi.image != -jnp.inf


def track(log_u: Sides, ids: Sides, log_phi: Sides, gamma) -> Sides:
  """Moves u <- (1 - gamma) u + gamma phi, in log space.

  phi is averaged (in linear space) over rows of the batch with equal ids.
  A row never visited takes phi; a row without negatives stays as it was.

  Args:
    log_u: The batch's rows.
    ids: The ids of the batch's anchors: of pairs, or of images and texts.
    log_phi: What `estimate` returned.
    gamma: Weight of phi, in (0, 1].

  Returns:
    The batch's new rows.
  """
  phi = jnp.stack(log_mean_exp_by_id(log_phi, ids))
  old = jnp.stack(log_u).astype(phi.dtype)
  moved = jnp.logaddexp(jnp.log1p(-gamma) + old, jnp.log(gamma) + phi)
  new = jnp.where(old == -jnp.inf, phi, moved)
  return Sides(*jnp.where(phi == -jnp.inf, old, new))


class AnchorLoss(NamedTuple):
  """The loss of a batch's anchors, and what the second pass needs from it."""

  value: Scalar  # differentiable in the temperature, with D held constant
  log_denominator: Sides  # log D of each anchor
  row_log_weight: Sides  # each anchor's weight, for `pairwise.weighted`


def anchor_loss(
  log_phi: Sides,
  log_u: Sides,
  log_epsilon: Sides,
  sizes: Sizes,
  *,
  temperature: Sides,
  offset: float = 0.0,
) -> AnchorLoss:
  """Computes the loss with D_i = epsilon_i + u_i, summed over both sides.

  The loss is mean_i temperature_i (log D_i + offset); the encoders' gradient is
  (1 / B) sum_i (temperature_i / D_i) grad phi_i with D held constant. Anchors
  without negatives contribute nothing.

  Args:
    log_phi: What `estimate` returned.
    log_u: What `track` returned, for the batch.
    log_epsilon: The own pair's term; -inf leaves it out. Its dependence on the
      temperature is part of the gradient.
    sizes: The sizes of the data set.
    temperature: Scalars, or one entry per anchor.
    offset: rho - log(number of terms of D), see `temperature_rules`.
  """
  stop = jax.lax.stop_gradient

  def side(log_phi, log_u, log_epsilon, temperature):
    batch = len(log_phi)
    # Without negatives, log_d = -offset gives the anchor a loss of 0.
    log_d = jnp.where(
      log_phi == -jnp.inf, -offset, stop(jnp.logaddexp(log_epsilon, log_u))
    )
    value = temperature * (log_d + offset)
    # d log D / d temperature through epsilon; the second pass adds the part
    # through u. Without an own pair, inf - inf must be avoided.
    own = (log_epsilon != -jnp.inf) & (log_phi != -jnp.inf)
    log_epsilon = jnp.where(own, log_epsilon, 0.0)
    share = jnp.where(own, jnp.exp(log_epsilon - log_d), 0.0)
    through_epsilon = stop(temperature * share) * log_epsilon
    value += through_epsilon - stop(through_epsilon)
    log_weight = jnp.log(temperature / batch) + log_ratio(sizes, batch)
    return value, log_d, log_weight - log_d

  value, log_d, log_weight = unzip(
    each(side, log_phi, log_u, log_epsilon, temperature)
  )
  return AnchorLoss(jnp.mean(value.image + value.text), log_d, log_weight)


def log_u_metrics(log_u: Sides) -> dict[str, Scalar]:
  """Returns the mean log u of the batch's visited rows, per side."""
  rows = jnp.stack(log_u)
  image, text = mean_where(rows, rows != -jnp.inf, axis=1)
  return {"log_u/image": image, "log_u/text": text}


def mean_where(
  x: Float[Array, "*shape"],
  where: Bool[Array, "..."],
  axis: int | None = None,
) -> Float[Array, "*means"]:
  """Returns the mean of `x` where a condition holds; 0 if it holds nowhere.

  Args:
    x: The numbers.
    where: The condition, of a shape that broadcasts to that of `x`.
    axis: The axis to average over; None means all.

  Example:
    >>> print(mean_where(jnp.array([1.0, 2.0, 9.0]), jnp.array([1, 1, 0]) > 0))
    1.5
  """
  count = jnp.sum(jnp.broadcast_to(where, x.shape), axis)
  return jnp.sum(x, axis, where=where) / jnp.maximum(count, 1)


def assign_log_u(pair_rows: PairRows, popularities: Popularities) -> PairRows:
  """Writes log u from outside, at `Popularities.pair_id`; on the host."""
  log_u = each(
    lambda table, x: sharding.replace_rows(table, popularities.pair_id, x),
    pair_rows.log_u,
    popularities.log_u,
  )
  return pair_rows._replace(log_u=log_u)

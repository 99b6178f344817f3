"""The moving average u of every anchor's denominator, kept as log u.

What SogCLR, iSogCLR and NUCLR share. For images as anchors, with n pairs in
the data set, B in the batch and L_ij the logits of `pairwise`,

  phi_i  = (n - 1) / (B - 1) sum_{j != i} exp(L_ij)   (estimates the sum over
                                                       the whole data set)
  u_i   <- (1 - gamma) u_i + gamma phi_i
  loss   = mean_i temperature_i (log(epsilon_i + u_i) + offset)

and likewise for texts. Rows never visited hold -inf and take phi.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import pairwise
from nuclr_jax.objectives import base, rows
from nuclr_jax.types import Pairs, Sides, Sizes, Temperature, each, unzip


class PairRows(NamedTuple):
  """State of a pair, one row per `pair_id`; .image: images as anchors."""

  log_u: Sides  # [num_pairs] each; -inf = never visited
  temperature: Sides | None = None  # only where anchors have their own
  temperature_momentum: Sides | None = None  # likewise


class Shared(NamedTuple):
  """Scalars."""

  count: Int[Array, ""]  # steps done; schedules read it


def unvisited(num_rows: Sides) -> Sides:
  """The first log_u of both sides: -inf, never visited."""
  return each(lambda n: jnp.full(n, -jnp.inf, float), num_rows)


def log_ratio(sizes: Sizes, batch: int) -> float:
  """log((n - 1) / (B - 1)): from a sum over the batch to one over the data."""
  return math.log((sizes.num_pairs - 1) / max(batch - 1, 1))


def estimate(
  pairs: Pairs,
  sizes: Sizes,
  *,
  temperature: Temperature,
  bias: Sides | None = None,
) -> Sides:
  """Estimates log phi_i of every anchor; -inf where it has no negative."""
  ratio = log_ratio(sizes, len(pairs.pair_id))
  lse = pairwise.log_sum_exp(pairs, temperature=temperature, bias=bias)
  return each(lambda x: x + ratio, lse)


def has_negative(log_phi: Sides) -> Bool[Array, "batch"]:
  """Which rows have a negative, in both directions, from `estimate`."""
  return log_phi.image != -jnp.inf


def track(
  log_u: Sides, ids: Sides, log_phi: Sides, gamma, num_rows: Sides
) -> tuple[Sides, Sides]:
  """Moves u <- (1 - gamma) u + gamma phi, in log space.

  phi is averaged (in linear space) over rows of the batch with equal ids.
  A row never visited takes phi; a row without negatives stays as it was.

  Args:
    log_u: Tables, with a row for each id of anchors.
    ids: Of the batch's anchors, pairs or images and texts.
    log_phi: From `estimate`.
    gamma: Weight of phi, in (0, 1].
    num_rows: Of the tables, without padding.

  Returns:
    The tables, and the batch's new rows.
  """

  def side(table, ids, log_phi, num_rows):
    old = rows.read(table, ids, num_rows).astype(log_phi.dtype)
    phi = rows.log_mean_exp_by_id(log_phi, ids)
    moved = jnp.logaddexp(jnp.log1p(-gamma) + old, jnp.log(gamma) + phi)
    new = jnp.where(old == -jnp.inf, phi, moved)
    new = jnp.where(phi == -jnp.inf, old, new)
    return rows.write(table, ids, new, num_rows), new

  return unzip(each(side, log_u, ids, log_phi, num_rows))


def anchor_loss(
  log_phi: Sides,
  log_denominator: Sides,
  sizes: Sizes,
  *,
  temperature: Sides,
  offset: float = 0.0,
) -> tuple[base.Scalar, Sides]:
  """The loss, and the weight of each anchor in its gradient.

  With D_i = epsilon_i + u_i, the loss is mean_i temperature_i (log D_i +
  offset), summed over both sides; the encoders' gradient is
  (1 / B) sum_i (temperature_i / D_i) grad phi_i with D held constant. Anchors
  without negatives add nothing. `temperature` has scalars or one entry per
  anchor; the loss is differentiable in it, again with D held constant.

  Returns:
    The loss and `row_log_weight` for `pairwise.weighted`.
  """

  def side(log_phi, log_denominator, temperature):
    batch = len(log_phi)
    lonely = log_phi == -jnp.inf
    log_denominator = jnp.where(lonely, -offset, log_denominator)
    log_weight = jnp.log(temperature / batch) + log_ratio(sizes, batch)
    loss = jnp.mean(temperature * (log_denominator + offset))
    return loss, log_weight - log_denominator

  loss, log_weight = unzip(each(side, log_phi, log_denominator, temperature))
  return loss.image + loss.text, log_weight


def log_u_metrics(log_u: Sides) -> dict[str, base.Scalar]:
  """Mean log u of the batch's visited rows, per side."""
  image, text = each(lambda x: mean_where(x, x != -jnp.inf), log_u)
  return {"log_u/image": image, "log_u/text": text}


def mean_where(
  x: Float[Array, "*shape"], where: Bool[Array, "*shape"]
) -> base.Scalar:
  """The mean of some numbers; 0 if there is none."""
  return jnp.sum(x, where=where) / jnp.maximum(jnp.sum(where), 1)

"""Popularities: the rows of zeta, their gradient and their step."""

from functools import partial
import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from nuclr_jax.objectives import base, rows
from nuclr_jax.types import (
  Pairs,
  Sides,
  Sizes,
  each,
)

ESTIMATORS = ("unbiased", "paper", "official")


class IdRows(NamedTuple):
  """State of a contrast id, one row per `image_id` or `text_id`."""

  zeta: Float[Array, "ids"]
  momentum: Float[Array, "ids"]  # of the gradient of zeta; 0 = untouched
  log_u: Float[Array, "ids"] | None = None  # only if anchor_average = "id"


def check_rates(rate) -> Sides:
  """Makes a schedule of the rate of each side."""
  check = partial(
    base.check_schedule,
    "zeta_learning_rate",
    low=0.0,
    high=math.inf,
    low_allowed=True,
  )
  return each(check, rate if isinstance(rate, Sides) else Sides(rate, rate))


def init_rows(zeta: float, by_id: bool, sizes: Sizes) -> Sides:
  """The first rows of images and of texts; `by_id` keeps a u per id."""

  def side(num_rows):
    log_u = jnp.full(num_rows, -jnp.inf, float) if by_id else None
    return IdRows(jnp.full(num_rows, zeta, float), jnp.zeros(num_rows), log_u)

  return each(side, sizes.ids)


def read(id_rows: Sides, pairs: Pairs, sizes: Sizes) -> Sides:
  """Zeta of each image and text of the batch."""

  def side(id_rows, ids, num_rows):
    return rows.read(id_rows.zeta, ids, num_rows)

  return each(side, id_rows, pairs.ids, sizes.ids)


def log_weight(log_own: Sides, log_u: Sides, has_negative) -> Sides:
  """-log(epsilon' + u): the weight of an anchor in the gradient of zeta."""
  return each(
    lambda own, u: jnp.where(has_negative, -jnp.logaddexp(own, u), -jnp.inf),
    log_own,
    log_u,
  )


def gradient(
  estimator: str,
  contrast_sums: Sides,
  own_weight: Sides,
  has_negative: Bool[Array, "batch"],
  num_pairs: int,
  *,
  center: bool,
) -> Sides:
  """The gradient of zeta of each contrast row of the batch, see `nuclr`.

  Args:
    estimator: One of `ESTIMATORS`.
    contrast_sums: sum_{i != j} w_ij over the anchors of the batch.
    own_weight: w_jj; as all `Sides` here, filed with the contrast.
    has_negative: Rows without a negative do not count.
    num_pairs: Of the data set.
    center: Whether to subtract the batch mean.
  """

  def side(sums, own):
    n, batch = num_pairs, len(sums)
    all_anchors = (n - 1) / max(batch - 1, 1) * sums
    if estimator == "unbiased":
      gradient = 1 - own - all_anchors
    elif estimator == "paper":
      gradient = 1 - n / batch * (own + all_anchors)
    else:
      gradient = 1 - n / batch * (own + sums)
    if center:
      count = jnp.maximum(jnp.sum(has_negative), 1)
      gradient -= jnp.sum(gradient, where=has_negative) / count
    return gradient

  return each(side, contrast_sums, own_weight)


def move(
  id_rows: Sides,
  pairs: Pairs,
  gradients: Sides,
  has_negative: Bool[Array, "batch"],
  sizes: Sizes,
  *,
  rates: Sides,
  beta: float,
) -> Sides:
  """One step of momentum descent on the rows of the batch, once per id.

  m <- beta m + (1 - beta) g, or g at the first touch; zeta <- zeta - rate m.
  Rows without a negative rest, and all rows while the rate is 0.
  """

  def side(id_rows, ids, gradient, rate, num_rows):
    gradient, touched = rows.mean_by_id(gradient, ids, has_negative)
    touched &= rate != 0
    old = rows.read(id_rows.momentum, ids, num_rows)
    momentum = jnp.where(old == 0, gradient, beta * old + (1 - beta) * gradient)
    momentum = jnp.where(touched, momentum, old)
    zeta = rows.read(id_rows.zeta, ids, num_rows)
    zeta = jnp.where(touched, zeta - rate * momentum, zeta)
    return id_rows._replace(
      zeta=rows.write(id_rows.zeta, ids, zeta, num_rows),
      momentum=rows.write(id_rows.momentum, ids, momentum, num_rows),
    )

  return each(side, id_rows, pairs.ids, gradients, rates, sizes.ids)


def metrics(zeta: Sides, xi: Sides):
  """Spread of zeta over the batch's rows, and xi, per side."""
  return {
    "zeta/image_std": jnp.std(zeta.image),
    "zeta/text_std": jnp.std(zeta.text),
    "xi/image": xi.image,
    "xi/text": xi.text,
  }

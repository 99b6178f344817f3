"""Popularities: the rows of zeta, their gradient and their step."""

from functools import partial
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

from nuclr_jax import checks
from nuclr_jax.objectives import base, rows
from nuclr_jax.types import Pairs, Sides, Sizes, both, each, swap, unzip

ESTIMATORS = ("unbiased", "paper", "official", "sinkhorn")


class ZetaRows(NamedTuple):
  """State of a contrast id, one row per `image_id` or `text_id`."""

  zeta: Float[Array, "ids"]
  # Of the gradient of zeta; 0 = untouched. None if zeta_momentum = 0.
  momentum: Float[Array, "ids"] | None = None
  log_u: Float[Array, "ids"] | None = None  # only if anchor_average = "id"


class ZetaSettings(NamedTuple):
  """How zeta starts and moves, see `nuclr`."""

  init: Sides  # numbers, or one for each row
  estimator: str
  center: bool
  rates: Sides  # schedules
  momentum: float


def check_settings(
  sizes: Sizes,
  *,
  zeta_init,
  zeta_estimator,
  zeta_center,
  zeta_learning_rate,
  zeta_momentum,
) -> ZetaSettings:
  """Checks the arguments of `nuclr` that begin with zeta.

  Raises:
    ValueError: If one is out of its range.
  """
  checks.choice("zeta_estimator", zeta_estimator, ESTIMATORS)
  check_rate = partial(
    checks.schedule,
    "zeta_learning_rate",
    low=0.0,
    high=math.inf,
    low_allowed=True,
  )
  if zeta_learning_rate is None:
    zeta_learning_rate = 0.3 if zeta_estimator == "sinkhorn" else 1e-3
  center = zeta_center
  if center is None:
    center = zeta_estimator in ("unbiased", "sinkhorn")
  checks.choice("zeta_center", center, (False, True))
  return ZetaSettings(
    each(_check_init, both(zeta_init), sizes.ids),
    zeta_estimator,
    center,
    each(check_rate, both(zeta_learning_rate)),
    checks.momentum("zeta_momentum", zeta_momentum),
  )


def _check_init(zeta_init, num_rows: int):
  """A float, or a finite array with a row per id."""
  if np.ndim(zeta_init) == 0:
    return checks.number(
      "zeta_init", zeta_init, "a finite number", math.isfinite
    )
  zeta_init = np.asarray(zeta_init, float)
  if zeta_init.shape != (num_rows,) or not np.isfinite(zeta_init).all():
    raise ValueError(
      f"zeta_init must be finite, one number for each of {num_rows} ids (of "
      f"images, or of texts); got {list(zeta_init.shape)} with "
      f"{np.sum(~np.isfinite(zeta_init))} that are not finite"
    )
  return zeta_init


def init_rows(settings: ZetaSettings, sizes: Sizes, *, by_id: bool) -> Sides:
  """The first rows of images and of texts; `by_id` keeps a u per id."""

  def side(num_rows, first):
    zeta = jnp.broadcast_to(jnp.asarray(first, float), num_rows)
    momentum = jnp.zeros(num_rows) if settings.momentum else None
    log_u = jnp.full(num_rows, -jnp.inf, float) if by_id else None
    return ZetaRows(zeta, momentum, log_u)

  return each(side, sizes.ids, settings.init)


def read(id_rows: Sides, pairs: Pairs, sizes: Sizes) -> Sides:
  """Zeta of each image and text of the batch."""

  def side(id_rows, ids, num_rows):
    return rows.read(id_rows.zeta, ids, num_rows)

  return each(side, id_rows, pairs.ids, sizes.ids)


def gradient(
  estimator: str, contrast_sums: Sides, log_own: Sides, log_u: Sides, n: int
) -> Sides:
  """Estimates of the gradient of zeta by the anchors of a batch, see `nuclr`.

  Args:
    estimator: "unbiased", "paper" or "official".
    contrast_sums: sum_{i != j} w_ij over the anchors of the batch, filed with
      the contrast j.
    log_own: log epsilon', filed with the anchor.
    log_u: Likewise; w_jj = epsilon' / (epsilon' + u).
    n: Pairs of the data set.

  Returns:
    One number for each row of the batch, filed with the contrast.
  """
  own_weight = each(lambda o, u: jax.nn.sigmoid(o - u), log_own, log_u)

  def side(sums, own):
    batch = len(sums)
    all_anchors = (n - 1) / max(batch - 1, 1) * sums
    if estimator == "unbiased":
      return 1 - own - all_anchors
    if estimator == "paper":
      return 1 - n / batch * (own + all_anchors)
    return 1 - n / batch * (own + sums)

  return each(side, contrast_sums, swap(own_weight))


def step(
  settings: ZetaSettings,
  id_rows: Sides,
  pairs: Pairs,
  gradient: Sides,
  has_negative: Bool[Array, "batch"],
  count: Int[Array, ""],
  sizes: Sizes,
) -> tuple[Sides, Sides]:
  """One step of momentum descent on the rows of the batch, once per id.

  m <- beta m + (1 - beta) g, or g at the first touch; zeta <- zeta - rate m.
  Rows without a negative rest, and all rows while the rate is 0.

  Args:
    settings: As `check_settings` returns them.
    id_rows: `ZetaRows` of images and of texts.
    pairs: The batch.
    gradient: Of each row's zeta, of images and of texts.
    has_negative: False rows do not count.
    count: Steps done.
    sizes: Of the data set.

  Returns:
    The new `ZetaRows` of both sides, and their zeta of the batch.
  """

  def side(id_rows, ids, gradient, rate, num_rows):
    rate = rate(count)
    if settings.center:
      num_valid = jnp.maximum(jnp.sum(has_negative), 1)
      gradient -= jnp.sum(gradient, where=has_negative) / num_valid
    gradient, touched = rows.mean_by_id(gradient, ids, has_negative)
    touched &= rate != 0
    beta, table = settings.momentum, id_rows.momentum
    if table is not None:
      old = rows.read(table, ids, num_rows)
      mixed = beta * old + (1 - beta) * gradient
      gradient = jnp.where(old == 0, gradient, mixed)
      moved = jnp.where(touched, gradient, old)
      table = rows.write(table, ids, moved, num_rows)
    zeta = rows.read(id_rows.zeta, ids, num_rows)
    zeta = jnp.where(touched, zeta - rate * gradient, zeta)
    zeta_table = rows.write(id_rows.zeta, ids, zeta, num_rows)
    return id_rows._replace(zeta=zeta_table, momentum=table), zeta

  args = id_rows, pairs.ids, gradient, settings.rates, sizes.ids
  return unzip(each(side, *args))


def metrics(zeta: Sides, xi: Sides) -> dict[str, base.Scalar]:
  """Spread of zeta over the batch's rows, and xi, per side."""
  return {
    "zeta/image_std": jnp.std(zeta.image),
    "zeta/text_std": jnp.std(zeta.text),
    "xi/image": xi.image,
    "xi/text": xi.text,
  }

r"""Rows of zeta, the popularity of every image and every text as contrast.

A gradient g_j of the batch moves row j, once per id,

  m_j    <- beta m_j + (1 - beta) g_j, or g_j at the first touch
  zeta_j <- zeta_j - rate tau m_j,

with tau the first temperature of the objective: zeta acts only through
zeta / tau, so one dimensionless rate means the same at every temperature and
for every rule. The gradients come from a `ZetaRule`, see `zeta_rules`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from nuclr_jax import checks, sharding
from nuclr_jax.sample_state import denominator
from nuclr_jax.sample_state.table import mean_by_id
from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Popularities,
  PyTree,
  Sides,
  Sizes,
  Spec,
  both,
  each,
)


class ZetaRows(NamedTuple):
  """State of a contrast id, one row per `image_id` or `text_id`."""

  zeta: Float[Array, "ids"]
  # Averages the gradient of zeta; 0 = untouched, None = rule without momentum.
  momentum: Float[Array, "ids"] | None = None
  # The average of this id as anchor, with `anchor_average="id"`.
  log_u: Float[Array, "ids"] | None = None


class Evidence(NamedTuple):
  """What a step knows about the batch when the rules move.

  Fields are filed under the anchor (`.image`: images as anchors), except `zeta`
  and `contrast_sums`, which are filed under the contrast.
  """

  pairs: Pairs  # with all texts on every device
  own: Float[Array, "batch"]  # sim_ii of every pair
  tables: Sides  # `ZetaRows` of all images and texts, before the step
  zeta: Sides  # of the batch's images and texts, before the step
  tau: Sides  # of each anchor: scalars or [batch]
  log_phi: Sides  # the batch's estimates of denominators; -inf = no negative
  log_u: Sides  # their averages, this batch included
  log_own: Sides  # log epsilon', the own pair's term
  contrast_sums: Sides  # sum_{i != j} w_ij over the anchors of the batch
  count: Int[Array, ""]  # steps done; schedules read it


class ZetaRule(NamedTuple):
  """How zeta starts, moves, and is written from outside.

  `init` and `assign` deal with tables, `step` with the rows of a batch.
  """

  init: Callable[[], tuple[Sides, PyTree]]  # -> (`ZetaRows` sides, memory)
  # (`ZetaRows` sides of the batch, memory, evidence) -> (rows, memory)
  step: Callable[[Sides, PyTree, Evidence], tuple[Sides, PyTree]]
  # (tables, memory, popularities) -> (tables, memory); on the host
  assign: Callable[[Sides, PyTree, Popularities], tuple[Sides, PyTree]]


# What the functions of `zeta_rules` return: a function that makes the rule from
# the spec of a data set and the first temperature of the objective.
Unbound = Callable[[Spec, float], ZetaRule]


class Settings(NamedTuple):
  """How rows of zeta move, after checks."""

  rate: Sides  # schedules
  momentum: float
  center: bool


def check_settings(init, rate, momentum, center, *, kind) -> Settings:
  """Checks the arguments of rules with a rate of this kind.

  Raises:
    ValueError: If one is out of its range.
  """
  check_init(init)
  checks.choice("zeta.center", center, bool)
  rates = each(
    lambda x: checks.schedule("zeta.rate", x, kind),
    both(rate),
  )
  return Settings(rates, checks.momentum("zeta.momentum", momentum), center)


def check_init(init: Number | Sides) -> None:
  """Raises ValueError unless all first values of zeta are finite."""
  for side, x in zip(Sides._fields, both(init), strict=True):
    wrong = ~np.isfinite(np.asarray(x, float))
    if np.any(wrong):
      raise ValueError(
        f"zeta.init must be finite, got {np.sum(wrong)} {side} value(s) that "
        f"are not ({init if np.ndim(x) == 0 else 'an array'})"
      )


def first_rows(
  init: Number | Sides, sizes: Sizes, *, momentum: float | bool
) -> Sides:
  """Returns the first `ZetaRows` of images and of texts.

  Raises:
    ValueError: If `init` does not have as many numbers as there are ids.
  """

  def side(num_rows, first):
    if np.ndim(first) and np.shape(first) != (num_rows,):
      raise ValueError(
        f"zeta.init must have one number for each of {num_rows} ids (of "
        f"images, or of texts), got {list(np.shape(first))}"
      )
    # A copy: the caller's array is not to be donated with the state.
    zeta = jnp.array(jnp.broadcast_to(first, num_rows), float)
    return ZetaRows(zeta, jnp.zeros(num_rows) if momentum else None)

  return each(side, sizes.ids, both(init))


def move_zeta(
  settings: Settings,
  rows: Sides,
  evidence: Evidence,
  gradient: Sides,
  temperature: float,
) -> Sides:
  """Takes one step of momentum descent on the batch's rows, once per id.

  Rows without a negative do not move; while the rate is 0, no row moves.

  Args:
    settings: What `check_settings` returned.
    rows: `ZetaRows` of the batch's images and texts.
    evidence: The evidence of the batch.
    gradient: The gradient of each row's zeta, of images and of texts;
      dimensionless.
    temperature: The unit of the rate.

  Returns:
    The new `ZetaRows` of both sides.
  """
  has_negative = denominator.has_negative(evidence.log_phi)

  def side(rows, gradient, touched, rate):
    rate = rate(evidence.count)
    touched &= rate != 0
    beta, old = settings.momentum, rows.momentum
    if old is not None:
      mixed = beta * old + (1 - beta) * gradient
      gradient = jnp.where(old == 0, gradient, mixed)
      rows = rows._replace(momentum=jnp.where(touched, gradient, old))
    moved = rows.zeta - rate * temperature * gradient
    return rows._replace(zeta=jnp.where(touched, moved, rows.zeta))

  if settings.center:
    sides = jnp.stack(gradient)
    mean = denominator.mean_where(sides, has_negative, axis=1)
    gradient = Sides(*(sides - mean[:, None]))
  means = mean_by_id(gradient, evidence.pairs.ids, has_negative)
  return each(side, rows, *means, settings.rate)


def assign_zeta(id_rows: Sides, popularities: Popularities) -> Sides:
  """Writes zeta from outside; the momentum of these rows is reset."""

  def side(rows, ids, zeta):
    momentum = rows.momentum
    if momentum is not None:
      momentum = sharding.replace_rows(momentum, ids, 0.0)
    zeta = sharding.replace_rows(rows.zeta, ids, zeta)
    return rows._replace(zeta=zeta, momentum=momentum)

  return each(side, id_rows, popularities.ids, popularities.zeta)


def zeta_metrics(zeta: Sides, xi: Sides) -> Metrics:
  """Returns the spread of zeta over the batch's rows, and xi, per side."""
  image, text = jnp.std(jnp.stack(zeta), axis=1)
  return {
    "zeta/image_std": image,
    "zeta/text_std": text,
    "xi/image": xi.image,
    "xi/text": xi.text,
  }

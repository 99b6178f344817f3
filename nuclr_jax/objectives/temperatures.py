"""Temperatures that are learned: one for all anchors, or one for each.

One for all is a parameter, `params["log_scale"]` = -log(temperature), moved by
the optimizer. Individual ones are state, moved by their own momentum descent.
"""

from functools import partial
import math
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
import optax

from nuclr_jax import checks
from nuclr_jax.objectives import base, rows
from nuclr_jax.objectives.denominator import PairRows
from nuclr_jax.types import (
  Number,
  Pairs,
  Params,
  ScalarOrSchedule,
  Sides,
  Sizes,
  both,
  each,
  unzip,
)

NO_OWN_PAIR = both(-jnp.inf)  # log 0
MAX_SCALE = 100.0  # of 1 / temperature, as in the CLIP paper
MAX_GRADIENT = 5.0  # of an individual temperature, as in the iSogCLR code


def init_params(temperature: float, learn: bool) -> Params:
  """`log_scale` of one learned temperature; nothing if it is fixed."""
  if not learn:
    return {}
  return {"log_scale": jnp.full((), -math.log(temperature), float)}


def one_for_all(params: Params, temperature: float) -> Number:
  """The learned temperature, or the fixed one.

  1 / temperature stays at or below `MAX_SCALE`, or its first value if that is
  higher. There the gradient is 0 if it would raise `log_scale` further, and
  whole if it leads back.
  """
  if "log_scale" not in params:
    return temperature
  highest = max(math.log(MAX_SCALE), -math.log(temperature))
  return jnp.exp(-_at_most(params["log_scale"], highest))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _at_most(x, highest):
  """min(x, highest), whose gradient can lead back from above."""
  return jnp.minimum(x, highest)


def _at_most_forward(x, highest):
  return jnp.minimum(x, highest), x > highest


def _at_most_backward(highest, above, gradient):
  return (jnp.where(above & (gradient < 0), 0, gradient),)


_at_most.defvjp(_at_most_forward, _at_most_backward)


class TemperatureSettings(NamedTuple):
  """How individual temperatures start and move, see `isogclr`."""

  init: float
  low: float
  high: float
  learning_rate: optax.Schedule
  rho: float
  momentum: float


def check_settings(
  *,
  temperature: float,
  temperature_range: tuple[float, float],
  temperature_learning_rate: ScalarOrSchedule,
  temperature_momentum: float,
  rho: float,
) -> TemperatureSettings:
  """Checks the arguments that `isogclr` and `nuclr` share.

  Raises:
    ValueError: If one is out of its range.
  """
  try:
    low, high = (checks.temperature(x) for x in temperature_range)
  except (TypeError, ValueError):
    low, high = math.nan, math.nan
  if not low <= temperature <= high:
    raise ValueError(
      "temperature_range must be (low, high) with 0 < low <= temperature <= "
      f"high, got {temperature_range!r} and temperature {temperature}"
    )
  rate = checks.schedule(
    "temperature_learning_rate",
    temperature_learning_rate,
    low=0.0,
    high=math.inf,
    low_allowed=True,
  )
  momentum = checks.momentum("temperature_momentum", temperature_momentum)
  return TemperatureSettings(
    temperature, low, high, rate, checks.rho(rho), momentum
  )


def offset(rho: float, num_terms: int) -> float:
  """Rho - log(number of terms of D), which makes rho a KL divergence.

  Warns where rho is too large: no weights on so many terms differ as much from
  uniform ones, so that a learned temperature can only fall.
  """
  largest = math.log(num_terms)
  if rho >= largest:
    warnings.warn(
      f"rho is {rho:g}, but log(number of pairs) is {largest:.3g}: learned "
      "temperatures can only fall; give a smaller rho",
      stacklevel=3,
    )
  return rho - largest


def init_rows(settings: TemperatureSettings, sizes: Sizes) -> dict[str, Sides]:
  """The first rows of `PairRows.temperature` and `.temperature_momentum`."""

  def full(value):
    return jnp.full(sizes.num_pairs, value, float)

  first = settings.init
  return dict(
    temperature=Sides(full(first), full(first)),
    temperature_momentum=Sides(full(0.0), full(0.0)),
  )


def read(pair_rows: PairRows, pairs: Pairs, sizes: Sizes) -> Sides:
  """The temperature of each anchor of the batch, both sides."""
  read_side = partial(rows.read, ids=pairs.pair_id, num_rows=sizes.num_pairs)
  return each(read_side, pair_rows.temperature)


def step(
  settings: TemperatureSettings,
  pair_rows: PairRows,
  pairs: Pairs,
  log_denominator: Sides,
  mean_logit: Sides,
  has_negative: Bool[Array, "batch"],
  count: Int[Array, ""],
  sizes: Sizes,
  *,
  offset: float,
  log_own: Sides = NO_OWN_PAIR,
) -> PairRows:
  r"""One step of clipped momentum descent, once per pair of the batch.

  The loss temperature_i (log D_i + offset), D_i a sum of exp(L_ij) whose
  logits are proportional to 1 / temperature_i, has the derivative

    g_i = log D_i + offset - sum_j w_ij L_ij, w_ij = exp(L_ij) / D_i.

  m <- beta m + (1 - beta) clip(g); temperature <- clip(temperature - rate m).
  Pairs without a negative rest, and all pairs while the rate is 0.

  Args:
    settings: As `check_settings` returns them.
    pair_rows: The rows to move.
    pairs: The batch.
    log_denominator: log D_i of each anchor.
    mean_logit: From `pairwise.weighted` with the weights of
      `denominator.anchor_loss`, (temperature_i / B) sum_j w_ij L_ij.
    has_negative: False rows do not count.
    count: Steps done.
    sizes: Of the data set.
    offset: rho - log(number of terms of D).
    log_own: The own pair's logit; -inf if it is no term of D.
  """
  rate, beta = settings.learning_rate(count), settings.momentum
  ids, num_rows = pairs.pair_id, sizes.num_pairs

  def side(temperature, momentum, log_d, mean, log_own):
    value = rows.read(temperature, ids, num_rows)
    mean = mean * len(ids) / value
    own = jnp.where(
      log_own == -jnp.inf, 0.0, jnp.exp(log_own - log_d) * log_own
    )
    g = jnp.clip(log_d + offset - mean - own, -MAX_GRADIENT, MAX_GRADIENT)
    g, touched = rows.mean_by_id(g, ids, has_negative)
    touched &= rate != 0
    old = rows.read(momentum, ids, num_rows)
    new = jnp.where(touched, beta * old + (1 - beta) * g, old)
    moved = jnp.clip(value - rate * new, settings.low, settings.high)
    return (
      rows.write(temperature, ids, jnp.where(touched, moved, value), num_rows),
      rows.write(momentum, ids, new, num_rows),
    )

  temperature, momentum = unzip(
    each(
      side,
      pair_rows.temperature,
      pair_rows.temperature_momentum,
      log_denominator,
      mean_logit,
      log_own,
    )
  )
  return pair_rows._replace(
    temperature=temperature, temperature_momentum=momentum
  )


def metrics(temperature: Sides) -> dict[str, base.Scalar]:
  """Mean temperature of the batch's anchors, per side."""
  return {
    "temperature/image": jnp.mean(temperature.image),
    "temperature/text": jnp.mean(temperature.text),
  }

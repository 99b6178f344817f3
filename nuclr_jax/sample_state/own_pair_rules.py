r"""Rules for epsilon, the weight of an anchor's own pair in its denominator.

An anchor's denominator is epsilon_i + u_i. In the paper, epsilon_i =
exp(-xi / tau) with xi the greatest |zeta| of the contrast so far, a constant
within a step; the rules differ in xi. All take a factor `weight` k,

  epsilon_i = k exp(-xi / tau):

k = 0 leaves the own pair out as SogCLR does, k = 1 is NUCLR, and
k = (n - 1) / (B - 1) at gamma = 1 and zeta = 0 has the gradient of InfoNCE. The
factor is part of the encoders' denominator only: in the gradient of zeta, the
own pair always counts once.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nuclr_jax import checks
from nuclr_jax.sample_state.table import greatest
from nuclr_jax.sample_state.zeta import Evidence
from nuclr_jax.types import Sides, Spec, both, each, swap


class OwnPairRule(NamedTuple):
  """How xi starts and moves, and what epsilon is made of.

  xi is filed under the contrast: `.text` is used with images as anchors.
  """

  init: Callable[[Sides], Sides]  # `ZetaRows` of both sides -> xi
  log_weight: float  # log k
  # (xi, log epsilon', tau) -> log(epsilon / k), by anchor
  logit: Callable[[Sides, Sides, Sides], Sides]
  # (xi, new tables of `ZetaRows`, the batch's new zeta, evidence) -> xi
  step: Callable[[Sides, Sides, Sides, Evidence], Sides]


Unbound = Callable[[Spec], OwnPairRule]  # makes the rule of a data set


def running_max(
  *, weight: checks.NonNegative = 1.0, init: checks.NonNegative | None = None
) -> Unbound:
  """Makes the paper's rule: xi is the greatest |zeta| so far.

  Args:
    weight: The factor k, at least 0.
    init: First xi, at least 0; None means the greatest |zeta| at the start.

  Returns:
    A rule for `nuclr_variant`'s argument `own_pair`.

  Raises:
    ValueError: If a number is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr_variant(
    ...   num_pairs=4, own_pair=running_max(init=0.3)
    ... )
    >>> print(objective.init()[1].shared.xi.text)
    0.3
  """
  log_weight = _check_weight(weight)
  if init is not None:
    init = checks.weight("own_pair.init", init)

  def first(id_rows):
    largest = each(lambda rows: jnp.max(jnp.abs(rows.zeta)), id_rows)
    if init is None:
      return largest
    return each(lambda x: jnp.full_like(x, init), largest)

  return lambda spec: OwnPairRule(
    first,
    log_weight,
    lambda xi, log_own, tau: _by_xi(xi, tau),
    lambda xi, id_rows, zeta, evidence: _running_max(xi, zeta),
  )


def released(
  *, weight: checks.NonNegative = 1.0, init: checks.NonNegative = 0.0
) -> Unbound:
  """Makes the released code's rule: the greatest signed zeta, once an epoch.

  xi <- max(max_j zeta_j, init) over all rows after the last step of an epoch.
  It is not the greatest |zeta|, and it can fall. With zeta starting at -0.05
  and init = 0 it stays 0, so that epsilon = 1, until some zeta is positive: for
  most of the published CC3M run.

  Args:
    weight: The factor k, at least 0.
    init: First xi, and its smallest value; at least 0.

  Returns:
    A rule for `nuclr_variant`'s argument `own_pair`. It needs a `Spec` with
    `steps_per_epoch`.

  Raises:
    ValueError: If a number is out of its range, or the length of an epoch is
      unknown.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr_variant(
    ...   num_pairs=4, steps_per_epoch=10, own_pair=released()
    ... )
    >>> print(objective.init()[1].shared.xi.text)
    0.0

  Reference: the code released with Wang et al., ICLR 2025.
  """
  log_weight = _check_weight(weight)
  init = checks.weight("own_pair.init", init)

  def bind(spec):
    spec = spec.require("steps_per_epoch", what="the own-pair rule 'released'")

    def step(xi, id_rows, zeta, evidence):
      del zeta
      ends = (evidence.count + 1) % spec.steps_per_epoch == 0

      def side(xi, rows, num_rows):
        return jax.lax.cond(
          ends,
          lambda zeta: jnp.maximum(greatest(zeta, num_rows), init),
          lambda zeta: xi,
          rows.zeta,
        )

      return each(side, xi, id_rows, spec.sizes.ids)

    return OwnPairRule(
      lambda id_rows: each(
        lambda rows: jnp.full((), init, rows.zeta.dtype), id_rows
      ),
      log_weight,
      lambda xi, log_own, tau: _by_xi(xi, tau),
      step,
    )

  return bind


def by_zeta(*, weight: checks.NonNegative = 1.0) -> Unbound:
  """Makes the ablation NUCLR-diamond's: epsilon_i = k exp(-zeta_i / tau).

  zeta_i belongs to the anchor's own contrast. xi is kept as in `running_max`,
  but only for the record.

  Args:
    weight: The factor k, at least 0.

  Returns:
    A rule for `nuclr_variant`'s argument `own_pair`.

  Raises:
    ValueError: If the weight is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr_variant(num_pairs=4, own_pair=by_zeta())
  """
  paper = running_max(weight=weight)

  def bind(spec):
    return paper(spec)._replace(logit=lambda xi, log_own, tau: log_own)

  return bind


def _check_weight(weight) -> float:
  """Returns the logarithm of a weight; -inf for 0."""
  weight = checks.weight("own_weight", weight)
  return math.log(weight) if weight else -math.inf


def _by_xi(xi: Sides, tau: Sides) -> Sides:
  # An anchor's own pair is a contrast of the other side, hence the swap.
  return each(lambda x, t: -x / t, swap(xi), tau)


def _running_max(xi: Sides, zeta: Sides) -> Sides:
  greatest = Sides(*jnp.max(jnp.abs(jnp.stack(zeta)), axis=1))
  return each(jnp.maximum, xi, greatest)


def raise_to(xi: Sides, zeta: Sides) -> Sides:
  """Raises xi to the greatest |zeta| of the values written from outside."""
  return each(
    lambda x, z: jax.device_put(
      jnp.maximum(x, jnp.max(jnp.abs(jnp.asarray(z, x.dtype)))), x.sharding
    ),
    xi,
    both(zeta),
  )

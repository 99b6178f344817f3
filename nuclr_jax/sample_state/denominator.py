r"""An anchor's denominator, epsilon_i + u_i: the positive's term and the rest.

u is the moving average of the negatives' sum, kept as log u. SogCLR, iSogCLR
and NUCLR share it. For images as anchors, with n pairs in the data set, B in
the batch and L_ij the logits of `pairwise`,

  phi_i  = (n - 1) / (B - 1) sum_{j != i} exp(L_ij)   (estimates the sum over
                                                       the whole data set)
  u_i   <- (1 - gamma) u_i + gamma phi_i
  loss   = mean_i temperature_i (log(epsilon_i + u_i) + offset)

and the same for texts. Rows never visited hold -inf and take phi.

epsilon is the weight of the positive. In the paper, epsilon_i = exp(-xi / tau)
with xi the greatest |zeta| of the contrast so far, a constant within a step;
the rules `running_max`, `released` and `by_zeta` differ in xi. All take a
factor `weight` k,

  epsilon_i = k exp(-xi / tau):

k = 0 leaves the positive out as SogCLR does, k = 1 is NUCLR, and
k = (n - 1) / (B - 1) at gamma = 1 and zeta = 0 has the gradient of InfoNCE. The
factor is part of the encoders' denominator only: in the gradient of zeta, the
positive always counts once.
"""

from collections.abc import Callable
import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import checks, pairwise, sharding
from nuclr_jax.sample_state.table import greatest, log_mean_exp_by_id
from nuclr_jax.types import (
  Pairs,
  Popularities,
  Scalar,
  Sides,
  Sizes,
  both,
  each,
  shows_its_call,
  swap,
  unzip,
)

AnchorAverage = checks.one_of(("pair", "id"))  # what has a row of log u


class PairRows(NamedTuple):
  """State of a pair, one row per `pair_id`; .image: images as anchors."""

  log_u: Sides  # [num_pairs] each; -inf = never visited
  temperature: Sides | None = None  # only with individual temperatures
  temperature_momentum: Sides | None = None  # of the gradient of temperature


@checks.checked
def averages_by_id(anchor_average: AnchorAverage, *, individual: bool) -> bool:
  """Returns whether `anchor_average` is "id", one u per image id and text id.

  Args:
    anchor_average: "pair" or "id".
    individual: Whether temperatures are individual.

  Raises:
    ValueError: If it is neither "pair" nor "id", or "id" with individual
      temperatures.
  """
  by_id = anchor_average == "id"
  if by_id and individual:
    raise ValueError(
      "anchor_average must be 'pair' with individual temperatures, got 'id': a "
      "u per id would mix the temperatures of its pairs"
    )
  return by_id


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


class Adaptive(NamedTuple):
  r"""Gives each anchor a gamma from its own denominator, as SCENT does.

  With v_i = (epsilon_i + u_i) / (n - 1), the denominator's mean over the data,

    gamma_i = alpha v_i / (1 + alpha v_i)    (v_i before the step).

  It is the proximal step of log v_i, so that v_i never overshoots. A v_i far
  above 1 / alpha falls to that in one visit, and a v_i below it rises within
  two; only below 1 / alpha are estimates averaged, over about 1 / (alpha v_i)
  visits. So it follows large changes, where a constant gamma lets log u fall by
  at most -log(1 - gamma) in a visit, and smooths what is small.

  A v_i below `epsilon` counts as that much here, so that gamma_i has a least
  value, and the sum of an anchor's weights, at most 1 / gamma_i, a greatest
  one: 1 + 1 / (alpha epsilon), which is 46 with the published numbers. With 0,
  the gradient of an anchor that was solved, and no longer is, has no bound: it
  may overflow where the loss is finite.

  Attributes:
    log_alpha: log alpha, a finite number; the published one is 10. A large one
      is gamma = 1, a very negative one freezes u.
    epsilon: The least v_i that counts, at least 0. The published code adds it
      to every v_i, in the loss too: `positive_weight` of (n - 1) epsilon.

  Example:
    >>> from nuclr_jax import objectives
    >>> n = 1_000
    >>> scent = objectives.sogclr(
    ...   num_pairs=n, gamma=Adaptive(), positive_weight=1e-6 * (n - 1)
    ... )

  Reference: SCENT, ICML 2026 (arXiv 2602.02877).
  """

  log_alpha: checks.Finite = 10.0
  epsilon: checks.NonNegative = 1e-6


GammaOrRule = Annotated[
  float | checks.Schedule | Adaptive,
  checks.Range(
    "in (0, 1], a schedule of the step count, or denominator.Adaptive()",
    lambda x: (
      all(map(checks.fits, x, (checks.Finite, checks.NonNegative)))
      if isinstance(x, Adaptive)
      else 0 < x <= 1
    ),
  ),
]


def log_weights(
  gamma: checks.Schedule | Adaptive,
  count: Int[Array, ""],
  log_u: Sides,
  log_epsilon: Sides,
  sizes: Sizes,
) -> tuple[Float[Array, "*anchors"], Float[Array, "*anchors"]]:
  """Returns log(1 - gamma) and log gamma, for `track`.

  Args:
    gamma: What a checked argument `GammaOrRule` holds.
    count: The steps done, which a schedule reads.
    log_u: The rows before the step.
    log_epsilon: The positive's terms; -inf leaves them out.
    sizes: The sizes of the data set.

  Returns:
    Scalars or, if anchors have their own gamma, [2, batch].
  """
  if not isinstance(gamma, Adaptive):
    return log_shares(gamma(count))
  log_d = jnp.stack(each(jnp.logaddexp, log_epsilon, log_u))
  log_v = log_d - math.log(sizes.num_pairs - 1)
  logit = gamma.log_alpha + jnp.maximum(log_v, log_of(gamma.epsilon))
  return jax.nn.log_sigmoid(-logit), jax.nn.log_sigmoid(logit)


def log_shares(x: Scalar | float) -> tuple[Scalar, Scalar]:
  """Returns log(1 - x) and log x of a weight x.

  What rounding puts beyond [0, 1] counts as the end of it; what is farther
  away gives NaN.
  """
  x = jnp.where(jnp.abs(x - 0.5) > 0.5 + checks.ROUNDING, x, jnp.clip(x, 0, 1))
  return jnp.log1p(-x), jnp.log(x)


def track(
  log_u: Sides,
  ids: Sides,
  log_phi: Sides,
  log_weights: tuple[Float[Array, "*anchors"], Float[Array, "*anchors"]],
) -> Sides:
  """Moves u <- (1 - gamma) u + gamma phi, in log space.

  phi is averaged (in linear space) over rows of the batch with equal ids.
  A row never visited takes phi; a row without negatives stays as it was.

  Args:
    log_u: The batch's rows.
    ids: The ids of the batch's anchors: of pairs, or of images and texts.
    log_phi: What `estimate` returned.
    log_weights: log(1 - gamma) and log gamma.

  Returns:
    The batch's new rows.
  """
  log_kept, log_gamma = log_weights
  phi = jnp.stack(log_mean_exp_by_id(log_phi, ids))
  old = jnp.stack(log_u).astype(phi.dtype)
  moved = jnp.logaddexp(log_kept + old, log_gamma + phi)
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
    log_epsilon: The positive's term; -inf leaves it out. Its dependence on the
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
    # through u. Without a positive, inf - inf must be avoided.
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

  def side(table, log_u):
    return sharding.replace_rows(table, popularities.pair_id, log_u)

  log_u = each(side, pair_rows.log_u, popularities.log_u)
  return pair_rows._replace(log_u=log_u)


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
  log_positive: Sides  # log epsilon', the positive's term at the current zeta
  contrast_sums: Sides  # sum_{i != j} w_ij over the anchors of the batch
  count: Int[Array, ""]  # steps done; schedules read it
  sizes: Sizes  # of the data set
  unit: float  # the first temperature, the unit of rates and of gradients


class PositiveRule(NamedTuple):
  """How xi starts and moves, and what epsilon is made of.

  xi is filed under the contrast: `.text` is used with images as anchors.
  """

  init: Callable[[Sides], Sides]  # `ZetaRows` of both sides -> xi
  log_weight: float  # log k
  # (xi, log epsilon', tau) -> log(epsilon / k), by anchor
  logit: Callable[[Sides, Sides, Sides], Sides]
  # (xi, new tables of `ZetaRows`, the batch's new zeta, evidence) -> xi
  step: Callable[[Sides, Sides, Sides, Evidence], Sides]
  call: str = "PositiveRule(...)"  # how it prints

  def __repr__(self) -> str:
    """Returns the call that made the rule."""
    return self.call


@shows_its_call
@checks.checked(of="positive")
def running_max(
  *, weight: checks.NonNegative = 1.0, init: checks.NonNegative | None = None
) -> PositiveRule:
  """Makes the paper's rule: xi is the greatest |zeta| so far.

  Args:
    weight: The factor k, at least 0.
    init: First xi, at least 0; None means the greatest |zeta| at the start.

  Returns:
    A rule for `nuclr_variant`'s argument `positive`.

  Raises:
    ValueError: If a number is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr_variant(
    ...   num_pairs=4, positive=running_max(init=0.3)
    ... )
    >>> print(objective.init()[1].shared.xi.text)
    0.3
  """

  def first(id_rows):
    largest = each(lambda rows: jnp.max(jnp.abs(rows.zeta)), id_rows)
    if init is None:
      return largest
    return each(lambda x: jnp.full_like(x, init), largest)

  return PositiveRule(
    init=first,
    log_weight=log_of(weight),
    logit=lambda xi, log_positive, tau: _by_xi(xi, tau),
    step=lambda xi, id_rows, zeta, evidence: _running_max(xi, zeta),
  )


@shows_its_call
@checks.checked(of="positive")
def released(
  *,
  steps_per_epoch: checks.Count,
  weight: checks.NonNegative = 1.0,
  init: checks.NonNegative = 0.0,
) -> PositiveRule:
  """Makes the released code's rule: the greatest signed zeta, once an epoch.

  xi <- max(max_j zeta_j, init) over all rows after the last step of an epoch.
  It is not the greatest |zeta|, and it can fall. With zeta starting at -0.05
  and init = 0 it stays 0, so that epsilon = 1, until some zeta is positive: for
  most of the published CC3M run. Every step reads all rows of zeta, since
  devices that share the rows cannot safely compare them in a conditional.

  Args:
    steps_per_epoch: The length of an epoch; from a config, that of the run.
    weight: The factor k, at least 0.
    init: First xi, and its smallest value; at least 0.

  Returns:
    A rule for `nuclr_variant`'s argument `positive`.

  Raises:
    ValueError: If a number is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr_variant(
    ...   num_pairs=4, positive=released(steps_per_epoch=10)
    ... )
    >>> print(objective.init()[1].shared.xi.text)
    0.0

  Reference: the code released with Wang et al., ICLR 2025.
  """

  def step(xi, id_rows, _, evidence):
    ends = (evidence.count + 1) % steps_per_epoch == 0

    def side(xi, rows, ids, num_rows):
      largest = jnp.maximum(greatest(rows.zeta, ids, num_rows), init)
      return jnp.where(ends, largest, xi)

    return each(side, xi, id_rows, evidence.pairs.ids, evidence.sizes.ids)

  return PositiveRule(
    init=lambda id_rows: each(
      lambda rows: jnp.full((), init, rows.zeta.dtype), id_rows
    ),
    log_weight=log_of(weight),
    logit=lambda xi, log_positive, tau: _by_xi(xi, tau),
    step=step,
  )


@shows_its_call
def by_zeta(*, weight: checks.NonNegative = 1.0) -> PositiveRule:
  """Makes the ablation NUCLR-diamond's: epsilon_i = k exp(-zeta_i / tau).

  zeta_i belongs to the anchor's own contrast. xi is kept as in `running_max`,
  but only for the record.

  Args:
    weight: The factor k, at least 0.

  Returns:
    A rule for `nuclr_variant`'s argument `positive`.

  Raises:
    ValueError: If the weight is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr_variant(num_pairs=4, positive=by_zeta())
  """
  paper = running_max(weight=weight)
  return paper._replace(logit=lambda xi, log_positive, tau: log_positive)


def log_of(weight: float) -> float:
  """Returns the logarithm of a weight; -inf for 0."""
  return math.log(weight) if weight else -math.inf


def _by_xi(xi: Sides, tau: Sides) -> Sides:
  # An anchor's positive is a contrast of the other side, hence the swap.
  return each(lambda x, t: -x / t, swap(xi), tau)


def _running_max(xi: Sides, zeta: Sides) -> Sides:
  greatest = Sides(*jnp.max(jnp.abs(jnp.stack(zeta)), axis=1))
  return each(lambda x, y: jnp.maximum(x, y.astype(x.dtype)), xi, greatest)


def raise_to(xi: Sides, zeta: Sides) -> Sides:
  """Raises xi to the greatest |zeta| of the values written from outside."""

  def side(x, zeta):
    return jnp.maximum(x, jnp.max(jnp.abs(jnp.asarray(zeta, x.dtype))))

  return each(side, xi, both(zeta))

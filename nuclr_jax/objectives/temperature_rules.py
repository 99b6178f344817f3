r"""Rules for the temperature: fixed, learned for all, or one for each anchor.

One temperature for all is a parameter, `params["log_scale"]` =
-log(temperature), which the optimizer moves. Individual temperatures are state,
which momentum descent moves; or a network with state of its own tells them from
the embeddings (`nuclr_jax.contrib.tempnet`). Where a temperature is learned
with a moving average of the denominator, the loss of anchor i is

  temperature_i (log D_i - log(number of terms of D) + rho),

which is distributionally robust: at the optimum, the KL divergence of the
weights in D from uniform ones is rho, within the bounds of the temperature.
"""

from collections.abc import Callable
import math
from typing import Annotated, NamedTuple, get_args
import warnings

import jax.numpy as jnp
from jaxtyping import Array, Int

from nuclr_jax import checks
from nuclr_jax.objectives import log_scale
from nuclr_jax.sample_state.denominator import PairRows
from nuclr_jax.sample_state.table import mean_by_id
from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Params,
  PyTree,
  Scalar,
  Sides,
  Sizes,
  both,
  each,
  shows_its_call,
  unzip,
)

MAX_GRADIENT = 5.0  # for individual temperatures, as in the iSogCLR code


class Step(NamedTuple):
  """What temperatures of anchors need for a step; filed under the anchors."""

  pairs: Pairs
  log_denominator: Sides  # log D
  positive_share: Sides  # epsilon / D, the share of the positive's term
  positive_logit: Sides  # its logit, log epsilon up to a constant
  mean_logit: Sides  # from `pairwise.weighted`: (tau_i / B) sum_j w_ij L_ij
  has_negative: Array  # [batch]; rows with False do not count
  offset: float  # what `offset` returned
  count: Int[Array, ""]  # steps done; schedules read it


class TemperatureRule(NamedTuple):
  """How a temperature starts, is read and moves.

  `init` and `readout` deal with tables, `read` and `step` with the rows of a
  batch.
  """

  first: float
  # sizes -> (params, the fields of `PairRows` that it needs)
  init: Callable[[Sizes], tuple[Params, dict[str, Sides]]]
  # (params, `PairRows`, shared state, batch) -> each anchor's temperature:
  # scalars or [batch]
  read: Callable[[Params, PairRows, PyTree, Pairs], Sides]
  step: Callable[[PairRows, Step], PairRows]
  # (params, `PairRows`) -> one temperature, or `Sides` of [num_pairs], or None
  readout: Callable[[Params, PairRows], Scalar | Sides | None]
  metrics: Callable[[Sides], Metrics]  # of what `read` returned
  rho: float | None = None  # None: the loss has no such term
  is_individual: bool = False  # whether every anchor has its own
  # State that is the same for all pairs: how it starts and moves.
  init_shared: Callable[[], PyTree] = tuple
  step_shared: Callable[[PyTree, Step], PyTree] = lambda shared, step: shared
  call: str = "TemperatureRule(...)"  # how it prints

  def __repr__(self) -> str:
    """Returns the call that made the rule."""
    return self.call


_NUMBER = get_args(checks.Temperature)[1]
TemperatureOrRule = Annotated[
  float | TemperatureRule,
  _NUMBER._replace(
    words=f"{_NUMBER.words}, or a rule such as temperature_rules.learned()",
    fits=lambda x: isinstance(x, TemperatureRule) or _NUMBER.fits(x),
  ),
]
FirstTemperature = Annotated[  # of `isogclr`
  float,
  _NUMBER._replace(
    note="the first one of every anchor; isogclr is sogclr with the rule "
    "individual: for another rule, such as contrib:tempnet, choose sogclr"
  ),
]


@shows_its_call
@checks.checked
def fixed(temperature: checks.Temperature = 0.05) -> TemperatureRule:
  """Makes a temperature that never changes; a number means the same.

  Args:
    temperature: Divides cosine similarities; greater than 0.

  Returns:
    A rule for the argument `temperature` of `sogclr` and `nuclr`.

  Raises:
    ValueError: If the temperature is not positive.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr(num_pairs=4, temperature=fixed(0.1))
  """
  return TemperatureRule(
    first=temperature,
    init=lambda sizes: ({}, {}),
    read=lambda params, *_: both(temperature),
    step=lambda rows, evidence: rows,
    readout=lambda params, rows: jnp.asarray(temperature),
    metrics=lambda tau: {},
  )


@shows_its_call
@checks.checked
def learned(
  temperature: checks.Temperature = 0.07, *, rho: checks.Finite = 8.0
) -> TemperatureRule:
  """Makes one temperature for all anchors, a parameter (RGCL-g, FastCLIP-v3).

  Its gradient, per side, is the mean over anchors of log D_i - log(number of
  terms) + rho - sum_j w_ij h_ij, with w_ij the softmax over the terms of D.
  1 / temperature stays at or below `log_scale.MAX_SCALE`, or its first value if
  that is higher.

  Args:
    temperature: The first value; greater than 0.
    rho: The KL divergence at the optimum. It should be below the logarithm of
      the number of terms, since a larger one is impossible.

  Returns:
    A rule for the argument `temperature` of `sogclr`.

  Raises:
    ValueError: If a number is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> rule = learned(0.1, rho=1.0)
    >>> params, _ = objectives.sogclr(num_pairs=4, temperature=rule).init()
    >>> print(jnp.exp(-params["log_scale"]).round(3))
    0.1

  Reference: Wei et al., FastCLIP, 2024.
  """
  first = temperature
  return TemperatureRule(
    first=first,
    init=lambda sizes: (log_scale.init_log_scale(first), {}),
    read=lambda params, *_: both(log_scale.learned_temperature(params, first)),
    step=lambda rows, evidence: rows,
    readout=lambda params, rows: log_scale.learned_temperature(params, first),
    metrics=lambda tau: {"temperature": tau.image},
    rho=rho,
  )


@shows_its_call
@checks.checked(of="temperature")
def individual(
  temperature: checks.Temperature = 0.05,
  *,
  bounds: tuple[float, float] = (0.005, 0.5),
  rate: checks.Rate = 0.02,
  momentum: checks.Momentum = 0.5,
  rho: checks.Finite = 8.0,
) -> TemperatureRule:
  r"""Makes a temperature per anchor, moved by clipped momentum descent.

  With the derivative of the loss,

    g_i    = log D_i + rho - log(number of terms) - sum_j w_ij L_ij, in [-5, 5]
    m_i   <- momentum m_i + (1 - momentum) g_i
    tau_i <- tau_i - rate tau_first m_i, within the bounds,

  once per pair of the batch, with images and with texts as anchors. Pairs
  without a negative do not move; while the rate is 0, no pair moves.

  Args:
    temperature: The first value of every anchor; greater than 0.
    bounds: Smallest and largest temperature (published: 0.005, 0.05).
    rate: Step size in units of the first temperature, in [0, 1]: a number or a
      schedule of the step count.
    momentum: The weight of the old momentum, in [0, 1).
    rho: The KL divergence from uniform weights at the optimum; published values
      are 6 to 8 for millions of pairs.

  Returns:
    A rule for the argument `temperature` of `sogclr` and `nuclr`; its rows
    are `State.sample.pair.temperature` and `.temperature_momentum`.

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> rule = individual(0.1, rho=1.0)
    >>> _, state = objectives.sogclr(num_pairs=4, temperature=rule).init()
    >>> print(state.sample.pair.temperature.image)
    [0.1 0.1 0.1 0.1]

  Reference: Qiu et al., Not All Semantics are Created Equal: Contrastive
    Self-supervised Learning with Automatic Temperature Individualization,
    ICML 2023.
  """
  first, beta = temperature, momentum
  low, high = _check_bounds(bounds, first)

  def init(sizes):
    def full(value):  # two buffers, so that they can be donated
      return each(lambda _: jnp.full(sizes.num_pairs, value, float), both(None))

    return {}, dict(temperature=full(first), temperature_momentum=full(0.0))

  def step(rows, evidence):
    ids, rate_now = evidence.pairs.pair_id, rate(evidence.count)

    def side(value, momentum, g, touched):
      touched &= rate_now != 0
      new = beta * momentum + (1 - beta) * g
      new = jnp.where(touched, new, momentum)
      moved = jnp.clip(value - rate_now * first * new, low, high)
      return jnp.where(touched, moved, value), new

    clipped = each(
      lambda g: jnp.clip(g, -MAX_GRADIENT, MAX_GRADIENT),
      gradients(rows.temperature, evidence),
    )
    means = mean_by_id(clipped, both(ids), evidence.has_negative)
    temperature, momentum = unzip(
      each(side, rows.temperature, rows.temperature_momentum, *means)
    )
    return rows._replace(temperature=temperature, temperature_momentum=momentum)

  return TemperatureRule(
    first=first,
    init=init,
    read=lambda params, rows, *_: rows.temperature,
    step=step,
    readout=lambda params, rows: rows.temperature,
    metrics=lambda tau: {
      "temperature/image": jnp.mean(tau.image),
      "temperature/text": jnp.mean(tau.text),
    },
    rho=rho,
    is_individual=True,
  )


def gradients(tau: Sides, step: Step) -> Sides:
  """Returns the derivative of every anchor's loss by its own temperature.

  It is log D_i + rho - log(number of terms) - sum_j w_ij L_ij, where D and the
  sum may have a term of the positive. Rows without a negative have no meaning.

  Args:
    tau: The temperatures that `TemperatureRule.read` returned.
    step: What the rule is given for a step.
  """

  def side(tau, log_d, mean_logit, positive_share, positive_logit):
    # The factor tau_i / B of `mean_logit` is undone.
    mean = mean_logit * len(log_d) / tau + positive_share * positive_logit
    return log_d + step.offset - mean

  return each(
    side,
    tau,
    step.log_denominator,
    step.mean_logit,
    step.positive_share,
    step.positive_logit,
  )


def rule_of(temperature: Number | TemperatureRule) -> TemperatureRule:
  """Returns a rule unchanged, and a number as a `fixed` rule.

  Raises:
    ValueError: If a number is not positive.
  """
  if isinstance(temperature, TemperatureRule):
    return temperature
  return fixed(temperature)


def _check_bounds(bounds, first: float) -> tuple[float, float]:
  try:
    low, high = (
      checks.argument("bounds", x, checks.Temperature) for x in bounds
    )
  except (TypeError, ValueError):
    low, high = math.nan, math.nan
  if not low <= first <= high:
    raise ValueError(
      "temperature.bounds must be (low, high) with 0 < low <= temperature <= "
      f"high, got {bounds!r} and temperature {first}"
    )
  return low, high


def offset(rule: TemperatureRule, num_terms: float) -> float:
  """Returns rho - log(number of terms of D); 0 for a rule without rho.

  It makes rho a KL divergence. Warns if rho is too large: no weights on that
  many terms differ that much from uniform ones, so that a learned temperature
  can only fall.

  Example:
    >>> print(f"{offset(learned(0.1, rho=1.0), 100):.3f}")
    -3.605
  """
  if rule.rho is None:
    return 0.0
  largest = math.log(num_terms)
  if rule.rho >= largest:
    warnings.warn(
      f"rho is {rule.rho:g}, but log(number of pairs) is {largest:.3g}: "
      "learned temperatures can only fall; give a smaller rho",
      stacklevel=3,
    )
  return rule.rho - largest

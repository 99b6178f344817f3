"""Debiased contrastive losses: without false negatives, with hard ones."""

import math

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base
from nuclr_jax.types import Pairs, Sides, each, shows_its_call, unzip


@shows_its_call
@checks.checked
def debiased(
  *,
  temperature: checks.Temperature = 0.07,
  tau_plus: checks.Fraction = 0.1,
  hardness: checks.NonNegative = 0.0,
) -> base.Objective:
  r"""Makes InfoNCE, corrected for the positives expected among negatives.

  With e_j = exp(sim_ij / temperature), p = e_i and N negatives, the loss of
  image i is

    -log(p / (p + g)), g = max{(N sum_{j != i} w_j e_j - tau_plus N p)
      / (1 - tau_plus), N exp(-1 / temperature)},
    w_j = e_j^hardness / sum_{k != i} e_k^hardness;

  and likewise for texts; the objective is the mean over the batch and both
  sides. With hardness 0 all weights are 1 / N: this is DCL. Above 0, negatives
  weigh the more, the more similar they are to the anchor: this is HCL, whose
  default is 1. Where libraries for retrieval add strength * sim_ij to the
  logits of negatives, hardness is strength * temperature
  (docs/published_code.md says what differs). The gradient also reaches the
  weights. Everything is computed in log space, relative to p, so that no
  temperature overflows. N is B - 1, minus the number of pairs of the batch that
  share the anchor's image or text.

  Args:
    temperature: Divides cosine similarities; greater than 0.
    tau_plus: Probability that a negative is actually a positive, in [0, 1).
    hardness: How much similar negatives are preferred (beta of HCL), at least
      0.

  Returns:
    An `Objective` without params and state.

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> from nuclr_jax.objectives import clip
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> for x in (
    ...   debiased(temperature=0.5, tau_plus=0.0),
    ...   clip(temperature=0.5, learn_temperature=False),
    ... ):
    ...   print(f"{x.apply(*x.init(), pairs)[0]:.4f}")
    0.2395
    0.2395

  Reference: Chuang et al., Debiased Contrastive Learning, NeurIPS 2020;
    Robinson et al., Contrastive Learning with Hard Negative Samples, ICLR 2021.
  """

  def loss_fn(params, pairs):
    del params
    own = pairwise.own_similarity(pairs)
    count = pairwise.num_negatives(pairs).astype(own.dtype)
    log_floor = jnp.log(count) - (1 + own) / temperature
    log_false = jnp.log(tau_plus * count)
    log_sum, surrogate = _negatives(pairs, temperature, hardness, count)

    def side(lse):
      """Returns half the mean loss of a side, and its rows' log slopes."""
      above = lse > log_false
      gap = jnp.where(above, log_false - lse, -1.0)
      log_ratio = lse + jnp.log1p(-jnp.exp(gap)) - math.log1p(-tau_plus)
      corrected = above & (log_ratio > log_floor)
      log_ratio = jnp.where(corrected, log_ratio, -jnp.inf)
      at_floor = jnp.where(corrected, -jnp.inf, log_floor)
      loss = jax.nn.softplus(log_ratio) + jax.nn.softplus(at_floor)
      # d softplus(log g - log p) / d exp(lse), where g is not at its floor
      slope = -jax.nn.softplus(log_ratio) - math.log1p(-tau_plus)
      slope = jnp.where(corrected, slope, -jnp.inf)
      return jnp.mean(loss) / 2, slope - math.log(2 * len(own))

    loss, log_slope = unzip(each(side, log_sum))
    value = loss.image + loss.text  # differentiable where g is at its floor
    loss = base.attach_gradient(value, value + surrogate(log_slope))
    return pairwise.nan_without_negatives(loss, pairs), {}

  return base.stateless(loss_fn, temperature=lambda params: temperature)


def _negatives(pairs: Pairs, temperature, hardness, count):
  """Sums the weighted negatives of every anchor.

  N sum_j w_j e_j / p is N times the quotient of two sums: that of the
  exponentials of all logits times 1 + hardness, and that of the exponentials of
  all logits times hardness.

  Returns:
    The log of these sums, as `Sides`, and a function from the log slopes of the
    loss in the sums to a surrogate with the gradient of the loss.
  """

  def summed(factor):
    logits = pairwise.logits(pairs, temperature=temperature / factor)
    return logits, pairwise.log_sum_exp(logits)

  def weighted(logits, row_log_weight: Sides):
    return pairwise.weighted(logits, row_log_weight=row_log_weight).surrogate

  above, log_above = summed(1 + hardness)
  if hardness == 0:
    return log_above, lambda log_slope: weighted(above, log_slope)
  below, log_below = summed(hardness)
  log_sum = each(
    lambda a, b: jnp.where(count > 0, a - b + jnp.log(count), -jnp.inf),
    log_above,
    log_below,
  )

  def surrogate(log_slope):
    def times_sum(log_total):
      """Returns the log of slope * sum / total; -inf where the slope is 0."""
      return each(
        lambda slope, x, y: jnp.where(
          slope > -jnp.inf, slope + x - y, -jnp.inf
        ),
        log_slope,
        log_sum,
        log_total,
      )

    return weighted(above, times_sum(log_above)) - weighted(
      below, times_sum(log_below)
    )

  return log_sum, surrogate

"""Debiased contrastive loss (DCL): negatives corrected for false ones."""

import math

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base
from nuclr_jax.types import Spec, each, unzip


def debiased(
  spec: Spec | None = None,
  *,
  temperature: checks.Temperature = 0.07,
  tau_plus: checks.Fraction = 0.1,
) -> base.Objective:
  r"""Makes InfoNCE, corrected for the positives expected among negatives.

  With p = exp(sim_ii / temperature) and N negatives, the loss of image i is

    -log(p / (p + g)), g = max{(sum_{j != i} exp(sim_ij / temperature)
      - tau_plus N p) / (1 - tau_plus), N exp(-1 / temperature)};

  and likewise for texts; the objective is the mean over the batch and both
  sides. It is computed in log space, relative to p, so that no temperature
  overflows. N is B - 1, minus the number of pairs of the batch that share the
  anchor's image or text.

  Args:
    spec: Not used; every factory takes one.
    temperature: Divides cosine similarities; greater than 0.
    tau_plus: Probability that a negative is in truth a positive, in [0, 1).

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

  Reference: Chuang et al., Debiased Contrastive Learning, NeurIPS 2020.
  """
  del spec
  temperature = checks.temperature(temperature)
  tau_plus = checks.number("tau_plus", tau_plus, checks.Fraction)

  def loss_fn(params, pairs):
    del params
    logits = pairwise.logits(pairs, temperature=temperature)
    own = pairwise.own_similarity(pairs)
    count = pairwise.num_negatives(pairs).astype(own.dtype)
    log_floor = jnp.log(count) - (1 + own) / temperature
    log_false = jnp.log(tau_plus * count)

    def side(lse):
      """Returns half the mean loss of a side, and its row log weights."""
      above = lse > log_false
      gap = jnp.where(above, log_false - lse, -1.0)
      log_ratio = lse + jnp.log1p(-jnp.exp(gap)) - math.log1p(-tau_plus)
      corrected = above & (log_ratio > log_floor)
      log_ratio = jnp.where(corrected, log_ratio, -jnp.inf)
      at_floor = jnp.where(corrected, -jnp.inf, log_floor)
      loss = jax.nn.softplus(log_ratio) + jax.nn.softplus(at_floor)
      # d softplus(log g - log p) / d logit_ij, where g is not at its floor
      weight = -jax.nn.softplus(log_ratio) - math.log1p(-tau_plus)
      weight = jnp.where(corrected, weight, -jnp.inf)
      return jnp.mean(loss) / 2, weight - math.log(2 * len(own))

    loss, row_log_weight = unzip(each(side, pairwise.log_sum_exp(logits)))
    out = pairwise.weighted(logits, row_log_weight=row_log_weight)
    value = loss.image + loss.text  # differentiable where g is at its floor
    return base.attach_gradient(value, value + out.surrogate), {}

  return base.stateless(loss_fn, temperature=lambda params: temperature)

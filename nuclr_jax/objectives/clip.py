"""InfoNCE over the batch: CLIP, and NT-Xent for two views."""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base, log_scale
from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Scalar,
  each,
  shows_its_call,
)


@shows_its_call
@checks.checked
def clip(
  *,
  temperature: checks.Temperature = 0.07,
  learn_temperature: bool = True,
) -> base.Objective:
  r"""Makes InfoNCE, where each anchor classifies its pair within the batch.

  The loss of image i is -log softmax_j(sim_ij / temperature)_i
  = log(1 + sum_{j != i} exp((sim_ij - sim_ii) / temperature)), and likewise
  for texts; the objective is the mean over the batch and both sides. Pairs that
  share an image or a text (by their ids) are not negatives of each other.

  Args:
    temperature: Divides cosine similarities; greater than 0. The first value
      if it is learned.
    learn_temperature: Whether `params["log_scale"]` = -log(temperature) is
      learned; 1 / temperature is then kept at or below 100 (or its first value,
      if that is higher).

  Returns:
    An `Objective` without state.

  Raises:
    ValueError: If `temperature` is not positive.

  Example:
    >>> objective = clip(temperature=0.1, learn_temperature=False)
    >>> pairs = Pairs(jnp.ones((4, 1)), jnp.ones((4, 1)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(f"{loss:.4f} {math.log(4):.4f}")
    1.3863 1.3863

  Reference: Radford et al., Learning Transferable Visual Models From Natural
    Language Supervision, ICML 2021.
  """
  return _info_nce_of(lambda pairs: pairs, temperature, learn_temperature)


@shows_its_call
@checks.checked
def ntxent(
  *,
  temperature: checks.Temperature = 0.1,
  learn_temperature: bool = False,
) -> base.Objective:
  r"""Makes NT-Xent: InfoNCE among all 2 B views of the batch, as in SimCLR.

  `Pairs.image` and `Pairs.text` are two views of the same things. Each of the
  2 B views is an anchor: its positive is the other view of the same thing, its
  negatives are the 2 B - 2 views of other things, on either side. The objective
  is the mean over all views.

  Args:
    temperature: Divides cosine similarities; greater than 0. The first value
      if it is learned.
    learn_temperature: Whether `params["log_scale"]` is learned, as in `clip`.

  Returns:
    An `Objective` without state.

  Raises:
    ValueError: If `temperature` is not positive.

  Example:
    >>> objective = ntxent(temperature=0.1)
    >>> pairs = Pairs(jnp.ones((4, 1)), jnp.ones((4, 1)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(f"{loss:.4f} {math.log(7):.4f}")
    1.9459 1.9459

  Reference: Chen et al., A Simple Framework for Contrastive Learning of Visual
    Representations, ICML 2020.
  """
  return _info_nce_of(_all_views, temperature, learn_temperature)


def _info_nce_of(
  views: Callable[[Pairs], Pairs], first: float, learn_temperature: bool
) -> base.Objective:
  """Makes InfoNCE of what `views` makes of a batch."""

  def tau(params):
    return log_scale.learned_temperature(params, first)

  def loss_fn(params, pairs):
    loss, metrics = info_nce(views(pairs), tau(params))
    return pairwise.nan_without_negatives(loss, pairs), metrics

  return base.stateless(
    loss_fn,
    lambda: log_scale.init_log_scale(first) if learn_temperature else {},
    temperature=tau,
  )


def info_nce(pairs: Pairs, temperature: Number) -> tuple[Scalar, Metrics]:
  """Computes InfoNCE and its metrics; the temperature may be learned."""
  logits = pairwise.logits(pairs, temperature=temperature)
  loss = each(jax.nn.softplus, pairwise.log_sum_exp(logits))
  batch = len(pairs.pair_id)
  out = pairwise.weighted(
    logits,
    # d softplus(lse) / d logit_ij = exp(logit_ij - softplus(lse_i))
    row_log_weight=each(lambda x: -x - math.log(2 * batch), loss),
  )
  value = (jnp.mean(loss.image) + jnp.mean(loss.text)) / 2
  metrics = {"temperature": jnp.asarray(temperature)}
  return base.attach_gradient(value, out.surrogate), metrics


def _all_views(pairs: Pairs) -> Pairs:
  """Makes 2 B pairs (view, other view); equal ids are never negatives."""
  return Pairs(
    jnp.concatenate([pairs.image, pairs.text]),
    jnp.concatenate([pairs.text, pairs.image]),
    *(jnp.tile(x, 2) for x in (pairs.pair_id, *pairs.ids)),
  )

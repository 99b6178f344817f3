"""CLIP: InfoNCE over the batch."""

import math

import jax
import jax.numpy as jnp

from nuclr_jax import pairwise
from nuclr_jax.objectives import base
from nuclr_jax.types import Number, Sides

MAX_SCALE = 100.0  # of 1 / temperature, as in the CLIP paper


def clip(
  *, temperature: Number = 0.07, learn_temperature: bool = True
) -> base.Objective:
  r"""InfoNCE: each anchor classifies its own pair among the batch.

  The loss of image i is -log softmax_j(sim_ij / temperature)_i
  = log(1 + sum_{j != i} exp((sim_ij - sim_ii) / temperature)); likewise for
  texts; the mean over the batch and over both sides. Pairs that share an
  image or a text (by their ids) are not negatives of each other.

  Args:
    temperature: Divides cosine similarities; greater than 0. The first value
      if it is learned.
    learn_temperature: Whether `params["log_scale"]` = -log(temperature) is
      learned; 1 / temperature is then kept at or below 100.

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
  temperature = base.check_temperature(temperature)

  def init_params():
    if not learn_temperature:
      return {}
    return {"log_scale": jnp.full((), -math.log(temperature), float)}

  def loss_fn(params, pairs):
    tau = temperature
    if learn_temperature:
      log_scale = jnp.minimum(params["log_scale"], math.log(MAX_SCALE))
      tau = jnp.exp(-log_scale)
    lse = pairwise.log_sum_exp(pairs, temperature=tau)
    loss = Sides(jax.nn.softplus(lse.image), jax.nn.softplus(lse.text))
    batch = len(pairs.pair_id)
    out = pairwise.weighted(
      pairs,
      temperature=tau,
      # d softplus(lse) / d logit_ij = exp(logit_ij - softplus(lse_i))
      row_log_weight=Sides(
        -loss.image - math.log(2 * batch), -loss.text - math.log(2 * batch)
      ),
    )
    value = (jnp.mean(loss.image) + jnp.mean(loss.text)) / 2
    metrics = {"temperature": jnp.asarray(tau)}
    return base.attach_gradient(value, out.surrogate), metrics

  return base.stateless(loss_fn, init_params)

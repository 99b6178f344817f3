"""SigLIP: every pair of the batch is a binary classification."""

import math

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base
from nuclr_jax.types import shows_its_call


@shows_its_call
@checks.checked
def siglip(
  *,
  init_scale: checks.Positive = 10.0,
  init_bias: checks.Finite = -10.0,
) -> base.Objective:
  r"""Makes the sigmoid loss of all pairs.

  The loss is -(1 / B) sum_ij log sigmoid(z_ij (scale sim_ij + bias)) with
  z_ij = 1 if i = j and -1 otherwise, on unit-norm embeddings. Pairs i != j that
  share an image or a text (by their ids) are left out: they are neither
  positives nor negatives.

  Args:
    init_scale: First scale, learned as `params["log_scale"]`; greater than 0.
    init_bias: First bias, learned as `params["logit_bias"]`; it offsets the
      excess of negatives at the start.

  Returns:
    An `Objective` without state.

  Raises:
    ValueError: If a number is out of its range.

  Example:
    >>> objective = siglip(init_scale=1.0, init_bias=0.0)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2)[::-1], jnp.arange(2))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(f"{loss:.4f}", f"{math.log(2) + math.log(1 + math.e):.4f}")
    2.0064 2.0064

  Reference: Zhai et al., Sigmoid Loss for Language Image Pre-Training,
    ICCV 2023.
  """

  def init_params():
    return {
      "log_scale": jnp.full((), math.log(init_scale), float),
      "logit_bias": jnp.full((), init_bias, float),
    }

  def loss_fn(params, pairs):
    scale, bias = jnp.exp(params["log_scale"]), params["logit_bias"]

    def logit(sim, scale, bias):
      return scale * sim + bias

    own = logit(pairwise.own_similarity(pairs), scale, bias)
    positives = jax.nn.softplus(-own)
    negatives = pairwise.sum_over_negatives(
      pairs, lambda *x: jax.nn.softplus(logit(*x)), scale, bias
    )
    loss = jnp.mean(positives) + negatives / len(pairs.pair_id)
    metrics = {"scale": scale, "logit_bias": bias}
    return pairwise.nan_without_negatives(loss, pairs), metrics

  def readout(params, state):
    del state
    return base.Readout(
      temperature=jnp.exp(-params["log_scale"]), logit_bias=params["logit_bias"]
    )

  return base.stateless(loss_fn, init_params)._replace(readout=readout)

"""Spectral contrastive loss."""

import jax.numpy as jnp

from nuclr_jax import pairwise
from nuclr_jax.objectives import base
from nuclr_jax.types import shows_its_call


@shows_its_call
def spectral() -> base.Objective:
  r"""Makes the spectral loss: low-rank factorisation of the graph of pairs.

  The loss is -(2 / B) sum_i sim_ii + mean over negatives i != j of sim_ij^2,
  for embeddings of norm at most 1 (the radius mu of the paper is 1). Pairs that
  share an image or a text (by their ids) are not negatives of each other.

  The published code projects rows of norm >= 1 onto the sphere, so that for
  unit-norm rows rounding decides whether their gradient has its radial part.
  Here it always does, and normalising the embeddings removes that part.

  Returns:
    An `Objective` without params and state.

  Example:
    >>> objective = spectral()
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(loss)
    -2.0

  Reference: HaoChen et al., Provable Guarantees for Self-Supervised Deep
    Learning with Spectral Contrastive Loss, NeurIPS 2021.
  """

  def loss_fn(params, pairs):
    del params
    own = pairwise.own_similarity(pairs)
    # B (B - 1) exceeds int32 from B = 46,342 on.
    negatives = pairwise.num_negatives(pairs).astype(own.dtype)
    count = jnp.maximum(jnp.sum(negatives), 1)
    squares = pairwise.sum_over_negatives(pairs, jnp.square) / count
    loss = squares - 2 * jnp.mean(own)
    return pairwise.nan_without_negatives(loss, pairs), {}

  return base.stateless(loss_fn)

"""SwAV: views predict each other's assignment to learned prototypes."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax import checks
from nuclr_jax.contrib.objectives import width
from nuclr_jax.contrib.objectives.classes import random_rows
from nuclr_jax.objectives import base
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.types import each, shows_its_call, swap


@shows_its_call
@checks.checked
def swav(
  *,
  dim: checks.Count,
  num_prototypes: checks.Count = 256,
  temperature: checks.Temperature = 0.1,
  epsilon: checks.Positive = 0.05,
  num_iterations: checks.Count = 3,
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes swapped prediction of assignments, which Sinkhorn spreads evenly.

  With cosines s = z^T c to the prototypes, each side's assignment q is
  `assign(s, epsilon)`, a constant to the gradient, and the loss is the mean
  cross-entropy of q of one view and softmax(s / temperature) of the other.
  It takes O(B K) for K prototypes. Ids are not used.

  Args:
    dim: The width of the embeddings.
    num_prototypes: The number of prototypes, K.
    temperature: The temperature of the predictions, greater than 0.
    epsilon: The temperature of the assignments, greater than 0; the smaller it
      is, the harder they are.
    num_iterations: The number of rounds of Sinkhorn.
    seed: The seed of the first prototypes.

  Returns:
    An `Objective` with `params["prototypes"]` [num_prototypes, dim].

  Raises:
    ValueError: For numbers out of range; also from `apply`, if embeddings have
      another width.

  Example:
    >>> objective = swav(dim=2, num_prototypes=4)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> loss.shape
    ()

  Reference: Caron et al., Unsupervised Learning of Visual Features by
    Contrasting Cluster Assignments, NeurIPS 2020.
  """
  init = random_rows("prototypes", num_prototypes, dim, seed)

  def loss_fn(params, pairs):
    prototypes = unit_norm(params["prototypes"])
    score = each(
      lambda x: tiles.matmul(unit_norm(x), prototypes.T),
      width.embeddings(pairs, dim),
    )
    fixed = partial(assign, epsilon=epsilon, num_iterations=num_iterations)
    target = each(lambda x: fixed(jax.lax.stop_gradient(x)), score)
    entropy = each(
      lambda s, q: (
        -jnp.mean(jnp.sum(q * jax.nn.log_softmax(s / temperature), axis=1))
      ),
      score,
      swap(target),
    )
    share = (jnp.mean(target.image, axis=0) + jnp.mean(target.text, axis=0)) / 2
    used = jnp.exp(-jnp.sum(jax.scipy.special.xlogy(share, share)))
    return (entropy.image + entropy.text) / 2, {"prototypes_used": used}

  return base.stateless(loss_fn, init)


def assign(
  score: Float[Array, "batch prototypes"],
  *,
  epsilon: float,
  num_iterations: checks.Count = 3,
) -> Float[Array, "batch prototypes"]:
  """Makes soft assignments that use all prototypes (nearly) equally often.

  This is Sinkhorn's iteration on exp(score / epsilon), in log space: columns
  are scaled to equal sums, then rows to sum 1; it ends with the rows.

  Args:
    score: Similarities to the prototypes.
    epsilon: The temperature of the assignments, greater than 0.
    num_iterations: The number of rounds of both scalings.

  Example:
    >>> assign(jnp.eye(2), epsilon=0.01).round(3)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
  """
  log_q = score / epsilon
  for _ in range(num_iterations):
    log_q -= jax.nn.logsumexp(log_q, axis=0, keepdims=True)
    log_q -= jax.nn.logsumexp(log_q, axis=1, keepdims=True)
  return jnp.exp(log_q)

"""VICReg: invariance, variance, covariance; no negatives."""

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import shows_its_call

EPSILON = 1e-4  # under the square root, so that its gradient is finite


@shows_its_call
@checks.checked
def vicreg(
  *,
  invariance: checks.NonNegative = 25.0,
  variance: checks.NonNegative = 25.0,
  covariance: checks.NonNegative = 1.0,
) -> base.Objective:
  r"""Makes variance-invariance-covariance regularisation.

  With embeddings Z (images) and Z' (texts) of width d, the loss is

    invariance * mean((Z - Z')^2)
      + variance * sum over both of mean_k max(0, 1 - std_k)
      + covariance * sum over both of (1 / d) sum_{k != l} C_kl^2,

  with std_k = sqrt(var_k + 1e-4), C the covariance matrix over the batch
  (divided by B - 1), and k and l dimensions. Embeddings should *not* have unit
  norm, since they could not reach a standard deviation of 1: give the model
  `normalize=False`. This is the paper's Algorithm 1; the authors' code halves
  the variance term. It takes O(B d^2) and makes no [B, B] matrix. Ids are not
  used.

  Args:
    invariance: Weight of the invariance term, at least 0.
    variance: Weight of the variance term, at least 0.
    covariance: Weight of the covariance term, at least 0.

  Returns:
    An `Objective` without params and state; metrics `invariance`, `variance`,
    `covariance` are the terms without their weights.

  Raises:
    ValueError: If a weight is negative.

  Example:
    >>> objective = vicreg(covariance=0.0)
    >>> x = jnp.array([[-1.0, 2.0], [1.0, -2.0]])  # std above 1
    >>> loss, _ = objective.apply(*objective.init(), Pairs(x, x, jnp.arange(2)))
    >>> print(loss)
    0.0

  Reference: Bardes, Ponce, LeCun, VICReg, ICLR 2022.
  """
  weights = dict(
    invariance=invariance, variance=variance, covariance=covariance
  )

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    hinges, covariances = zip(_spread(image), _spread(text), strict=True)
    terms = dict(
      invariance=jnp.mean(jnp.square(image - text)),
      variance=sum(hinges),
      covariance=sum(covariances),
    )
    return sum(weights[name] * term for name, term in terms.items()), terms

  return base.stateless(loss_fn)


def _spread(z):
  """Returns the variance term and the covariance term of one side."""
  batch, dim = z.shape
  z = z - jnp.mean(z, axis=0, keepdims=True)
  matrix = tiles.matmul(z.T, z) / max(batch - 1, 1)
  diagonal = jnp.diagonal(matrix)
  hinge = jnp.mean(jax.nn.relu(1 - jnp.sqrt(diagonal + EPSILON)))
  off_diagonal = jnp.where(jnp.eye(dim, dtype=bool), 0.0, matrix)
  return hinge, jnp.sum(jnp.square(off_diagonal)) / dim

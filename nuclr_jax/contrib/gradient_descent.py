"""The paper's own method for the popularities: gradient descent on eq. (8).

It is slow, dense and literal: it shares no code with `exact.solve`, so that it
can serve as a check.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from nuclr_jax import checks


class Descent(NamedTuple):
  """Where the descent ended."""

  zeta: Float[Array, "pairs"]  # of the texts, with mean 0
  gradient_norm: Float[Array, ""]  # Euclidean norm of the gradient of Phi
  steps: Int[Array, ""]


def phi(
  zeta: Float[Array, "pairs"],
  image: Float[Array, "pairs dim"],
  text: Float[Array, "pairs dim"],
  *,
  temperature: float,
) -> Float[Array, ""]:
  r"""Returns the convex Phi(zeta), with texts as contrast of image anchors.

  - mean_i tau log[ exp(E_ii / tau) / sum_j exp((E_ij - zeta_j) / tau) ]
  + mean_j zeta_j                                                  (eq. 8)
  """
  sim = jnp.matmul(image, text.T, precision="highest")
  log_sum = logsumexp((sim - zeta[None, :]) / temperature, axis=1)
  return jnp.mean(temperature * log_sum - jnp.diag(sim)) + jnp.mean(zeta)


@partial(jax.jit, static_argnames=("temperature", "tolerance", "max_steps"))
@checks.checked
def descend(
  image: Float[Array, "pairs dim"],
  text: Float[Array, "pairs dim"],
  *,
  temperature: checks.Temperature,
  tolerance: float = 1e-15,
  max_steps: int = 100_000,
) -> Descent:
  r"""Minimises `phi` by gradient descent from zeta = 0.

  The step size follows the current smoothness: n tau / max_j sum_i w_ij, whose
  denominator is at least 1 and approaches 1. Memory is quadratic in the pairs,
  whose images and texts must all differ.

  Args:
    image: Embeddings of the images; float64 for tolerances below 1e-6.
    text: Embeddings of the texts; float64 for tolerances below 1e-6.
    temperature: tau; greater than 0.
    tolerance: The gradient norm to reach (Appendix G.1 stops at 1e-15).
    max_steps: The maximum number of steps.

  Example:
    >>> eye = jnp.eye(3)
    >>> text = eye[jnp.array([0, 0, 2])]
    >>> found = descend(eye, text, temperature=0.5, tolerance=1e-6)
    >>> print(found.zeta.round(2))
    [-0.07 -0.07  0.14]

  Reference: Wang et al., ICLR 2025, eq. (8) and Appendix G.1.
  """
  n = len(image)
  gradient_of = jax.grad(phi)

  def gradient(zeta):
    return gradient_of(zeta, image, text, temperature=temperature)

  def unfinished(carry):
    _, slope, step = carry
    return (jnp.linalg.norm(slope) > tolerance) & (step < max_steps)

  def move(carry):
    zeta, slope, step = carry
    total = 1 - n * slope  # sum_i w_ij
    zeta -= n * temperature / jnp.maximum(jnp.max(total), 1) * slope
    zeta -= jnp.mean(zeta)
    return zeta, gradient(zeta), step + 1

  zeta = jnp.zeros(n, jnp.result_type(image, text))
  carry = (zeta, gradient(zeta), jnp.zeros((), jnp.int32))
  zeta, slope, steps = jax.lax.while_loop(unfinished, move, carry)
  return Descent(zeta, jnp.linalg.norm(slope), steps)

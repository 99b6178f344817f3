"""Full-batch gradient descent on triplets that stay the same."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.types import Params, PyTree


class Triplets(NamedTuple):
  """Inputs: anchors, their positives and their negatives, row by row."""

  anchor: PyTree
  positive: PyTree
  negative: PyTree


class Descent(NamedTuple):
  """The course of gradient descent; entry i is from before step i."""

  params: Params
  loss: Float[Array, "steps"]  # a sum over the triplets
  gradient_norm: Float[Array, "steps"]
  min_norm: Float[Array, "steps"]  # of the outputs
  max_norm: Float[Array, "steps"]


def triplet_loss(
  anchor: Float[Array, "n dim"],
  positive: Float[Array, "n dim"],
  negative: Float[Array, "n dim"],
) -> Float[Array, ""]:
  """Sums log(1 + exp(f(x)^T (f(x^-) - f(x^+)))) over the triplets.

  Args:
    anchor: Outputs f(x), of any norm.
    positive: Outputs f(x^+).
    negative: Outputs f(x^-).

  Example:
    >>> print(round(float(triplet_loss(*jnp.zeros((3, 4, 2)))), 4))  # 4 log 2
    2.7726

  Reference: Merad et al., 2020, eq. (11).
  """
  return jnp.sum(jax.nn.softplus(jnp.sum(anchor * (negative - positive), 1)))


def descend(
  encode: Callable[[Params, PyTree], Float[Array, "n dim"]],
  params: Params,
  triplets: Triplets,
  *,
  learning_rate: float,
  num_steps: int,
) -> Descent:
  """Minimises `triplet_loss` of all triplets by gradient descent.

  With an encoder that is wide enough, inputs that differ and outputs whose
  norms stay away from 0 and infinity, the loss falls below any number.

  Args:
    encode: `encode(params, inputs) -> outputs`; rows do not see each other.
    params: The params to start from.
    triplets: The inputs, which stay the same.
    learning_rate: The step size, greater than 0.
    num_steps: Number of steps, at least 1.

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> x = Triplets(*jnp.eye(3)[:, None])
    >>> course = descend(
    ...   lambda w, x: x @ w, jnp.eye(3), x, learning_rate=0.5, num_steps=50
    ... )
    >>> bool(course.loss[-1] < course.loss[0] / 2)
    True

  Reference: Merad et al., 2020, Theorem 1.
  """
  if not learning_rate > 0 or num_steps < 1:
    raise ValueError(
      "learning_rate must be greater than 0 and num_steps at least 1, got "
      f"{learning_rate} and {num_steps}"
    )

  def loss_fn(params):
    outputs = [encode(params, x) for x in triplets]
    norms = jnp.linalg.norm(jnp.concatenate(outputs), axis=1)
    return triplet_loss(*outputs), (norms.min(), norms.max())

  def step(params, _):
    value = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, norms), gradient = value(params)
    leaves = jax.tree.leaves(gradient)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in leaves))
    params = jax.tree.map(lambda w, g: w - learning_rate * g, params, gradient)
    return params, (loss, norm, *norms)

  run = jax.jit(lambda params: jax.lax.scan(step, params, length=num_steps))
  params, history = run(params)
  return Descent(params, *history)

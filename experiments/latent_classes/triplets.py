"""Full-batch gradient descent on fixed triplets."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.types import Params, PyTree


class Triplets(NamedTuple):
  """The inputs: row by row an anchor, its positive and its negative."""

  anchor: PyTree
  positive: PyTree
  negative: PyTree


class Descent(NamedTuple):
  """The course of gradient descent; entry i is the value before step i."""

  params: Params  # the params after the last step
  loss: Float[Array, "steps"]  # the sum over the triplets
  gradient_norm: Float[Array, "steps"]
  min_norm: Float[Array, "steps"]  # the smallest norm of an output
  max_norm: Float[Array, "steps"]  # the largest norm of an output


def triplet_loss(
  anchor: Float[Array, "n dim"],
  positive: Float[Array, "n dim"],
  negative: Float[Array, "n dim"],
) -> Float[Array, ""]:
  """Sums log(1 + exp(f(x)^T (f(x^-) - f(x^+)))) over the triplets.

  Args:
    anchor: The outputs f(x), of any norm.
    positive: The outputs f(x^+).
    negative: The outputs f(x^-).

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
  """Minimizes `triplet_loss` of all triplets by gradient descent.

  If the encoder is wide enough, the inputs differ, and the norms of the outputs
  stay away from 0 and infinity, the loss falls below any positive number.

  Args:
    encode: `encode(params, inputs) -> outputs`, row by row.
    params: The params to start from.
    triplets: The inputs, the same in every step.
    learning_rate: The step size, greater than 0.
    num_steps: The number of steps, at least 1.

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

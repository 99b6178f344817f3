"""Difference alignment: differences of embeddings should be consistent."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base
from nuclr_jax.pairwise import batch, tiles
from nuclr_jax.types import Scalar, each, shows_its_call

Differences = checks.one_of(("chain", "star"))
Norm = checks.one_of(("l2", "l1"))


@shows_its_call
@checks.checked
def difference_alignment(
  *,
  differences: Differences = "chain",
  norm: Norm = "l2",
  labels: bool = False,
) -> base.Objective:
  r"""Makes the cross-total-variation of a batch's first-order differences.

  With columns M_j = grad_j and weights w_j, the loss of a side is

    sum_{j < k} w_j w_k ||M_j - M_k|| / sum_{j < k} w_j w_k,

  and the objective is the mean of both sides. It is a term to be added to any
  objective, such as `add(ntxent=ntxent(), dar=scale(difference_alignment(),
  0.5))`. There are two choices of differences of the B embeddings phi_j of a
  side:

    chain  grad_j = phi_j - phi_{j+1}, B - 1 of them, in the batch's order
    star   grad_j = phi_0 - phi_j, so that M_j - M_k = phi_k - phi_j: the mean
           distance of the batch, not a second-order difference

  w_j is 0 for a difference within a class and 1 otherwise. The class is
  `Pairs.label`; without labels, or unless `labels` is set, it is the image id
  or the text id. With the mean, the weight of the term does not depend on the
  batch size. The paper takes the sum: B rows have B - 1 differences, chain or
  star, so that a weight of the sum is that weight times (B - 1) (B - 2) / 2
  here, or times W (W - 1) / 2 if only W of the differences are between classes.
  The paper's 0.5 is 232.5 at B = 32 and 4,000.5 at B = 128, where all hosts of
  experiments/difference_alignment collapse.

  The paper calls the sum a norm of [M_j]; it is a seminorm, since it vanishes
  wherever all columns are equal. It is also 0 if all pairs are of one kind; the
  objective that it is added to refuses such a batch. Memory is
  O(B d + tile^2). At coincident columns the gradient is the subgradient of
  smallest norm, 0.

  Args:
    differences: "chain" or "star".
    norm: The norm of M_j - M_k, "l2" or "l1".
    labels: Whether to use the labels of a batch, for objectives that learn from
      them.

  Returns:
    An `Objective` without params and state; metric `variation`, its value
    before it is scaled.

  Raises:
    ValueError: For an unknown choice; from `apply`, for fewer than three rows.

  Example:
    >>> objective = difference_alignment()
    >>> x = jnp.arange(8.0).reshape(4, 2)  # all steps are alike
    >>> loss, _ = objective.apply(*objective.init(), Pairs(x, x, jnp.arange(4)))
    >>> print(loss)
    0.0

  Reference: Chen et al., Robust Similarity Learning with Difference Alignment
    Regularization, ICLR 2024, eq. (4) to (6).
  """

  def loss_fn(params, pairs):
    del params
    values = each(
      lambda x, kind: _variation(*_differences(x, kind, differences), norm),
      pairwise.embeddings(pairs),
      pairs.kinds if labels else pairs.ids,
    )
    value = (values.image + values.text) / 2
    return value, {"variation": value}

  return base.stateless(loss_fn)


def _differences(x, kind, which):
  """Returns the columns M_j, as rows, and their weights."""
  if len(x) < 3:
    raise ValueError(
      f"differences of differences need three rows or more, got {len(x)}"
    )
  first, second = (x[:-1], x[1:]) if which == "chain" else (x[:1], x[1:])
  kinds = (kind[:-1], kind[1:]) if which == "chain" else (kind[:1], kind[1:])
  return first - second, jnp.not_equal(*kinds).astype(x.dtype)


def _variation(
  columns: Float[Array, "columns dim"],
  weight: Float[Array, "columns"],
  norm: str,
) -> Scalar:
  """Computes the weighted mean of ||M_j - M_k|| over j < k, differentiable."""
  total, gradient = _sums(*jax.lax.stop_gradient((columns, weight)), norm)
  count = _twice_pairs(weight)
  return batch.with_gradient(
    partial(_gradient, norm),
    jnp.sum(total) / count,
    columns,
    weight,
    # The sum has both orders of j and k, so that each M_j occurs twice.
    gradient * 2 / count,
  )


def _gradient(norm, columns, constants):
  """Returns the gradient of `_variation` in the columns."""
  return _sums(columns, constants, norm)[1] * 2 / _twice_pairs(constants)


def _twice_pairs(weight):
  """Returns twice the sum of w_j w_k over j < k."""
  return jnp.maximum(jnp.sum(weight) ** 2 - jnp.sum(weight * weight), 1.0)


def _sums(x, weight, norm):
  """Computes w_j sum_k w_k ||x_j - x_k||, and its gradient in x_j, by rows."""
  step = {"l2": _l2_step, "l1": _l1_step}[norm]
  columns, first = (x, weight), (jnp.zeros_like(weight), jnp.zeros_like(x))
  total, gradient = tiles.over_rows(step, columns, columns, first)
  return weight * total, weight[:, None] * gradient


def _l2_step(rows, columns, sums):
  """Adds the L2 distances of one tile, dimension by dimension."""
  (a, _), (b, weight), (total, gradient) = rows, columns, sums

  def add(square, x):
    return square + jnp.square(x[0][:, None] - x[1][None]), None

  zeros = jnp.zeros_like(a[:, :1] + b[None, :, 0])
  square, _ = jax.lax.scan(add, zeros, (a.T, b.T), unroll=8)
  apart = square > 0
  inverse = jnp.where(apart, jax.lax.rsqrt(jnp.where(apart, square, 1.0)), 0.0)
  inverse *= weight[None]
  total += jnp.sum(inverse * square, axis=1)
  gradient += a * jnp.sum(inverse, axis=1, keepdims=True)
  return total, gradient - tiles.matmul(inverse, b)


def _l1_step(rows, columns, sums):
  """Adds the L1 distances of one tile, dimension by dimension."""
  (a, _), (b, weight), (total, gradient) = rows, columns, sums

  def add(total, x):
    difference = x[0][:, None] - x[1][None]
    total += jnp.sum(weight[None] * jnp.abs(difference), axis=1)
    return total, jnp.sum(weight[None] * jnp.sign(difference), axis=1)

  total, signs = jax.lax.scan(add, total, (a.T, b.T), unroll=8)
  return total, gradient + signs.T

"""Classification as an objective: a softmax over classes, angular margins.

They need labels; each row of either side of a batch is a sample.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp

from nuclr_jax import checks
from nuclr_jax.contrib.objectives import classes
from nuclr_jax.objectives import base
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.types import shows_its_call

Angle = Annotated[
  float, checks.Range("in [0, pi / 2]", lambda x: 0 <= x <= math.pi / 2)
]


@shows_its_call
def softmax(
  *,
  num_classes: checks.Count,
  dim: checks.Count,
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes the cross-entropy of a linear classifier: supervised training.

  The logits are W f(x); the loss is the mean over all rows of both sides.
  Embeddings should not have unit norm: give the model `normalize=False`.

  Args:
    num_classes: The number of classes, the rows of W.
    dim: The width of the embeddings.
    seed: The seed of the first W.

  Returns:
    An `Objective` with `params["classes"]` [num_classes, dim]; metric
    `accuracy`.

  Raises:
    ValueError: For numbers out of range; from `apply`, if there are no labels.

  Example:
    >>> objective = softmax(num_classes=4, dim=2)
    >>> x, label = jnp.zeros((3, 2)), jnp.arange(3)
    >>> pairs = Pairs(x, x, jnp.arange(3), label=label)
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(round(float(jnp.exp(loss)), 4))
    4.0

  Reference: The supervised representations of Saunshi et al., Table 1.
  """
  init = classes.random_rows("classes", num_classes, dim, seed)

  def loss_fn(params, pairs):
    x, label = classes.samples(pairs, params["classes"])
    logits = tiles.matmul(x, params["classes"].T)
    log_p = jax.nn.log_softmax(logits, axis=1)
    own = jnp.take_along_axis(log_p, label[:, None], axis=1)
    return -jnp.mean(own), {"accuracy": _accuracy(logits, label)}

  return base.stateless(loss_fn, init)


@shows_its_call
@checks.checked
def arcface(
  *,
  num_classes: checks.Count,
  dim: checks.Count,
  scale: checks.Positive = 30.0,
  margin: Angle = 0.5,
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes ArcFace: a softmax over angles, with a margin for the true class.

  logit_c = scale cos(theta_c), but scale cos(theta_y + margin) for the row's
  class y; where theta_y + margin exceeds pi, it is scale (cos(theta_y) - margin
  sin(margin)), which keeps decreasing. The loss is the mean cross-entropy of
  all rows.

  Args:
    num_classes: The number of classes, the rows of the classifier.
    dim: The width of the embeddings.
    scale: Factor of the cosines, greater than 0.
    margin: The margin in radians, in [0, pi / 2].
    seed: The seed of the first classifier.

  Returns:
    An `Objective` with `params["classes"]` [num_classes, dim]; metric
    `accuracy`, without the margin.

  Raises:
    ValueError: For numbers out of range; from `apply`, if there are no labels.

  Example:
    >>> objective = arcface(num_classes=3, dim=2)
    >>> sorted(objective.init()[0])
    ['classes']

  Reference: Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face
    Recognition, CVPR 2019.
  """

  def of_own(cosine):
    sine = jnp.sqrt(jnp.clip(1 - cosine**2, 1e-12))
    moved = cosine * math.cos(margin) - sine * math.sin(margin)
    beyond = cosine - margin * math.sin(margin)
    return jnp.where(cosine > -math.cos(margin), moved, beyond)

  init = classes.random_rows("classes", num_classes, dim, seed)
  return _softmax(num_classes, init, of_own, lambda x: scale)


@shows_its_call
@checks.checked
def sphereface(
  *,
  num_classes: checks.Count,
  dim: checks.Count,
  margin: checks.Count = 4,
  plain: checks.NonNegative = 5.0,
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes SphereFace: a softmax over angles, the true class's multiplied.

  logit_c = ||x|| cos(theta_c); for the row's class y it is
  ||x|| (plain cos(theta_y) + psi(theta_y)) / (plain + 1) with
  psi(theta) = (-1)^k cos(m theta) - 2 k, k = floor(m theta / pi), which
  decreases over [0, pi]. Unless the model has `normalize=False`, ||x|| is 1.

  Args:
    num_classes: The number of classes, the rows of the classifier.
    dim: The width of the embeddings.
    margin: m, a whole number of at least 1.
    plain: Weight of the plain cosine, which the authors lower to 5 during
      training; at least 0.
    seed: The seed of the first classifier.

  Returns:
    An `Objective` with `params["classes"]` [num_classes, dim]; metric
    `accuracy`, without the margin.

  Raises:
    ValueError: For numbers out of range; from `apply`, if there are no labels.

  Example:
    >>> objective = sphereface(num_classes=3, dim=2)
    >>> sorted(objective.init()[0])
    ['classes']

  Reference: Liu et al., SphereFace: Deep Hypersphere Embedding for Face
    Recognition, CVPR 2017.
  """
  m = margin

  def of_own(cosine):
    # The derivative of arccos is infinite at -1 and 1.
    theta = jnp.arccos(jnp.clip(cosine, -1 + 1e-6, 1 - 1e-6))
    k = jax.lax.stop_gradient(jnp.floor(m * theta / math.pi))
    psi = (1 - 2 * (k % 2)) * jnp.cos(m * theta) - 2 * k
    return (plain * cosine + psi) / (plain + 1)

  def norm(x):
    return jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True) + 1e-12)

  init = classes.random_rows("classes", num_classes, dim, seed)
  return _softmax(num_classes, init, of_own, norm)


def _softmax(num_classes, init, of_own, scale) -> base.Objective:
  """Makes a cross-entropy of scaled cosines; `of_own` changes the true one."""

  def loss_fn(params, pairs):
    x, label = classes.samples(pairs, params["classes"])
    cosine = tiles.matmul(unit_norm(x), unit_norm(params["classes"]).T)
    own = classes.is_own(label, num_classes)
    logits = scale(x) * jnp.where(own, of_own(cosine), cosine)
    own_logit = jnp.sum(jnp.where(own, logits, 0.0), axis=1)
    loss = jnp.mean(jax.nn.logsumexp(logits, axis=1) - own_logit)
    return loss, {"accuracy": _accuracy(cosine, label)}

  return base.stateless(loss_fn, init)


def _accuracy(scores, label):
  return jnp.mean(jnp.argmax(scores, axis=1) == label)

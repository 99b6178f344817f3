"""Metric learning with labels: N-pair, proxy anchors, angular margins.

A batch has two views of labelled things; each row of either side is a sample.
"""

from functools import partial
import math

import jax
import jax.numpy as jnp

from nuclr_jax import pairwise, tiles
from nuclr_jax.models import unit_norm
from nuclr_jax.objectives import base, checks
from nuclr_jax.objectives.clip import info_nce
from nuclr_jax.types import Number, Pairs


def npair(*, l2: Number = 0.002) -> base.Objective:
  r"""Multi-class N-pair loss: a softmax over dot products, without scale.

  For anchor i and its positive i^+,

    log(1 + sum_{j: y_j != y_i} exp(f_i^T f_j^+ - f_i^T f_i^+)),

  the mean over the batch and both sides as anchors, plus
  l2 * mean(||f||^2). Embeddings are meant not to have unit norm: give the
  model `normalize=False`. Rows of one label (or, without labels, one image or
  text) are not negatives of each other.

  Args:
    l2: Weight of the squared norms, at least 0.

  Returns:
    An `Objective` without params and state.

  Raises:
    ValueError: If the weight is negative.

  Example:
    >>> objective = npair(l2=0.0)
    >>> pairs = Pairs(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(round(float(jnp.exp(loss)), 4))
    4.0

  Reference: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss
    Objective, NIPS 2016.
  """
  l2 = checks.weight("l2", l2)

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    kinds = pairs.kinds
    labelled = Pairs(image, text, pairs.pair_id, kinds.image, kinds.text)
    loss, _ = info_nce(labelled, 1.0)
    norm = jnp.mean(jnp.sum(image**2 + text**2, axis=1)) / 2
    return loss + l2 * norm, {"squared_norm": norm}

  return base.stateless(loss_fn)


def proxy_anchor(
  *,
  num_classes: int,
  dim: int,
  alpha: Number = 32.0,
  margin: Number = 0.1,
  seed: int = 0,
) -> base.Objective:
  r"""Proxy Anchor: a learned proxy of each class pulls and pushes a batch.

  With cosine similarities s(x, p) and P^+ the classes in the batch,

    mean_{p in P^+} log(1 + sum_{x of p} exp(-alpha (s(x, p) - margin)))
      + mean_p log(1 + sum_{x not of p} exp(alpha (s(x, p) + margin))).

  Args:
    num_classes: Proxies.
    dim: Width of the embeddings.
    alpha: Scale, greater than 0.
    margin: delta, at least 0.
    seed: Of the first proxies.

  Returns:
    An `Objective` with `params["proxies"]` [num_classes, dim].

  Raises:
    ValueError: For numbers out of range; from `apply`, without labels.

  Example:
    >>> objective = proxy_anchor(num_classes=3, dim=2)
    >>> pairs = Pairs(
    ...   jnp.eye(2), jnp.eye(2), jnp.arange(2), label=jnp.arange(2)
    ... )
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> loss.shape
    ()

  Reference: Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020.
  """
  alpha = _positive("alpha", alpha)
  margin = checks.weight("margin", margin)

  def loss_fn(params, pairs):
    x, label = _samples(pairs)
    s = tiles.matmul(unit_norm(x), unit_norm(params["proxies"]).T)
    own = jnp.equal(label[:, None], jnp.arange(num_classes)[None])

    def pull_or_push(logits, kept):
      lse = jax.nn.logsumexp(jnp.where(kept, logits, -jnp.inf), axis=0)
      return jax.nn.softplus(lse)

    pulls = pull_or_push(-alpha * (s - margin), own)
    pushes = pull_or_push(alpha * (s + margin), ~own)
    there = jnp.any(own, axis=0)
    terms = {
      "pull": jnp.sum(jnp.where(there, pulls, 0.0)) / jnp.sum(there),
      "push": jnp.mean(pushes),
    }
    return terms["pull"] + terms["push"], terms

  return base.stateless(
    loss_fn, partial(_first_rows, "proxies", num_classes, dim, seed)
  )


def arcface(
  *,
  num_classes: int,
  dim: int,
  scale: Number = 30.0,
  margin: Number = 0.5,
  seed: int = 0,
) -> base.Objective:
  r"""ArcFace: a softmax over angles, with a margin added to the right one.

  logit_c = scale cos(theta_c), but scale cos(theta_y + margin) for the row's
  class y; where theta_y + margin exceeds pi, scale (cos(theta_y) - margin
  sin(margin)) goes on decreasing. The mean cross-entropy of all rows.

  Args:
    num_classes: Rows of the classifier.
    dim: Width of the embeddings.
    scale: Of the cosines, greater than 0.
    margin: In radians, in [0, pi / 2].
    seed: Of the first classifier.

  Returns:
    An `Objective` with `params["classes"]` [num_classes, dim]; metric
    `accuracy`, without the margin.

  Raises:
    ValueError: For numbers out of range; from `apply`, without labels.

  Example:
    >>> objective = arcface(num_classes=3, dim=2)
    >>> sorted(objective.init()[0])
    ['classes']

  Reference: Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face
    Recognition, CVPR 2019.
  """
  scale = _positive("scale", scale)
  margin = checks.number(
    "margin", margin, "in [0, pi / 2]", lambda x: 0 <= x <= math.pi / 2
  )

  def of_own(cosine):
    sine = jnp.sqrt(jnp.clip(1 - cosine**2, 1e-12))
    moved = cosine * math.cos(margin) - sine * math.sin(margin)
    beyond = cosine - margin * math.sin(margin)
    return jnp.where(cosine > -math.cos(margin), moved, beyond)

  return _softmax(
    of_own, lambda x: scale, num_classes=num_classes, dim=dim, seed=seed
  )


def sphereface(
  *,
  num_classes: int,
  dim: int,
  margin: int = 4,
  plain: Number = 5.0,
  seed: int = 0,
) -> base.Objective:
  r"""SphereFace: a softmax over angles, the right one multiplied.

  logit_c = ||x|| cos(theta_c); for the row's class y it is
  ||x|| (plain cos(theta_y) + psi(theta_y)) / (plain + 1) with
  psi(theta) = (-1)^k cos(m theta) - 2 k, k = floor(m theta / pi), which
  decreases over [0, pi]. Without `normalize=False` ||x|| is 1.

  Args:
    num_classes: Rows of the classifier.
    dim: Width of the embeddings.
    margin: m, a whole number of at least 1.
    plain: Weight of the plain cosine, which the authors lower to 5 while
      training; at least 0.
    seed: Of the first classifier.

  Returns:
    As `arcface`.

  Raises:
    ValueError: For numbers out of range; from `apply`, without labels.

  Example:
    >>> objective = sphereface(num_classes=3, dim=2)
    >>> sorted(objective.init()[0])
    ['classes']

  Reference: Liu et al., SphereFace: Deep Hypersphere Embedding for Face
    Recognition, CVPR 2017.
  """
  m = checks.number(
    "margin",
    margin,
    "a whole number of at least 1",
    lambda x: x >= 1 and x % 1 == 0,
  )
  plain = checks.weight("plain", plain)

  def of_own(cosine):
    theta = jnp.arccos(jnp.clip(cosine, -1 + 1e-6, 1 - 1e-6))
    k = jax.lax.stop_gradient(jnp.floor(m * theta / math.pi))
    psi = (1 - 2 * (k % 2)) * jnp.cos(m * theta) - 2 * k
    return (plain * cosine + psi) / (plain + 1)

  def norm(x):
    return jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True) + 1e-12)

  return _softmax(of_own, norm, num_classes=num_classes, dim=dim, seed=seed)


def _softmax(of_own, scale, *, num_classes, dim, seed) -> base.Objective:
  """Cross-entropy of scaled cosines; that of the row's class is changed."""

  def loss_fn(params, pairs):
    x, label = _samples(pairs)
    cosine = tiles.matmul(unit_norm(x), unit_norm(params["classes"]).T)
    own = jnp.equal(label[:, None], jnp.arange(num_classes)[None])
    logits = scale(x) * jnp.where(own, of_own(cosine), cosine)
    own_logit = jnp.sum(jnp.where(own, logits, 0.0), axis=1)
    loss = jnp.mean(jax.nn.logsumexp(logits, axis=1) - own_logit)
    return loss, {"accuracy": jnp.mean(jnp.argmax(cosine, axis=1) == label)}

  return base.stateless(
    loss_fn, partial(_first_rows, "classes", num_classes, dim, seed)
  )


def _samples(pairs: Pairs):
  """All rows of both sides and their labels."""
  if pairs.label is None:
    raise ValueError(
      "this objective needs labels; use a data set that brings them, such as "
      "config.data.name = 'digits'"
    )
  both = pairwise.embeddings(pairs)
  return jnp.concatenate(both), jnp.tile(pairs.label, 2)


def _first_rows(name: str, count: int, dim: int, seed: int):
  shape = (count, dim)
  return {name: jax.random.normal(jax.random.key(seed), shape) / dim**0.5}


def _positive(name: str, value) -> float:
  return checks.number(
    name, value, "a number greater than 0", lambda x: 0 < x < math.inf
  )

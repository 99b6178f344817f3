"""Metric learning with labels: N-pair and proxy anchors.

A batch has two views of labelled things; each row of either side is a sample.
"""

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.contrib.objectives import classes
from nuclr_jax.objectives import base
from nuclr_jax.objectives.clip import info_nce
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.types import Pairs, shows_its_call


@shows_its_call
@checks.checked
def npair(*, l2: checks.NonNegative = 0.002) -> base.Objective:
  r"""Makes the multi-class N-pair loss: a softmax over unscaled dot products.

  For anchor i and its positive i^+, the loss is

    log(1 + sum_{j: y_j != y_i} exp(f_i^T f_j^+ - f_i^T f_i^+)),

  averaged over the batch and both sides as anchors, plus l2 * mean(||f||^2).
  Embeddings should not have unit norm: give the model `normalize=False`. Rows
  of one label (or, without labels, one image or text) are not negatives of each
  other.

  Args:
    l2: Weight of the squared norms, at least 0.

  Returns:
    An `Objective` without params and state.

  Raises:
    ValueError: If the weight is negative; from `apply`, if all pairs are of one
      kind (NaN within `jax.jit`).

  Example:
    >>> objective = npair(l2=0.0)
    >>> pairs = Pairs(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(round(float(jnp.exp(loss)), 4))
    4.0

  Reference: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss
    Objective, NIPS 2016.
  """

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    kinds = pairs.kinds
    labelled = Pairs(image, text, pairs.pair_id, kinds.image, kinds.text)
    loss, _ = info_nce(labelled, 1.0)
    loss = pairwise.nan_without_negatives(loss, labelled)
    norm = jnp.mean(jnp.sum(image**2 + text**2, axis=1)) / 2
    return loss + l2 * norm, {"squared_norm": norm}

  return base.stateless(loss_fn)


@shows_its_call
@checks.checked
def proxy_anchor(
  *,
  num_classes: checks.Count,
  dim: checks.Count,
  alpha: checks.Positive = 32.0,
  margin: checks.NonNegative = 0.1,
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes Proxy Anchor: a proxy per class pulls and pushes the batch.

  The proxies p are learned. With cosine similarities s(x, p) and P^+ the
  classes in the batch, the loss is

    mean_{p in P^+} log(1 + sum_{x of p} exp(-alpha (s(x, p) - margin)))
      + mean_p log(1 + sum_{x not of p} exp(alpha (s(x, p) + margin))).

  Args:
    num_classes: The number of classes, and of proxies.
    dim: The width of the embeddings.
    alpha: Scale, greater than 0.
    margin: The margin (delta in the paper), at least 0.
    seed: The seed of the first proxies.

  Returns:
    An `Objective` with `params["proxies"]` [num_classes, dim].

  Raises:
    ValueError: For numbers out of range; from `apply`, if there are no labels.

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
  init = classes.random_rows("proxies", num_classes, dim, seed)

  def loss_fn(params, pairs):
    x, label = classes.samples(pairs, params["proxies"])
    s = tiles.matmul(unit_norm(x), unit_norm(params["proxies"]).T)
    own = classes.is_own(label, num_classes)

    def pull_or_push(logits, kept):
      lse = jax.nn.logsumexp(jnp.where(kept, logits, -jnp.inf), axis=0)
      return jax.nn.softplus(lse)

    pulls = pull_or_push(-alpha * (s - margin), own)
    pushes = pull_or_push(alpha * (s + margin), ~own)
    present = jnp.any(own, axis=0)
    terms = {
      "pull": jnp.sum(jnp.where(present, pulls, 0.0)) / jnp.sum(present),
      "push": jnp.mean(pushes),
    }
    return terms["pull"] + terms["push"], terms

  return base.stateless(loss_fn, init)

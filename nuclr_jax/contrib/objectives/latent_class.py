"""Contrastive objectives of latent-class theory: k negatives, and blocks."""

import jax
import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.contrib.latent_classes import losses
from nuclr_jax.objectives import base
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import Pairs, Sides, both, each, shows_its_call


@shows_its_call
@checks.checked
def latent_class(
  *,
  num_negatives: checks.Count = 1,
  loss: losses.Loss = "logistic",
) -> base.Objective:
  r"""Makes a loss of the margins between a positive and k negatives.

  Anchors x are `Pairs.image`, positives x^+ `Pairs.text`. The margins of an
  anchor are v_i = f(x)^T (f(x^+) - f(x_i^-)), i = 1 ... k; their loss is one of

    hinge          max(0, 1 + max_i(-v_i))
    logistic       log2(1 + sum_i exp(-v_i))
    cross_entropy  the same with the natural logarithm,

  averaged over the batch. Negatives are the positives of the next k pairs of
  the batch, except those that share an image or a text with the anchor.
  Embeddings need not have unit norm: give the model `normalize=False`, as in
  the theory. It takes O(B k d) and makes no [B, B] matrix.

  Args:
    num_negatives: k, at least 1; fewer than the batch.
    loss: One of the names above.

  Returns:
    An `Objective` without params and state; metric `margin`, the mean of v.

  Raises:
    ValueError: For an unknown loss or a wrong number; from `apply`, if all
      pairs share an image or a text (NaN within `jax.jit`).

  Example:
    >>> objective = latent_class(num_negatives=3)
    >>> pairs = Pairs(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(loss)
    2.0

  Reference: Saunshi et al., A Theoretical Analysis of Contrastive Unsupervised
    Representation Learning, ICML 2019, eq. (5); Merad et al., 2020, eq. (6).
  """

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    own = jnp.sum(image * text, axis=1)
    margins = _margins(image, text, own, pairs.ids, num_negatives)
    value, metrics = _mean(margins, loss)
    return pairwise.nan_without_negatives(value, pairs), metrics

  return base.stateless(loss_fn)


@shows_its_call
@checks.checked
def curl(
  *,
  block_size: checks.Count = 2,
  data_block_size: checks.Count | None = None,
  num_negatives: checks.Count = 1,
  loss: losses.Loss = "logistic",
) -> base.Objective:
  r"""Makes CURL: positives and negatives are means over blocks.

  The batch is a sequence of blocks: `block_size` consecutive pairs belong to
  one thing (a class, a document). The margins of an anchor are
  v_i = f(x)^T (mean_j f(x_j^+) - mean_j f(x_{ij}^-)), with the means over the
  texts of its own block and of each of the next k blocks.

  Args:
    block_size: Pairs per block, b; it divides the batch.
    data_block_size: That of the data, which must be the same; None means that
      it is not known.
    num_negatives: Negative blocks, k; fewer than the batch has blocks.
    loss: "hinge", "logistic" or "cross_entropy", as in `latent_class`.

  Returns:
    An `Objective` without params and state; metric `margin`, the mean of v.

  Raises:
    ValueError: For an unknown loss or a wrong number.

  Example:
    >>> objective = curl(block_size=2)
    >>> x = jnp.repeat(jnp.eye(2), 2, axis=0)
    >>> loss, _ = objective.apply(*objective.init(), Pairs(x, x, jnp.arange(4)))
    >>> print(round(float(loss), 4))  # log2(1 + exp(-1))
    0.4519

  Reference: Saunshi et al., Section 6.3, eq. (12).
  """
  block_size = _check_block_size(block_size, data_block_size)

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    count, block = _blocks(text, block_size)
    means = jnp.mean(text.reshape(count, block_size, -1), axis=1)
    means = jnp.repeat(means, block_size, axis=0)
    own = jnp.sum(image * means, axis=1)
    margins = _margins(
      image, means, own, both(block), num_negatives, step=block_size
    )
    return _mean(margins, loss)

  return base.stateless(loss_fn)


@shows_its_call
@checks.checked
def quick_thought(
  *,
  block_size: checks.Count = 1,
  data_block_size: checks.Count | None = None,
) -> base.Objective:
  r"""Makes quick thoughts: a softmax with all pairs of a block as positives.

  The batch is a sequence of blocks, as for `curl`. Each x_i and each x_j^+ of
  the same block form a positive pair; its negatives are the x^+ of all other
  blocks:

    mean over i, j of log(1 + sum_m exp(f(x_i)^T (f(x_m^+) - f(x_j^+)))).

  It differs from `curl` in averaging losses, not embeddings.

  Args:
    block_size: Pairs per block; it divides the batch.
    data_block_size: That of the data, as for `curl`.

  Returns:
    An `Objective` without params and state.

  Raises:
    ValueError: If the block size is wrong.

  Example:
    >>> objective = quick_thought()
    >>> pairs = Pairs(jnp.zeros((4, 2)), jnp.zeros((4, 2)), jnp.arange(4))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(round(float(jnp.exp(loss)), 4))
    4.0

  Reference: Logeswaran and Lee, An Efficient Framework for Learning Sentence
    Representations, ICLR 2018; Saunshi et al., Table 2.
  """
  block_size = _check_block_size(block_size, data_block_size)

  def loss_fn(params, pairs):
    del params
    image, text = pairwise.embeddings(pairs)
    count, block = _blocks(text, block_size)
    apart = Pairs(image, text, block)
    between = pairwise.logits(apart, temperature=1.0)
    lse = jax.lax.stop_gradient(pairwise.log_sum_exp(between).image)
    # Similarities within blocks, [blocks, x, x^+].
    within = jnp.einsum(
      "gid,gjd->gij",
      image.reshape(count, block_size, -1),
      text.reshape(count, block_size, -1),
      precision=tiles.PRECISION,
    )
    own = jnp.diagonal(within, axis1=1, axis2=2)[:, :, None]
    logits = lse.reshape(count, block_size, 1) + own - within
    direct = jnp.mean(jax.nn.softplus(logits))
    # The rest of the gradient comes from the sums over other blocks.
    log_share = jnp.log(jnp.mean(jax.nn.sigmoid(logits), axis=2)).reshape(-1)
    weight = jax.lax.stop_gradient(log_share) - lse - jnp.log(len(text))
    nothing = jnp.full_like(weight, -jnp.inf)
    out = pairwise.weighted(between, row_log_weight=Sides(weight, nothing))
    return base.attach_gradient(direct, direct + out.surrogate), {}

  return base.stateless(loss_fn)


def _check_block_size(block_size, of_data: int | None) -> int:
  """Returns the block size; raises ValueError if the data have another one."""
  if of_data not in (None, block_size):
    raise ValueError(
      f"the objective's block_size is {block_size} and that of the data "
      f"{of_data} (config.data.block_size); they must be equal (blocks of 2 or "
      "more need config.data.positive = 'class')"
    )
  return block_size


def _margins(image, text, own, ids, count, step=1):
  """Computes margins [batch, count] to the next texts; inf for equal ids."""
  if count * step >= len(text):
    raise ValueError(
      f"num_negatives must be below the batch's {len(text) // step} "
      f"{'blocks' if step > 1 else 'pairs'}, got {count}"
    )

  own = jnp.where(jnp.isfinite(own), own, jnp.nan)  # a margin may be inf

  def margin(shift):
    same = each(lambda x: x == jnp.roll(x, -shift), ids)
    margin = own - jnp.sum(image * jnp.roll(text, -shift, axis=0), axis=1)
    return jnp.where(same.image | same.text, jnp.inf, margin)

  return jnp.stack([margin(i * step) for i in range(1, count + 1)], axis=1)


def _mean(margins, loss):
  """Returns the mean loss, and the mean margin as a metric."""
  kept = jnp.isfinite(margins)
  margin = jnp.sum(jnp.where(kept, margins, 0.0)) / jnp.maximum(kept.sum(), 1)
  return jnp.mean(losses.of_margins(margins, loss)), {"margin": margin}


def _blocks(x, block_size: int):
  """Returns the number of blocks, and the block number of each row."""
  if len(x) % block_size or len(x) == block_size:
    raise ValueError(
      f"a batch must be two or more blocks of {block_size} pairs, got {len(x)}"
    )
  return len(x) // block_size, jnp.arange(len(x)) // block_size

r"""The latest pairs, for the zeta rule `queue`: more than a batch has.

The batch's sums are noisy. Over the last Q pairs, a few steps old, both sums
of Sinkhorn's iteration have Q / B times as many terms, at the cost of two
products [batch, dim] x [dim, Q]. With images as anchors i, texts as contrast j,
q the other pairs of the memory and rho = (n - 1) / their number:

  D_i = log[ rho sum_q exp((sim_iq - zeta_q) / tau_i)
             + exp((sim_ii - zeta_i) / tau_i) ]
  w_jj = exp((sim_jj - zeta_j) / tau_j - D_j)
  sum_{i != j} w_ij = rho sum_q exp((sim_qj - zeta_j) / tau_q - D_q)

At the fixed point the weights of every contrast sum to 1. With S_j their sum,
d log S_j / d zeta_j = -E_w[1 / tau], the mean over the weights of j, so

  zeta_j <- zeta_j + rate log S_j / E_w[1 / tau]

is Newton's step times the rate; with a single temperature tau and at rate 1, it
is Sinkhorn's full step, tau log S_j. D_q is the value from the step that had q
in its batch, zeta_q the current one. Pairs that share an image or a text with
the batch's row are left out. Where several pairs share an image or a text, the
mean of their steps is not exactly the step of the mean.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import pairwise, sharding
from nuclr_jax.pairwise import tiles
from nuclr_jax.sample_state.denominator import Evidence
from nuclr_jax.sample_state.table import read_batch, whole, write_rows
from nuclr_jax.types import (
  Pairs,
  Sample,
  Sides,
  both,
  each,
  swap,
  unzip,
)

EMPTY = -1  # the pair id of a slot without a pair


class Memory(NamedTuple):
  """The latest pairs; each new pair replaces the oldest."""

  embedding: Sides  # [size, dim] each
  pair_id: Int[Array, "size"]
  ids: Sides  # [size] each: image ids, text ids
  inverse_tau: Sides  # [size] each, 1 / temperature, .image: images as anchors
  log_denominator: Sides  # D [size], .image: images as anchors; inf = empty


def empty(size: int, dim: int) -> Memory:
  """Makes a memory without pairs."""

  def full(shape, value, dtype):  # two buffers, so that they can be donated
    return each(lambda _: jnp.full(shape, value, dtype), both(None))

  return Memory(
    embedding=full((size, dim), 0, float),
    pair_id=jnp.full(size, EMPTY, int),
    ids=full(size, EMPTY, int),
    inverse_tau=full(size, 1, float),
    log_denominator=full(size, jnp.inf, float),
  )


def emptied(memory: Memory) -> Memory:
  """Empties the memory, for when zeta was written from outside."""
  return memory._replace(
    log_denominator=each(
      lambda x: jnp.full_like(x, jnp.inf), memory.log_denominator
    )
  )


def advance(
  memory: Memory, evidence: Evidence, *, size: int
) -> tuple[Sides, Memory]:
  """Computes the gradient of the batch's zeta and adds the batch to the memory.

  Args:
    memory: The earlier pairs.
    evidence: The evidence of the batch. While the memory is empty, only the
      batch's own estimate is known, and zeta does not move.
    size: The number of rows of the memory, without padding.

  Returns:
    The gradient [batch] of each side as contrast, -log S_j in units of the
    first temperature, and the next memory.

  Raises:
    ValueError: If the memory is smaller than the batch, or for embeddings of
      another width.
  """
  pairs, zeta, sizes = evidence.pairs, evidence.zeta, evidence.sizes
  parts, memory = memory, whole(memory, pairs.pair_id, size)
  _check_fit(memory, pairs, size)
  gathered = pairs._replace(image=sharding.gather(pairs.image))
  vectors = jax.lax.stop_gradient(pairwise.embeddings(gathered))
  own = evidence.own
  inverse_tau = each(
    lambda t: jnp.broadcast_to(1 / jnp.asarray(t, own.dtype), own.shape),
    evidence.tau,
  )
  is_empty = memory.log_denominator.image == jnp.inf
  pair_id = jnp.where(is_empty, EMPTY, memory.pair_id)
  held = pairwise.replicated_ids(Pairs(*memory.embedding, pair_id, *memory.ids))
  tables = each(lambda rows: rows.zeta, evidence.tables)
  old_zeta = Sides(*read_batch(Sample((), *tables), held, sizes)[1:])
  rest, others, mean_scale = _log_sums(
    (each(Rows, vectors, zeta, inverse_tau, both(jnp.zeros_like(own))), pairs),
    (
      each(
        Rows, *map(swap, (memory.embedding, old_zeta)), *map(swap, memory[3:])
      ),
      memory,
    ),
    _log_ratio(held, pairs, sizes),
  )
  nothing_yet = jnp.all(held.pair_id == EMPTY)
  rest = each(
    lambda x, phi, scale: jnp.where(nothing_yet, phi + own * scale, x),
    rest,
    evidence.log_phi,
    inverse_tau,
  )
  log_positive = each(
    lambda z, scale: (own - z) * scale, swap(zeta), inverse_tau
  )
  denominator = each(jnp.logaddexp, log_positive, rest)

  def gradient(others, mean_scale, positive_weight, own_scale):
    log_total = jnp.logaddexp(positive_weight, others)
    positive_share = jnp.exp(positive_weight - log_total)
    slope = positive_share * own_scale + (1 - positive_share) * mean_scale
    step = -log_total / (evidence.unit * slope)
    return jnp.where(nothing_yet, 0.0, step)

  gradients = each(
    gradient,
    others,
    mean_scale,
    swap(each(jnp.subtract, log_positive, denominator)),
    swap(inverse_tau),
  )
  newest = Memory(vectors, pairs.pair_id, pairs.ids, inverse_tau, denominator)
  return gradients, _push(parts, newest, evidence.count, size)


class Rows(NamedTuple):
  """One side of a batch or of a memory, as anchors and as contrast."""

  vector: Float[Array, "rows dim"]
  zeta: Float[Array, "rows"]  # as contrast
  scale: Float[Array, "rows"]  # 1 / tau as anchor; 0 only in a tile's padding
  log_denominator: Float[Array, "rows"]  # D as anchor; inf = not there


def _log_sums(batch, memory, log_ratio) -> tuple[Sides, Sides, Sides]:
  r"""Sums both kinds of terms over the memory, from one product for each side.

  A row of the batch is the anchor of exp((sim_iq - zeta_q) / tau_i) and the
  contrast of exp((sim_qj - zeta_j) / tau_q - D_q); memory pairs that share an
  image or a text with it are left out.

  Args:
    batch: `Rows` of the batch's images and texts, and what has its `ids`.
    memory: `Rows` of the memory's texts and images (what each side meets), and
      what has its `ids`.
    log_ratio: log rho [batch], see `_log_ratio`.

  Returns:
    For each side [batch], the logarithms of rho times the first sum and of rho
    times the second, and the mean of 1 / tau_q, weighted by the second's terms.
  """
  ids, memory_ids = (jnp.stack(x.ids, axis=1) for _, x in (batch, memory))
  memory_ids = memory_ids.astype(ids.dtype)

  def add(sums, logits):
    sums = tiles.at_least(sums, jnp.max(logits, 0))
    terms = jnp.exp(logits - tiles.finite(sums.greatest)[None])
    return sums._replace(total=sums.total + jnp.sum(terms, 0)), terms

  def step(memory, batch, sums):
    (memory, memory_ids), (batch, batch_ids) = memory, batch
    same = jnp.equal(memory_ids[:, None], batch_ids[None]).any(-1)

    def side(memory, row, sums):
      as_anchor, as_contrast, scales = sums
      old_zeta, scale, d = (x[:, None] for x in memory[1:])
      zeta, row_scale, _ = (x[None] for x in row[1:])
      out = same | (scale * row_scale == 0) | (d == jnp.inf)
      sim = tiles.product(memory.vector, row.vector.T)  # [memory, batch]
      logits = (sim - old_zeta) * row_scale
      as_anchor, _ = add(as_anchor, jnp.where(out, -jnp.inf, logits))
      logits = (sim - zeta) * scale - d
      as_contrast, terms = add(as_contrast, jnp.where(out, -jnp.inf, logits))
      scales = tiles.at_least(scales, as_contrast.greatest)
      total = scales.total + jnp.sum(terms * scale, 0)
      return as_anchor, as_contrast, scales._replace(total=total)

    return each(side, memory, batch, sums)

  dtype = jnp.result_type(batch[0].image.scale, memory[0].image.scale)
  sums = tiles.over_columns(
    step,
    (memory[0], memory_ids),
    (batch[0], ids),
    each(lambda x: (tiles.no_terms(x.scale.astype(dtype)),) * 3, batch[0]),
  )

  def read(sums):
    as_anchor, as_contrast, scales = sums
    has_terms = as_contrast.total > 0
    mean = scales.total / jnp.where(has_terms, as_contrast.total, 1.0)
    logs = (tiles.log_total(x) + log_ratio for x in (as_anchor, as_contrast))
    return *logs, jnp.where(has_terms, mean, 1.0)

  return unzip(each(read, sums))


def _log_ratio(held: Pairs, pairs: Pairs, sizes) -> Float[Array, "batch"]:
  """Returns log rho, which scales the memory's other pairs to the data set."""
  keys = jnp.sort(pairs.pair_id.astype(held.pair_id.dtype))
  # By a search in the batch: a memory is too long to be sorted in every step.
  place = jnp.minimum(jnp.searchsorted(keys, held.pair_id), len(keys) - 1)
  again = (keys[place] == held.pair_id).astype(jnp.int32)
  again = jax.ops.segment_sum(again, place, num_segments=len(keys))
  own = again[jnp.searchsorted(keys, pairs.pair_id.astype(keys.dtype))]
  others = jnp.sum(held.pair_id != EMPTY) - own
  return jnp.log((sizes.num_pairs - 1) / jnp.maximum(others, 1))


def _check_fit(memory: Memory, pairs, size: int) -> None:
  dim = memory.embedding.image.shape[1]
  batch, width = pairs.image.shape
  if size < batch:
    raise ValueError(
      f"the zeta rule's size must be at least the batch size, {batch}, got "
      f"{size}; set it (objective.zeta.size in a config)"
    )
  if dim != width:
    raise ValueError(
      f"the zeta rule's dim must be the width of the embeddings, {width}, got "
      f"{dim}; make the rule as queue(dim={width}, ...)"
    )


def _push(memory: Memory, newest: Memory, count, size: int) -> Memory:
  """Replaces the oldest pairs; slots beyond the last whole batch stay empty."""
  batch = len(newest.pair_id)
  start = count % (size // batch) * batch
  slots = start + jnp.arange(batch)

  return write_rows(memory, slots, newest, size)

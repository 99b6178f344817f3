r"""The latest pairs: more of them than a batch has, to estimate zeta by.

The batch's sums are noisy. Over the last Q pairs, a few steps old, both sums
of Sinkhorn's iteration are Q / B times as good, for four products
[batch, dim] x [dim, Q]. With images as anchors i and texts as contrast j, the
other pairs q of the queue and rho = (n - 1) / their number:

  D_i = log[ rho sum_q exp((sim_iq - zeta_q) / tau)
             + exp((sim_ii - zeta_i) / tau) ]
  w_jj = exp((sim_jj - zeta_j) / tau - D_j)
  sum_{i != j} w_ij = rho sum_q exp((sim_qj - zeta_j) / tau - D_q)

D_q is as it was when q was in the batch, zeta_q as it is now. Pairs that share
an image or a text with the batch's row are left out. Where several pairs have
one image or text, the mean of their steps is not exactly the step of the mean.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from nuclr_jax import pairwise, tiles
from nuclr_jax.objectives import rows
from nuclr_jax.types import Pairs, Sides, Sizes, both, each, swap


class Queue(NamedTuple):
  """The last pairs; a newcomer takes the place of the oldest."""

  embedding: Sides  # [size, dim] each
  pair_id: Int[Array, "size"]
  ids: Sides  # [size] each: image ids, text ids
  log_denominator: Sides  # D [size], .image: images as anchors; inf = empty


def check_queue(size: int, dim: int | None, *, individual: bool) -> None:
  """Checks the arguments of `nuclr` that the queue needs.

  Raises:
    ValueError: If one is out of its range.
  """
  for name, value in (("zeta_queue", size), ("dim", dim)):
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
      raise ValueError(
        f"{name} must be a whole number greater than 0 for zeta_estimator "
        f"'sinkhorn', got {value!r}"
      )
  if individual:
    raise ValueError(
      "zeta_estimator must not be 'sinkhorn' with temperature_learning_rate: "
      "individual temperatures have no such iteration"
    )


def init_queue(size: int, dim: int) -> Queue:
  """An empty queue."""

  def full(shape, value, dtype):  # two buffers, so that they can be donated
    return each(lambda _: jnp.full(shape, value, dtype), both(None))

  return Queue(
    full((size, dim), 0, float),
    jnp.full(size, -1, int),
    full(size, -1, int),
    full(size, jnp.inf, float),
  )


def emptied(queue: Queue) -> Queue:
  """The queue without its pairs, for when zeta were replaced from outside."""
  return queue._replace(
    log_denominator=each(
      lambda x: jnp.full_like(x, jnp.inf), queue.log_denominator
    )
  )


def advance(
  queue: Queue,
  id_rows: Sides,
  pairs: Pairs,
  zeta: Sides,
  log_phi: Sides,
  *,
  temperature: float,
  count: Int[Array, ""],
  sizes: Sizes,
) -> tuple[Queue, Sides]:
  """The gradient of zeta of the batch; then the batch joins the queue.

  The gradient is -temperature log(w_jj + sum_{i != j} w_ij), so that a step of
  its full length is one of Sinkhorn's.

  Args:
    queue: The earlier pairs.
    id_rows: Rows of images and of texts, with the current zeta.
    pairs: The batch.
    zeta: Of its images and texts.
    log_phi: The batch's own estimate, by anchor; all there is at first.
    temperature: One for all.
    count: Steps done.
    sizes: Of the data set.

  Returns:
    The next queue, and the gradient [batch] of each side as contrast.

  Raises:
    ValueError: If the queue is smaller than the batch, or for embeddings of
      another width.
  """
  (size, dim), (batch, width) = queue.embedding.image.shape, pairs.image.shape
  if size < batch:
    raise ValueError(
      f"zeta_queue must be at least the batch size, {batch}, got {size}; set "
      "it (objective.zeta_queue in a config)"
    )
  if dim != width:
    raise ValueError(f"dim must be the embeddings' width, {width}, got {dim}")
  pairs = pairs._replace(**pairwise.embeddings(pairs)._asdict())
  pairs = jax.lax.stop_gradient(pairs)
  own = pairwise.own_similarity(pairs) / temperature
  log_own = each(lambda x: own - x / temperature, swap(zeta))
  contrast_zeta = each(
    lambda r, i, n: rows.read(r.zeta, i, n), id_rows, queue.ids, sizes.ids
  )
  contrast_weight = each(
    lambda x, d: jnp.where(d == jnp.inf, -jnp.inf, -x / temperature),
    contrast_zeta,
    queue.log_denominator,
  )
  empty = jnp.all(queue.log_denominator.image == jnp.inf)
  sums = _sums(queue, pairs, temperature, sizes)
  rest = sums(swap(contrast_weight))
  rest = each(lambda x, phi: jnp.where(empty, phi + own, x), rest, log_phi)
  anchor_weight = swap(each(jnp.negative, queue.log_denominator))
  log_sums = sums(anchor_weight)
  denominator = each(jnp.logaddexp, log_own, rest)
  gradient = each(
    lambda own, sums, z: jnp.where(
      empty, 0.0, -temperature * jnp.logaddexp(own, sums - z / temperature)
    ),
    swap(each(jnp.subtract, log_own, denominator)),
    log_sums,
    zeta,
  )
  return _push(queue, pairs, denominator, count), gradient


def _sums(queue, pairs, temperature, sizes) -> Callable[[Sides], Sides]:
  """Makes log rho sum_q exp(sim_iq / tau + log_weight_q), images and texts.

  `log_weight` is filed with the rows: `.image` weighs the queue's texts.
  """
  columns = jnp.stack(queue.ids, axis=1)
  ids = jnp.stack(pairs.ids, axis=1).astype(columns.dtype)
  filled = queue.log_denominator.image != jnp.inf
  held = jnp.where(filled, queue.pair_id, -1)
  # What rho makes up for: the pairs of the queue that are not the row itself.
  others = jnp.sum(filled) - _occurrences(held, pairs.pair_id)
  log_ratio = jnp.log((sizes.num_pairs - 1) / jnp.maximum(others, 1))

  def side(row, column, weight):
    return log_ratio + tiles.log_sum_exp(
      row,
      column,
      weight,
      temperature=temperature,
      row_ids=ids,
      column_ids=columns,
    )

  anchors = Sides(pairs.image, pairs.text)
  return partial(each, side, anchors, swap(queue.embedding))


def _push(queue: Queue, pairs: Pairs, log_denominator: Sides, count) -> Queue:
  """Replaces the oldest pairs; what is no whole batch of them stays empty."""
  size, batch = len(queue.ids.image), len(pairs.pair_id)
  start = count % (size // batch) * batch

  def put(table, new):
    new = new.astype(table.dtype)
    return jax.lax.dynamic_update_slice_in_dim(table, new, start, axis=0)

  vectors = Sides(pairs.image, pairs.text)
  new = Queue(vectors, pairs.pair_id, pairs.ids, log_denominator)
  return jax.tree.map(put, queue, new)


def _occurrences(values: Int[Array, "size"], of: Int[Array, "batch"]):
  """How often each number occurs among the values."""
  values, of = jnp.sort(values), of.astype(values.dtype)
  first, end = (jnp.searchsorted(values, of, side=x) for x in ("left", "right"))
  return end - first

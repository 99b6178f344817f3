"""Log-sum-exps between all rows of two matrices, tile by tile.

What `pairwise` does within a batch, over whole data sets: never more than a
tile of similarities is in memory. On a mesh each device has its share of the
rows, and all columns.
"""

from functools import partial

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import sharding

TILE = 1024  # rows and columns of a tile, at most


@partial(jax.jit, static_argnames="tile")
def log_sum_exp(
  rows: Float[Array, "rows dim"],
  columns: Float[Array, "columns dim"],
  log_weight: Float[Array, "columns"],
  *,
  temperature,
  row_ids: Int[Array, "rows spaces"] | None = None,
  column_ids: Int[Array, "columns spaces"] | None = None,
  tile: int = TILE,
) -> Float[Array, "rows"]:
  r"""Log sum_j exp(row_i . column_j / temperature + log_weight_j).

  The sum is over the columns that share no id with the row. Memory is
  O(rows + columns + tile^2), the dot products are true float32 or better.

  Args:
    rows: One embedding each.
    columns: One embedding each.
    log_weight: Of each column; -inf leaves it out.
    temperature: Greater than 0.
    row_ids: Ids of each row, one in each id space; None hides nothing.
    column_ids: Ids of each column in the same spaces.
    tile: Rows and columns of a tile.

  Returns:
    One value per row; -inf where no column is left.

  Example:
    >>> eye, id = jnp.eye(3), jnp.arange(3)[:, None]
    >>> log_sum_exp(  # log(2 exp(0))
    ...   eye, eye, jnp.zeros(3), temperature=0.5, row_ids=id, column_ids=id
    ... )
    Array([0.6931472, 0.6931472, 0.6931472], dtype=float32)
  """
  dtype = jnp.result_type(jnp.float32, rows, columns)
  num_rows, mesh = len(rows), jax.sharding.get_abstract_mesh()
  num_devices = mesh.shape.get("data", 1)
  if row_ids is None:
    row_ids = jnp.zeros((num_rows, 0), jnp.int32)
    column_ids = jnp.zeros((len(columns), 0), jnp.int32)
  row_blocks = _blocks((rows.astype(dtype) / temperature, row_ids), tile)
  row_blocks = jax.tree.map(
    lambda x: jnp.pad(x, _after(x, -len(x) % num_devices)), row_blocks
  )
  column_blocks = (
    *_blocks((columns.astype(dtype), column_ids), tile),
    _blocks(log_weight.astype(dtype), tile, padding=-jnp.inf),
  )

  def all_rows(row_blocks, column_blocks):
    return lax.map(partial(_row_block, column_blocks), row_blocks)

  if num_devices > 1:
    all_rows = jax.shard_map(
      all_rows,
      in_specs=(sharding.ROWS, sharding.REPLICATED),
      out_specs=sharding.ROWS,
    )
  return all_rows(row_blocks, column_blocks).reshape(-1)[:num_rows]


def _row_block(column_blocks, row_block):
  """Runs through all columns with the greatest logit and the sum so far."""
  rows, row_ids = row_block

  def step(carry, column_block):
    greatest, total = carry
    columns, column_ids, log_weight = column_block
    dots = jnp.matmul(rows, columns.T, precision=lax.Precision.HIGHEST)
    logits = dots + log_weight[None, :]
    for space in range(row_ids.shape[1]):
      same = jnp.equal(row_ids[:, space, None], column_ids[None, :, space])
      logits = jnp.where(same, -jnp.inf, logits)
    new = jnp.maximum(greatest, jnp.max(logits, axis=1))
    shift = jnp.where(new == -jnp.inf, 0.0, new)
    total *= jnp.exp(greatest - shift)
    total += jnp.sum(jnp.exp(logits - shift[:, None]), axis=1)
    return (new, total), None

  zero = 0.0 * rows[:, 0]  # `0 *`: a carry that varies over devices
  (greatest, total), _ = lax.scan(step, (zero - jnp.inf, zero), column_blocks)
  return jnp.log(total) + greatest


def _blocks(arrays, tile: int, padding=0):
  """Cuts the leading axis into blocks of at most `tile`; the last is padded."""

  def cut(x):
    size = max(1, min(tile, len(x)))
    x = jnp.pad(x, _after(x, -len(x) % size), constant_values=padding)
    return x.reshape(len(x) // size, size, *x.shape[1:])

  return jax.tree.map(cut, arrays)


def _after(x, count: int):
  """Widths for `jnp.pad`: `count` more at the end of the leading axis."""
  return [(0, count)] + [(0, 0)] * (x.ndim - 1)

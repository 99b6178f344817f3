"""All pairs of rows and columns, tile by tile, never in one matrix.

`for_each` is the loop behind `pairwise` (within a batch). On a mesh,
`over_rows` gives each device its share of the rows and all columns, as in
`row_log_sum_exp` (over whole data sets); `over_columns` leaves the rows where
they are and gives each device all columns, for sums over a memory of pairs.
"""

from collections.abc import Callable
from functools import partial
import re
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import sharding
from nuclr_jax.types import Number, PyTree

# Rows and columns of a square tile. 512 is fastest on CPUs; elsewhere a tile
# must be so large that the time to launch a kernel does not matter.
CPU_TILE, TILE = 512, 4096
# True float32, on TPUs six passes of bf16. At temperature 0.01 an exponential
# is then accurate to 1e-4; with one pass of bf16 the error would be 0.1,
# with TF32 0.01 (experiments/step_time/precision.py).
PRECISION = lax.Precision.HIGHEST
# Three passes of bf16 are off by 2e-4. On these devices, of all products that
# are off by less than 1e-3, they take the fewest seconds by the stated rates;
# on others they may be slower than float32.
FAST_ON = r"\b([AH][18]00|G?H200|G?B[123]00|TPU\w*)\b"


def matmul(
  a: Float[Array, "m k"], b: Float[Array, "k n"]
) -> Float[Array, "m n"]:
  """Multiplies matrices in `PRECISION`, whatever JAX's default is."""
  return jnp.matmul(a, b, precision=PRECISION)


def product(
  a: Float[Array, "m k"], b: Float[Array, "k n"]
) -> Float[Array, "m n"]:
  """Multiplies what a batch's loss needs, precisely enough for its device.

  On devices whose kind `FAST_ON` matches, float32 is multiplied in three passes
  of bf16, elsewhere and in other dtypes as by `matmul`. JAX's option
  `jax_default_matmul_precision` chooses `matmul` everywhere if it is "float32"
  or "highest".

  Example:
    >>> with jax.default_matmul_precision("float32"):
    ...   print(product(jnp.ones((1, 2)), jnp.ones((2, 1))))
    [[2.]]
  """
  return (_three_passes if in_three_passes(a.dtype) else matmul)(a, b)


def in_three_passes(dtype: jnp.dtype) -> bool:
  """Returns whether `product` multiplies a type in three passes of bf16."""
  named = jax.config.jax_default_matmul_precision in ("float32", "highest")
  fast = dtype == jnp.float32 and re.search(FAST_ON, device().device_kind)
  return bool(fast and not named)


# JAX's presets for this (such as BF16_BF16_F32_X3) are not safe: XLA forgets
# them on several GPUs, and computes in TF32 (experiments/step_time).
@jax.custom_jvp
def _three_passes(a, b):
  """Adds the products of leading parts of 8 bits, and of these and the rest."""
  if device().platform == "tpu":
    return jnp.matmul(a, b, precision=lax.Precision.HIGH)
  c, d = (lax.reduce_precision(x, 8, 7) for x in (a, b))
  a = jnp.concatenate([c, c, a - c], axis=1).astype(jnp.bfloat16)
  b = jnp.concatenate([d, b - d, d], axis=0).astype(jnp.bfloat16)
  return jnp.matmul(a, b, preferred_element_type=jnp.float32)


_three_passes.defjvp(
  lambda x, dx: (_three_passes(*x), matmul(dx[0], x[1]) + matmul(x[0], dx[1]))
)


def device() -> jax.Device | jax.sharding.AbstractDevice:
  """Returns a device of the mesh in context; without one, JAX's first."""
  return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def for_each(
  step: Callable[[PyTree, PyTree, PyTree, PyTree], tuple[PyTree, PyTree]],
  rows: PyTree,
  columns: PyTree,
  row_sums: PyTree,
  column_sums: PyTree,
  *,
  tile: int | None = None,
) -> tuple[PyTree, PyTree]:
  """Runs a step on every tile, which adds to the sums of rows and columns.

  Memory is that of the arguments and of one step.

  Args:
    step: `step(rows, columns, row_sums, column_sums)` returns both sums with
      the terms of one tile added. Rows and columns beyond the end are zeros
      (False); a step must keep them out of the sums of actual entries.
    rows: Arrays with one leading axis [rows].
    columns: Arrays with one leading axis [columns].
    row_sums: Initial sums, arrays [rows, ...].
    column_sums: Initial sums, arrays [columns, ...].
    tile: Rows and columns of a tile; None means `CPU_TILE` or `TILE`. If there
      are fewer rows than that, a tile has more columns, and vice versa.

  Returns:
    The sums of rows and of columns.

  Example:
    >>> x = jnp.arange(3.0)
    >>> def step(rows, columns, row_sums, column_sums):
    ...   product = rows[:, None] * columns[None, :]
    ...   return row_sums + product.sum(1), column_sums + product.sum(0)
    >>> for_each(step, x, x, jnp.zeros(3), jnp.zeros(3), tile=2)[0]
    Array([0., 3., 6.], dtype=float32)
  """
  num_rows, num_columns = map(_length, (rows, columns))
  height, width = _shape_of_blocks(num_rows, num_columns, tile)
  row_blocks, row_sums = _blocks((rows, row_sums), height)
  column_blocks = _blocks((columns, column_sums), width)

  def column_block(row_sums, block):
    columns, column_sums = block

    def row_block(column_sums, block):
      return step(block[0], columns, block[1], column_sums)[::-1]

    column_sums, row_sums = lax.scan(
      row_block, column_sums, (row_blocks, row_sums)
    )
    return row_sums, column_sums

  row_sums, column_sums = lax.scan(column_block, row_sums, column_blocks)
  return _join(row_sums, num_rows), _join(column_sums, num_columns)


def is_one(num_rows: int, num_columns: int, tile: int | None = None) -> bool:
  """Returns whether `for_each` makes a single tile of all rows and columns.

  Example:
    >>> is_one(512, 512, tile=512), is_one(64, 4096, 512), is_one(513, 512, 512)
    (True, True, False)
  """
  height, width = _shape_of_blocks(num_rows, num_columns, tile)
  return num_rows <= height and num_columns <= width


def _shape_of_blocks(num_rows, num_columns, tile) -> tuple[int, int]:
  """Returns the greatest height and width of a tile."""
  tile = tile or (CPU_TILE if device().platform == "cpu" else TILE)
  rows, columns = (max(1, min(tile, x)) for x in (num_rows, num_columns))
  return tile**2 // columns, tile**2 // rows


def over_rows(
  step: Callable[[PyTree, PyTree, PyTree], PyTree],
  rows: PyTree,
  columns: PyTree,
  row_sums: PyTree,
  *,
  tile: int | None = None,
) -> PyTree:
  """Runs `for_each` with sums of rows only; on a mesh, devices share the rows.

  Args:
    step: `step(rows, columns, row_sums)` returns the sums with the terms of one
      tile added.
    rows: Arrays with one leading axis [rows].
    columns: Arrays with one leading axis [columns]; every device has them all.
    row_sums: Initial sums, arrays [rows, ...].
    tile: Rows and columns of a tile; None means `CPU_TILE` or `TILE`.

  Returns:
    The sums of rows.

  Example:
    >>> x = jnp.arange(3.0)
    >>> def step(rows, columns, sums):
    ...   return sums + jnp.sum(rows[:, None] * columns[None, :], axis=1)
    >>> over_rows(step, x, x, jnp.zeros(3))
    Array([0., 3., 6.], dtype=float32)
  """
  num_rows, num_devices = _length(rows), sharding.num_devices()

  def step_of_rows(rows, columns, row_sums, nothing):
    return step(rows, columns, row_sums), nothing

  def all_tiles(rows, columns, row_sums):
    return for_each(step_of_rows, rows, columns, row_sums, (), tile=tile)[0]

  if num_devices > 1:
    all_tiles = sharding.per_device(
      all_tiles,
      in_specs=(sharding.ROWS, sharding.REPLICATED, sharding.ROWS),
      out_specs=sharding.ROWS,
    )
    rows, row_sums = pad((rows, row_sums), -num_rows % num_devices)
  sums = all_tiles(rows, columns, row_sums)
  return jax.tree.map(lambda x: x[:num_rows], sums)


def over_columns(
  step: Callable[[PyTree, PyTree, PyTree], PyTree],
  rows: PyTree,
  columns: PyTree,
  column_sums: PyTree,
  *,
  tile: int | None = None,
) -> PyTree:
  """Runs `for_each` with sums of columns only, as sums of exponentials.

  On a mesh the rows stay where they are: each device goes through its own rows,
  and only the sums of the columns cross devices.

  Args:
    step: `step(rows, columns, column_sums)` returns the sums with the terms of
      one tile added.
    rows: Arrays with one leading axis [rows], split over the devices.
    columns: Arrays with one leading axis [columns]; every device has them all.
    column_sums: Initial sums, a pytree of `LogSum` [columns].
    tile: Rows and columns of a tile; None means `CPU_TILE` or `TILE`.

  Returns:
    The sums of columns.

  Example:
    >>> x = jnp.arange(3.0)
    >>> def step(rows, columns, sums):
    ...   return add_terms(sums, rows[:, None] * columns[None, :], axis=0)
    >>> log_total(over_columns(step, x, x, no_terms(x)))[0]  # log(3 exp(0))
    Array(1.0986123, dtype=float32)
  """
  num_devices = sharding.num_devices()

  def one_tile(rows, columns, nothing, column_sums):
    return nothing, step(rows, columns, column_sums)

  def all_tiles(rows, columns, column_sums):
    return for_each(one_tile, rows, columns, (), column_sums, tile=tile)[1]

  def per_device(rows, *columns):
    # A scan's carry must be marked as varying over devices from the start.
    columns = jax.tree.map(sharding.varying, columns)
    return sum_over_devices(all_tiles(rows, *columns))

  if num_devices == 1:
    return all_tiles(rows, columns, column_sums)
  rows = pad(rows, -_length(rows) % num_devices)
  specs = sharding.ROWS, sharding.REPLICATED, sharding.REPLICATED
  f = sharding.per_device(
    per_device, in_specs=specs, out_specs=sharding.REPLICATED
  )
  return f(rows, columns, column_sums)


class LogSum(NamedTuple):
  """A running sum of exponentials: total * exp(greatest)."""

  greatest: Array
  total: Array


def no_terms(like: Array) -> LogSum:
  """Makes an empty sum for each entry of an array."""
  return LogSum(jnp.full_like(like, -jnp.inf), jnp.zeros_like(like))


def add_terms(log_sum: LogSum, logits: Array, axis: int) -> LogSum:
  """Adds exp(logits) to a sum, along an axis."""
  log_sum = at_least(log_sum, jnp.max(logits, axis))
  logits -= jnp.expand_dims(finite(log_sum.greatest), axis)
  return log_sum._replace(total=log_sum.total + jnp.sum(jnp.exp(logits), axis))


def at_least(log_sum: LogSum, greatest: Array) -> LogSum:
  """Expresses a sum relative to `greatest` if that is above its own."""
  greatest = jnp.maximum(log_sum.greatest, greatest)
  total = log_sum.total * jnp.exp(log_sum.greatest - finite(greatest))
  return LogSum(greatest, total)


def finite(greatest: Array) -> Array:
  """Replaces -inf by 0: inf - inf would be NaN where there is no term."""
  return jnp.where(greatest == -jnp.inf, 0.0, greatest)


def log_total(log_sum: LogSum) -> Array:
  """Returns the logarithm of the sum; -inf without terms."""
  return jnp.log(log_sum.total) + log_sum.greatest


def sum_over_devices(sums: PyTree) -> PyTree:
  """Adds the `LogSum`s of all devices, all at once; each gets the results."""
  sums, structure = jax.tree.flatten(
    sums, is_leaf=lambda x: isinstance(x, LogSum)
  )
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *sums)
  greatest = lax.pmax(stacked.greatest, sharding.axes())
  total = lax.psum(at_least(stacked, greatest).total, sharding.axes())
  return structure.unflatten(map(LogSum, greatest, total))


@partial(jax.jit, static_argnames="tile")
def row_log_sum_exp(
  rows: Float[Array, "rows dim"],
  columns: Float[Array, "columns dim"],
  log_weight: Float[Array, "columns"],
  *,
  temperature: Number,
  row_ids: Int[Array, "rows spaces"] | None = None,
  column_ids: Int[Array, "columns spaces"] | None = None,
  tile: int | None = None,
) -> Float[Array, "rows"]:
  r"""Computes log sum_j exp(row_i . column_j / temperature + log_weight_j).

  The sum is over the columns that share no id with the row. Memory is
  O(rows + columns + tile^2); the dot products are true float32 or better.

  Args:
    rows: The embedding of each row.
    columns: The embedding of each column.
    log_weight: The log weight of each column; -inf leaves it out.
    temperature: The temperature, greater than 0.
    row_ids: Ids of each row, one in each id space; None hides nothing.
    column_ids: Ids of each column in the same spaces.
    tile: Rows and columns of a tile; None means `CPU_TILE` or `TILE`.

  Returns:
    One value per row; -inf where no column is left.

  Raises:
    ValueError: If only one of the ids is given.

  Example:
    >>> eye, id = jnp.eye(3), jnp.arange(3)[:, None]
    >>> row_log_sum_exp(  # log(2 exp(0))
    ...   eye, eye, jnp.zeros(3), temperature=0.5, row_ids=id, column_ids=id
    ... )
    Array([0.6931472, 0.6931472, 0.6931472], dtype=float32)
  """
  dtype = jnp.result_type(jnp.float32, rows, columns)
  if (row_ids is None) != (column_ids is None):
    raise ValueError("row_ids and column_ids go together, got only one")
  if row_ids is None:
    row_ids, column_ids = (jnp.zeros((len(x), 0), int) for x in (rows, columns))
  row_data = (rows.astype(dtype) / temperature, row_ids)
  valid = jnp.ones(len(columns), bool)
  column_data = (columns.astype(dtype), column_ids, log_weight, valid)

  def step(rows, columns, sums):
    return add_terms(sums, _logits(rows, columns), axis=1)

  first = no_terms(row_data[0][:, 0])
  return log_total(over_rows(step, row_data, column_data, first, tile=tile))


def _logits(rows, columns):
  """Returns the logits of a tile; -inf where a column does not count."""
  (rows, row_ids), (columns, column_ids, log_weight, valid) = rows, columns
  logits = matmul(rows, columns.T) + log_weight.astype(rows.dtype)[None, :]
  hidden = jnp.logical_not(valid)[None, :]
  for space in range(row_ids.shape[1]):
    hidden |= jnp.equal(row_ids[:, space, None], column_ids[None, :, space])
  return jnp.where(hidden, -jnp.inf, logits)


def _length(tree: PyTree) -> int:
  return len(jax.tree.leaves(tree)[0])


def _blocks(tree: PyTree, size: int) -> PyTree:
  """Cuts leading axes into padded blocks of equal size, at most `size`."""

  def cut(x):
    count = max(1, -(-len(x) // size))
    x = pad(x, -len(x) % count)
    return x.reshape(count, len(x) // count, *x.shape[1:])

  return jax.tree.map(cut, tree)


def _join(tree: PyTree, length: int) -> PyTree:
  """Undoes `_blocks`."""
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:length], tree)


def pad(tree: PyTree, count: int) -> PyTree:
  """Appends `count` zeros to leading axes."""
  return jax.tree.map(
    lambda x: jnp.pad(x, [(0, count)] + [(0, 0)] * (x.ndim - 1)), tree
  )

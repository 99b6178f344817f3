"""Tables of per-sample state: reading, combining and writing their rows.

A step reads the rows of its batch from all tables at once, computes new ones,
and writes them back, each device to its own part of the tables; between the two
every device has all the rows of the batch.

A table may be padded for sharding, so every function takes the logical number
of rows. An id out of range reads NaN, which stops the run at its next check; it
never wraps around and never writes. NumPy's 64-bit ids are checked before JAX
cuts them down to 32 bits, except for arguments of the caller's own `jax.jit`.

Within the caller's own `jax.shard_map`, a table may be whole or split as well:
see `split_over`.

A table is on the devices or, with `offload_rows`, in their hosts' memory
(`pinned_host`). In the latter case, each device's host gathers the rows of a
batch from its part of the table and writes them back: only ids and the rows of
a batch are transferred. TPUs' hosts write in place; on GPUs, XLA of jax 0.11
has the host make a new table in every step, and copies it into the old one.
JAX requires all operands of a gather or scatter to be in one memory, hence the
transfers.
"""

from collections.abc import Callable, Sequence
from functools import partial
import itertools
import math

import jax
from jax import lax
from jax.experimental import compute_on
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Float, Integer

from nuclr_jax import sharding
from nuclr_jax.types import (
  AnyArray,
  Pairs,
  PyTree,
  Sample,
  Sides,
  Sizes,
  check_32_bits,
  each,
)

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
Ids = Integer[AnyArray, "batch"]
# Larger batches on a mesh share the work of combining rows of equal ids, at the
# price of a collective each time.
LARGE_BATCH = 2**13
MOST_COMPARED = 2**21  # pairs of rows that a TPU compares at once


def read_rows(tables: PyTree, ids: Ids, num_rows: int) -> PyTree:
  """Reads the rows `ids` of tables; NaN for ids outside [0, num_rows).

  Args:
    tables: A pytree of floating arrays [rows, ...].
    ids: The ids, of every table.
    num_rows: The number of rows of the tables, without padding.

  Returns:
    A pytree of arrays [batch, ...], on every device.

  Example:
    >>> print(read_rows(jnp.arange(4.0), jnp.array([2, -1, 3]), num_rows=3))
    [ 2. nan nan]
  """
  leaves, structure = jax.tree.flatten(tables)
  return structure.unflatten(_read(leaves, [(ids, num_rows)] * len(leaves)))


def write_rows(tables: PyTree, ids: Ids, rows: PyTree, num_rows: int) -> PyTree:
  """Writes rows to tables; drops ids outside [0, num_rows).

  Equal ids must come with equal values (see `mean_by_id`), so that the result
  does not depend on the order of writing.

  Args:
    tables: A pytree of arrays [rows, ...].
    ids: The ids, of every table.
    rows: A pytree of arrays [batch, ...].
    num_rows: The number of rows of the tables, without padding.

  Returns:
    The new tables.

  Example:
    >>> table = jnp.zeros(3)
    >>> print(write_rows(table, jnp.array([1, 7]), jnp.array([5.0, 5.0]), 3))
    [0. 5. 0.]
  """
  leaves, structure = jax.tree.flatten(tables)
  keys = [(ids, num_rows)] * len(leaves)
  return structure.unflatten(
    _write(leaves, keys, structure.flatten_up_to(rows))
  )


def read_batch(sample: Sample, pairs: Pairs, sizes: Sizes) -> Sample:
  """Reads the rows of a batch from all tables, in one collective.

  Example:
    >>> sample = Sample(pair=jnp.arange(4.0), text=jnp.array([7.0, 8.0]))
    >>> text_id = jnp.array([1, 1])
    >>> pairs = Pairs(
    ...   jnp.eye(2), jnp.eye(2), jnp.array([3, 0]), text_id=text_id
    ... )
    >>> rows = read_batch(sample, pairs, Sizes(4, 4, 2))
    >>> print(rows.pair, rows.image, rows.text)
    [3. 0.] () [8. 8.]
  """
  tables, structure = jax.tree.flatten(sample)
  return structure.unflatten(_read(tables, _keys(sample, pairs, sizes)))


def write_batch(
  sample: Sample, pairs: Pairs, sizes: Sizes, *, old: Sample, new: Sample
) -> Sample:
  """Writes the rows of a batch to all tables.

  Args:
    sample: The tables.
    pairs: The batch.
    sizes: The sizes of the data set.
    old: What `read_batch` returned.
    new: The new rows. Those that are the same objects as the old ones are not
      written.

  Returns:
    The new tables.

  Example:
    >>> sample = Sample(pair=jnp.zeros(4))
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> sizes = Sizes(4, 4, 4)
    >>> old = read_batch(sample, pairs, sizes)
    >>> new = Sample(pair=old.pair + 1)
    >>> print(write_batch(sample, pairs, sizes, old=old, new=new).pair)
    [1. 0. 0. 1.]
  """
  tables, structure = jax.tree.flatten(sample)
  keys = _keys(sample, pairs, sizes)
  rows = [structure.flatten_up_to(x) for x in (old, new)]
  moved = [i for i, (a, b) in enumerate(zip(*rows, strict=True)) if a is not b]
  written = _write(*([x[i] for i in moved] for x in (tables, keys, rows[1])))
  for i, table in zip(moved, written, strict=True):
    tables[i] = table
  return structure.unflatten(tables)


def greatest(
  table: Float[Array, "rows ..."], ids: Ids, num_rows: int
) -> Float[Array, ""]:
  """Returns the greatest entry of a whole table, without its padding.

  It reads every row.

  Args:
    table: The table, or within `jax.shard_map` its part on this device.
    ids: Those of the batch, as `split_over` needs them.
    num_rows: The number of rows without padding.

  Example:
    >>> print(greatest(jnp.array([-2.0, -1.0, 7.0]), jnp.arange(2), num_rows=2))
    -1.0
  """
  axes = split_over(table, ids, num_rows)
  if is_on_host(table):
    table = jax.device_put(table, DEVICE)
  end = _from_first(num_rows, table, axes)
  inside = _column(jnp.arange(len(table)) < end, table)
  largest = jnp.max(table, where=inside, initial=-jnp.inf)
  return lax.pmax(largest, axes) if axes else largest


def mean_by_id(
  values: Sides, ids: Sides, valid: Bool[Array, "batch"]
) -> tuple[Sides, Sides]:
  """Replaces each value by the mean of the valid ones with the same id.

  Deterministic on every backend, and independent of the order of the rows up
  to rounding.

  Args:
    values: A number for each row of the batch, on both sides.
    ids: The ids of the rows, on both sides.
    valid: Which rows count, on either side.

  Returns:
    The means (0 where an id has no valid row), and where an id has one.

  Example:
    >>> values, ids = jnp.array([1.0, 2.0, 5.0]), jnp.array([4, 9, 4])
    >>> both = Sides(values, -values), Sides(ids, ids)
    >>> mean_by_id(*both, jnp.array([True, True, True]))[0].text
    Array([-3., -2., -3.], dtype=float32)
  """
  counts = valid.astype(values.image.dtype)
  terms = each(lambda x: jnp.stack([jnp.where(valid, x, 0), counts]), values)
  sums = _over_equal_ids(lax.add, jnp.stack(terms), ids, 0)
  total, count = sums[:, 0], sums[:, 1]
  return Sides(*(total / jnp.maximum(count, 1))), Sides(*(count > 0))


def log_mean_exp_by_id(values: Sides, ids: Sides) -> Sides:
  """Replaces each value by log mean exp of the finite ones with the same id.

  Rows of -inf do not count; an id with no other row gets -inf.

  Args:
    values: A number for each row of the batch, on both sides.
    ids: The ids of the rows, on both sides.

  Example:
    >>> values, ids = jnp.log(jnp.array([1.0, 2.0, 3.0])), jnp.array([4, 9, 4])
    >>> both = Sides(values, values), Sides(ids, ids)
    >>> print(jnp.exp(log_mean_exp_by_id(*both).text))
    [2. 2. 2.]
  """
  x = jnp.stack(values)
  greatest = _over_equal_ids(lax.max, x[:, None], ids, -jnp.inf)[:, 0]
  counts = (x != -jnp.inf).astype(x.dtype)
  terms = jnp.where(counts > 0, jnp.exp(x - greatest), 0)
  sums = _over_equal_ids(lax.add, jnp.stack([terms, counts], 1), ids, 0)
  total, count = sums[:, 0], sums[:, 1]
  log_mean = jnp.log(total / count) + greatest
  return Sides(*jnp.where(count > 0, log_mean, -jnp.inf))


def is_on_host(table: jax.Array) -> bool:
  """Returns whether a table, traced or not, is in the host's memory."""
  return jax.typeof(table).memory_space == HOST


def _over_equal_ids(
  op: Callable[[Array, Array], Array],
  values: Float[Array, "2 k batch"],
  ids: Sides,
  fill: float,
) -> Float[Array, "2 k batch"]:
  """Reduces k values of both sides over the rows with the same id.

  Every row is compared with every other, but nothing of size [batch, batch] is
  kept: GPUs do it in one kernel; the compilers of TPUs and CPUs would keep a
  matrix, so TPUs do it in blocks of rows and CPUs row by row. It costs a few
  hundredths of the logits of the batch. (A scatter-add would combine duplicates
  in an order that a GPU does not fix, and a sort takes many kernels.)
  """
  each(lambda x: check_32_bits("ids", x), ids)
  if ids.image is ids.text:
    x, keys = values.reshape(1, -1, values.shape[2]), ids.image[None]
  else:
    x, keys = values, jnp.stack(ids)

  def at_once(rows):
    same = rows[:, None, :, None] == keys[:, None, None]
    kept = jnp.where(same, x[:, :, None], fill)
    return lax.reduce(kept, jnp.asarray(fill, kept.dtype), op, (3,))

  def in_blocks(rows):
    sides, length = rows.shape
    least = -(-length * batch // MOST_COMPARED)
    count = next(n for n in range(max(least, 1), length + 1) if length % n == 0)
    if count == 1:
      return at_once(rows)
    blocks = rows.reshape(sides, count, -1).swapaxes(0, 1)
    reduced = jnp.moveaxis(lax.map(at_once, blocks), 0, 2)
    return reduced.reshape(sides, -1, length)

  def one_by_one(rows):
    def step(total, one):
      value, key = one
      same = rows[:, None] == key[:, None, None]
      return op(total, jnp.where(same, value[:, :, None], fill)), None

    first = jnp.full((*x.shape[:2], rows.shape[1]), fill, x.dtype)
    first = sharding.vary_over(first, sharding.varies_over((x, rows)))
    each_row = jnp.moveaxis(x, 2, 0), keys.T
    return lax.scan(step, first, each_row, unroll=16)[0]

  rows, batch = keys, keys.shape[1]
  split = sharding.num_devices() > 1 and batch > LARGE_BATCH
  if split:
    rows = sharding.constrain(rows, sharding.SECOND_AXIS)
  reduced = lax.platform_dependent(
    rows, cpu=one_by_one, tpu=in_blocks, default=at_once
  )
  if split:
    reduced = sharding.constrain(reduced, sharding.REPLICATED)
  return reduced.reshape(values.shape)


def _keys(sample: Sample, pairs: Pairs, sizes: Sizes) -> list:
  """Returns the ids of the batch and the number of rows, for each table."""
  ids = Sample(pairs.pair_id, *pairs.ids)
  return [
    (x, num_rows)
    for group, x, num_rows in zip(sample, ids, sizes, strict=True)
    for _ in jax.tree.leaves(group)
  ]


def split_over(table: Array, ids: Ids, num_rows: int) -> tuple[str, ...]:
  """Returns the axes of the caller's `jax.shard_map` that split a table's rows.

  These are the axes over which the table varies, but not the ids of the whole
  batch. Without `check_vma`, nobody knows; a table shorter than `num_rows` is
  then taken to be split over the axes of the mesh. Everywhere else, the answer
  is ().

  Raises:
    ValueError: If the table, or the rows of all devices, are fewer than
      `num_rows`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  manual = sharding.axes_of(mesh, AxisType.Manual)
  if sharding.is_checked():
    varying = sharding.varies_over(table) - sharding.varies_over(ids)
    axes = tuple(x for x in manual if x in varying)
  else:
    axes = manual if len(table) < num_rows else ()
  count = math.prod(mesh.shape[name] for name in axes)
  if axes and len(table) * count < num_rows:
    raise ValueError(
      f"a table of {num_rows} rows must be whole on every device, or be split "
      f"evenly over the axes {axes} of jax.shard_map; got {len(table)} rows on "
      f"each of {count} devices"
    )
  if len(table) * count < num_rows:
    raise ValueError(
      f"the state has a table of {len(table)} rows where the objective needs "
      f"{num_rows}; it was made for other sizes (num_pairs, num_images, "
      "num_texts, or the size of a queue)"
    )
  return axes


def whole(tables: PyTree, ids: Ids, num_rows: int) -> PyTree:
  """Gives every device all rows of tables that `split_over` calls split."""
  return jax.tree.map(
    lambda x: sharding.all_rows(x, split_over(x, ids, num_rows)), tables
  )


def _read(tables: Sequence[Array], keys: Sequence) -> list[Array]:
  """Reads the rows of tables by their (ids, number of rows)."""
  if not tables:
    return []
  axes = _axes(tables, keys)
  keys = list(map(_valid, tables, keys, axes))
  return _read_valid(list(tables), keys, axes=axes)


def _write(tables: Sequence[Array], keys: Sequence, rows: Sequence[AnyArray]):
  """Writes rows to tables by their (ids, number of rows)."""
  if not tables:
    return []
  axes = _axes(tables, keys)
  keys = list(map(_valid, tables, keys, axes))
  rows = [
    jax.lax.stop_gradient(x).astype(table.dtype)
    for x, table in zip(rows, tables, strict=True)
  ]
  return _write_valid(list(tables), keys, rows, axes=axes)


def _axes(tables, keys) -> tuple[tuple[str, ...], ...]:
  """Returns the axes that split each table within `jax.shard_map`."""
  pairs = zip(tables, keys, strict=True)
  return tuple(split_over(table, *key) for table, key in pairs)


def _valid(table, key, axes):
  """Sends ids outside [0, num_rows) past the end of the (padded) table."""
  ids, num_rows = key
  check_32_bits("ids", ids)
  ids = jnp.asarray(ids).astype(int)
  return jnp.where((ids >= 0) & (ids < num_rows), ids, _length(table, axes))


# On a mesh, there are no transfers from the host without `jax.jit`.
@partial(jax.jit, static_argnames="axes")
def _read_valid(tables, keys, *, axes):
  """Reads rows to the devices; NaN for ids past the end."""

  def local(table, ids):
    mine = _inside(ids, len(table))
    rows = _run(_gather, table, jnp.where(mine, ids, 0))
    if is_on_host(table):
      rows = jax.device_put(rows, DEVICE)
    return jnp.where(_column(mine, rows), rows, 0)

  def per_device(tables, keys):
    axes = sharding.axes()
    keys = [_from_first(x, t, axes) for x, t in zip(keys, tables, strict=True)]
    return _psum_at_once(list(map(local, tables, keys)))

  def of_part(table, ids, axes):
    rows = local(table, _from_first(ids, table, axes))
    return lax.psum(rows, axes) if axes else rows

  if not _are_split(tables):
    found = list(map(of_part, tables, keys, axes))
  else:
    specs = sharding.ROWS, sharding.REPLICATED
    f = sharding.per_device(per_device, in_specs=specs, out_specs=specs[1])
    found = f(tables, keys)
  return [
    jnp.where(_column(_inside(ids, _length(table, split)), rows), rows, jnp.nan)
    for table, ids, rows, split in zip(tables, keys, found, axes, strict=True)
  ]


@partial(jax.jit, static_argnames="axes")
def _write_valid(tables, keys, rows, *, axes):
  """Writes rows; drops those whose ids are past the end."""

  def local(table, ids, rows, axes):
    ids = _from_first(ids, table, axes)
    ids = jnp.where(_inside(ids, len(table)), ids, len(table))
    return _run(_scatter, table, ids, rows)

  def per_device(tables, keys, rows):
    return list(map(local, tables, keys, rows, [sharding.axes()] * len(tables)))

  if not _are_split(tables):
    return list(map(local, tables, keys, rows, axes))
  specs = sharding.ROWS, sharding.REPLICATED, sharding.REPLICATED
  f = sharding.per_device(per_device, in_specs=specs, out_specs=sharding.ROWS)
  return f(tables, keys, rows)


def _are_split(tables) -> bool:
  """Returns whether the devices of a mesh share the rows of tables evenly.

  A run's tables are padded; those of a user's own loop need not be.
  """
  count = sharding.num_devices()
  return count > 1 and not any(len(x) % count for x in tables)


def _psum_at_once(rows: list[Array]) -> list[Array]:
  """Adds arrays [batch, ...] over the devices, in one collective."""
  flat = [x.reshape(len(x), -1) for x in rows]
  total = lax.psum(jnp.concatenate(flat, axis=1).T, sharding.axes()).T
  ends = list(itertools.accumulate(x.shape[1] for x in flat))
  parts = jnp.split(total, ends[:-1], axis=1)
  return [
    p.reshape(x.shape).astype(x.dtype) for p, x in zip(parts, rows, strict=True)
  ]


def _run(f, table, *operands):
  """Runs `f` where the table is."""
  if not is_on_host(table):
    return f(table, *operands)
  # jax 0.12 renames `compute_on2` to `compute_on`.
  run = getattr(compute_on, "compute_on2", compute_on.compute_on)
  on_host = run(f, compute_type="device_host", out_memory_spaces=HOST)
  return on_host(table, *jax.device_put(operands, HOST))


def _gather(table, ids):
  return table.at[ids].get(
    mode="promise_in_bounds", wrap_negative_indices=False
  )


def _scatter(table, ids, values):
  return table.at[ids].set(values, mode="drop", wrap_negative_indices=False)


def _from_first(ids, table, axes):
  """Counts ids from the first row of this device's part of a table."""
  return ids - lax.axis_index(axes) * len(table) if axes else ids


def _length(table, axes) -> int:
  """Returns the number of rows of a table whose parts are split over axes."""
  return len(table) * (lax.axis_size(axes) if axes else 1)


def _inside(ids, num_rows):
  return (ids >= 0) & (ids < num_rows)


def _column(mask, rows):
  return jnp.expand_dims(mask, range(1, rows.ndim))

"""Tables of per-sample state: reading, combining and writing their rows.

A table may be padded for sharding, so every function takes the logical number
of rows. An id out of range reads NaN, which stops the run at its next check; it
never wraps around and never writes.

A table is on the devices or, with `offload_rows`, in their hosts' memory
(`pinned_host`). In the latter case, each device's host gathers the rows of a
batch from its part of the table and writes them back in place: only ids and the
rows of a batch are transferred. JAX requires all operands of a gather or
scatter to be in one memory, hence the transfers.
"""

import jax
from jax import lax
from jax.experimental import compute_on
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, Num

from nuclr_jax import sharding

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
Ids = Integer[Array, "batch"]


def read_rows(
  table: Float[Array, "rows ..."], ids: Ids, num_rows: int
) -> Float[Array, "batch ..."]:
  """Reads the rows `ids`; NaN for ids outside [0, num_rows).

  Example:
    >>> print(read_rows(jnp.arange(4.0), jnp.array([2, -1, 3]), num_rows=3))
    [ 2. nan nan]
  """
  ids = _drop_invalid(table, ids, num_rows)
  if is_on_host(table):
    return _read_on_host(table, ids)
  return table.at[ids].get(mode="fill", fill_value=jnp.nan)


def write_rows(
  table: Num[Array, "rows ..."],
  ids: Ids,
  values: Num[Array, "batch ..."],
  num_rows: int,
) -> Num[Array, "rows ..."]:
  """Writes `values` to the rows `ids`; drops ids outside [0, num_rows).

  Equal ids must come with equal values (see `mean_by_id`), so that the result
  does not depend on the order of writing.

  Example:
    >>> table = jnp.zeros(3)
    >>> print(write_rows(table, jnp.array([1, 7]), jnp.array([5.0, 5.0]), 3))
    [0. 5. 0.]
  """
  ids = _drop_invalid(table, ids, num_rows)
  values = jax.lax.stop_gradient(values).astype(table.dtype)
  if is_on_host(table):
    return _write_on_host(table, ids, values)
  return table.at[ids].set(values, mode="drop")


def greatest(
  table: Float[Array, "rows ..."], num_rows: int
) -> Float[Array, ""]:
  """Returns the greatest entry of a whole table, without its padding.

  It reads every row, so it is meant for once an epoch, not for every step.

  Example:
    >>> print(greatest(jnp.array([-2.0, -1.0, 7.0]), num_rows=2))
    -1.0
  """
  if is_on_host(table):
    table = jax.device_put(table, DEVICE)
  inside = _column(jnp.arange(len(table)) < num_rows, table)
  return jnp.max(table, where=inside, initial=-jnp.inf)


def mean_by_id(
  values: Float[Array, "batch"], ids: Ids, valid: Bool[Array, "batch"]
) -> tuple[Float[Array, "batch"], Bool[Array, "batch"]]:
  """Replaces each value by the mean of the valid ones with the same id.

  Deterministic on every backend, and independent of the order of the rows up
  to rounding.

  Returns:
    The means (0 where an id has no valid row), and where an id has one.

  Example:
    >>> values, ids = jnp.array([1.0, 2.0, 5.0]), jnp.array([4, 9, 4])
    >>> print(mean_by_id(values, ids, jnp.array([True, True, True]))[0])
    [3. 2. 3.]
  """
  summands = jnp.stack([jnp.where(valid, values, 0), valid], axis=1)
  total, count = _combine(jnp.add, summands, ids).T
  return total / jnp.maximum(count, 1), count > 0


def log_mean_exp_by_id(
  values: Float[Array, "batch"], ids: Ids
) -> Float[Array, "batch"]:
  """Replaces each value by log mean exp of the finite ones with the same id.

  Rows of -inf do not count; an id with no other row gets -inf.

  Example:
    >>> values, ids = jnp.log(jnp.array([1.0, 2.0, 3.0])), jnp.array([4, 9, 4])
    >>> print(jnp.exp(log_mean_exp_by_id(values, ids)))
    [2. 2. 2.]
  """
  log_one = jnp.where(values == -jnp.inf, -jnp.inf, 0)
  summands = jnp.stack([values, log_one], axis=1)
  total, log_count = _combine(jnp.logaddexp, summands, ids).T
  return jnp.where(total == -jnp.inf, -jnp.inf, total - log_count)


def _drop_invalid(table, ids, num_rows):
  """Sends ids outside [0, num_rows) past the end of the (padded) table."""
  ids = jnp.asarray(ids)
  ids = ids.astype(jnp.promote_types(ids.dtype, jnp.int32))
  return jnp.where((ids >= 0) & (ids < num_rows), ids, len(table))


def _combine(op, values: Float[Array, "batch k"], ids: Ids):
  """Reduces `values` over equal ids with an associative `op`, at every row.

  Sorts by id and scans each run of equal ids: a scatter-add would combine
  duplicates in an order that a GPU does not fix.
  """
  ids = jnp.asarray(ids)
  order = jnp.argsort(ids, stable=True)
  sorted_ids = ids[order]

  def combine(left, right):
    (left_id, left_value), (right_id, right_value) = left, right
    same = (left_id == right_id)[:, None]
    return right_id, jnp.where(same, op(left_value, right_value), right_value)

  _, running = jax.lax.associative_scan(combine, (sorted_ids, values[order]))
  last = jnp.searchsorted(sorted_ids, ids, side="right") - 1
  return running[last]


def is_on_host(table: jax.Array) -> bool:
  """Returns whether a table, traced or not, is in the host's memory."""
  return jax.typeof(table).memory_space == HOST


@jax.jit  # on a mesh, there are no transfers without it
def _read_on_host(
  table: Float[Array, "rows ..."], ids: Ids
) -> Float[Array, "batch ..."]:
  """Reads the rows `ids` to the devices; NaN for those past the end."""

  def local(table, ids):
    mine = _inside(table, ids)
    rows = _run_on_host(_gather, table, jnp.where(mine, ids, 0))
    rows = jax.device_put(rows, DEVICE)
    return jnp.where(_column(mine, rows), rows, 0)

  def per_device(table, ids):
    return lax.psum(local(table, _from_first(table, ids)), "data")

  f = local
  if sharding.num_devices() > 1:
    specs = sharding.ROWS, sharding.REPLICATED
    f = jax.shard_map(per_device, in_specs=specs, out_specs=specs[1])
  rows = f(table, ids)
  return jnp.where(_column(_inside(table, ids), rows), rows, jnp.nan)


@jax.jit
def _write_on_host(
  table: Float[Array, "rows ..."], ids: Ids, values: Float[Array, "batch ..."]
) -> Float[Array, "rows ..."]:
  """Writes `values` to the rows `ids`; drops those past the end."""

  def local(table, ids, values):
    ids = jnp.where(_inside(table, ids), ids, len(table))
    return _run_on_host(_scatter, table, ids, values)

  def per_device(table, ids, values):
    return local(table, _from_first(table, ids), values)

  f = local
  if sharding.num_devices() > 1:
    specs = sharding.ROWS, sharding.REPLICATED, sharding.REPLICATED
    f = jax.shard_map(per_device, in_specs=specs, out_specs=sharding.ROWS)
  return f(table, ids, values)


def _run_on_host(f, table, *operands):
  """Runs `f` in the host's memory, where the table is."""
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


def _from_first(table, ids):
  """Counts ids from the first row of this device's part of a table."""
  return ids - lax.axis_index("data") * len(table)


def _inside(table, ids):
  return (ids >= 0) & (ids < len(table))


def _column(mask, rows):
  return jnp.expand_dims(mask, range(1, rows.ndim))

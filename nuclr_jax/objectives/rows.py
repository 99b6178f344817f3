"""Reading, combining and writing rows of per-sample state.

Tables may be padded for sharding, so every function takes the logical number
of rows. An id out of range reads NaN, which stops the run at its next check;
it never wraps around and never writes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from nuclr_jax.objectives import host_rows

Ids = Integer[Array, "batch"]


def read(
  table: Float[Array, "rows ..."], ids: Ids, num_rows: int
) -> Float[Array, "batch ..."]:
  """Reads the rows `ids`; NaN for ids outside [0, num_rows).

  Example:
    >>> print(read(jnp.arange(4.0), jnp.array([2, -1, 3]), num_rows=3))
    [ 2. nan nan]
  """
  ids = _drop_invalid(table, ids, num_rows)
  if host_rows.holds(table):
    return host_rows.read(table, ids)
  return table.at[ids].get(mode="fill", fill_value=jnp.nan)


def write(
  table: Float[Array, "rows ..."],
  ids: Ids,
  values: Float[Array, "batch ..."],
  num_rows: int,
) -> Float[Array, "rows ..."]:
  """Writes `values` to the rows `ids`; drops ids outside [0, num_rows).

  Equal ids must come with equal values (see `mean_by_id`), so that the result
  does not depend on the order of writing.

  Example:
    >>> table = jnp.zeros(3)
    >>> print(write(table, jnp.array([1, 7]), jnp.array([5.0, 5.0]), 3))
    [0. 5. 0.]
  """
  ids = _drop_invalid(table, ids, num_rows)
  values = jax.lax.stop_gradient(values).astype(table.dtype)
  if host_rows.holds(table):
    return host_rows.write(table, ids, values)
  return table.at[ids].set(values, mode="drop")


def mean_by_id(
  values: Float[Array, "batch"], ids: Ids, valid: Bool[Array, "batch"]
) -> tuple[Float[Array, "batch"], Bool[Array, "batch"]]:
  """Replaces each value by the mean of the valid ones with the same id.

  Deterministic on every backend, and independent of the order of the rows up
  to rounding.

  Returns:
    The means (0 where an id has no valid row), and where there is one.

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

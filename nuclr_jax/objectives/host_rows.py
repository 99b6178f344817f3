"""Rows of tables that stay in the host's memory (`pinned_host`).

Each device's host gathers the rows of a batch from its part of the table and
writes them back in place; besides ids and rows of a batch nothing moves. JAX
wants all operands of a gather or scatter in one memory, hence the transfers.
"""

import jax
from jax import lax
from jax.experimental import compute_on
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import sharding

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
Ids = Int[Array, "batch"]


def holds(table: jax.Array) -> bool:
  """Whether a table lies in the host's memory; also of a traced one."""
  return jax.typeof(table).memory_space == HOST


@jax.jit  # without it there are no transfers on a mesh
def read(
  table: Float[Array, "rows ..."], ids: Ids
) -> Float[Array, "batch ..."]:
  """The rows `ids`, on the devices; NaN for those past the end."""

  def local(table, ids):
    mine = _inside(table, ids)
    rows = _on_host(_gather, table, jnp.where(mine, ids, 0))
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
def write(
  table: Float[Array, "rows ..."], ids: Ids, values: Float[Array, "batch ..."]
) -> Float[Array, "rows ..."]:
  """Writes `values` to the rows `ids`; drops those past the end."""

  def local(table, ids, values):
    ids = jnp.where(_inside(table, ids), ids, len(table))
    return _on_host(_scatter, table, ids, values)

  def per_device(table, ids, values):
    return local(table, _from_first(table, ids), values)

  f = local
  if sharding.num_devices() > 1:
    specs = sharding.ROWS, sharding.REPLICATED, sharding.REPLICATED
    f = jax.shard_map(per_device, in_specs=specs, out_specs=sharding.ROWS)
  return f(table, ids, values)


def _on_host(f, table, *operands):
  """Runs `f` where the table lies."""
  # What is `compute_on` from jax 0.12 on is `compute_on2` before.
  run = getattr(compute_on, "compute_on2", compute_on.compute_on)
  there = run(f, compute_type="device_host", out_memory_spaces=HOST)
  return there(table, *jax.device_put(operands, HOST))


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

"""The device mesh and how arrays are laid out on it.

The mesh has one axis, `data`. Batches and per-sample state are split along it;
everything else is replicated, except large parameters and their optimizer state
with `shard_params`. Losses never see the mesh: `fit` enters it with
`jax.set_mesh`, and the helpers below read it from there.
"""

from collections.abc import Callable
import math

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.types import PyTree

ROWS = P("data")  # split along the leading axis
SECOND_AXIS = P(None, "data")
REPLICATED = P()

# Per-sample state is padded to a multiple of this many rows. It is a constant
# so that the shapes in a checkpoint do not depend on the device count, which
# may be any divisor: 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16, ..., 24, ..., 72, ...
ROW_MULTIPLE = 2**10 * 3**2 * 5
HOST_MEMORY = "pinned_host"
MIN_SPLIT = 2**16  # numbers; smaller arrays are always replicated


def make_mesh(num_devices: int | None = None) -> Mesh:
  """Makes the mesh of all devices (or the first `num_devices`).

  Args:
    num_devices: How many devices to use; None means all of them.

  Returns:
    A mesh with one Auto axis named `data`.

  Raises:
    ValueError: If there are fewer devices, or their number does not divide
      `ROW_MULTIPLE`, so that per-sample state could not be split evenly.

  Example:
    >>> make_mesh(1).shape["data"]
    1
  """
  devices = jax.devices()
  count = len(devices) if num_devices is None else num_devices
  if jax.process_count() > 1 and count != len(devices):
    raise ValueError(
      f"several processes use all their devices, here {len(devices)}; got "
      f"num_devices {count}"
    )
  if not 1 <= count <= len(devices):
    raise ValueError(
      f"num_devices must be in [1, {len(devices)}], got {count}; "
      f"this process sees {len(devices)} {devices[0].platform} device(s)"
    )
  if ROW_MULTIPLE % count:
    raise ValueError(
      f"the number of devices must divide {ROW_MULTIPLE} = 2**10 * 3**2 * 5, "
      f"got {count}; choose {largest_count(count)} with num_devices"
    )
  return jax.make_mesh(
    (count,), ("data",), axis_types=(AxisType.Auto,), devices=devices[:count]
  )


def largest_count(count: int) -> int:
  """Returns the largest allowed number of devices that is at most `count`.

  Example:
    >>> largest_count(6), largest_count(7)
    (6, 6)
  """
  return next(x for x in range(count, 0, -1) if ROW_MULTIPLE % x == 0)


def num_devices(batch: int | None = None) -> int:
  """Returns over how many devices the mesh splits rows; 1 without a mesh.

  Args:
    batch: The number of rows of a batch, if they must divide evenly.

  Raises:
    ValueError: If the mesh's axis `data` is not Auto, or does not divide the
      batch.
  """
  mesh = jax.sharding.get_abstract_mesh()
  count = mesh.shape.get("data", 1)
  if count == 1:
    return 1
  kind = mesh.axis_types[mesh.axis_names.index("data")]
  if kind != AxisType.Auto:
    raise ValueError(
      f"the mesh axis 'data' must be Auto, got {kind.name}; make the mesh with "
      "nuclr_jax.sharding.make_mesh, or give jax.make_mesh axis_types=("
      "jax.sharding.AxisType.Auto,)"
    )
  if batch is not None and batch % count:
    raise ValueError(
      f"a batch must be a multiple of the mesh's {count} devices, got {batch}"
    )
  return count


def split_largest_axis(shape: tuple[int, ...], num_devices: int) -> P:
  """Returns the spec that splits the largest axis that divides evenly.

  Arrays of fewer than `MIN_SPLIT` numbers are replicated; among equally long
  axes, the last one is split.

  Example:
    >>> tuple(split_largest_axis((1000, 512, 512), 8))
    ('data',)
    >>> tuple(split_largest_axis((999, 512, 512), 8))
    (None, None, 'data')
    >>> tuple(split_largest_axis((512,), 8))
    ()
  """
  fitting = [i for i, size in enumerate(shape) if size % num_devices == 0]
  if math.prod(shape) < MIN_SPLIT or not fitting:
    return REPLICATED
  axis = max(fitting, key=lambda i: (shape[i], i))
  return P(*[None] * axis, "data")


def on_host(layout: PyTree) -> PyTree:
  """Returns the same layout in the memory of the devices' hosts.

  Args:
    layout: A pytree of `NamedSharding`.

  Raises:
    ValueError: If the devices cannot reach such memory.

  Example:
    >>> layout = NamedSharding(make_mesh(1), ROWS)
    >>> on_host(layout).memory_kind
    'pinned_host'
  """

  def move(layout):
    device = layout.mesh.devices.flat[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST_MEMORY not in kinds:
      raise ValueError(
        f"offload_rows needs devices with {HOST_MEMORY} memory; those of "
        f"{device.platform} have {kinds}"
      )
    return layout.with_memory_kind(HOST_MEMORY)

  return jax.tree.map(move, layout)


def put(x: np.ndarray, layout: NamedSharding) -> jax.Array:
  """Lays out an array that every process has; each device gets its part.

  Example:
    >>> put(np.arange(3.0), NamedSharding(make_mesh(1), ROWS))
    Array([0., 1., 2.], dtype=float32)
  """
  return jax.make_array_from_callback(x.shape, layout, lambda at: x[at])


def put_own(batch: PyTree, layout: NamedSharding) -> PyTree:
  """Lays out a batch of which every process has its own rows."""
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(layout, x), batch
  )


def constrain(tree: PyTree, spec: P) -> PyTree:
  """Lays out all arrays as `spec` on the current mesh; a no-op without one."""
  if num_devices() == 1:
    return tree
  layout = NamedSharding(jax.sharding.get_abstract_mesh(), spec)
  return jax.lax.with_sharding_constraint(tree, layout)


def padded(num_rows: int) -> int:
  """Returns the rows of a table of per-sample state, padding included.

  Example:
    >>> padded(1_000), padded(46_081)
    (46080, 92160)
  """
  return num_rows + -num_rows % ROW_MULTIPLE


def padded_memory(num_rows: int) -> int:
  """Returns the rows of a memory of pairs, padding included.

  A step computes with all of them, so a small memory is padded by less: to a
  smaller multiple, which fewer numbers of devices divide.

  Example:
    >>> padded_memory(4_096), padded_memory(16_384), padded_memory(65_536)
    (5760, 17280, 69120)
  """
  multiple = ROW_MULTIPLE
  while 8 * multiple > num_rows and multiple > 2**6 * 3**2 * 5:
    multiple //= 2
  return num_rows + -num_rows % multiple


def pad_rows(table: PyTree, padded_to: Callable[[int], int] = padded) -> PyTree:
  """Pads the leading axis of every leaf.

  The padding repeats the last row; no id ever points to it.

  Example:
    >>> pad_rows(jnp.arange(3.0))[1:5]
    Array([1., 2., 2., 2.], dtype=float32)
  """

  def pad(x):
    missing = padded_to(len(x)) - len(x)
    return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), mode="edge")

  return jax.tree.map(pad, table)


def fetch(tree: PyTree) -> PyTree:
  """Brings whole arrays to the host, from all processes."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def replace_rows(
  table: jax.Array,
  ids: Int[np.ndarray, "some"],
  values: Float[np.ndarray, "some"] | float,
) -> jax.Array:
  """Replaces rows of a table, which keeps its layout; runs on the host.

  Example:
    >>> replace_rows(jnp.zeros(4), np.array([1, 3]), 5.0)
    Array([0., 5., 0., 5.], dtype=float32)
  """
  new = np.array(fetch(table))
  new[ids] = values
  return jax.device_put(new, table.sharding)


@jax.jit
def replicate(tree: PyTree) -> PyTree:
  """Puts all arrays on every device of the current mesh."""
  return constrain(tree, REPLICATED)

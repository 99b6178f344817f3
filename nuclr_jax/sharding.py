"""The device mesh, how arrays are laid out on it, and what crosses it.

The mesh has two axes. `data` joins devices with a fast network; `slice`, often
1, joins groups of them by a slow one. Batches and per-sample state are split
along both; everything else is replicated, except large parameters and their
optimizer state with `shard_params`, which are split within a slice. Losses
never see the mesh: `fit` enters it with `jax.set_mesh`, and the helpers below
read it from there. They also know a mesh of which only some axes are of these
names; other axes are left to the compiler.

`lab.train.step.LAYOUT` says how each part of a run's state is split,
`sample_state.table` reads and writes its rows, and `objectives.whole_batch`
takes losses to any other mesh.
"""

from collections.abc import Callable, Iterable, Sequence
import math

import jax
from jax import lax
from jax.experimental import mesh_utils, multihost_utils
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int, PyTree
import numpy as np

AXES = ("slice", "data")
ROWS = P(AXES)  # split along the leading axis
SECOND_AXIS = P(None, AXES)
REPLICATED = P()

# Per-sample state is padded to a multiple of this many rows. It is a constant
# so that the shapes in a checkpoint do not depend on the device count, which
# may be any divisor: 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16, ..., 24, ..., 72, ...
ROW_MULTIPLE = 2**10 * 3**2 * 5
HOST_MEMORY = "pinned_host"
MIN_SPLIT = 2**16  # numbers; smaller arrays are always replicated


def make_mesh(num_devices: int | None = None, *, num_slices: int = 1) -> Mesh:
  """Makes the mesh of all devices (or the first `num_devices`).

  Args:
    num_devices: How many devices to use; None means all of them.
    num_slices: Into how many groups the devices fall, in their order, if the
      network between groups is slow: slices of TPUs, or hosts of GPUs.

  Returns:
    A mesh with two Auto axes, `slice` of `num_slices` groups and `data`.

  Raises:
    ValueError: If there are fewer devices, or their number does not divide
      `ROW_MULTIPLE`, so that per-sample state could not be split evenly; or if
      the groups are not equally large.

  Example:
    >>> dict(make_mesh(1).shape)
    {'slice': 1, 'data': 1}
  """
  # Slices of TPUs have numbers.
  devices = sorted(jax.devices(), key=lambda x: getattr(x, "slice_index", 0))
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
  if num_slices < 1 or count % num_slices:
    raise ValueError(
      f"num_slices must divide the {count} device(s), got {num_slices}"
    )
  return mesh_of(devices[:count], num_slices)


def mesh_of(devices: Sequence[jax.Device], num_slices: int = 1) -> Mesh:
  """Makes a mesh of devices, in an order in which neighbours are close.

  Within a slice, JAX chooses the order by the topology.
  """
  groups = np.reshape(np.asarray(devices, object), (num_slices, -1))
  ordered = [
    mesh_utils.create_device_mesh((len(group),), devices=list(group))
    for group in groups
  ]
  return Mesh(np.stack(ordered), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def largest_count(count: int) -> int:
  """Returns the largest allowed number of devices that is at most `count`.

  Example:
    >>> largest_count(6), largest_count(7)
    (6, 6)
  """
  return next(x for x in range(count, 0, -1) if ROW_MULTIPLE % x == 0)


def axes_of(mesh: AbstractMesh, kind: AxisType) -> tuple[str, ...]:
  """Returns the axes of a mesh that are of one kind, in their order.

  Example:
    >>> axes_of(make_mesh(1).abstract_mesh, AxisType.Auto)
    ('slice', 'data')
  """
  kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
  return tuple(name for name, x in kinds if x.name == kind.name)


def num_devices(batch: int | None = None) -> int:
  """Returns over how many devices the mesh splits rows; 1 without a mesh.

  Within the caller's own `jax.shard_map` it is 1: there, every device has all
  the rows (see `objectives.whole_batch`).

  Args:
    batch: The number of rows of a batch, if they must divide evenly.

  Raises:
    ValueError: If an axis of the mesh is Explicit, or its devices do not divide
      the batch.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if explicit := set(axes_of(mesh, AxisType.Explicit)) & set(AXES):
    raise ValueError(
      f"the mesh axes {', '.join(sorted(explicit))} must be Auto here, got "
      "Explicit; make the mesh with nuclr_jax.sharding.make_mesh, or give "
      "axis_types=(jax.sharding.AxisType.Auto,) to jax.make_mesh"
    )
  if set(axes_of(mesh, AxisType.Manual)) & set(AXES):
    return 1
  automatic = axes_of(mesh, AxisType.Auto)
  count = math.prod(mesh.shape[name] for name in automatic if name in AXES)
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


def constrain(tree: PyTree, spec: P) -> PyTree:
  """Lays out all arrays as `spec` on the current mesh; a no-op without one."""
  if num_devices() == 1:
    return tree
  layout = NamedSharding(jax.sharding.get_abstract_mesh(), _on_mesh(spec))
  return jax.lax.with_sharding_constraint(tree, layout)


def per_device(
  f: Callable[..., PyTree], *, in_specs: PyTree, out_specs: PyTree
) -> Callable[..., PyTree]:
  """Returns `f` mapped over the devices of the mesh, by `jax.shard_map`."""
  specs = jax.tree.map(
    _on_mesh, (in_specs, out_specs), is_leaf=lambda x: isinstance(x, P)
  )
  mesh = jax.sharding.get_abstract_mesh()
  names = frozenset(axes_of(mesh, AxisType.Auto))
  return jax.shard_map(
    f, in_specs=specs[0], out_specs=specs[1], axis_names=names
  )


def _on_mesh(spec: P) -> P:
  """Leaves out the axes of a spec that the mesh in context lacks."""
  names = jax.sharding.get_abstract_mesh().axis_names

  def part(axes):
    axes = axes if isinstance(axes, tuple) else (axes,)
    return tuple(x for x in axes if x in names) or None

  return P(*map(part, spec))


def gather(x: jax.Array) -> jax.Array:
  """Gives every device all rows of an array that is split by rows.

  Every row crosses the slow network once for each slice that lacks it, and is
  then passed on within the slice.
  """
  if num_devices() == 1:
    return x
  slices = jax.sharding.get_abstract_mesh().shape.get("slice", 1)
  if slices == 1:
    return constrain(x, REPLICATED)
  rows = x.reshape(slices, len(x) // slices, *x.shape[1:])
  for spec in (P(*AXES), P(None, "data"), REPLICATED):
    rows = constrain(rows, spec)
  return constrain(rows.reshape(x.shape), REPLICATED)


def padded(num_rows: int) -> int:
  """Returns the rows of a table of per-sample state, padding included.

  Example:
    >>> padded(1_000), padded(46_081)
    (46080, 92160)
  """
  return num_rows + -num_rows % ROW_MULTIPLE


def padded_memory(num_rows: int) -> int:
  """Returns the rows of a memory of pairs, padding included.

  A step computes with all of them, so a small memory is padded to a smaller
  multiple, which fewer numbers of devices divide.

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
  table: jax.Array | np.ndarray,
  ids: Int[np.ndarray, "some"],
  values: Float[np.ndarray, "some"] | float,
) -> jax.Array:
  """Replaces rows of a table, which keeps its layout; runs on the host.

  A table that is committed to no device, as `init` makes it, stays so.

  Raises:
    ValueError: If an id has no row, or if there is not one value for all ids or
      for each, or one is NaN.

  Example:
    >>> replace_rows(jnp.zeros(4), np.array([1, 3]), 5.0)
    Array([0., 5., 0., 5.], dtype=float32)
  """
  new = np.array(fetch(table))
  if (wrong := ids[(ids < 0) | (ids >= len(new))]).size:
    raise ValueError(f"ids must be in [0, {len(new)}), found {wrong[0]}")
  if np.shape(values)[:1] not in ((), ids.shape) or np.isnan(values).any():
    raise ValueError(f"each of {len(ids)} ids needs a value, which is not NaN")
  new[ids] = values
  layout = table.sharding if getattr(table, "committed", False) else None
  return jax.device_put(new, layout)


@jax.jit
def replicate(tree: PyTree) -> PyTree:
  """Puts all arrays on every device of the current mesh."""
  return constrain(tree, REPLICATED)


# The rest of this file runs on each device, within `jax.shard_map`.


def axes() -> tuple[str, ...]:
  """Returns those of `AXES` that the mesh in context has."""
  names = jax.sharding.get_abstract_mesh().axis_names
  return tuple(x for x in AXES if x in names)


def varying(x: jax.Array) -> jax.Array:
  """Marks an array that is the same on all devices as varying from here on."""
  return lax.pcast(x, axes(), to="varying")


def own_rows(x: jax.Array) -> jax.Array:
  """Returns this device's rows of an array that every device has."""
  size = len(x) // lax.axis_size(axes())
  return lax.dynamic_slice_in_dim(x, lax.axis_index(axes()) * size, size)


def among_all(rows: jax.Array, fill: float = 0) -> jax.Array:
  """Puts this device's rows in their place among those of all devices."""
  shape = (lax.axis_size(axes()) * len(rows), *rows.shape[1:])
  start = lax.axis_index(axes()) * len(rows)
  whole = varying(jnp.full(shape, fill, rows.dtype))
  return lax.dynamic_update_slice_in_dim(whole, rows, start, axis=0)


def scatter_sum(x: jax.Array) -> jax.Array:
  """Adds over devices, within a slice first; each keeps its share of the rows.

  On CPUs, `lax.psum_scatter` would slow down later collectives of several
  processes hundreds of times (Gloo in jax 0.10); what is used there instead
  sends as many bytes, and adds in the order of the devices.
  """
  shape = jax.sharding.get_abstract_mesh().shape
  slices, devices = (shape.get(name, 1) for name in AXES)
  x = x.reshape(slices, devices, len(x) // (slices * devices), *x.shape[1:])
  return _scatter_sum(_scatter_sum(x.swapaxes(0, 1), "data"), "slice")


def _scatter_sum(x, axis):
  """Adds x[i] over the devices of an axis and gives the sum to device i."""
  if len(x) == 1:
    return x[0]
  return lax.platform_dependent(
    x,
    cpu=lambda x: jnp.sum(lax.all_to_all(x, axis, 0, 0), axis=0),
    default=lambda x: lax.psum_scatter(x, axis),
  )


# Within the caller's own `jax.shard_map`, an array knows over which axes it
# varies if `check_vma` is on, as it is by default; within `jax.pmap` it is off.


def is_checked() -> bool:
  """Returns whether arrays know over which axes they vary."""
  mesh = jax.sharding.get_abstract_mesh()
  names = axes_of(mesh, AxisType.Manual)
  return bool(names and varies_over(lax.axis_index(names[0])))


def varies_over(tree: PyTree) -> set[str]:
  """Returns the mesh axes over which arrays differ between devices."""
  kinds = (jax.typeof(x).manual_axis_type for x in jax.tree.leaves(tree))
  return set().union(*(kind.varying for kind in kinds))


def vary_over(tree: PyTree, names: Iterable[str]) -> PyTree:
  """Marks arrays as varying over axes; a no-op where they do already."""

  def mark(x):
    missing = tuple(set(names) - varies_over(x))
    return lax.pcast(x, missing, to="varying") if missing else x

  return jax.tree.map(mark, tree)


def all_rows(tree: PyTree, names: tuple[str, ...]) -> PyTree:
  """Gives every device the rows of all devices along these axes.

  With `check_vma`, the result is marked as the same on all of them, so that the
  gradient of a loss that every device computes is counted once. Without it,
  `lax.pmean` of the gradients does that.
  """
  if not names:
    return tree
  if is_checked():
    tree, kind = vary_over(tree, names), "invarying"
  else:
    kind = "varying"
  return jax.tree.map(
    lambda x: lax.all_gather(x, names, tiled=True, to=kind), tree
  )

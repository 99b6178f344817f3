"""Gives `apply` the whole batch, however it is sharded over devices."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from nuclr_jax import pairwise, sharding
from nuclr_jax.types import Pairs, PyTree, State, check_pairs

WHOLE = sharding.REPLICATED


def whole_batch(apply: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a function of the whole batch be called from any training loop.

  `apply(params, state, pairs)` may assume that it sees the whole batch, on
  every device; the functions of `pairwise` and `sample_state` split the work
  where the mesh allows it. The returned function checks the batch first, and
  takes

  - no mesh, or Auto axes: this is how `apply` is written. The axes
    `sharding.AXES` split the work; others are left to the compiler;
  - Explicit axes, the default of `jax.make_mesh`: they are Auto within;
  - `jax.shard_map` or `jax.pmap`: the rows of all devices along the data axes
    are gathered. Every device then computes the same loss; per-sample state may
    be whole or split along its rows.

  Rows are gathered with their ids, which must be those of the global batch. If
  devices with different embeddings have the same `pair_id`, that is an error;
  where JAX does not track what varies (`jax.pmap`, `check_vma=False`), the loss
  is NaN.

  Args:
    apply: The `apply` of an objective.

  Returns:
    A function `apply(params, state, pairs, *, axes=None)`: `axes` names the
    mesh axes that split the batch, a name or several. In `jax.shard_map` and
    `jax.pmap`, other axes are then left alone, and () means that every device
    has a batch of its own. None means `sharding.AXES` and what Explicit axes
    say; any other axis of `jax.shard_map` or `jax.pmap` that the batch is split
    over is refused, and so are axes of `jax.vmap`. Where `apply` calls another
    objective's, it passes `axes=()`, since the rows are gathered already.

  Example:
    >>> @whole_batch
    ... def apply(params, state, pairs):
    ...   return len(pairs.pair_id), (state, {})
    >>> apply({}, (), Pairs(np.eye(3), np.eye(3), np.arange(3)))[0]
    3
  """
  compiled = jax.jit(apply)

  @wraps(apply)
  def anywhere(params, state, pairs, *, axes=None):
    check_pairs(pairs)
    mesh = _mesh_of((params, state, pairs))
    axes = _names(axes, mesh)
    if sharding.axes_of(mesh, AxisType.Explicit):
      return with_auto_axes(mesh, axes, params, state, pairs)
    if other := _other_axes(axes):
      return mapped(other, params, state, pairs)
    pairs, is_local = _gathered(pairs, axes)
    pairs = pairwise.replicated_ids(pairs)
    # Without `jax.jit`, JAX cannot lay out arrays on the mesh in context.
    is_traced = isinstance(pairs.pair_id, jax.core.Tracer)
    f = apply if is_traced or sharding.num_devices() == 1 else compiled
    loss, rest = f(params, state, pairs)
    if is_local is not None:
      loss += lax.stop_gradient(jnp.where(is_local, jnp.nan, 0.0))
    return loss, rest

  @partial(jax.jit, static_argnums=(0, 1))
  def with_auto_axes(mesh, axes, params, state, pairs):
    layout = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, state)
    f = partial(anywhere, axes=_of_rows(pairs) if axes is None else axes)
    with jax.sharding.use_abstract_mesh(mesh):
      # Rows that are not on the mesh yet are laid out as the new ones will be;
      # otherwise, the compiler could split them, and not donate them.
      state = jax.tree.map(jax.reshard, state, layout)
      return jax.sharding.auto_axes(
        f,
        axes=sharding.axes_of(mesh, AxisType.Explicit),
        out_sharding=(WHOLE, (layout, WHOLE)),
      )(params, state, pairs)

  @partial(jax.jit, static_argnums=0)
  def mapped(axes, params, state, pairs):
    layout = _layout(state, axes, len(pairs.pair_id))
    return jax.shard_map(
      partial(anywhere, axes=axes),
      in_specs=(WHOLE, layout, P(axes)),
      out_specs=(WHOLE, (layout, WHOLE)),
      axis_names=set(axes),
    )(params, state, pairs)

  return anywhere


def _mesh_of(args: PyTree) -> AbstractMesh:
  """Returns the mesh in context; without one, that of an array, or none."""
  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty:
    return mesh
  meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(args)]
  return max(  # the first with Explicit axes, if there is one
    meshes, key=lambda x: (bool(sharding.axes_of(x, AxisType.Explicit)), x.size)
  )


def _names(axes: Any, mesh: AbstractMesh) -> tuple[str, ...] | None:
  """Returns the axes as a tuple, or None.

  Raises:
    ValueError: For what is no name, or an axis that the mesh lacks.
  """
  names = (axes,) if isinstance(axes, str) else axes
  names = sharding.AXES if names is None else names
  names = tuple(names) if isinstance(names, Iterable) else (names,)
  if not all(isinstance(x, str) for x in names):
    raise ValueError(
      "axes must be the name of a mesh axis, several names, () or None, got "
      f"{axes!r}"
    )
  others = [x for x in names if x not in mesh.axis_names]
  if over := [x for x in others if _is_bound(x)]:
    raise ValueError(
      f"{', '.join(over)} is an axis of jax.vmap, over which no batch can be "
      "split; use jax.shard_map or jax.pmap for that, or give axes=() if each "
      "has a batch of its own"
    )
  if others and axes is not None:
    raise ValueError(
      f"axes names {', '.join(others)}, but the axes of the mesh are "
      f"{', '.join(mesh.axis_names) or 'none'}; name those that split the "
      "batch (jax.pmap needs an axis_name, other meshes jax.set_mesh), or give "
      "() if every device has a batch of its own"
    )
  return None if axes is None else names


def _is_bound(name: str) -> bool:
  """Returns whether an axis of a mapping has this name."""
  try:
    lax.axis_size(name)
  except NameError:
    return False
  return True


def _of_rows(pairs: Pairs) -> tuple[str, ...] | None:
  """Returns the Explicit axes that split a batch; None if all are known."""
  axes = (*jax.typeof(pairs.image).sharding.spec, None)[0] or ()
  axes = axes if isinstance(axes, tuple) else (axes,)
  return axes if set(axes) - set(sharding.AXES) else None


def _other_axes(axes: Sequence[str] | None) -> tuple[str, ...]:
  """Returns the Auto axes that split the work, if `axes` names unknown ones."""
  mesh = jax.sharding.get_abstract_mesh()
  automatic = sharding.axes_of(mesh, AxisType.Auto)
  split = tuple(x for x in automatic if x in (*(axes or ()), *sharding.AXES))
  return split if set(split) - set(sharding.AXES) else ()


def _layout(state: PyTree, axes: tuple[str, ...], batch: int) -> PyTree:
  """Returns the specs of a state whose rows are split where that is possible.

  Raises:
    ValueError: If the devices do not divide the batch.
  """
  shape = jax.sharding.get_abstract_mesh().shape
  count = math.prod(shape[name] for name in axes)
  if batch % count:
    raise ValueError(
      f"a batch must be a multiple of the {count} devices along the axes "
      f"{', '.join(axes)}, got {batch}"
    )
  layout = jax.tree.map(lambda _: WHOLE, state)
  if not isinstance(state, State):
    return layout
  sample, memory = jax.tree.map(
    lambda x: WHOLE if len(x) % count else P(axes), (state.sample, state.memory)
  )
  return layout._replace(sample=sample, memory=memory)


def _gathered(
  pairs: Pairs, axes: Sequence[str] | None
) -> tuple[Pairs, jax.Array | None]:
  """Gathers the rows of all devices within `jax.shard_map` or `jax.pmap`.

  Returns:
    The pairs, and whether devices have the same ids, if only a device can tell.

  Raises:
    ValueError: If the batch may be split over an axis that `axes` lacks, or
      rows are split and their ids are not.
  """
  mesh = jax.sharding.get_abstract_mesh()
  manual = sharding.axes_of(mesh, AxisType.Manual)
  known = sharding.AXES if axes is None else axes
  is_checked = sharding.is_checked()
  varying = sharding.varies_over(pairs) if is_checked else manual
  split = [x for x in manual if x in varying]
  if axes is None and set(split) - set(known):
    raise ValueError(_refusal(split))
  data = tuple(x for x in split if x in known)
  if not is_checked:
    if not data:
      return pairs, None
    pairs = sharding.all_rows(pairs, data)
    return pairs, _is_repeated(pairs.pair_id, [mesh.shape[x] for x in data])
  if same := [x for x in data if x not in sharding.varies_over(pairs.pair_id)]:
    raise ValueError(
      f"the batch is split over {', '.join(same)}, but pair_id is the same on "
      "all devices along it; a pair_id says which row of the data set a pair "
      "is, so give each device its slice of the global batch's ids"
    )
  # So that every function sees from the ids alone what differs by device.
  return sharding.all_rows(sharding.vary_over(pairs, split), data), None


def _refusal(split: Sequence[str]) -> str:
  """Says what to do about a batch that unknown axes may split."""
  names = f"axes={(split[0] if len(split) == 1 else tuple(split))!r}"
  if split[0].startswith("_internal"):  # an axis of jax.pmap without a name
    split, names = ["an axis"], 'axes="data") and jax.pmap(axis_name="data"'
  return (
    f"the batch may be split over {' and '.join(split)} of jax.shard_map or "
    f"jax.pmap, but only {' and '.join(sharding.AXES)} are known to split "
    f"batches; say apply(params, state, pairs, {names}), leaving out axes "
    "along which every device has the same rows; or axes=() if every device "
    "has a batch of its own"
  )


def _is_repeated(ids: jax.Array, counts: Sequence[int]) -> jax.Array:
  """Returns whether all devices along one of the axes have the same ids."""
  blocks = ids.reshape(*counts, -1)
  return jnp.any(
    jnp.array(
      [
        count > 1 and jnp.all(blocks == lax.index_in_dim(blocks, 0, axis))
        for axis, count in enumerate(counts)
      ]
    )
  )

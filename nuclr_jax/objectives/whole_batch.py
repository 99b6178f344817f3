"""Gives `apply` the whole batch, however it is sharded over devices."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
import math
from typing import Any

import jax
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

  Args:
    apply: The `apply` of an objective.

  Returns:
    A function `apply(params, state, pairs, *, axes=None)`: `axes` names the
    mesh axes that split the batch, a name or several. Other axes are then left
    alone, and () means that every device has a batch of its own. None means
    `sharding.AXES` and what Explicit axes say; any other axis of
    `jax.shard_map` or `jax.pmap` that the batch is split over is refused. Where
    `apply` calls another objective's, it passes `axes=()`, since the rows are
    gathered already.

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
    if axes is not None:
      axes = _names(axes)
    if mesh := _explicit_mesh((params, state, pairs)):
      return with_auto_axes(mesh, axes, params, state, pairs)
    if other := _other_axes(axes):
      return mapped(other, params, state, pairs)
    pairs = pairwise.replicated_ids(_gathered(pairs, axes))
    # Without `jax.jit`, JAX cannot lay out arrays on the mesh in context.
    is_traced = isinstance(pairs.pair_id, jax.core.Tracer)
    f = apply if is_traced or sharding.num_devices() == 1 else compiled
    return f(params, state, pairs)

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


def _names(axes: Any) -> tuple[str, ...]:
  """Returns the axes as a tuple.

  Raises:
    ValueError: For what is no name, or an axis that the mesh in context lacks.
  """
  names = (axes,) if isinstance(axes, str) else axes
  if not isinstance(names, Iterable) or any(
    not isinstance(x, str) for x in names
  ):
    raise ValueError(
      "axes must be the name of a mesh axis, several names, () or None, got "
      f"{axes!r}"
    )
  names = tuple(names)
  known = jax.sharding.get_abstract_mesh().axis_names
  if known and (wrong := [x for x in names if x not in known]):
    raise ValueError(
      f"axes names {', '.join(wrong)}, but the axes of the mesh are "
      f"{', '.join(map(str, known))}; name those that split the batch, or give "
      "() if every device has a batch of its own"
    )
  return names


def _explicit_mesh(args: PyTree) -> AbstractMesh | None:
  """Returns the mesh in context or of an array, if it has Explicit axes."""
  meshes = [jax.sharding.get_abstract_mesh()]
  if meshes[0].empty:
    meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(args)]
  for mesh in meshes:
    if sharding.axes_of(mesh, AxisType.Explicit):
      return mesh
  return None


def _of_rows(pairs: Pairs) -> tuple[str, ...] | None:
  """Returns the Explicit axes that split a batch; None if all are known."""
  axes = (*jax.typeof(pairs.image).sharding.spec, None)[0] or ()
  axes = axes if isinstance(axes, tuple) else (axes,)
  return axes if set(axes) - set(sharding.AXES) else None


def _other_axes(axes: Sequence[str] | None) -> tuple[str, ...]:
  """Returns the Auto axes that split a batch, if not all are known."""
  mesh = jax.sharding.get_abstract_mesh()
  automatic = sharding.axes_of(mesh, AxisType.Auto)
  split = tuple(x for x in automatic if x in (axes or ()))
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


def _gathered(pairs: Pairs, axes: Sequence[str] | None) -> Pairs:
  """Gathers the rows of all devices within `jax.shard_map` or `jax.pmap`.

  Raises:
    ValueError: If the batch may be split over an axis that `axes` lacks.
  """
  mesh = jax.sharding.get_abstract_mesh()
  manual = sharding.axes_of(mesh, AxisType.Manual)
  known = sharding.AXES if axes is None else axes
  if sharding.is_checked():
    split = sharding.varies_over(pairs)
    # So that every function sees from the ids alone what differs by device.
    pairs = sharding.vary_over(pairs, split)
  else:
    split = set(manual)
  unknown = [str(x) for x in manual if x in split and x not in known]
  if unknown and axes is None:
    raise ValueError(
      f"the batch is split over the axis {', '.join(unknown)} of jax.shard_map "
      f"or jax.pmap, but only {' and '.join(sharding.AXES)} are known to split "
      f'batches; say apply(params, state, pairs, axes="{unknown[0]}") if every '
      "device has a part of the batch (jax.pmap then needs an axis_name), or "
      "axes=() if every device has a batch of its own"
    )
  data = tuple(x for x in manual if x in split and x in known)
  return sharding.all_rows(pairs, data)

"""Gives `apply` the whole batch, whatever splits it over devices."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from nuclr_jax import pairwise, sharding
from nuclr_jax.types import Pairs, PyTree, check_pairs


def whole_batch(apply: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a function of the whole batch be called from any training loop.

  `apply(params, state, pairs)` may take its batch for the whole one, on every
  device; the functions of `pairwise` and `sample_state` split the work where
  the mesh allows it. The returned function checks the batch first, and takes

  - no mesh, or Auto axes: what `apply` says about a whole batch is what it
    computes. The axes `sharding.AXES` split the work;
  - Explicit axes, the default of `jax.make_mesh`: they are Auto within;
  - `jax.shard_map` or `jax.pmap`: the rows of all devices along the data axes
    are gathered. Every device then computes the same loss; per-sample state may
    be whole or split along its rows.

  Args:
    apply: The `apply` of an objective.

  Returns:
    A function `apply(params, state, pairs, *, axes=None)`. Within
    `jax.shard_map` or `jax.pmap`, `axes` names those mesh axes that split the
    batch, a name or several; other axes are then left alone, and () means that
    every device has a batch of its own. None means `sharding.AXES`, and refuses
    any other axis that the batch is split over.

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
    if isinstance(axes, str):
      axes = (axes,)
    if mesh := _explicit_mesh((params, state, pairs)):
      args = params, state, pairs
      return _as_auto(lambda *args: anywhere(*args, axes=axes), mesh, args)
    pairs = pairwise.replicated_ids(_gathered(pairs, axes))
    # Without `jax.jit`, JAX cannot lay out arrays on the mesh in context.
    is_traced = isinstance(pairs.pair_id, jax.core.Tracer)
    f = apply if is_traced or sharding.num_devices() == 1 else compiled
    return f(params, state, pairs)

  return anywhere


def _explicit_mesh(args: PyTree) -> AbstractMesh | None:
  """Returns the mesh in context or of an array, if it has Explicit axes."""
  meshes = [jax.sharding.get_abstract_mesh()]
  if meshes[0].empty:
    meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(args)]
  for mesh in meshes:
    if sharding.axes_of(mesh, AxisType.Explicit):
      return mesh
  return None


def _as_auto(f: Callable[..., Any], mesh: AbstractMesh, args: PyTree) -> Any:
  """Calls `f` with Auto in place of Explicit axes; the state's layout stays."""

  @jax.jit
  def call(params, state, pairs):
    layout = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, state)
    with jax.sharding.use_abstract_mesh(mesh):
      out = sharding.REPLICATED, (layout, sharding.REPLICATED)
      return jax.sharding.auto_axes(f, out_sharding=out)(params, state, pairs)

  return call(*args)


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

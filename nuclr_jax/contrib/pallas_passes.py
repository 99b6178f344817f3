r"""Both passes over all pairs as Pallas kernels for TPUs.

A kernel goes through a tile in blocks, and what it adds up stays in the core's
own memory (VMEM):

                    a group of columns, whose sums stay
                 ┌────┬────┬────┐
    rows, whose  │  → │  → │  → │   a block: `BLOCK`² similarities, computed,
    sums stay    ├────┼────┼────┤   turned into exponentials, and added up
    for a line   │  → │ ▓▓ │    │
    of blocks    └────┴────┴────┘

The arithmetic of a block is that of `pairwise.passes`; only the walk is here.
Products are as precise as `tiles.product`. The program that XLA compiles for a
v5e also keeps most tiles in VMEM, so that these kernels may gain little. They
have not been timed on a TPU, and run only on request
(experiments/step_time/README.md).
"""

from collections.abc import Callable
from functools import partial, wraps
import math
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.objectives import Objective
from nuclr_jax.pairwise import batch, passes, tiles
from nuclr_jax.types import PyTree, Sides, each

# Rows and columns of a block of width up to 512; half as many, if it is wider.
BLOCK = 256
GROUP_BYTES = 2**22  # of the vectors of a group of columns
LANES = 128  # rows of VMEM have a multiple of as many numbers


def tpu_kernels(objective: Objective) -> Objective:
  r"""Makes an objective compute its sums over all pairs in TPU kernels.

  Those are the sums of `pairwise.log_sum_exp` and `pairwise.weighted`. Loss,
  state, metrics and gradients are the same up to rounding. Similarities are
  computed in both passes even if one tile holds them all, so that both together
  have four products of the size B^2 d. Objectives without these sums, such as
  `siglip`, stay as they are. On a CPU, Pallas interprets the kernels, which is
  slow, but good enough for tests.

  Args:
    objective: Any objective; what else it computes stays as it is.

  Raises:
    ValueError: When applied on a GPU, or on a TPU to arrays of 64 bits.
    NotImplementedError: By JAX, on several TPUs without a mesh of
      `sharding.make_mesh` in context.

  Example:
    >>> from nuclr_jax import Pairs, objectives
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> objective = tpu_kernels(objectives.clip(temperature=0.5))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(f"{loss:.4f}")  # log(1 + 2 exp(-2))
    0.2395
  """
  apply, call = _with_kernels(objective.apply), f"tpu_kernels({objective.call})"
  return objective._replace(apply=apply, call=call)


def _with_kernels(f: Callable[..., Any]) -> Callable[..., Any]:
  """Returns `f` with the kernels in the place of the loops."""

  @wraps(f)
  def call(*args, **named):
    log_sums = passes.ADD_LOG_SUMS(_add_log_sums)
    with log_sums, passes.ADD_WEIGHTS(_add_weights):
      return f(*args, **named)

  return call


def _add_log_sums(tile: batch.Tile, *sums: tiles.LogSum) -> Sides:
  """Adds the exponentials of a tile to both sums of the first pass."""

  def add(sim, sides, sums, product):
    del product
    return each(_add_terms, sums, passes.tile_logits(sim, sides), Sides(1, 0))

  return _in_groups(add, tile, sums)


def _add_terms(log_sum, logits, axis):
  """Does what `tiles.add_terms` does, but keeps the axis with length 1."""
  log_sum = tiles.at_least(log_sum, jnp.max(logits, axis, keepdims=True))
  terms = jnp.exp(logits - tiles.finite(log_sum.greatest))
  total = log_sum.total + jnp.sum(terms, axis, keepdims=True)
  return log_sum._replace(total=total)


def _add_weights(tile: batch.Tile, *sums: passes.Sums) -> Sides:
  """Adds the terms of a tile to both sums of the second pass."""

  def add(sim, sides, sums, product):
    terms, d_sim = passes.tile_weights(sim, sides)
    d_vector = Sides(
      product(d_sim, sides.text.vector, axes=(1, 0)),
      product(d_sim, sides.image.vector, axes=(0, 0)),
    )

    def of_side(terms, vector, axis):
      numbers = (jnp.sum(x, axis, keepdims=True) for x in terms)
      return passes.Sums(*numbers, vector)

    new = each(of_side, terms, d_vector, Sides(1, 0))
    return jax.tree.map(jnp.add, sums, new)

  return _in_groups(add, tile, sums)


def _in_groups(add: Callable[..., Sides], tile: batch.Tile, sums) -> Sides:
  """Calls a kernel for each group of columns, and of as many rows.

  The sums of a group fit into the core's own memory.
  """
  image, text, _ = tile
  rows, dim = image.vector.shape
  dim += -dim % LANES
  block = min(BLOCK, max(LANES, 512 * BLOCK // dim // LANES * LANES))
  group = max(block, GROUP_BYTES // (4 * dim) // block * block)
  side = math.isqrt(group * min(group, rows))  # then `group` columns at most
  step = partial(_in_blocks, add, block)
  return Sides(*tiles.for_each(step, image, text, *sums, tile=side))


def _in_blocks(add, block, image, text, image_sums, text_sums):
  """Adds the terms of a group of columns to both sums, in one kernel."""
  _check_device((image, text))
  num_rows, num_columns = len(image.own), len(text.own)
  height = min(block, num_rows + -num_rows % 8)
  width = min(block, num_columns + -num_columns % LANES)
  on_cpu = tiles.device().platform == "cpu"
  rows = tiles.pad((image, image_sums), -num_rows % height)
  columns = tiles.pad((text, text_sums), -num_columns % width)
  rows, columns = _matrices(rows, 1), _matrices(columns, 0)
  product = partial(
    _product, in_three_passes=tiles.in_three_passes(image.vector.dtype)
  )

  def kernel(rows, columns, row_sums, column_sums):
    (image, initial_rows), (text, initial_columns) = rows, columns
    i, j = pl.program_id(0), pl.program_id(1)
    of_block = pl.ds(j * width, width)

    def part(ref):
      return ref.at[:, of_block] if len(ref) == 1 else ref.at[of_block]

    sums = Sides(row_sums, jax.tree.map(part, column_sums))
    pl.when(j == 0)(partial(_write, sums.image, initial_rows))
    pl.when(i == 0)(partial(_write, sums.text, initial_columns))
    sides = jax.tree.map(lambda ref: ref[...], Sides(image, text))
    sides = each(lambda side: side._replace(valid=side.valid != 0), sides)
    sim = product(sides.image.vector, sides.text.vector, axes=(1, 1))
    old = jax.tree.map(lambda ref: ref[...], sums)
    _write(sums, add(sim, sides, old, product))

  def of_rows(x):
    return pl.BlockSpec((height, x.shape[1]), lambda i, j: (i, 0))

  def of_columns(x, used=lambda i, j: j):
    if len(x) == 1:
      return pl.BlockSpec((1, width), lambda i, j: (0, used(i, j)))
    return pl.BlockSpec((width, x.shape[1]), lambda i, j: (used(i, j), 0))

  def initial_sums(x):  # are read in the first line of blocks only
    return of_columns(x, lambda i, j: jnp.where(i == 0, j, 0))

  def whole(x):
    return pl.BlockSpec(x.shape, lambda i, j: (0, 0))

  sums = pl.pallas_call(
    kernel,
    grid=(len(rows[0].own) // height, columns[0].own.size // width),
    in_specs=(
      jax.tree.map(of_rows, rows),
      (
        jax.tree.map(of_columns, columns[0]),
        jax.tree.map(initial_sums, columns[1]),
      ),
    ),
    out_specs=(
      jax.tree.map(of_rows, rows[1]),
      jax.tree.map(whole, columns[1]),
    ),
    out_shape=jax.eval_shape(lambda *x: x, rows[1], columns[1]),
    interpret=on_cpu and pltpu.InterpretParams(),
  )(rows, columns)

  def as_before(x, old):
    return (x if old.ndim == 2 else x.reshape(-1))[: len(old)]

  return jax.tree.map(as_before, sums, (image_sums, text_sums))


def _check_device(arrays: PyTree) -> None:
  """Raises an error where the kernels cannot run."""
  device = tiles.device()
  wide = any(x.dtype.itemsize == 8 for x in jax.tree.leaves(arrays))
  if device.platform == "gpu" or (device.platform == "tpu" and wide):
    raise ValueError(
      "`tpu_kernels` is for TPUs and arrays of 32 bits, got "
      f"{'64' if wide else '32'} bits on {device.device_kind}; use the "
      "objective without it"
    )


def _matrices(tree: PyTree, axis: int) -> PyTree:
  """Makes every array a matrix, and truth values numbers, as kernels need."""

  def matrix(x):
    x = x.astype(jnp.int32) if x.dtype == bool else x
    return x if x.ndim == 2 else jnp.expand_dims(x, axis)

  return jax.tree.map(matrix, tree)


def _write(refs: PyTree, values: PyTree) -> None:
  """Writes values, or what other references refer to."""

  def write(ref, value):
    ref[...] = value[...]

  jax.tree.map(write, refs, values)


def _product(
  a: Float[Array, "..."],
  b: Float[Array, "..."],
  *,
  axes: tuple[int, int],
  in_three_passes: bool,
) -> Float[Array, "..."]:
  """Multiplies blocks along an axis of each, as well as `tiles.product`."""
  dot = partial(
    lax.dot_general,
    dimension_numbers=((axes[:1], axes[1:]), ((), ())),
    preferred_element_type=a.dtype,
  )
  if not in_three_passes:
    return dot(a, b, precision=tiles.PRECISION)

  def parts(x):
    leading = x.astype(jnp.bfloat16)
    return leading, (x - leading.astype(x.dtype)).astype(jnp.bfloat16)

  # Otherwise JAX's option `jax_default_matmul_precision` would choose.
  dot = partial(dot, precision=lax.Precision.DEFAULT)
  (a, rest_of_a), (b, rest_of_b) = parts(a), parts(b)
  return dot(a, b) + (dot(a, rest_of_b) + dot(rest_of_a, b))

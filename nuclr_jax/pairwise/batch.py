"""The two sides of a batch, and the loop over their tiles on a mesh."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import sharding
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import (
  Pairs,
  PyTree,
  Sides,
  Temperature,
  both,
  each,
)


class Side(NamedTuple):
  """The images or the texts of a batch or of a tile, one row per pair."""

  vector: Float[Array, "rows dim"]  # the embedding
  ids: Sides  # of the pair's image and text
  valid: Bool[Array, "rows"]  # False beyond the end of the batch
  own: Float[Array, "rows"]  # sim_ii
  scale: Float[Array, "rows"]  # 1 / temperature, as anchor
  bias: Float[Array, "rows"]  # as contrast
  extra: tuple[Array, ...] = ()  # more numbers for each row


def embeddings(pairs: Pairs) -> Sides:
  """Returns the embeddings in one dtype, float32 or better.

  The shapes of a batch are checked once, by the objective that receives it
  (`types.check_pairs`), not by every function of this package.

  Example:
    >>> x = jnp.eye(2, dtype=jnp.bfloat16)
    >>> print(embeddings(Pairs(x, x, jnp.arange(2))).text.dtype)
    float32
  """
  dtype = jnp.result_type(jnp.float32, pairs.image, pairs.text)
  return Sides(pairs.image.astype(dtype), pairs.text.astype(dtype))


def unit_norm(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
  """Scales rows to unit norm, in float32 or better.

  Example:
    >>> print(unit_norm(jnp.array([3.0, 4.0])))
    [0.6 0.8]
  """
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.sum(x * x, axis=-1, keepdims=True)
  # The floor keeps zero rows, and their gradients, finite.
  return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def own_similarity(pairs: Pairs) -> Float[Array, "batch"]:
  """Returns the similarity of each image and its own text, sim_ii.

  Example:
    >>> text = jnp.array([[1.0, 0.0], [0.6, 0.8]])
    >>> own_similarity(Pairs(jnp.eye(2), text, jnp.arange(2)))
    Array([1. , 0.8], dtype=float32)
  """
  image, text = embeddings(pairs)
  return jnp.sum(image * text, axis=1)


def num_negatives(pairs: Pairs) -> Int[Array, "batch"]:
  """Counts the negatives of each row of the batch.

  Example:
    >>> ids = jnp.array([7, 7, 2])  # the first two share an image
    >>> num_negatives(Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3), ids))
    Array([1, 1, 2], dtype=int32)
  """

  def step(image, text, image_count, text_count):
    count = jnp.sum(is_negative(image, text), axis=1)
    return image_count + count, text_count

  def zero(side):
    return jnp.zeros_like(side.valid, int)

  return over_tiles(step, zero, both_sides(pairs)).image


def both_sides(
  pairs: Pairs, temperature: Temperature = 1.0, bias: Sides | None = None
) -> Sides:
  """Makes the `Side` of images and that of texts, in float32 or better.

  Args:
    pairs: The batch.
    temperature: A scalar, or `Sides` of scalars or [batch] arrays.
    bias: `Sides` of scalars or [batch] arrays; None means 0.
  """
  own = own_similarity(pairs)
  valid = jnp.ones_like(own, bool)

  def side(vector, temperature, bias):
    scale = 1 / spread(temperature, own)
    return Side(vector, pairs.ids, valid, own, scale, spread(bias, own))

  bias = both(0.0) if bias is None else bias
  return each(side, embeddings(pairs), both(temperature), bias)


def spread(x, like: Float[Array, "batch"]) -> Float[Array, "batch"]:
  """Broadcasts to one number per row, in the dtype of `like`."""
  return jnp.broadcast_to(jnp.asarray(x, like.dtype), like.shape)


def scatter_sum(sums: PyTree) -> PyTree:
  """Adds over devices, in their order; each keeps its share of the rows.

  It sends as many bytes as `lax.psum_scatter`, which slows down later
  collectives of several CPU processes hundreds of times (Gloo in jax 0.10).
  """
  count = lax.axis_size("data")

  def scatter(x):
    shares = x.reshape(count, len(x) // count, *x.shape[1:])
    return jnp.sum(lax.all_to_all(shares, "data", 0, 0), axis=0)

  return jax.tree.map(scatter, sums)


def scatter_log_sum(sums: tiles.LogSum) -> tiles.LogSum:
  """Adds sums of exponentials over devices, as `scatter_sum` does for sums."""
  sums = tiles.at_least(sums, lax.pmax(sums.greatest, "data"))
  total = scatter_sum(sums.total)
  start = lax.axis_index("data") * len(total)
  mine = lax.dynamic_slice_in_dim(sums.greatest, start, len(total))
  return tiles.LogSum(mine, total)


def over_tiles(
  step: Callable[..., tuple[PyTree, PyTree]],
  zero: Callable[[Side], PyTree],
  sides: Sides,
  *,
  tile: int | None = None,
  scatter: Callable[[PyTree], PyTree] = scatter_sum,
) -> Sides:
  """Returns what a step adds up over all tiles, for images and for texts.

  Args:
    step: The step of `tiles.for_each`, with images as rows, texts as columns.
    zero: Makes the initial sums of a side.
    sides: The `Side` of images and that of texts.
    tile: Rows and columns of a tile; None means the default of the backend.
    scatter: Combines the devices' sums for all texts; each device keeps those
      of its own texts.
  """

  def all_tiles(image, text):
    zeros = zero(image), zero(text)
    return Sides(*tiles.for_each(step, image, text, *zeros, tile=tile))

  def per_device(image, text):
    gather = partial(lax.all_gather, axis_name="data", tiled=True)
    sums = all_tiles(image, jax.tree.map(gather, text))
    return sums._replace(text=scatter(sums.text))

  if sharding.num_devices(len(sides.image.own)) == 1:
    return all_tiles(*sides)
  rows = sharding.ROWS
  return jax.shard_map(per_device, in_specs=rows, out_specs=rows)(*sides)


def broadcastable(image: Side, text: Side) -> Sides:
  """Makes a tile's sides broadcast: [images, 1] and [1, texts]."""
  return Sides(
    jax.tree.map(lambda x: x[:, None], image),
    jax.tree.map(lambda x: x[None, :], text),
  )


def is_negative(image: Side, text: Side) -> Bool[Array, "images texts"]:
  """Returns True where two pairs share neither an image nor a text."""
  image, text = broadcastable(image, text)
  same = each(jnp.equal, image.ids, text.ids)
  return image.valid & text.valid & ~(same.image | same.text)

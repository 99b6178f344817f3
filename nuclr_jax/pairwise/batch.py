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
  check_32_bits,
  each,
)


class Side(NamedTuple):
  """The images or the texts of a batch or of a tile, one row per pair.

  On a mesh, the vectors of images are split over the devices; those of texts,
  and all that is one number per row, are on every device.
  """

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
  (`objectives.whole_batch`), not by every function of this package.

  Example:
    >>> x = jnp.eye(2, dtype=jnp.bfloat16)
    >>> print(embeddings(Pairs(x, x, jnp.arange(2))).text.dtype)
    float32
  """
  dtype = jnp.result_type(jnp.float32, pairs.image, pairs.text)
  return Sides(pairs.image.astype(dtype), pairs.text.astype(dtype))


def unit_norm(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
  """Scales rows to unit norm, in float32 or better.

  Rows of zeros stay zeros. Rows whose squared norm is too large for their type
  (norms above 1.8e19 in float32) become NaN. Rows of a norm below 1e-12 are
  divided by 1e-12: a row of zeros stays so, and its gradient is as large.

  Example:
    >>> print(unit_norm(jnp.array([3.0, 4.0])))
    [0.6 0.8]
  """
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.sum(x * x, axis=-1, keepdims=True)
  # The floor keeps zero rows, and their gradients, finite.
  square = jnp.maximum(square, 1e-24)
  # The inverse root of infinity is 0, which would pass for a row of zeros.
  return x * jax.lax.rsqrt(jnp.where(jnp.isinf(square), jnp.nan, square))


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

  def step(tile, count, text_count):
    return count + jnp.sum(is_negative(broadcastable(tile)), 1), text_count

  def zero(side):
    return jnp.zeros_like(side.valid, int)

  return over_tiles(step, zero, both_sides(pairs)).image


def nan_without_negatives(
  loss: Float[Array, ""], pairs: Pairs
) -> Float[Array, ""]:
  """Returns the loss; NaN if no pair of a batch has a negative.

  That is so if all pairs share one image or one text, as with ids that are all
  0: nothing would be learned. The gradient stays as it is.

  Raises:
    ValueError: For a batch of one pair; and instead of NaN if the ids are
      known, as they are outside of `jax.jit`.

  Example:
    >>> ids = jnp.zeros(2, int)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), ids)
    >>> print(jax.jit(nan_without_negatives)(1.0, pairs))
    nan
  """
  if len(pairs.pair_id) == 1:
    raise ValueError("a batch of one pair has no negatives; give two or more")
  image, text = (jnp.all(x == x[0]) for x in pairs.ids)
  alone = image if pairs.ids.image is pairs.ids.text else image | text
  if not isinstance(alone, jax.core.Tracer) and alone.is_fully_addressable:
    if alone:
      raise ValueError(
        f"the {len(pairs.pair_id)} pairs of the batch share one image or text "
        f"by their ids (the first is {pairs.pair_id[0]}), so that none is a "
        "negative of another; pair_id must be the row of each pair in the data "
        "set"
      )
    return loss
  return loss + lax.stop_gradient(jnp.where(alone, jnp.nan, 0.0))


def both_sides(
  pairs: Pairs, temperature: Temperature = 1.0, bias: Sides | None = None
) -> Sides:
  """Makes the `Side` of images and that of texts, in float32 or better.

  Args:
    pairs: The batch.
    temperature: A scalar, or `Sides` of scalars or [batch] arrays.
    bias: `Sides` of scalars or [batch] arrays; None means 0.
  """
  own = sharding.constrain(own_similarity(pairs), sharding.REPLICATED)
  # An infinite embedding makes the loss NaN; exp(-inf) = 0 would hide it.
  own = jnp.where(jnp.isfinite(own), own, jnp.nan)
  valid = jnp.ones_like(own, bool)
  ids = replicated_ids(pairs).ids
  # Texts cross devices in their own dtype.
  gathered = pairs._replace(text=sharding.gather(pairs.text))

  def side(vector, temperature, bias):
    scale = 1 / spread(temperature, own)
    return Side(vector, ids, valid, own, scale, spread(bias, own))

  bias = both(0.0) if bias is None else bias
  return each(side, embeddings(gathered), both(temperature), bias)


def replicated_ids(pairs: Pairs) -> Pairs:
  """Gives every device the ids of the whole batch, in one collective.

  Raises:
    ValueError: For ids or labels on the host that int32 cannot hold.
  """
  known = {name: x for name, x in pairs._asdict().items() if x is not None}
  ids = {name: x for name, x in known.items() if name.endswith("_id")}
  for name in (*ids, "label"):
    check_32_bits(name, known.get(name))
  if sharding.num_devices() == 1:
    return pairs
  dtype = jnp.result_type(*ids.values())
  stacked = jnp.stack([x.astype(dtype) for x in ids.values()], axis=1)
  rows = sharding.constrain(stacked, sharding.REPLICATED).T
  return pairs._replace(**dict(zip(ids, rows, strict=True)))


def spread(x, like: Float[Array, "batch"]) -> Float[Array, "batch"]:
  """Broadcasts to one number per row, in the dtype of `like`."""
  return jnp.broadcast_to(jnp.asarray(x, like.dtype), like.shape)


class Tile(NamedTuple):
  """Some images and some texts; or all those of a device, if they are few."""

  image: Side
  text: Side
  similarity: Float[Array, "images texts"] | None = None  # if it is known


def similarity(tile: Tile) -> Float[Array, "images texts"]:
  """Returns the similarities of a tile's images and texts."""
  if tile.similarity is not None:
    return tile.similarity
  return tiles.product(tile.image.vector, tile.text.vector.T)


def similarity_of_one_tile(
  sides: Sides, tile: int | None
) -> Float[Array, "batch batch"] | None:
  """Returns all similarities if one tile holds those of a device, else None.

  Then they need not be computed in each of several passes.
  """
  batch = len(sides.image.own)
  fit = tiles.is_one(batch // sharding.num_devices(batch), batch, tile)
  return similarity(Tile(*sides)) if fit else None


def over_tiles(
  step: Callable[[Tile, PyTree, PyTree], tuple[PyTree, PyTree]],
  zero: Callable[[Side], PyTree],
  sides: Sides,
  *,
  similarity: Float[Array, "batch batch"] | None = None,
  tile: int | None = None,
  add_up: Callable[[Sides], Sides] | None = None,
) -> Sides:
  """Returns what a step adds up over all tiles, for images and for texts.

  Args:
    step: `step(tile, image_sums, text_sums)` returns both sums with the terms
      of a `Tile` added.
    zero: Makes the initial sums of a side: arrays [rows] or [rows, dim].
    sides: What `both_sides` returned.
    similarity: What `similarity_of_one_tile` returned.
    tile: Rows and columns of a tile; None means the default of the backend.
    add_up: Combines the sums of the devices, which have some images and all
      texts each; None means `sums_of_devices`.

  Returns:
    The sums of both sides. On a mesh, those of shape [batch, dim] are split
    over the devices, and those of shape [batch] are on every device.
  """

  def all_tiles(image, text, similarity):
    zeros = zero(image), zero(text)
    if similarity is not None:
      return Sides(*step(Tile(image, text, similarity), *zeros))

    def one_tile(image, text, *sums):
      return step(Tile(image, text), *sums)

    return Sides(*tiles.for_each(one_tile, image, text, *zeros, tile=tile))

  def per_device(image, text, similarity):
    mine = jax.tree.map(sharding.own_rows, image._replace(vector=()))
    mine = mine._replace(vector=image.vector)
    # A scan's carry must be marked as varying over devices from the start.
    text = jax.tree.map(sharding.varying, text)
    return (add_up or sums_of_devices)(all_tiles(mine, text, similarity))

  if sharding.num_devices(len(sides.image.own)) == 1:
    return all_tiles(*sides, similarity)
  whole = jax.tree.map(lambda _: sharding.REPLICATED, sides)
  split_image = whole.image._replace(vector=sharding.ROWS)
  sums = each(partial(jax.eval_shape, zero), sides)
  by_rank = {1: sharding.REPLICATED, 2: sharding.ROWS}
  return sharding.per_device(
    per_device,
    in_specs=(split_image, whole.text, sharding.ROWS),
    out_specs=jax.tree.map(lambda x: by_rank[x.ndim], sums),
  )(*sides, similarity)


def sums_of_devices(sums: Sides) -> Sides:
  """Adds over devices: everything [rows] at once; vectors are left split."""
  split = sums._replace(
    image=jax.tree.map(
      lambda x: x if x.ndim == 2 else sharding.among_all(x), sums.image
    ),
    text=jax.tree.map(
      lambda x: sharding.scatter_sum(x) if x.ndim == 2 else x, sums.text
    ),
  )
  leaves, structure = jax.tree.flatten(split)
  short = [x for x in leaves if x.ndim == 1]
  total = iter(lax.psum(jnp.stack(short), sharding.axes()))
  return structure.unflatten(
    [next(total) if x.ndim == 1 else x for x in leaves]
  )


def log_sums_of_devices(sums: Sides) -> Sides:
  """Adds sums of exponentials, a `LogSum` for each side, over devices."""
  image = tiles.LogSum(*map(sharding.among_all, sums.image, (-jnp.inf, 0.0)))
  return tiles.sum_over_devices(sums._replace(image=image))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def with_gradient(
  gradient_of: Callable[[PyTree, PyTree], PyTree],
  value: Float[Array, ""],
  inputs: PyTree,
  constants: PyTree,
  gradient: PyTree,
) -> Float[Array, ""]:
  """Returns a value whose gradient in `inputs` is known already.

  Args:
    gradient_of: `gradient_of(inputs, constants)` computes the gradient again,
      for second derivatives; or it raises an error.
    value: The value.
    inputs: What the value depends on.
    constants: What its gradient depends on besides.
    gradient: The gradient, of the structure of `inputs`.
  """
  del gradient_of, inputs, constants, gradient
  return value


@with_gradient.defjvp
def _derivative(gradient_of, primals, tangents):
  value, *args = primals
  gradient = _known_gradient(gradient_of, *args)
  products = jax.tree.map(lambda g, t: jnp.sum(g * t), gradient, tangents[1])
  return value, sum(jax.tree.leaves(products))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _known_gradient(gradient_of, inputs, constants, gradient):
  del gradient_of, inputs, constants
  return gradient


@_known_gradient.defjvp
def _second_derivative(gradient_of, primals, tangents):
  inputs, constants, gradient = primals
  again = partial(gradient_of, constants=constants)
  return gradient, jax.jvp(again, (inputs,), tangents[:1])[1]


def broadcastable(tile: Tile) -> Sides:
  """Makes a tile's sides broadcast: [images, 1] and [1, texts]."""
  return Sides(
    jax.tree.map(lambda x: x[:, None], tile.image),
    jax.tree.map(lambda x: x[None, :], tile.text),
  )


def is_negative(sides: Sides) -> Bool[Array, "images texts"]:
  """Returns True where two pairs share neither an image nor a text.

  Args:
    sides: What `broadcastable` returned.
  """
  image, text = sides
  same = each(jnp.equal, image.ids, text.ids)
  return image.valid & text.valid & ~(same.image | same.text)

"""SigLIP 2's vision transformer for images of any aspect ratio (NaFlex).

A batch has one shape whatever its images have: `data.patches` lays the patches
of each out in a square, beside the numbers of its rows and columns. From these
two numbers follow what the attention leaves out and the positions, so that the
tower is compiled once.
"""

from collections.abc import Sequence
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from nuclr_jax import checks
from nuclr_jax.checks import Fraction
from nuclr_jax.lab.models import base, pools, transformer
from nuclr_jax.lab.models.layers import (
  Dtype,
  LayerNorm,
  Remat,
  normalize,
  run_blocks,
)
from nuclr_jax.lab.models.vit import check_patches
from nuclr_jax.lab.ranges import Eps, Layers, Mean, Side, Std, Width


class Unpacked(NamedTuple):
  """The patches of a batch of images; those behind the last are padding."""

  patches: Num[Array, "batch patches numbers"]
  grid: Int[Array, "batch 2"]  # rows and columns of each image

  @property
  def places(self) -> Int[Array, "batch patches 2"]:
    """The row and the column of each patch; (0, 0) for padding."""
    number = jnp.arange(self.patches.shape[1])[None]
    number = jnp.where(self.mask, number, 0)
    columns = self.grid[:, 1:]
    return jnp.stack([number // columns, number % columns], axis=-1)

  @property
  def mask(self) -> Bool[Array, "batch patches"]:
    """Which patches are of the image."""
    number = jnp.arange(self.patches.shape[1])[None]
    return number < jnp.prod(self.grid, axis=1, keepdims=True)


def unpack(image: Num[Array, "batch size across 3"], patch: int) -> Unpacked:
  """Reads what `data.patches.pack` has laid out.

  Args:
    image: Images as they are packed, with `across` = `size` + `patch`. Their
      pixels may be normalized, but not the numbers of rows and columns.
    patch: The side of a patch, in pixels.

  Returns:
    The patches, each as its pixels [patch, patch, 3] in one row; and the rows
    and columns of patches, at least 1.

  Example:
    >>> import numpy as np
    >>> from nuclr_jax.lab.data.patches import pack
    >>> image = np.arange(10, dtype=np.uint8).reshape(2, 5, 1).repeat(3, 2)
    >>> found = unpack(jnp.array(pack(image, size=4, patch=1))[None], 1)
    >>> print(found.grid[0], found.patches[0, :10, 0], found.places[0, 7])
    [2 5] [0 1 2 3 4 5 6 7 8 9] [1 2]
  """
  batch, size, _, channels = image.shape
  side = size // patch
  x = image[:, :, :size].reshape(batch, side, patch, side, patch, channels)
  x = jnp.swapaxes(x, 2, 3).reshape(batch, side * side, -1)
  high, low = jnp.moveaxis(image[:, :2, size, :2].astype(jnp.int32), -1, 0)
  # Rows that only fill up a batch are zeros, as if of one patch.
  return Unpacked(x, jnp.maximum(256 * high + low, 1))


def bilinear(
  new: Int[Array, "batch"], at: Int[Array, "batch patches"], old: int
) -> Float[Array, "batch patches {old}"]:
  """Returns the weights with which a row of numbers is resized.

  A row of `old` numbers becomes one of `new`. With r = old / new, the number at
  i is the mean of those at j with the weights

    max(0, 1 - |j + 1/2 - r (i + 1/2)| / max(r, 1)),

  which widen as the row shrinks, so that nothing aliases.

  Args:
    new: The number of numbers of each new row.
    at: Which of them are wanted, each from 0 to `new` - 1.
    old: The number of numbers of the old row.

  Example:
    >>> weights = bilinear(jnp.array([2]), jnp.array([[0, 1]]), 4)[0]
    >>> print(jnp.round(7 * weights))
    [[3. 3. 1. 0.]
     [0. 1. 3. 3.]]

  Source: `torch.nn.functional.interpolate` with mode="bilinear",
    align_corners=False and antialias=True, along one axis.
  """
  ratio = old / new[:, None, None].astype(jnp.float32)
  distance = jnp.abs(
    jnp.arange(old)[None, None] + 0.5 - ratio * (at[:, :, None] + 0.5)
  )
  weights = jnp.maximum(0, 1 - distance / jnp.maximum(ratio, 1))
  return weights / jnp.sum(weights, axis=-1, keepdims=True)


def resize_positions(
  positions: Float[Array, "side side width"],
  grid: Int[Array, "batch 2"],
  places: Int[Array, "batch patches 2"],
) -> Float[Array, "batch patches width"]:
  """Resizes a square of positions to the grid of each image.

  Args:
    positions: The learned positions.
    grid: The rows and columns of patches of each image.
    places: The row and the column of each patch.

  Example:
    >>> positions = jnp.arange(4.0).reshape(2, 2, 1)
    >>> places = jnp.array([[[0, 0], [0, 1], [0, 2]]])
    >>> print(resize_positions(positions, jnp.array([[1, 3]]), places)[0, :, 0])
    [1.  1.5 2. ]
  """
  rows, columns = (
    bilinear(grid[:, i], places[:, :, i], len(positions)) for i in range(2)
  )
  weights = rows[:, :, :, None] * columns[:, :, None, :]
  weights = weights.reshape(*weights.shape[:2], -1)
  return jnp.matmul(
    weights,
    positions.reshape(-1, positions.shape[-1]),
    precision=jax.lax.Precision.HIGHEST,
  )


class NaflexTransformer(nnx.Module):
  """Blocks and a pool with attention that leave padding out."""

  def __init__(
    self,
    spec: transformer.BlockSpec,
    *,
    patch: int,
    side: int,
    mean: Sequence[float],
    std: Sequence[float],
    rngs,
  ):
    self.patches = transformer.dense(
      3 * patch**2, spec.width, None, dtype=spec.dtype, rngs=rngs
    )
    init = nnx.initializers.normal(0.02)
    self.positions = nnx.Param(init(rngs.params(), (side, side, spec.width)))
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.norm = LayerNorm(spec.width, eps=spec.eps)
    self.pool = pools.AttentionPool(spec, rngs=rngs)
    self.patch, self.remat = patch, spec.remat
    self.input = (tuple(mean), tuple(std), spec.dtype)

  def __call__(
    self,
    image: Num[Array, "batch size across 3"],
    rngs: nnx.Rngs | None = None,
  ) -> Float[Array, "batch features"]:
    unpacked = unpack(image, self.patch)
    batch, length, _ = unpacked.patches.shape
    pixels = unpacked.patches.reshape(batch, length, -1, 3)
    x = normalize(pixels, *self.input).reshape(batch, length, -1)
    positions = resize_positions(
      self.positions[...], unpacked.grid, unpacked.places
    )
    x = self.patches(x) + positions.astype(x.dtype)
    mask = unpacked.mask[:, None, None]
    x = self.dropout(x, rngs=rngs)
    x = run_blocks(self.blocks, x, mask, rngs, remat=self.remat)
    x = self.pool(self.norm(x), rngs, mask)
    return x.astype(jnp.float32)


@checks.checked
def naflex_vit(
  *,
  image_shape: tuple[int, int, int],
  patch: Side = 16,
  grid: Side = 16,
  width: Width = 768,
  layers: Layers = 12,
  heads: Width = 12,
  hidden: Width | None = None,
  eps: Eps = 1e-6,
  activation: transformer.Activation = "gelu_tanh",
  dropout: Fraction = 0.0,
  mean: Sequence[Mean] = (0.5, 0.5, 0.5),
  std: Sequence[Std] = (0.5, 0.5, 0.5),
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes SigLIP 2's vision transformer for images of any aspect ratio.

  Images come packed (see `data.patches`): `config.data` has
  `resize="naflex"` and the tower's `patch`, and its `size` decides how many
  patches an image may have, (size / patch)^2.

  Args:
    image_shape: Height, width and channels of packed images: `size`, `size` +
      `patch`, 3.
    patch: The height and width of a patch, in pixels.
    grid: The side of the square of learned positions, which are resized to
      the grid of each image; it need not be that of the images.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    eps: The eps of LayerNorm.
    activation: "gelu_tanh" in SigLIP 2, or another one, see `vit`.
    dropout: The dropout rate after the embeddings and in both residual
      branches.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16".
    remat: What the backward pass computes again to save memory, see `vit`.
    attention: "xla" or "cudnn", see `vit`.

  Returns:
    A `Tower` from packed images, uint8, to features [batch, width].

  Raises:
    ValueError: If images are not packed, or have patches of another size; or if
      a number is out of range.

  Example:
    >>> tower = naflex_vit(
    ...   image_shape=(8, 12, 3),
    ...   patch=4,
    ...   grid=3,
    ...   width=8,
    ...   layers=1,
    ...   heads=2,
    ... )
    >>> params, _ = tower.init(jax.random.key(0))
    >>> params["positions"].shape
    (3, 3, 8)

  Reference: Tschannen et al., SigLIP 2, 2025; Beyer et al., FlexiViT, CVPR
    2023; Dehghani et al., Patch n' Pack: NaViT, NeurIPS 2023.
  """
  if len(image_shape) != 3 or image_shape[1] - image_shape[0] != patch:
    raise ValueError(
      f"images must be packed patches of {patch} pixels, {patch} wider than "
      f"high, got {tuple(image_shape)}; set data.resize to 'naflex' and "
      f"data.patch to {patch}"
    )
  size = image_shape[0]
  check_patches((size, size, image_shape[2]), patch, mean, std)
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=True,
    eps=eps,
    activation=activation,
    dtype=dtype,
    remat=remat,
    rates=transformer.rates_of(dropout),
    attention=attention,
  )
  return base.from_nnx(
    lambda rngs: NaflexTransformer(
      spec, patch=patch, side=grid, mean=mean, std=std, rngs=rngs
    ),
    width,
  )

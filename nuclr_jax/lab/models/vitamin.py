"""ViTamin: convolutions that make patches, and gated transformer blocks."""

from collections.abc import Sequence
from functools import partial

from flax import nnx
import jax
from jaxtyping import Array, Float

from nuclr_jax import checks
from nuclr_jax.checks import Fraction
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import (
  MEAN,
  STD,
  Conv,
  Dtype,
  LayerNorm,
  Remat,
)
from nuclr_jax.lab.models.vit import Frame, check_patches, tower_of
from nuclr_jax.lab.ranges import Eps, Layers, Mean, Stages, Std, Width

PATCH = 16  # pixels of a patch, after four convolutions with a stride of two


class InvertedBlock(nnx.Module):
  """A wide convolution of each channel between two linear layers, residual."""

  def __init__(self, inputs, outputs, *, stride, eps, dtype, rngs):
    make = partial(transformer.dense, deviation=None, dtype=dtype, rngs=rngs)
    hidden = 4 * outputs
    self.norm = LayerNorm(inputs, eps=eps)
    self.up = make(inputs, hidden)
    self.conv = Conv(
      hidden,
      hidden,
      3,
      stride=stride,
      depthwise=True,
      use_bias=True,
      dtype=dtype,
      rngs=rngs,
    )
    self.down = make(hidden, outputs)
    self.shortcut = nnx.data(
      make(inputs, outputs) if inputs != outputs else None
    )
    self.stride = stride

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns outputs"]:
    y = _gelu(self.conv(_gelu(self.up(self.norm(x)))))
    if self.stride > 1:  # means over what is inside the image
      step, pad = (self.stride, self.stride), ((1, 1), (1, 1))
      x = nnx.avg_pool(x, (3, 3), step, pad, count_include_pad=False)
    if self.shortcut is not None:
      x = self.shortcut(x)
    return x + self.down(y)


class ConvStem(nnx.Module):
  """Convolutions that halve the grid of pixels four times."""

  def __init__(self, *, channels, stem, blocks, width, eps, dtype, rngs):
    make = dict(dtype=dtype, rngs=rngs)
    conv = partial(Conv, use_bias=True, **make)
    self.first = conv(channels, stem, 3, stride=2)
    self.first_norm = LayerNorm(stem, eps=eps)
    self.second = conv(stem, stem, 3)
    widths = [stem, *(stem * 2**i for i in range(len(blocks)))]
    self.stages = nnx.List(
      nnx.List(
        InvertedBlock(
          outputs if i else inputs,
          outputs,
          stride=1 if i else 2,
          eps=eps,
          **make,
        )
        for i in range(count)
      )
      for count, inputs, outputs in zip(
        blocks, widths[:-1], widths[1:], strict=True
      )
    )
    self.last_norm = LayerNorm(widths[-1], eps=eps)
    self.last = conv(widths[-1], width, 3, stride=2)

  def __call__(
    self, x: Float[Array, "batch height width channels"]
  ) -> Float[Array, "batch patches features"]:
    x = self.second(_gelu(self.first_norm(self.first(x))))
    for stage in self.stages:
      for block in stage:
        x = block(x)
    x = self.last(self.last_norm(x))
    return x.reshape(len(x), -1, x.shape[-1])


def _gelu(x):
  return jax.nn.gelu(x, approximate=False)


@checks.checked
def vitamin(
  *,
  image_shape: tuple[int, int, int],
  width: Width = 1024,
  layers: Layers = 31,
  heads: Width = 16,
  stem: Width = 160,
  stem_blocks: Stages = (2, 4),
  eps: Eps = 1e-6,
  positions: bool = True,
  dropout: Fraction = 0.0,
  mean: Sequence[Mean] = MEAN,
  std: Sequence[Std] = STD,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes a ViTamin; its features are the mean of those of all patches.

  The transformer's blocks have a gated MLP, whose hidden layer is twice as wide
  as the features, and before it a second LayerNorm.

  Args:
    image_shape: Height, width and channels of the images, multiples of 16.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    stem: The number of channels of the first convolutions, twice as many in the
      second stage.
    stem_blocks: The number of blocks of convolutions in both stages before the
      transformer.
    eps: The eps of LayerNorm.
    positions: Whether patches have learned positions.
    dropout: The dropout rate after the embeddings and in both residual branches
      of the transformer.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16".
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters), in the
      transformer.
    attention: "xla", or "cudnn": flash attention on NVIDIA GPUs, in bfloat16
      and without dropout on the attention weights.

  Returns:
    A `Tower` from uint8 images to features [batch, width].

  Raises:
    ValueError: If an image cannot be cut into patches, or if a number is out of
      range.

  Example:
    >>> tower = vitamin(
    ...   image_shape=(32, 32, 3),
    ...   width=8,
    ...   layers=1,
    ...   heads=2,
    ...   stem=4,
    ...   stem_blocks=(1, 1),
    ... )
    >>> params, _ = tower.init(jax.random.key(0))
    >>> params["positions"].shape, params["patches"]["last"]["kernel"].shape
    ((2, 2, 8), (3, 3, 8, 8))

  Reference: Chen et al., ViTamin, CVPR 2024.
  """
  check_patches(image_shape, PATCH, mean, std)
  if len(stem_blocks) != 2:
    raise ValueError(f"stem_blocks must be two numbers, got {stem_blocks}")
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=2 * width,
    pre_norm=True,
    mlp_norm=True,
    gated=True,
    eps=eps,
    activation="gelu",
    dtype=dtype,
    remat=remat,
    attention=attention,
    rates=transformer.rates_of(dropout),
  )
  frame = Frame(
    image_shape=tuple(image_shape),
    patch=PATCH,
    patch_bias=True,
    norm_before=False,
    class_token=False,
    pool="mean",
    mean=tuple(mean),
    std=tuple(std),
    positions=positions,
  )

  def make_stem(rngs):
    return ConvStem(
      channels=image_shape[-1],
      stem=stem,
      blocks=stem_blocks,
      width=width,
      eps=eps,
      dtype=spec.dtype,
      rngs=rngs,
    )

  return tower_of(spec, frame, make_stem)

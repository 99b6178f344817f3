"""A small model, quick on a CPU, for the data sets that need no download."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt8

from nuclr_jax.checks import Fraction
from nuclr_jax.lab.models import base
from nuclr_jax.lab.models.layers import LayerNorm
from nuclr_jax.lab.models.transformer import (
  BlockSpec,
  Deviations,
  Rates,
  make_blocks,
)
from nuclr_jax.lab.ranges import Blocks, Side, Width


class PatchConv(nnx.Module):
  """A convolution with stride s and a kernel of (reach s) x (reach s) pixels.

  It is computed as one matrix product over gathered blocks of s x s pixels: on
  a CPU, XLA's gradient of a convolution takes about twice as long. The result
  has one row for each position: XLA would transpose one with four axes for the
  kernel's gradient, which made a step on icons half as long again.
  """

  def __init__(self, inputs, outputs, *, stride, reach, rngs):
    self.linear = nnx.Linear(
      (reach * stride) ** 2 * inputs, outputs, use_bias=False, rngs=rngs
    )
    self.stride, self.reach = stride, reach

  def __call__(
    self, x: Float[Array, "batch h w inputs"]
  ) -> Float[Array, "positions outputs"]:
    batch, height, width, _ = x.shape
    rows, columns = height // self.stride, width // self.stride
    x = x.reshape(batch, rows, self.stride, columns, self.stride, -1)
    blocks = jnp.moveaxis(x, 3, 2).reshape(batch, rows, columns, -1)
    before, after = (self.reach - 1) // 2, self.reach // 2
    padding = (before, after)
    blocks = jnp.pad(blocks, ((0, 0), padding, padding, (0, 0)))
    shifts = [
      blocks[:, i : i + rows, j : j + columns]
      for i in range(self.reach)
      for j in range(self.reach)
    ]
    patches = jnp.concatenate(shifts, axis=-1)
    return self.linear(patches.reshape(batch * rows * columns, -1))


Stages = tuple[tuple[Side, Side, Width], ...]


class SmallConvNet(nnx.Module):
  """Strided convolutions with batch normalization, then a dense layer."""

  def __init__(self, *, shape, stages, num_features, dropout, rngs):
    size, _, inputs = shape
    layers = []
    for stride, reach, width in stages:
      conv = PatchConv(inputs, width, stride=stride, reach=reach, rngs=rngs)
      layers += [conv, nnx.BatchNorm(width, momentum=0.9, rngs=rngs)]
      inputs, size = width, size // stride
    self.layers = nnx.List(layers)
    self.dense = nnx.Linear(size * size * inputs, num_features, rngs=rngs)
    self.dropout = nnx.Dropout(dropout)

  def __call__(
    self, image: UInt8[Array, "batch h w c"], rngs=None
  ) -> Float[Array, "batch features"]:
    batch, size = image.shape[:2]
    x = image.astype(jnp.float32) / 127.5 - 1
    for conv, norm in zip(self.layers[::2], self.layers[1::2], strict=True):
      size //= conv.stride
      x = jax.nn.relu(norm(conv(x))).reshape(batch, size, size, -1)
    x = self.dropout(x.reshape(batch, -1), rngs=rngs)
    return jax.nn.relu(self.dense(x))


class SmallTextTransformer(nnx.Module):
  """Pre-norm blocks, which return the mean over tokens that are not padding."""

  def __init__(self, spec, *, vocab_size, length, rngs):
    init = nnx.initializers.normal(0.02)
    self.tokens = nnx.Embed(
      vocab_size, spec.width, embedding_init=init, rngs=rngs
    )
    self.positions = nnx.Param(init(rngs.params(), (length, spec.width)))
    self.blocks = make_blocks(spec, rngs)
    self.norm = LayerNorm(spec.width, eps=spec.eps)

  def __call__(
    self, tokens: Int[Array, "batch length"], rngs=None
  ) -> Float[Array, "batch features"]:
    mask = tokens != 0
    x = self.tokens(tokens) + self.positions[...][None]
    for block in self.blocks:
      x = block(x, mask[:, None, None], rngs=rngs)
    weight = mask[..., None] / jnp.maximum(jnp.sum(mask, 1), 1)[:, None, None]
    return self.norm(jnp.sum(x * weight, axis=1))


def small(
  *,
  image_shape: tuple[int, int, int],
  vocab_size: int,
  length: int,
  dim: Width = 128,
  image_stages: Stages = ((4, 2, 64), (2, 1, 128)),
  image_features: Width = 256,
  text_width: Width = 128,
  text_layers: Blocks = 1,
  text_heads: Width = 4,
  dropout: Fraction = 0.0,
  normalize: bool = True,
  frozen: tuple[str, ...] = (),
) -> base.Model:
  """Makes a model of a small ConvNet and a small text transformer.

  Args:
    image_shape: Height, width and channels of the images; height must equal
      width.
    vocab_size: The number of token ids; 0 is padding.
    length: The number of token ids per text.
    dim: The width of the embeddings.
    image_stages: The stride s, the reach r and the channels of each
      convolution, whose kernel is r s pixels wide. The product of the strides
      must divide the height.
    image_features: The width of the image tower's features.
    text_width: The width of the transformer.
    text_layers: The number of attention blocks; 0 is a bag of words.
    text_heads: The number of attention heads, a divisor of `text_width`.
    dropout: The dropout rate of both towers, in [0, 1).
    normalize: Whether to scale embeddings to unit norm.
    frozen: Towers ("image", "text") that always run as in evaluation.

  Raises:
    ValueError: If images are not square, or if a number is out of range.

  Example:
    >>> model = small(image_shape=(8, 8, 1), vocab_size=9, length=4, dim=16)
    >>> params, state = jax.jit(model.init)(jax.random.key(0))
    >>> tokens = jnp.array([[1, 5, 0, 0]])
    >>> batch = Batch(jnp.zeros((1, 8, 8, 1), jnp.uint8), tokens, None)
    >>> pairs, _ = model.apply(params, state, batch)
    >>> pairs.image.shape, pairs.text.shape
    ((1, 16), (1, 16))
  """
  return base.dual_encoder(
    convnet(
      image_shape=image_shape,
      stages=image_stages,
      num_features=image_features,
      dropout=dropout,
    ),
    transformer(
      vocab_size=vocab_size,
      length=length,
      width=text_width,
      num_layers=text_layers,
      heads=text_heads,
      dropout=dropout,
    ),
    dim=dim,
    normalize=normalize,
    frozen=frozen,
  )


def convnet(
  *,
  image_shape: tuple[int, int, int],
  stages: Stages = ((4, 2, 64), (2, 1, 128)),
  num_features: Width = 256,
  dropout: Fraction = 0.0,
) -> base.Tower:
  """Makes the image tower of `small`.

  Args:
    image_shape: Height, width and channels of the images; height must equal
      width.
    stages: The stride s, the reach r and the channels of each convolution,
      whose kernel is r s pixels wide. The product of the strides must divide
      the height.
    num_features: The width of the features.
    dropout: The dropout rate before the dense layer, in [0, 1).

  Raises:
    ValueError: If images are not square, or if a number is out of range.

  Example:
    >>> convnet(image_shape=(8, 8, 1), num_features=16).num_features
    16
  """
  if image_shape[0] != image_shape[1]:
    raise ValueError(f"images must be square, got {image_shape}")
  _check_dropout(dropout)
  if min(map(min, stages), default=1) < 1:
    raise ValueError(f"image_stages must be at least 1, got {stages}")
  stride = math.prod(stage[0] for stage in stages)
  if image_shape[0] % stride:
    raise ValueError(
      f"the strides' product must divide the images' height, got {stride} "
      f"and {image_shape[0]}"
    )

  def build(rngs):
    return SmallConvNet(
      shape=image_shape,
      stages=stages,
      num_features=num_features,
      dropout=dropout,
      rngs=rngs,
    )

  return base.from_nnx(build, num_features)


def transformer(
  *,
  vocab_size: int,
  length: int,
  width: Width = 128,
  num_layers: Blocks = 1,
  heads: Width = 4,
  dropout: Fraction = 0.0,
) -> base.Tower:
  """Makes the text tower of `small`.

  Args:
    vocab_size: The number of token ids; 0 is padding.
    length: The number of token ids per text.
    width: The width of the transformer and of the features.
    num_layers: The number of attention blocks; 0 is a bag of words.
    heads: The number of attention heads, a divisor of `width`.
    dropout: The dropout rate in both residual branches, in [0, 1).

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> transformer(vocab_size=9, length=4, width=16).num_features
    16
  """
  _check_dropout(dropout)
  if num_layers < 0:
    raise ValueError(f"text_layers must be at least 0, got {num_layers}")
  if heads < 1 or width % heads:
    raise ValueError(
      "text_heads must be at least 1 and divide text_width, got "
      f"{heads} and {width}"
    )

  spec = BlockSpec(
    width=width,
    layers=num_layers,
    heads=heads,
    hidden=2 * width,
    pre_norm=True,
    eps=1e-6,
    activation="gelu_tanh",
    dtype=jnp.float32,
    rates=Rates(attended=dropout, hidden=dropout),
    deviations=Deviations(None, None, None, None),
    qkv_bias=False,
    norm_keys=True,  # same initial params as with Flax's layers
  )

  def build(rngs):
    return SmallTextTransformer(
      spec, vocab_size=vocab_size, length=length, rngs=rngs
    )

  return base.from_nnx(build, width)


def _check_dropout(dropout: float) -> None:
  if not 0 <= dropout < 1:
    raise ValueError(f"dropout must be in [0, 1), got {dropout}")

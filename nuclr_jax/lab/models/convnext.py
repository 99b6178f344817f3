"""ConvNeXt: convolutions in the manner of a transformer's blocks."""

from collections.abc import Sequence
from functools import partial

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax import checks
from nuclr_jax.checks import Positive
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import (
  MEAN,
  STD,
  Conv,
  Dtype,
  LayerNorm,
  Patches,
  Remat,
  check_images,
  compute_dtype,
  normalize,
  run_blocks,
)
from nuclr_jax.lab.ranges import Eps, Mean, Stages, Std, Width

STEM, STEP = 4, 2  # by what the stem and all later stages divide the grid
KERNEL = 7


class Shrink(nnx.Module):
  """Cuts a grid into squares, as a smaller grid with another width."""

  def __init__(self, size, inputs, outputs, *, dtype, rngs):
    patches = partial(Patches, use_bias=True, dtype=dtype, rngs=rngs)
    self.patches, self.size = patches(size, inputs, outputs), size

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns outputs"]:
    batch, rows, columns, _ = x.shape
    grid = rows // self.size, columns // self.size
    return self.patches(x).reshape(batch, *grid, -1)


class ConvNeXtBlock(nnx.Module):
  """A convolution of each channel, then an MLP of each position, residual.

  The first block of a stage that is wider than the one before it makes the grid
  smaller, before all else.
  """

  def __init__(self, inputs, width, *, eps, scale, dtype, rngs):
    make = partial(transformer.dense, dtype=dtype, rngs=rngs)
    conv = partial(Conv, depthwise=True, use_bias=True, dtype=dtype, rngs=rngs)
    shrink = partial(Shrink, STEP, inputs, width, dtype=dtype)
    wider = inputs != width
    self.shrink_norm = nnx.data(LayerNorm(inputs, eps=eps) if wider else None)
    self.shrink = nnx.data(shrink(rngs=rngs) if wider else None)
    self.conv = conv(width, width, KERNEL)
    self.norm = LayerNorm(width, eps=eps)
    self.up = make(width, 4 * width, 0.02)
    self.down = make(4 * width, width, 0.02)
    self.scale = nnx.Param(jnp.full(width, scale, jnp.float32))

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns width"]:
    if self.shrink is not None:
      x = self.shrink(self.shrink_norm(x))
    y = self.up(self.norm(self.conv(x)))
    y = self.down(jax.nn.gelu(y, approximate=False))
    return x + y * self.scale[...].astype(x.dtype)[None, None, None]


class ConvNeXt(nnx.Module):
  """Stages of blocks, the mean over all positions, and a LayerNorm."""

  def __init__(
    self,
    *,
    channels,
    stages,
    width,
    eps,
    scale,
    head,
    mean,
    std,
    dtype,
    remat,
    rngs,
  ):
    make = dict(dtype=dtype, rngs=rngs)
    widths = [width, *(width * 2**i for i in range(len(stages)))]
    self.stem = Shrink(STEM, channels, width, **make)
    self.norm_before = LayerNorm(width, eps=eps)
    self.stages = nnx.List(
      nnx.List(
        ConvNeXtBlock(
          outputs if i else inputs, outputs, eps=eps, scale=scale, **make
        )
        for i in range(count)
      )
      for count, inputs, outputs in zip(
        stages, widths[:-1], widths[1:], strict=True
      )
    )
    self.last_norm = LayerNorm(widths[-1], eps=eps)
    dense = partial(transformer.dense, widths[-1], deviation=None, **make)
    self.head = nnx.data(dense(head) if head else None)
    self.input, self.remat = (tuple(mean), tuple(std), dtype), remat

  def __call__(
    self, image: Num[Array, "batch height width channels"]
  ) -> Float[Array, "batch features"]:
    x = self.norm_before(self.stem(normalize(image, *self.input)))
    for stage in self.stages:
      x = run_blocks(stage, x, remat=self.remat)
    x = self.last_norm(jnp.mean(x, (1, 2)))
    if self.head is not None:
      x = jax.nn.gelu(self.head(x), approximate=False)
    return x.astype(jnp.float32)


@checks.checked
def convnext(
  *,
  image_shape: tuple[int, int, int],
  stages: Stages = (3, 3, 27, 3),
  width: Width = 128,
  eps: Eps = 1e-6,
  layer_scale: Positive = 1e-6,
  head: Width | None = None,
  mean: Sequence[Mean] = MEAN,
  std: Sequence[Std] = STD,
  dtype: Dtype = "float32",
  remat: Remat = "none",
) -> base.Tower:
  """Makes a ConvNeXt; its features are the mean over all positions.

  Args:
    image_shape: Height, width and channels of the images. The stem divides
      height and width by four, and all stages but the first by two: both must
      be multiples of 32 with four stages.
    stages: The number of blocks in each stage; (3, 3, 27, 3) is the size
      "base", (3, 3, 9, 3) with a width of 96 "tiny".
    width: The number of channels of the first stage, doubled by every later
      one.
    eps: The eps of LayerNorm.
    layer_scale: Where the learned factors start that multiply each block's
      branch.
    head: The width of a dense layer and a GELU that follow the features, whose
      width is then this one: with a projection, that is the head of OpenCLIP's
      models "large_d". None is without them.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16".
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).

  Returns:
    A `Tower` from uint8 images to features.

  Raises:
    ValueError: If a number is out of range, or if the images' size is no
      multiple of what the stages divide it by.

  Example:
    >>> tower = convnext(image_shape=(16, 16, 3), stages=(1, 1), width=4)
    >>> params, _ = tower.init(jax.random.key(0))
    >>> first = params["stages"][1][0]
    >>> tower.num_features, first["shrink"]["patches"]["kernel"].shape
    (8, (2, 2, 4, 8))

  Reference: Liu et al., A ConvNet for the 2020s, CVPR 2022.
  """
  check_images(image_shape, mean, std)
  divisor = STEM * STEP ** (len(stages) - 1)
  if image_shape[0] % divisor or image_shape[1] % divisor:
    raise ValueError(
      f"{len(stages)} stages divide height and width by {divisor}, which must "
      f"divide the images' {image_shape[0]} x {image_shape[1]} pixels; change "
      "the images' size"
    )

  def build(rngs):
    return ConvNeXt(
      channels=image_shape[-1],
      stages=stages,
      width=width,
      eps=eps,
      scale=layer_scale,
      head=head,
      mean=mean,
      std=std,
      dtype=compute_dtype(dtype),
      remat=remat,
      rngs=rngs,
    )

  return base.from_nnx(build, head or width * STEP ** (len(stages) - 1))

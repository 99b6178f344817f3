"""Residual networks, version 1.5: the 3 x 3 convolutions have the stride."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax import checks
from nuclr_jax.lab.models import base
from nuclr_jax.lab.models.layers import (
  MEAN,
  STD,
  BatchNorm,
  Conv,
  Dtype,
  Remat,
  check_images,
  compute_dtype,
  normalize,
  run_blocks,
)
from nuclr_jax.lab.ranges import Mean, Stages, Std, Width


class ResidualBlock(nnx.Module):
  """Convolutions with batch normalization, added to a shortcut.

  `sizes` holds each convolution's kernel size, number of outputs and stride;
  `pooled` is that of `Conv`.
  """

  def __init__(self, inputs, sizes, *, last_scale, pooled=False, dtype, rngs):
    conv = partial(Conv, pooled=pooled, dtype=dtype, rngs=rngs)
    convs, norms, width = [], [], inputs
    for kernel, outputs, stride in sizes:
      convs.append(conv(width, outputs, kernel, stride=stride))
      last = len(convs) == len(sizes)
      norms.append(BatchNorm(outputs, scale=last_scale if last else 1.0))
      width = outputs
    self.convs, self.norms = nnx.List(convs), nnx.List(norms)
    shortcut, stride = [], max(stride for *_, stride in sizes)
    if stride > 1 or inputs != outputs:
      shortcut = [conv(inputs, outputs, 1, stride=stride), BatchNorm(outputs)]
    self.shortcut = nnx.List(shortcut)

  def __call__(self, x):
    y = x
    for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
      y = norm(conv(jax.nn.relu(y) if i else y))
    for layer in self.shortcut:
      x = layer(x)
    return jax.nn.relu(x + y)


def residual_stages(
  width: int,
  stages: Sequence[int],
  sizes: Callable[[int, int], list[tuple[int, int, int]]],
  **options: Any,
):
  """Makes stages of blocks; all but the first halve height and width.

  Args:
    width: The number of channels that enter the first stage. Every stage but
      the first doubles the number of inner channels, which starts there.
    stages: The number of blocks in each stage.
    sizes: Returns the `sizes` of a block with this number of inner channels and
      this stride.
    **options: All other arguments of `ResidualBlock`.
  """
  inputs, groups = width, []
  for s, count in enumerate(stages):
    blocks = []
    for b in range(count):
      convs = sizes(width * 2**s, 2 if s and not b else 1)
      blocks.append(ResidualBlock(inputs, convs, **options))
      inputs = convs[-1][1]
    groups.append(nnx.List(blocks))
  return nnx.List(groups)


class ResNet(nnx.Module):
  """A stem, stages of residual blocks, and the mean over all positions."""

  def __init__(
    self,
    *,
    channels,
    stages,
    width,
    bottleneck,
    last_scale,
    mean,
    std,
    dtype,
    remat,
    rngs,
  ):
    self.stem = Conv(channels, width, 7, stride=2, dtype=dtype, rngs=rngs)
    self.norm = BatchNorm(width)

    def sizes(inner, stride):
      if bottleneck:
        return [(1, inner, 1), (3, inner, stride), (1, 4 * inner, 1)]
      return [(3, inner, stride), (3, inner, 1)]

    self.stages = residual_stages(
      width, stages, sizes, last_scale=last_scale, dtype=dtype, rngs=rngs
    )
    self.input = (tuple(mean), tuple(std), dtype)
    self.remat = remat

  def __call__(
    self, image: Num[Array, "batch height width channels"]
  ) -> Float[Array, "batch features"]:
    x = jax.nn.relu(self.norm(self.stem(normalize(image, *self.input))))
    # Flax pads with -inf here, as PyTorch does.
    x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
    for stage in self.stages:
      x = run_blocks(stage, x, remat=self.remat)
    return jnp.mean(x, (1, 2), dtype=jnp.float32)


@checks.checked
def resnet(
  *,
  image_shape: tuple[int, int, int],
  stages: Stages = (3, 4, 6, 3),
  width: Width = 64,
  bottleneck: bool = True,
  zero_init: bool = True,
  mean: Sequence[Mean] = MEAN,
  std: Sequence[Std] = STD,
  dtype: Dtype = "float32",
  remat: Remat = "none",
) -> base.Tower:
  """Makes a ResNet v1.5 without its classification head.

  Args:
    image_shape: Height, width and channels of the images; any size will do.
    stages: The number of residual blocks in each stage. The stem divides height
      and width by four; all stages but the first halve them.
    width: The number of channels of the stem.
    bottleneck: Whether a block is a 3 x 3 convolution between two 1 x 1
      convolutions, the second with four times the channels (ResNet-50 and
      larger), instead of two 3 x 3 convolutions.
    zero_init: Whether every block starts as the identity: the scale of its last
      normalization is then 0.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16". Parameters, batch
      statistics and features are float32 in any case.
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).

  Returns:
    A `Tower` from uint8 images to the mean over positions of the last stage,
    by default [batch, 2048].

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> tower = resnet(
    ...   image_shape=(32, 32, 3), stages=(1, 1), width=8, bottleneck=False
    ... )
    >>> tower.num_features
    16

  Reference: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
  """
  check_images(image_shape, mean, std)
  if min(*stages, width, 1) < 1 or not stages:
    raise ValueError(
      "stages must be one or more numbers, and these and width at least 1, got "
      f"{tuple(stages)} and {width}"
    )

  def build(rngs):
    return ResNet(
      channels=image_shape[-1],
      stages=stages,
      width=width,
      bottleneck=bottleneck,
      last_scale=0.0 if zero_init else 1.0,
      mean=mean,
      std=std,
      dtype=compute_dtype(dtype),
      remat=remat,
      rngs=rngs,
    )

  features = width * 2 ** (len(stages) - 1) * (4 if bottleneck else 1)
  return base.from_nnx(build, features)


resnet50 = resnet  # 23.5 million parameters

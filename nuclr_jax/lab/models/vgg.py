"""VGG-16: thirteen 3 x 3 convolutions, and five halvings of the image."""

from collections.abc import Sequence

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax.checks import Finite, Positive
from nuclr_jax.lab.models import base
from nuclr_jax.lab.models.layers import (
  BatchNorm,
  Conv,
  Dtype,
  check_images,
  compute_dtype,
  normalize,
)
from nuclr_jax.lab.ranges import Layers, Width

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG(nnx.Module):
  """Stages of convolutions with batch normalization, each with max pooling."""

  def __init__(self, *, channels, stages, mean, std, dtype, rngs):
    groups, inputs = [], channels
    for width, count in stages:
      layers = []
      for _ in range(count):
        layers += [Conv(inputs, width, 3, dtype=dtype, rngs=rngs)]
        layers += [BatchNorm(width)]
        inputs = width
      groups.append(nnx.List(layers))
    self.stages = nnx.List(groups)
    self.input = (mean, std, dtype)

  def __call__(
    self, image: Num[Array, "batch height width channels"]
  ) -> Float[Array, "batch features"]:
    x = normalize(image, *self.input)
    for layers in self.stages:
      for conv, norm in zip(layers[::2], layers[1::2], strict=True):
        x = jax.nn.relu(norm(conv(x)))
      x = nnx.max_pool(x, (2, 2), strides=(2, 2))
    return jnp.mean(x, (1, 2), dtype=jnp.float32)


def vgg16(
  *,
  image_shape: tuple[int, int, int],
  stages: Sequence[tuple[Width, Layers]] = STAGES,
  mean: Sequence[Finite] | Finite = 0.5,
  std: Sequence[Positive] | Positive = 0.25,
  dtype: Dtype = "float32",
) -> base.Tower:
  """Makes a VGG-16 for small images, without its wide dense layers.

  It has batch normalization. The five halvings reduce 32 x 32 pixels to a
  single position; for larger images the features are the mean over positions.

  Args:
    image_shape: Height, width and channels of the images; height and width must
      be at least 2 to the power of the number of stages.
    stages: The width and the number of convolutions before each halving.
    mean: The mean of each channel, or one for all, on the scale [0, 1].
    std: The standard deviation of each channel, or one for all, on the scale
      [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16".

  Returns:
    A `Tower` from uint8 images to features of the last stage, by default
    [batch, 512]; it has 14.7 million parameters.

  Raises:
    ValueError: If a number is out of range.

  Example:
    >>> vgg16(image_shape=(32, 32, 3)).num_features
    512

  Reference: Simonyan and Zisserman, Very Deep Convolutional Networks for
    Large-Scale Image Recognition, ICLR 2015.
  """
  channels = image_shape[-1]
  mean, std = (
    (float(x),) * channels if isinstance(x, int | float) else tuple(x)
    for x in (mean, std)
  )
  check_images(image_shape, mean, std)
  if not stages or min(map(min, stages)) < 1:
    raise ValueError(
      "stages must be pairs of a width and a number of convolutions, each at "
      f"least 1, got {stages}"
    )
  if min(image_shape[:2]) < 2 ** len(stages):
    raise ValueError(
      f"{len(stages)} halvings need images of {2 ** len(stages)} pixels or "
      f"more, got {tuple(image_shape)}; give fewer stages"
    )

  def build(rngs):
    return VGG(
      channels=channels,
      stages=stages,
      mean=mean,
      std=std,
      dtype=compute_dtype(dtype),
      rngs=rngs,
    )

  return base.from_nnx(build, stages[-1][0])

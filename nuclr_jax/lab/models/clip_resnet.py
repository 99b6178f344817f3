"""CLIP's own residual networks, with average and attention pooling."""

from collections.abc import Sequence
from functools import partial

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax import checks
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import (
  MEAN,
  STD,
  BatchNorm,
  Conv,
  Dtype,
  Remat,
  check_images,
  normalize,
  run_blocks,
)
from nuclr_jax.lab.models.resnet import residual_stages
from nuclr_jax.lab.ranges import Mean, Stages, Std, Width

SHRINKS = 4  # times 2 for each stage but the first: pixels per position


class Stem(nnx.Module):
  """Three convolutions and a mean over squares of 2 x 2 positions."""

  def __init__(self, channels, width, *, dtype, rngs):
    conv = partial(Conv, dtype=dtype, rngs=rngs)
    half = width // 2
    self.convs = nnx.List(
      [
        conv(channels, half, 3, stride=2),
        conv(half, half, 3),
        conv(half, width, 3),
      ]
    )
    self.norms = nnx.List([BatchNorm(half), BatchNorm(half), BatchNorm(width)])

  def __call__(self, x):
    for conv, norm in zip(self.convs, self.norms, strict=True):
      x = jax.nn.relu(norm(conv(x)))
    return nnx.avg_pool(x, (2, 2), (2, 2))


class MeanAttends(nnx.Module):
  """The mean over all positions attends to the positions and to itself."""

  def __init__(self, spec, *, grid, outputs, rngs):
    init = nnx.initializers.normal(spec.width**-0.5)
    self.mean_position = nnx.Param(init(rngs.params(), (spec.width,)))
    self.positions = nnx.Param(init(rngs.params(), (*grid, spec.width)))
    self.attention = transformer.Attention(spec, outputs=outputs, rngs=rngs)

  def __call__(
    self, x: Float[Array, "batch rows columns width"]
  ) -> Float[Array, "batch outputs"]:
    mean = jnp.mean(x, (1, 2), dtype=jnp.float32)
    mean += self.mean_position[...][None]
    x += self.positions[...].astype(x.dtype)[None]
    x = x.reshape(len(x), -1, x.shape[-1])
    x = jnp.concatenate([mean.astype(x.dtype)[:, None], x], axis=1)
    return self.attention(x, asking=x[:, :1])[:, 0]


class ClipResNet(nnx.Module):
  """A stem, stages of bottleneck blocks, and attention by the mean."""

  def __init__(
    self, spec, *, image_shape, stages, last_scale, features, mean, std, rngs
  ):
    make = dict(dtype=spec.dtype, rngs=rngs)
    width = spec.width // (4 * 2 ** (len(stages) - 1))
    self.stem = Stem(image_shape[-1], width, **make)

    def sizes(inner, stride):
      return [(1, inner, 1), (3, inner, 1), (1, 4 * inner, stride)]

    self.stages = residual_stages(
      width, stages, sizes, last_scale=last_scale, pooled=True, **make
    )
    shrinks = SHRINKS * 2 ** (len(stages) - 1)
    grid = tuple(x // shrinks for x in image_shape[:2])
    self.pool = MeanAttends(spec, grid=grid, outputs=features, rngs=rngs)
    self.input = (tuple(mean), tuple(std), spec.dtype)
    self.remat = spec.remat

  def __call__(
    self, image: Num[Array, "batch height width channels"]
  ) -> Float[Array, "batch features"]:
    x = self.stem(normalize(image, *self.input))
    for stage in self.stages:
      x = run_blocks(stage, x, remat=self.remat)
    return self.pool(x).astype(jnp.float32)


@checks.checked
def clip_resnet(
  *,
  image_shape: tuple[int, int, int],
  stages: Stages = (3, 4, 6, 3),
  width: Width = 64,
  heads: Width = 32,
  features: Width = 1024,
  zero_init: bool = True,
  mean: Sequence[Mean] = MEAN,
  std: Sequence[Std] = STD,
  dtype: Dtype = "float32",
  remat: Remat = "none",
) -> base.Tower:
  """Makes the residual network of OpenAI's CLIP, its projection included.

  It differs from `resnet` in three ways: the stem has three convolutions; where
  a stage halves height and width, it takes means; and the last positions are
  pooled by attention, whose query is their mean. The attention's last layer is
  CLIP's projection, so a model needs no other: `projected=("text",)` and `dim`
  equal to `features`.

  Args:
    image_shape: Height, width and channels of the images. All but the first
      stage halve height and width, and the stem divides them by four: both must
      be multiples of 32 with four stages. Pretrained position embeddings for
      another grid are resized (see `pretrained.from_layout`).
    stages: The number of residual blocks in each stage.
    width: The number of channels of the stem, an even number.
    heads: The number of heads of the attention pooling: a divisor of the last
      stage's channels, which are `width` times four, doubled by every stage
      but the first.
    features: The width of the features, CLIP's embeddings.
    zero_init: Whether every block starts as the identity: the scale of its last
      normalization is then 0.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16". Parameters, batch
      statistics and features are float32 in any case.
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).

  Returns:
    A `Tower` from uint8 images to features [batch, features].

  Raises:
    ValueError: If a number is out of range, or if the images' size is no
      multiple of what the stages divide it by.

  Example:
    >>> tower = clip_resnet(
    ...   image_shape=(32, 64, 3), stages=(1, 1), width=8, heads=4, features=6
    ... )
    >>> params, _ = tower.init(jax.random.key(0))
    >>> tower.num_features, params["pool"]["positions"].shape
    (6, (4, 8, 64))

  Reference: Radford et al., Learning Transferable Visual Models From Natural
    Language Supervision, ICML 2021.
  """
  check_images(image_shape, mean, std)
  if min(*stages, width, features, 1) < 1 or not stages or width % 2:
    raise ValueError(
      "stages must be one or more numbers, these and features at least 1, and "
      f"width even, got {tuple(stages)}, {features} and {width}"
    )
  shrinks = SHRINKS * 2 ** (len(stages) - 1)
  if image_shape[0] % shrinks or image_shape[1] % shrinks:
    raise ValueError(
      f"{len(stages)} stages divide height and width by {shrinks}, which must "
      f"divide the images' {image_shape[0]} x {image_shape[1]} pixels; change "
      "the images' size"
    )
  channels = width * 4 * 2 ** (len(stages) - 1)
  deviations = transformer.Deviations(qkv=channels**-0.5, out=channels**-0.5)
  spec = transformer.make_block_spec(
    width=channels,
    layers=1,
    heads=heads,
    hidden=None,
    pre_norm=True,
    eps=1e-5,
    activation="gelu",
    dtype=dtype,
    remat=remat,
    deviations=deviations,
  )

  def build(rngs):
    return ClipResNet(
      spec,
      image_shape=image_shape,
      stages=stages,
      last_scale=0.0 if zero_init else 1.0,
      features=features,
      mean=mean,
      std=std,
      rngs=rngs,
    )

  return base.from_nnx(build, features)


clip_resnet50 = clip_resnet  # 38.3 million parameters

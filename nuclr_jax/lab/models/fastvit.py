"""FastViT: convolutions that are sums of branches, and attention at the end."""

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
  BatchNorm,
  Conv,
  Dtype,
  LayerNorm,
  Remat,
  check_images,
  normalize,
  run_blocks,
)
from nuclr_jax.lab.ranges import Blocks, Mean, Stages, Std, Width

KERNEL = 7  # of what makes the grid smaller, of positions and of MLPs
EPS = 1e-5  # of LayerNorm
SQUEEZED = 8  # channels inside a gate are a multiple of it
Norm = checks.one_of(("batch", "layer"))


class Branches(nnx.Module):
  """The sum of convolutions of the same input, each with its normalization.

  With `skip`, the normalized input is added, too. With the running averages m
  and v of a branch, the scale s and the bias b, the sum is one convolution
  whose kernel is the sum of all s k / sqrt(v + eps), smaller kernels in the
  middle of larger ones, and whose bias is that of all b - s m / sqrt(v + eps).
  In training, when m and v are those of the batch, it is not.
  """

  def __init__(self, inputs, outputs, sizes, *, skip=False, **options):
    conv = partial(Conv, inputs, outputs, **options)
    self.convs = nnx.List(conv(size) for size in sizes)
    self.norms = nnx.List(BatchNorm(outputs) for _ in sizes)
    self.skip = nnx.data(BatchNorm(inputs) if skip else None)

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns outputs"]:
    layers = zip(self.norms, self.convs, strict=True)
    y = sum(norm(conv(x)) for norm, conv in layers)
    return y if self.skip is None else y + self.skip(x)


class Gate(nnx.Module):
  """Multiplies channels by numbers that follow from the mean over positions."""

  def __init__(self, width, squeezed, *, dtype, rngs):
    make = partial(transformer.dense, deviation=None, dtype=dtype, rngs=rngs)
    self.down, self.up = make(width, squeezed), make(squeezed, width)

  def __call__(
    self, x: Float[Array, "batch rows columns width"]
  ) -> Float[Array, "batch rows columns width"]:
    mean = jnp.mean(x, (1, 2), dtype=jnp.float32).astype(x.dtype)
    factors = jax.nn.sigmoid(self.up(jax.nn.relu(self.down(mean))))
    return x * factors[:, None, None]


class Shrink(nnx.Module):
  """Halves the grid, and makes it wider."""

  def __init__(self, inputs, width, *, gated, **make):
    self.shrink = Branches(
      inputs, width, (KERNEL, 3), stride=2, depthwise=True, **make
    )
    squeezed = max(width // 4 + SQUEEZED // 2, SQUEEZED) // SQUEEZED * SQUEEZED
    self.gate = nnx.data(Gate(width, squeezed, **make) if gated else None)
    self.mix = Branches(width, width, (1,), skip=True, **make)

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns width"]:
    x = self.shrink(x)
    return _gelu(self.mix(_gelu(x if self.gate is None else self.gate(x))))


class MLP(nnx.Module):
  """An MLP of each position, after a convolution of each channel."""

  def __init__(self, width, hidden, **make):
    self.conv = Branches(width, width, (KERNEL,), depthwise=True, **make)
    self.up = transformer.dense(width, hidden, 0.02, **make)
    self.down = transformer.dense(hidden, width, 0.02, **make)

  def __call__(self, x):
    return self.down(_gelu(self.up(self.conv(x))))


class MixBlock(nnx.Module):
  """Convolutions of each channel less their input, then an MLP, residual.

  `shrink`, if any, comes first.
  """

  def __init__(self, spec, shrink, *, rngs):
    width, make = spec.width, dict(dtype=spec.dtype, rngs=rngs)
    self.shrink = nnx.data(shrink)
    self.mixer = Branches(
      width, width, (3, 1), skip=True, depthwise=True, **make
    )
    self.mixer_norm = BatchNorm(width)
    self.mlp = MLP(width, spec.hidden, **make)
    self.mix_scale, self.mlp_scale = _scale(spec), _scale(spec)

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns width"]:
    if self.shrink is not None:
      x = self.shrink(x)
    x += _scaled(self.mixer(x) - self.mixer_norm(x), self.mix_scale)
    return x + _scaled(self.mlp(x), self.mlp_scale)


class AttentionBlock(nnx.Module):
  """Attention of all positions to each other, then an MLP, residual.

  `shrink`, if any, comes first; then, with `tell`, a convolution that tells
  positions apart.
  """

  def __init__(self, spec, shrink, *, tell, norm, rngs):
    width, make = spec.width, dict(dtype=spec.dtype, rngs=rngs)
    self.shrink = nnx.data(shrink)
    conv = partial(Conv, depthwise=True, use_bias=True, **make)
    self.positions = nnx.data(conv(width, width, KERNEL) if tell else None)
    is_layer = norm == "layer"
    self.norm = LayerNorm(width, eps=EPS) if is_layer else BatchNorm(width)
    self.attention = transformer.Attention(spec, rngs=rngs)
    self.mlp = MLP(width, spec.hidden, **make)
    self.scale1, self.scale2 = _scale(spec), _scale(spec)

  def __call__(
    self, x: Float[Array, "batch rows columns inputs"]
  ) -> Float[Array, "batch fewer_rows fewer_columns width"]:
    if self.shrink is not None:
      x = self.shrink(x)
    if self.positions is not None:
      x += self.positions(x)
    batch, *grid, width = x.shape
    y = self.attention(self.norm(x).reshape(batch, -1, width))
    x += _scaled(y.reshape(batch, *grid, width), self.scale1)
    return x + _scaled(self.mlp(x), self.scale2)


def make_stage(inputs, spec, *, attends, gated, norm, rngs):
  """Makes the blocks of a stage, the first of which makes the grid smaller."""
  blocks = []
  for b in range(spec.layers):
    shrink = None
    if not b and inputs != spec.width:
      shrink = Shrink(
        inputs, spec.width, gated=gated, dtype=spec.dtype, rngs=rngs
      )
    if attends:
      block = AttentionBlock(spec, shrink, tell=not b, norm=norm, rngs=rngs)
    else:
      block = MixBlock(spec, shrink, rngs=rngs)
    blocks.append(block)
  return nnx.List(blocks)


class FastViT(nnx.Module):
  """A stem, stages, one more convolution, and the mean over all positions."""

  def __init__(self, specs, *, channels, stem_scale, stages, mean, std, rngs):
    make = dict(dtype=specs[0].dtype, rngs=rngs)
    width, last = specs[0].width, specs[-1].width
    sizes = (3, 1) if stem_scale else (3,)
    self.stem = nnx.List(
      [
        Branches(channels, width, sizes, stride=2, **make),
        Branches(width, width, sizes, stride=2, depthwise=True, **make),
        Branches(width, width, (1,), skip=True, **make),
      ]
    )
    inputs = [width, *(spec.width for spec in specs[:-1])]
    self.stages = nnx.List(
      make_stage(before, spec, rngs=rngs, **options)
      for before, spec, options in zip(inputs, specs, stages, strict=True)
    )
    self.last = Branches(last, 2 * last, (3, 1), depthwise=True, **make)
    self.gate = Gate(2 * last, max(last // 8, 1), **make)
    self.input = (tuple(mean), tuple(std), make["dtype"])
    self.remat = specs[0].remat

  def __call__(
    self, image: Num[Array, "batch height width channels"]
  ) -> Float[Array, "batch features"]:
    x = normalize(image, *self.input)
    for layer in self.stem:
      x = _gelu(layer(x))
    for stage in self.stages:
      x = run_blocks(stage, x, remat=self.remat)
    x = _gelu(self.gate(self.last(x)))
    return jnp.mean(x, (1, 2), dtype=jnp.float32)


def _gelu(x):
  return jax.nn.gelu(x, approximate=False)


def _scale(spec):
  return nnx.Param(jnp.full(spec.width, spec.layer_scale, jnp.float32))


def _scaled(x, scale):
  return x * scale[...].astype(x.dtype)[None, None, None]


@checks.checked
def fastvit(
  *,
  image_shape: tuple[int, int, int],
  stages: Stages = (2, 6, 10, 2),
  width: Width = 64,
  expansion: Width = 3,
  attending: Blocks = 1,
  gated: Blocks = 2,
  norm: Norm = "batch",
  head_width: Width = 32,
  stem_scale: bool = True,
  layer_scale: Positive = 1e-5,
  mean: Sequence[Mean] = (0.0, 0.0, 0.0),
  std: Sequence[Std] = (1.0, 1.0, 1.0),
  dtype: Dtype = "float32",
  remat: Remat = "none",
) -> base.Tower:
  """Makes the FastViT of MobileCLIP, in the form in which it is trained.

  Most convolutions are sums of branches, each with batch normalization; the
  defaults are those of timm's `fastvit_mci0`. Files for inference, where the
  branches of each sum are merged into one convolution, are not read.

  Args:
    image_shape: Height, width and channels of the images; any size will do. The
      stem divides height and width by four, and all stages but the first by
      two, rounded up.
    stages: The number of blocks in each stage.
    width: The number of channels of the first stage, doubled by every later
      one.
    expansion: By what the MLPs' hidden layers are wider than the blocks.
    attending: The number of last stages whose blocks have attention, in place
      of convolutions.
    gated: The number of last stages, but not of all, that begin with a gate on
      the channels (squeeze and excitation).
    norm: What normalizes the inputs of attention: "batch" (`fastvit_mci0` to
      2), or "layer", each position by itself (`fastvit_mci3` and 4).
    head_width: The width of an attention head, a divisor of the widths of
      stages with attention.
    stem_scale: Whether the stem's convolutions have a second branch, of single
      positions.
    layer_scale: Where the learned factors start that multiply each block's
      branches.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16". Parameters, batch
      statistics and features are float32 in any case.
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).

  Returns:
    A `Tower` from uint8 images to features, twice as many as the last stage has
    channels.

  Raises:
    ValueError: If a number is out of range, or if there are fewer stages than
      some that attend or are gated.

  Example:
    >>> tower = fastvit(
    ...   image_shape=(32, 32, 3), stages=(1, 1), width=4, head_width=8, gated=1
    ... )
    >>> params, state = tower.init(jax.random.key(0))
    >>> branches = params["stages"][0][0]["mixer"]["convs"]
    >>> tower.num_features, [x["kernel"].shape for x in branches.values()]
    (16, [(3, 3, 1, 4), (1, 1, 1, 4)])

  Reference: Vasu et al., FastViT, ICCV 2023, and MobileCLIP, CVPR 2024.
  """
  check_images(image_shape, mean, std)
  count = len(stages)
  if attending > count or gated >= count:
    raise ValueError(
      f"attending can be at most {count}, the number of stages, and gated at "
      f"most {count - 1}, since the first stage makes no grid smaller; got "
      f"{attending} and {gated}"
    )
  specs, options = [], []
  for s, layers in enumerate(stages):
    outputs, attends = width * 2**s, s >= count - attending
    if attends and outputs % head_width:
      raise ValueError(
        f"head_width must divide {outputs}, the width of stage {s + 1}, which "
        f"has attention; got {head_width}"
      )
    spec = transformer.make_block_spec(
      width=outputs,
      layers=layers,
      heads=outputs // head_width if attends else 1,
      hidden=expansion * outputs,
      pre_norm=True,
      qkv_bias=False,
      eps=EPS,
      activation="gelu",
      dtype=dtype,
      remat=remat,
      layer_scale=layer_scale,
    )
    specs.append(spec)
    options.append(dict(attends=attends, gated=s >= count - gated, norm=norm))

  def build(rngs):
    return FastViT(
      specs,
      channels=image_shape[-1],
      stem_scale=stem_scale,
      stages=options,
      mean=mean,
      std=std,
      rngs=rngs,
    )

  return base.from_nnx(build, 2 * width * 2 ** (count - 1))

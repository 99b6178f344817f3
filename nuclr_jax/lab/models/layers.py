"""Layers shared by the encoders.

Activations have the compute dtype; parameters, statistics and sums over many
numbers are float32.
"""

from collections.abc import Sequence

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax import checks

# The statistics of CLIP's training images, on the scale [0, 1].
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
# What the backward pass computes again instead of keeping it: nothing, whole
# blocks, or all in a block but its products with parameters.
REMAT_POLICIES = {
  "none": None,
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
Remat = checks.one_of(tuple(REMAT_POLICIES))
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
Dtype = checks.one_of(tuple(DTYPES))  # of activations


def compute_dtype(name: str) -> type:
  """Returns the activation dtype with this name.

  Raises:
    ValueError: If the name is not in `DTYPES`.

  Example:
    >>> jnp.zeros(1, compute_dtype("bfloat16")).dtype
    dtype(bfloat16)
  """
  if name not in DTYPES:
    raise ValueError(f"dtype must be one of {sorted(DTYPES)}, got {name!r}")
  return DTYPES[name]


def run_blocks(blocks: Sequence[nnx.Module], x, *args, remat: str):
  """Runs blocks one after the other, each with the same further arguments.

  Args:
    blocks: The blocks, which are called as `block(x, *args)`.
    x: The activations.
    *args: Further arguments, such as a mask.
    remat: A name in `REMAT_POLICIES`.
  """

  def run(block, x, *args):
    return block(x, *args)

  if remat != "none":
    run = nnx.remat(run, policy=REMAT_POLICIES[remat])
  for block in blocks:
    x = run(block, x, *args)
  return x


def check_images(
  image_shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]
) -> None:
  """Raises ValueError unless every channel has a mean and a std."""
  channels = image_shape[-1]
  if len(image_shape) != 3 or {len(mean), len(std)} != {channels}:
    raise ValueError(
      "images must be [height, width, channels] with a mean and a std for "
      f"each channel, got {tuple(image_shape)}, {tuple(mean)} and {tuple(std)}"
    )
  if min(std) <= 0:
    raise ValueError(f"std must be greater than 0, got {tuple(std)}")


def normalize(
  image: Num[Array, "batch height width channels"],
  mean: Sequence[float],
  std: Sequence[float],
  dtype: type,
) -> Float[Array, "batch height width channels"]:
  """Scales whole numbers in [0, 255] to zero mean and unit variance.

  Args:
    image: A batch of images. Floats are taken to be normalized already and are
      only cast.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of the result.

  Example:
    >>> image = jnp.array([[[[0, 255]]]], jnp.uint8)
    >>> print(normalize(image, (0.5, 0.5), (0.5, 0.25), jnp.float32))
    [[[[-1.  2.]]]]
  """
  if not jnp.issubdtype(image.dtype, jnp.floating):
    shape = (1, 1, 1, -1)
    mean, std = (jnp.array(x, jnp.float32).reshape(shape) for x in (mean, std))
    image = (image.astype(jnp.float32) / 255 - mean) / std
  return image.astype(dtype)


class LayerNorm(nnx.Module):
  """Normalizes over features, in float32; the result has the input's dtype."""

  def __init__(self, width, *, eps):
    self.scale = nnx.Param(jnp.ones(width))
    self.bias = nnx.Param(jnp.zeros(width))
    self.eps = eps

  def __call__(self, x):
    y = x.astype(jnp.float32)
    y -= jnp.mean(y, -1, keepdims=True)
    y *= jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.eps)
    scale, bias = (
      p[...].reshape((1,) * (x.ndim - 1) + (-1,))
      for p in (self.scale, self.bias)
    )
    return (y * scale + bias).astype(x.dtype)


class BatchNorm(nnx.Module):
  """Normalizes channels by the batch's statistics, or by running averages.

  As in PyTorch, the running average tracks the unbiased variance. Under a
  mesh, the statistics are those of the global batch.
  """

  def __init__(self, width, *, scale=1.0, eps=1e-5, momentum=0.1):
    self.scale = nnx.Param(jnp.full(width, scale, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width))
    self.mean = nnx.BatchStat(jnp.zeros(width))
    self.var = nnx.BatchStat(jnp.ones(width))
    self.eps, self.momentum = eps, momentum
    self.use_running_average = False  # set by the module's train() and eval()

  def __call__(self, x):
    if self.use_running_average:
      mean, var = self.mean[...], self.var[...]
    else:
      # E[y^2] - E[y]^2 needs only one pass over the activations, but rounding
      # can make it negative.
      y = x.astype(jnp.float32)
      mean = jnp.mean(y, (0, 1, 2))
      var = jnp.maximum(jnp.mean(y * y, (0, 1, 2)) - mean * mean, 0)
      count = x.size // x.shape[-1]
      self._move(mean, var * (count / max(count - 1, 1)))
    factor = self.scale[...] * jax.lax.rsqrt(var + self.eps)
    mean, factor, bias = (
      p.reshape(1, 1, 1, -1) for p in (mean, factor, self.bias[...])
    )
    return ((x - mean) * factor + bias).astype(x.dtype)

  def _move(self, mean, var):
    for average, new in ((self.mean, mean), (self.var, var)):
      new = jax.lax.stop_gradient(new)
      average.set_value(average[...] + self.momentum * (new - average[...]))


class Conv(nnx.Module):
  """A convolution, padded by half its kernel on each side, mostly without bias.

  With `depthwise`, each channel is convolved by itself, to one or more outputs
  that follow each other. With `pooled`, it takes means over squares of `stride`
  x `stride` positions first, in place of skipping positions.
  """

  def __init__(
    self,
    inputs,
    outputs,
    size,
    *,
    stride=1,
    pooled=False,
    depthwise=False,
    use_bias=False,
    dtype,
    rngs,
  ):
    init = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
    shape = (size, size, 1 if depthwise else inputs, outputs)
    self.groups = inputs if depthwise else 1
    bias = nnx.Param(jnp.zeros(outputs)) if use_bias else None
    self.bias = nnx.data(bias)
    self.kernel = nnx.Param(init(rngs.params(), shape))
    self.stride, self.pooled, self.dtype = stride, pooled, dtype

  def __call__(self, x):
    kernel = self.kernel[...].astype(self.dtype)
    size, stride = len(kernel), self.stride
    if self.pooled and stride > 1:
      x, stride = nnx.avg_pool(x, (stride, stride), (stride, stride)), 1
    if size == 1 and self.groups > 1:
      x = x[:, ::stride, ::stride]
      y = jnp.repeat(x, kernel.shape[-1] // self.groups, -1) * kernel
    elif size == 1:
      # On CPUs, a product of two matrices is faster than a convolution, and its
      # gradients are twice as fast as with the axes of the image kept apart.
      x = x[:, ::stride, ::stride]
      if stride > 1:
        # XLA of jaxlib 0.11.2 aborts when it fuses the steps into a product
        # on a GPU: "Check failed: subdim_size_accumulator == dim_size".
        x = jax.lax.optimization_barrier(x)
      y = x.reshape(-1, x.shape[-1]) @ kernel[0, 0]
      y = y.reshape(*x.shape[:-1], -1)
    else:
      y = jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(size // 2, size // 2)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=self.groups,
      )
    if self.bias is not None:
      y += self.bias[...].astype(self.dtype)[None, None, None]
    return y


class Patches(nnx.Module):
  """A convolution whose stride is its kernel's width, as a matrix product.

  Pixels behind the last whole patch of a row or column are left out.
  """

  def __init__(self, patch, channels, width, *, use_bias, dtype, rngs):
    init = nnx.initializers.lecun_normal(in_axis=(0, 1, 2))
    shape = (patch, patch, channels, width)
    self.kernel = nnx.Param(init(rngs.params(), shape))
    bias = nnx.Param(jnp.zeros(width)) if use_bias else None
    self.bias = nnx.data(bias)
    self.dtype = dtype

  def __call__(self, x):
    patch, _, channels, width = self.kernel.shape
    batch, height, across, _ = x.shape
    rows, columns = height // patch, across // patch
    x = x[:, : rows * patch, : columns * patch]
    x = x.reshape(batch, rows, patch, columns, patch, -1)
    x = jnp.swapaxes(x, 2, 3).reshape(batch, -1, patch * patch * channels)
    x = x @ self.kernel[...].reshape(-1, width).astype(self.dtype)
    if self.bias is not None:
      x += self.bias[...].astype(self.dtype)[None, None]
    return x

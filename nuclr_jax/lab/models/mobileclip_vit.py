"""MobileCLIP's ViT: its patches are made by three convolutions."""

from collections.abc import Sequence

from flax import nnx
import jax
from jaxtyping import Array, Float

from nuclr_jax import checks
from nuclr_jax.checks import Fraction
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import BatchNorm, Dtype, Patches, Remat
from nuclr_jax.lab.models.vit import Frame, check_patches, tower_of
from nuclr_jax.lab.ranges import Eps, Layers, Mean, Std, Width

SIZES = (4, 2, 2)  # of the squares that the convolutions cut
PATCH = 16  # their product


class ConvStem(nnx.Module):
  """Cuts squares of squares of squares, with batch normalization between.

  `widths` holds the numbers of channels before, between and after the layers.
  """

  def __init__(self, widths, *, dtype, rngs):
    inner = widths[1:-1]
    self.layers = nnx.List(
      Patches(
        size, before, after, use_bias=i == len(inner), dtype=dtype, rngs=rngs
      )
      for i, (size, before, after) in enumerate(
        zip(SIZES, widths[:-1], widths[1:], strict=True)
      )
    )
    self.norms = nnx.List(BatchNorm(width) for width in inner)

  def __call__(
    self, x: Float[Array, "batch height width channels"]
  ) -> Float[Array, "batch patches features"]:
    for i, (size, layer) in enumerate(zip(SIZES, self.layers, strict=True)):
      batch, rows, columns, _ = x.shape
      y = layer(x)
      if i < len(self.norms):
        y = y.reshape(batch, rows // size, columns // size, -1)
        x = jax.nn.gelu(self.norms[i](y), approximate=False)
    return y


@checks.checked
def mobileclip_vit(
  *,
  image_shape: tuple[int, int, int],
  width: Width = 768,
  layers: Layers = 12,
  heads: Width = 12,
  hidden: Width | None = None,
  stem: Width = 192,
  eps: Eps = 1e-6,
  dropout: Fraction = 0.0,
  mean: Sequence[Mean] = (0.0, 0.0, 0.0),
  std: Sequence[Std] = (1.0, 1.0, 1.0),
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes the ViT of MobileCLIP-B; its features are those of the class token.

  Between its patches' convolutions there is batch normalization, and the class
  token has no position.

  Args:
    image_shape: Height, width and channels of the images, multiples of 16.
      Pretrained position embeddings for another grid are resized (see
      `pretrained.from_layout`).
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    stem: The number of channels between the patches' convolutions.
    eps: The eps of LayerNorm.
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
    >>> tower = mobileclip_vit(
    ...   image_shape=(32, 32, 3), width=8, layers=1, heads=2, stem=4
    ... )
    >>> params, state = tower.init(jax.random.key(0))
    >>> [x["kernel"].shape for x in params["patches"]["layers"].values()]
    [(4, 4, 3, 4), (2, 2, 4, 4), (2, 2, 4, 8)]

  Reference: Vasu et al., MobileCLIP, CVPR 2024.
  """
  check_patches(image_shape, PATCH, mean, std)
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=True,
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
    class_token=True,
    class_position=False,
    pool="class",
    mean=tuple(mean),
    std=tuple(std),
  )
  widths = (image_shape[-1], stem, stem, width)
  return tower_of(
    spec, frame, lambda rngs: ConvStem(widths, dtype=spec.dtype, rngs=rngs)
  )

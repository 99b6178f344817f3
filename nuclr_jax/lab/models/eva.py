"""Vision transformers with rotary positions: EVA's and the Perception Encoder.

EVA-01, the large models of EVA-02 and a plain ViT have no rotary positions, but
share the rest.
"""

from collections.abc import Sequence
from functools import partial

from nuclr_jax import checks
from nuclr_jax.checks import Fraction
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import MEAN, STD, Dtype, Remat
from nuclr_jax.lab.models.rotary import Rotary
from nuclr_jax.lab.models.vit import Frame, check_patches, tower_of
from nuclr_jax.lab.ranges import Eps, Layers, Mean, Side, Std, Width

HALF = (0.5, 0.5, 0.5)


@checks.checked
def eva(
  *,
  image_shape: tuple[int, int, int],
  patch: Side = 16,
  width: Width = 768,
  layers: Layers = 12,
  heads: Width = 12,
  hidden: Width | None = None,
  eps: Eps = 1e-6,
  rotary: Side | None = None,
  gated: bool = False,
  post_norm: bool = False,
  dropout: Fraction = 0.0,
  mean: Sequence[Mean] = MEAN,
  std: Sequence[Std] = STD,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes the image tower of EVA-CLIP; its features are the class token's.

  Attention has a bias of queries and values, and none of keys.

  Args:
    image_shape: Height, width and channels of the images; `patch` must divide
      height and width.
    patch: The height and width of a patch, in pixels.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    eps: The eps of LayerNorm.
    rotary: The height and width of the grid of patches to which rotary
      positions are scaled, 16 in EVA-02; None is without them. The width of a
      head must then be a multiple of four.
    gated: Whether to follow EVA-02's base and large models: SwiGLU, and a
      LayerNorm before the last layer of each branch.
    post_norm: Whether LayerNorm is at the end of each branch, as in EVA-02's
      model E, instead of before it.
    dropout: The dropout rate after the embeddings and in both residual
      branches.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16".
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).
    attention: "xla", or "cudnn": flash attention on NVIDIA GPUs, in bfloat16
      and without dropout on the attention weights.

  Returns:
    A `Tower` from uint8 images to features [batch, width].

  Raises:
    ValueError: If an image cannot be cut into patches, or if a number is out of
      range.

  Example:
    >>> tower = eva(
    ...   image_shape=(8, 8, 3), patch=4, width=8, layers=1, heads=2, rotary=2
    ... )
    >>> params, _ = tower.init(jax.random.key(0))
    >>> sorted(params["blocks"][0]["attention"])
    ['out', 'qkv', 'query_bias', 'value_bias']

  Reference: Sun et al., EVA-CLIP, arXiv 2303.15389.
  """
  check_patches(image_shape, patch, mean, std)
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=not post_norm,
    norm_sums=False,
    inner_norm=gated,
    gated=gated,
    key_bias=False,
    eps=eps,
    activation="silu" if gated else "gelu",
    dtype=dtype,
    remat=remat,
    attention=attention,
    rates=transformer.rates_of(dropout),
  )
  frame = Frame(
    image_shape=tuple(image_shape),
    patch=patch,
    patch_bias=True,
    norm_before=False,
    class_token=True,
    pool="class",
    mean=tuple(mean),
    std=tuple(std),
    rotary=None if rotary is None else _rotary(spec, reference=rotary),
  )
  return tower_of(spec, frame)


@checks.checked
def perception_encoder(
  *,
  image_shape: tuple[int, int, int],
  patch: Side = 16,
  width: Width = 768,
  layers: Layers = 12,
  heads: Width = 12,
  hidden: Width | None = None,
  eps: Eps = 1e-5,
  rotary: Side = 14,
  class_token: bool = True,
  pool_heads: Width = 8,
  dropout: Fraction = 0.0,
  mean: Sequence[Mean] = HALF,
  std: Sequence[Std] = HALF,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes the image tower of the Perception Encoder's core models.

  A learned probe attends to all tokens, as in SigLIP; it has `pool_heads` heads
  and an MLP of four times `width`.

  Args:
    image_shape: Height, width and channels of the images; `patch` must divide
      height and width.
    patch: The height and width of a patch, in pixels.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`; the width of a
      head must be a multiple of four.
    hidden: The width of the blocks' MLP; None is four times `width`.
    eps: The eps of LayerNorm.
    rotary: The height and width of the grid of patches to which rotary
      positions are scaled: that of the published images.
    class_token: Whether there is a class token beside the patches. Coordinates
      of patches count from 1 then, else from 0.
    pool_heads: The number of attention heads of the probe.
    dropout: The dropout rate after the embeddings and in both residual
      branches.
    mean: The mean of each channel, on the scale [0, 1].
    std: The standard deviation of each channel, on the scale [0, 1].
    dtype: The dtype of activations, "float32" or "bfloat16".
    remat: What the backward pass computes again to save memory: "none", "full"
      (whole blocks), or "dots" (all but products with parameters).
    attention: "xla", or "cudnn": flash attention on NVIDIA GPUs, in bfloat16
      and without dropout on the attention weights.

  Returns:
    A `Tower` from uint8 images to features [batch, width].

  Raises:
    ValueError: If an image cannot be cut into patches, or if a number is out of
      range.

  Example:
    >>> tower = perception_encoder(
    ...   image_shape=(8, 8, 3), patch=4, width=8, layers=1, heads=2, rotary=2
    ... )
    >>> tower.num_features
    8

  Reference: Bolya et al., Perception Encoder, NeurIPS 2025.
  """
  check_patches(image_shape, patch, mean, std)
  make = partial(
    transformer.make_block_spec,
    width=width,
    layers=layers,
    pre_norm=True,
    eps=eps,
    activation="gelu",
    dtype=dtype,
    remat=remat,
    attention=attention,
    rates=transformer.rates_of(dropout),
  )
  spec = make(heads=heads, hidden=hidden)
  offset = float(class_token)
  frame = Frame(
    image_shape=tuple(image_shape),
    patch=patch,
    patch_bias=False,
    norm_before=True,
    class_token=class_token,
    pool="attention",
    mean=tuple(mean),
    std=tuple(std),
    probe=make(heads=pool_heads, hidden=None),
    rotary=_rotary(spec, reference=rotary, offset=offset, rows_first=False),
  )
  return tower_of(spec, frame)


def _rotary(spec: transformer.BlockSpec, **fields) -> Rotary:
  """Makes a `Rotary` after a check of the width of heads."""
  if spec.width // spec.heads % 4:
    raise ValueError(
      "rotary positions need heads whose width is a multiple of four, got a "
      f"width of {spec.width} and {spec.heads} heads"
    )
  return Rotary(**fields)

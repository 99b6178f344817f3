"""Vision transformers: the plain ones, CLIP's, SigLIP's and DINOv2's."""

from collections.abc import Sequence
from functools import partial

from flax import nnx
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax import checks
from nuclr_jax.checks import Fraction, Positive
from nuclr_jax.lab.models import base, transformer
from nuclr_jax.lab.models.layers import (
  MEAN,
  STD,
  Dtype,
  LayerNorm,
  Patches,
  Remat,
  check_images,
  normalize,
  run_blocks,
)
from nuclr_jax.lab.ranges import (
  MAX_PATCHES,
  Eps,
  Layers,
  Mean,
  Side,
  Std,
  Width,
)

# What the features are of: the class token, or a probe that attends to all
# patches.
Pool = checks.one_of(("class", "attention"))


class VisionTransformer(nnx.Module):
  """Pre-norm blocks, which return the features of the class token or a probe.

  CLIP has a LayerNorm before the blocks and no bias in the patches
  (`norm_before`). A pooler is a dense layer and tanh at the end.
  """

  def __init__(
    self,
    spec,
    *,
    image_shape,
    patch,
    norm_before,
    pool,
    pooler,
    mean,
    std,
    rngs,
  ):
    height, width, channels = image_shape
    grid = (height // patch, width // patch)
    self.patches = Patches(
      patch,
      channels,
      spec.width,
      use_bias=not norm_before,
      dtype=spec.dtype,
      rngs=rngs,
    )
    init = nnx.initializers.normal(0.02)
    self.class_token, self.class_position = (
      nnx.data(
        nnx.Param(init(rngs.params(), (spec.width,)))
        if pool == "class"
        else None
      )
      for _ in range(2)
    )
    self.positions = nnx.Param(init(rngs.params(), (*grid, spec.width)))
    norm = partial(LayerNorm, spec.width, eps=spec.eps)
    self.norm_before = nnx.data(norm() if norm_before else None)
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.remat = spec.remat
    self.norm = norm()
    probe = partial(transformer.AttentionPool, spec)
    self.pool = nnx.data(probe(rngs=rngs) if pool == "attention" else None)
    dense = partial(transformer.Pooler, spec.width, dtype=spec.dtype)
    self.pooler = nnx.data(dense(rngs=rngs) if pooler else None)
    self.input = (tuple(mean), tuple(std), spec.dtype)

  def __call__(
    self,
    image: Num[Array, "batch height width channels"],
    rngs: nnx.Rngs | None = None,
  ) -> Float[Array, "batch features"]:
    x = self.patches(normalize(image, *self.input))
    positions = self.positions[...].reshape(1, -1, x.shape[-1])
    x += positions.astype(x.dtype)
    if self.pool is None:
      token = (self.class_token[...] + self.class_position[...]).astype(x.dtype)
      token = jnp.broadcast_to(token, (len(x), 1, len(token)))
      x = jnp.concatenate([token, x], axis=1)
    if self.norm_before is not None:
      x = self.norm_before(x)
    x = self.dropout(x, rngs=rngs)
    x = run_blocks(self.blocks, x, None, rngs, remat=self.remat)
    if self.pool is None:
      x = self.norm(x[:, 0])
    else:
      x = self.pool(self.norm(x), rngs)
    if self.pooler is not None:
      x = self.pooler(x)
    return x.astype(jnp.float32)


@checks.checked
def vit(
  *,
  image_shape: tuple[int, int, int],
  patch: Side = 16,
  width: Width = 768,
  layers: Layers = 12,
  heads: Width = 12,
  hidden: Width | None = None,
  eps: Eps = 1e-6,
  activation: transformer.Activation = "gelu",
  norm_before: bool = False,
  layer_scale: Positive | None = None,
  pool: Pool = "class",
  pooler: bool = False,
  dropout: Fraction = 0.0,
  mean: Sequence[Mean] = MEAN,
  std: Sequence[Std] = STD,
  dtype: Dtype = "float32",
  remat: Remat = "none",
  attention: transformer.Implementation = "xla",
) -> base.Tower:
  """Makes a vision transformer; its features are by default the class token's.

  Args:
    image_shape: Height, width and channels of the images; `patch` must divide
      height and width. Pretrained position embeddings for another grid are
      resized (see `pretrained.from_layout`).
    patch: The height and width of a patch, in pixels.
    width: The width of the features.
    layers: The number of attention blocks.
    heads: The number of attention heads, a divisor of `width`.
    hidden: The width of the blocks' MLP; None is four times `width`.
    eps: The eps of LayerNorm: 1e-6 in timm, SigLIP and DINOv2, 1e-12 in Hugging
      Face's ViT, 1e-5 in CLIP.
    activation: "gelu", "gelu_tanh" (its approximation by tanh), or "quick_gelu"
      (x sigmoid(1.702 x), OpenAI's CLIP).
    norm_before: Whether to follow CLIP: LayerNorm before the blocks, and
      patches without bias.
    layer_scale: Where the learned factors start that multiply both branches of
      each block (DINOv2's LayerScale); None is without them.
    pool: "class", the features of a class token; or "attention", those of a
      learned probe that attends to all patches (SigLIP; there is then no class
      token).
    pooler: Whether a dense layer and tanh follow, as in Hugging Face's ViT.
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
    ValueError: If an image cannot be cut into patches, if a number is out of
      range, or if there are two poolers.

  Example:
    >>> tower = vit(image_shape=(8, 16, 3), patch=4, width=8, layers=1, heads=2)
    >>> params, _ = tower.init(jax.random.key(0))
    >>> params["positions"].shape
    (2, 4, 8)

  Reference: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; Zhai
    et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023; Oquab et
    al., DINOv2, TMLR 2024.
  """
  check_images(image_shape, mean, std)
  if patch < 1 or image_shape[0] % patch or image_shape[1] % patch:
    raise ValueError(
      f"patch must divide the images' height and width, got {patch} and "
      f"{image_shape[0]} x {image_shape[1]}"
    )
  patches = image_shape[0] // patch * (image_shape[1] // patch)
  if patches > MAX_PATCHES:
    raise ValueError(
      f"images of {image_shape[0]} x {image_shape[1]} have {patches:,} patches "
      f"of {patch} x {patch}, and may have {MAX_PATCHES:,}; choose "
      "smaller images or a larger patch"
    )
  if pooler and pool == "attention":
    raise ValueError(
      "pooler is a layer on the class token, which pool='attention' does not "
      "have; leave out one of the two"
    )
  spec = transformer.make_block_spec(
    width=width,
    layers=layers,
    heads=heads,
    hidden=hidden,
    pre_norm=True,
    eps=eps,
    activation=activation,
    dtype=dtype,
    remat=remat,
    attention=attention,
    layer_scale=layer_scale,
    rates=transformer.Rates(
      embeddings=dropout, attended=dropout, hidden=dropout
    ),
  )

  def build(rngs):
    return VisionTransformer(
      spec,
      image_shape=image_shape,
      patch=patch,
      norm_before=norm_before,
      pool=pool,
      pooler=pooler,
      mean=mean,
      std=std,
      rngs=rngs,
    )

  return base.from_nnx(build, width)


vit_b16 = vit  # 86 million parameters
vit_s16 = partial(vit, width=384, heads=6)
# CLIP's projection is left to the dual encoder. OpenAI trained with quick_gelu,
# OpenCLIP mostly with `activation="gelu"`.
clip_vit_b16 = partial(vit, eps=1e-5, activation="quick_gelu", norm_before=True)
clip_vit_b32 = partial(clip_vit_b16, patch=32)
clip_vit_l14 = partial(clip_vit_b16, patch=14, width=1024, layers=24, heads=16)
# SigLIP and SigLIP 2 of a fixed resolution. The size so400m is width=1152,
# layers=27, heads=16, hidden=4304, patch=14.
siglip_vit_b16 = partial(
  vit,
  activation="gelu_tanh",
  pool="attention",
  mean=(0.5, 0.5, 0.5),
  std=(0.5, 0.5, 0.5),
)
dinov2_vit_b14 = partial(
  vit,
  patch=14,
  layer_scale=1e-5,
  mean=(0.485, 0.456, 0.406),  # of ImageNet
  std=(0.229, 0.224, 0.225),
)
dinov2_vit_s14 = partial(dinov2_vit_b14, width=384, heads=6)

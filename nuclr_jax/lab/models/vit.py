"""Vision transformers: the plain ones, CLIP's, SigLIP's and DINOv2's.

`eva` has those with rotary positions, made of the same parts.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from flax import nnx
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from nuclr_jax import checks
from nuclr_jax.checks import Fraction, Positive
from nuclr_jax.lab.models import base, pools, transformer
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
from nuclr_jax.lab.models.rotary import Rotary
from nuclr_jax.lab.ranges import (
  MAX_PATCHES,
  Eps,
  Layers,
  Mean,
  Side,
  Std,
  Width,
)

# What the features are of: the class token, the mean of all patches, a probe
# that attends to all tokens, or the first of many such probes (CoCa's).
Pool = checks.one_of(("class", "mean", "attention", "query"))


class Frame(NamedTuple):
  """What a vision transformer has around its blocks."""

  image_shape: tuple[int, int, int]
  patch: int
  patch_bias: bool
  norm_before: bool  # LayerNorm before the blocks
  class_token: bool
  pool: str  # one of `Pool`
  mean: Sequence[float]
  std: Sequence[float]
  probe: transformer.BlockSpec | None = None  # of the two pools with probes
  pooler: bool = False  # a dense layer and tanh at the end
  positions: bool = True  # whether patches have learned positions
  rotary: Rotary | None = None  # of queries and keys of patches, in all blocks
  class_position: bool = True  # whether a class token has a learned position

  @property
  def grid(self) -> tuple[int, int]:
    """The number of patches in a column and in a row."""
    height, width, _ = self.image_shape
    return height // self.patch, width // self.patch


class VisionTransformer(nnx.Module):
  """Blocks that return one row of features for each image.

  `stem`, called as `stem(rngs)`, makes what turns images [batch, height, width,
  channels] into rows of patches; by default they are cut and projected.
  """

  def __init__(
    self, spec: transformer.BlockSpec, frame: Frame, stem=None, *, rngs
  ):
    cut = partial(
      Patches,
      frame.patch,
      frame.image_shape[-1],
      spec.width,
      use_bias=frame.patch_bias,
      dtype=spec.dtype,
    )
    self.patches = stem(rngs) if stem else cut(rngs=rngs)
    init = nnx.initializers.normal(0.02)
    has_position = frame.class_token and frame.class_position
    self.class_token, self.class_position = (
      nnx.data(
        nnx.Param(init(rngs.params(), (spec.width,))) if has_it else None
      )
      for has_it in (frame.class_token, has_position)
    )
    shape = (*frame.grid, spec.width)
    self.positions = nnx.data(
      nnx.Param(init(rngs.params(), shape)) if frame.positions else None
    )
    norm = partial(LayerNorm, spec.width, eps=spec.eps)
    self.norm_before = nnx.data(norm() if frame.norm_before else None)
    self.dropout = nnx.Dropout(spec.rates.embeddings)
    self.blocks = transformer.make_blocks(spec, rngs)
    self.remat = spec.remat
    self.pool, width = nnx.data(None), spec.width
    if frame.pool == "query":
      width = frame.probe.width
      self.pool = pools.QueryPool(frame.probe, spec.width, rngs=rngs)
    self.norm = LayerNorm(width, eps=spec.eps)
    if frame.pool == "attention":
      self.pool = pools.AttentionPool(frame.probe or spec, rngs=rngs)
    dense = partial(pools.Pooler, spec.width, dtype=spec.dtype)
    self.pooler = nnx.data(dense(rngs=rngs) if frame.pooler else None)
    self.input = (tuple(frame.mean), tuple(frame.std), spec.dtype)
    self.frame, self.heads = frame, spec.heads

  def __call__(
    self,
    image: Num[Array, "batch height width channels"],
    rngs: nnx.Rngs | None = None,
  ) -> Float[Array, "batch features"]:
    x = self.patches(normalize(image, *self.input))
    if self.positions is not None:
      positions = self.positions[...].reshape(1, -1, x.shape[-1])
      x += positions.astype(x.dtype)
    if self.class_token is not None:
      token = self.class_token[...]
      if self.class_position is not None:
        token += self.class_position[...]
      token = jnp.broadcast_to(token.astype(x.dtype), (len(x), 1, len(token)))
      x = jnp.concatenate([token, x], axis=1)
    if self.norm_before is not None:
      x = self.norm_before(x)
    x = self.dropout(x, rngs=rngs)
    angles = None
    if self.frame.rotary is not None:
      head = x.shape[-1] // self.heads
      angles = jnp.asarray(self.frame.rotary.angles(self.frame.grid, head))
      if self.class_token is not None:  # which stays
        angles = jnp.pad(angles, ((1, 0), (0, 0)))
    x = run_blocks(self.blocks, x, None, rngs, angles, remat=self.remat)
    if self.frame.pool == "attention":
      x = self.pool(self.norm(x), rngs)
    elif self.frame.pool == "query":
      x = self.norm(self.pool(x))
    elif self.frame.pool == "mean":
      patches = x[:, 1:] if self.class_token is not None else x
      x = self.norm(jnp.mean(patches, 1))
    else:
      x = self.norm(x[:, 0])
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
  patch_bias: bool | None = None,
  leave_rest: bool = False,
  layer_scale: Positive | None = None,
  pool: Pool = "class",
  pooler: bool = False,
  probe: Sequence[Width] | None = None,
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
    norm_before: Whether there is a LayerNorm before the blocks, as in CLIP.
    patch_bias: Whether patches have a bias; None is unless `norm_before`.
    leave_rest: Whether `patch` need not divide height and width: pixels behind
      the last whole patch are then left out, as in SigLIP's images of 384
      pixels with patches of 14.
    layer_scale: Where the learned factors start that multiply both branches of
      each block (DINOv2's LayerScale); None is without them.
    pool: "class", the features of a class token; "mean", the mean of those of
      all patches, beside a class token (CLIPA); or "attention", those of a
      learned probe that attends to all patches (SigLIP; there is then no class
      token); or "query", those of the first of 256 such probes (CoCa).
    pooler: Whether a dense layer and tanh follow, as in Hugging Face's ViT.
    probe: The width and the heads of the probes of a pool of "query", two
      numbers; the width is that of the features.
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
      range, or if there are two poolers, or a `probe` for another pool.

  Example:
    >>> tower = vit(image_shape=(8, 16, 3), patch=4, width=8, layers=1, heads=2)
    >>> params, _ = tower.init(jax.random.key(0))
    >>> params["positions"].shape
    (2, 4, 8)

  Reference: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; Zhai
    et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023; Oquab et
    al., DINOv2, TMLR 2024.
  """
  if leave_rest:
    height, across, channels = image_shape
    whole = (height - height % patch, across - across % patch, channels)
    check_patches(whole, patch, mean, std)
  else:
    check_patches(image_shape, patch, mean, std)
  if pooler and pool != "class":
    raise ValueError(
      f"pooler is a layer on the class token, and pool is {pool!r}; leave out "
      "one of the two"
    )
  if len(probe or ()) != (2 if pool == "query" else 0):
    raise ValueError(
      "probe must be two numbers for a pool of 'query', and None for others, "
      f"got {probe} and "
      f"{pool!r}"
    )
  make = partial(
    transformer.make_block_spec,
    layers=layers,
    pre_norm=True,
    eps=eps,
    activation=activation,
    dtype=dtype,
    remat=remat,
    layer_scale=layer_scale,
    rates=transformer.rates_of(dropout),
  )
  spec = make(width=width, heads=heads, hidden=hidden, attention=attention)
  if probe is not None:
    probe = make(width=probe[0], heads=probe[1], hidden=None)
  frame = Frame(
    image_shape=tuple(image_shape),
    patch=patch,
    patch_bias=not norm_before if patch_bias is None else patch_bias,
    norm_before=norm_before,
    class_token=pool != "attention",
    pool=pool,
    pooler=pooler,
    mean=tuple(mean),
    std=tuple(std),
    probe=probe,
  )
  return tower_of(spec, frame)


def tower_of(
  spec: transformer.BlockSpec, frame: Frame, stem=None
) -> base.Tower:
  """Makes a vision transformer of these parts."""
  return base.from_nnx(
    lambda rngs: VisionTransformer(spec, frame, stem, rngs=rngs),
    frame.probe.width if frame.probe else spec.width,
  )


def check_patches(
  image_shape: tuple[int, int, int],
  patch: int,
  mean: Sequence[float],
  std: Sequence[float],
) -> None:
  """Raises ValueError unless images can be cut into patches."""
  check_images(image_shape, mean, std)
  sizes = image_shape[:2]
  if patch < 1 or min(sizes) < patch or any(x % patch for x in sizes):
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

"""Pairs of encoders by name, with or without pretrained weights."""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from nuclr_jax.checks import Natural
from nuclr_jax.lab import files
from nuclr_jax.lab.factories import Bound, Table, bound
from nuclr_jax.lab.models import base
from nuclr_jax.lab.models.bert import bert, distilbert, minilm_l6, roberta
from nuclr_jax.lab.models.clip_resnet import clip_resnet50
from nuclr_jax.lab.models.clip_text import clip_text, siglip_text
from nuclr_jax.lab.models.convnext import convnext
from nuclr_jax.lab.models.eva import eva, perception_encoder
from nuclr_jax.lab.models.fastvit import fastvit
from nuclr_jax.lab.models.heads import rows
from nuclr_jax.lab.models.layers import Dtype
from nuclr_jax.lab.models.lora import with_adapters
from nuclr_jax.lab.models.mobileclip_vit import mobileclip_vit
from nuclr_jax.lab.models.naflex import naflex_vit
from nuclr_jax.lab.models.nllb import nllb
from nuclr_jax.lab.models.pretrained import (
  check_encoder,
  check_normalization,
  load_dual_encoder,
  load_towers,
)
from nuclr_jax.lab.models.resnet import resnet50
from nuclr_jax.lab.models.small import convnet, transformer
from nuclr_jax.lab.models.vgg import vgg16
from nuclr_jax.lab.models.vit import (
  clip_vit_b16,
  clip_vit_b32,
  clip_vit_l14,
  dinov2_vit_b14,
  dinov2_vit_s14,
  siglip_vit_b16,
  vit_b16,
  vit_s16,
)
from nuclr_jax.lab.models.vitamin import vitamin
from nuclr_jax.lab.ranges import Width

IMAGE_TOWERS: dict[str, Callable[..., base.Tower]] = {
  "clip_resnet50": clip_resnet50,
  "clip_vit_b16": clip_vit_b16,
  "clip_vit_b32": clip_vit_b32,
  "clip_vit_l14": clip_vit_l14,
  "convnet": convnet,
  "convnext": convnext,
  "dinov2_vit_b14": dinov2_vit_b14,
  "dinov2_vit_s14": dinov2_vit_s14,
  "eva": eva,
  "fastvit": fastvit,
  "mobileclip_vit": mobileclip_vit,
  "naflex_vit": naflex_vit,
  "perception_encoder": perception_encoder,
  "resnet50": resnet50,
  "siglip_vit_b16": siglip_vit_b16,
  "vgg16": vgg16,
  "vit_b16": vit_b16,
  "vit_s16": vit_s16,
  "vitamin": vitamin,
}
TEXT_TOWERS: dict[str, Callable[..., base.Tower]] = {
  "bert": bert,
  "clip_text": clip_text,
  "distilbert": distilbert,
  "minilm_l6": minilm_l6,
  "nllb": nllb,
  "roberta": roberta,
  "rows": rows,
  "siglip_text": siglip_text,
  "transformer": transformer,
}
INPUTS = ("image_shape", "vocab_size", "length")  # what the data decide
PRETRAINED = {"pretrained": str | os.PathLike | None}
TOWERS = {
  "image": Table(IMAGE_TOWERS, run=INPUTS, more=PRETRAINED, makes=base.Tower),
  "text": Table(TEXT_TOWERS, run=INPUTS, more=PRETRAINED, makes=base.Tower),
}


def bound_tower(side: str, spec: Bound | Mapping[str, Any]) -> Bound:
  """Binds the mapping of one tower; returns what is already bound unchanged."""
  return bound(f"model.{side}", TOWERS[side], spec)


def towers(
  *,
  image_shape: tuple[int, int, int],
  vocab_size: int,
  length: int,
  image: Bound | Mapping[str, Any],
  text: Bound | Mapping[str, Any],
  pretrained: str | os.PathLike | None = None,
  dim: Width = 256,
  dtype: Dtype = "float32",
  projection_bias: bool | Sequence[base.Side] = True,
  projected: Sequence[base.Side] = ("image", "text"),
  normalize: bool = True,
  lora_rank: Natural = 0,
  frozen: tuple[str, ...] = (),
) -> base.Model:
  """Makes a model of an image encoder and a text encoder.

  Most are published ones; `convnet` and `transformer` are those of `small`, and
  `rows` takes precomputed features of texts.

  Args:
    image_shape: Height, width and channels of the images.
    vocab_size: The number of token ids. With a pretrained text tower it must
      match the tower's file.
    length: The number of token ids per text.
    image: `{"name": ..., "pretrained": ..., ...}`: a name in `IMAGE_TOWERS`,
      where its weights are (see `pretrained.read_tensors`; None, the default,
      starts from random ones), and any other argument of the tower's factory,
      such as `stages` of `resnet50`.
    text: The same for the text tower, with a name in `TEXT_TOWERS`.
    pretrained: A folder with both towers and their projections, as `nuclr
      export` writes it, or a model of CLIP or SigLIP. The weights that `image`
      and `text` name are then not read.
    dim: The width of the embeddings.
    dtype: The dtype of both towers' activations, "float32" or "bfloat16".
      Parameters, features and embeddings are float32.
    projection_bias: Whether the projections have a bias, or the sides whose
      projections have one.
    projected: The sides that have a projection; the other's features must have
      the width `dim`. SigLIP and CLIP's ResNets have one of texts only, SigLIP
      with a bias and CLIP without.
    normalize: Whether to scale embeddings to unit norm.
    lora_rank: The rank of adapters of the attention, see `lora.with_adapters`;
      0 adds none. `optimizer.freeze` must freeze both towers.
    frozen: Towers ("image", "text") that always run as in evaluation.

  Returns:
    A `Model`, which has `load` if there are pretrained weights.

  Raises:
    ValueError: For unknown names or keys, and from the factories.

  Example:
    >>> model = towers(
    ...   image_shape=(32, 32, 3),
    ...   vocab_size=9,
    ...   length=4,
    ...   image=dict(name="resnet50", stages=(1,), width=4),
    ...   text=dict(name="distilbert", width=8, layers=1, heads=2),
    ... )
    >>> params, state = model.init(jax.random.key(0))
    >>> params["image_projection"].shape, params["text_projection"].shape
    ((16, 256), (8, 256))
  """
  sides = dict(
    image=bound_tower("image", image), text=bound_tower("text", text)
  )
  paths = {side: x.more.get("pretrained") for side, x in sides.items()}
  inputs = dict(image_shape=image_shape, vocab_size=vocab_size, length=length)
  image_tower, text_tower = (x(**inputs, dtype=dtype) for x in sides.values())
  model = base.dual_encoder(
    image_tower,
    text_tower,
    dim=dim,
    normalize=normalize,
    projection_bias=projection_bias,
    projected=projected,
    frozen=frozen,
  )
  pixels, encoder = (x.values() for x in sides.values())
  sources = list(dict.fromkeys(x for x in paths.values() if x is not None))

  def load(params, state):
    for path in sources:
      sides = tuple(side for side, x in paths.items() if x == path)
      if "text" in sides:
        check_encoder(path, encoder)
      if "image" in sides:
        check_normalization(path, pixels, "model.image")
      params, state = load_towers(path, params, state, sides=sides)
    return params, state

  def load_both(params, state):
    folder = files.remote.fetch(pretrained).expanduser()
    image_folder, text_folder = (folder / f"{side}_encoder" for side in sides)
    if text_folder.is_dir():
      check_encoder(text_folder, encoder)
    source = image_folder if image_folder.is_dir() else pretrained
    check_normalization(source, pixels, "model.image")
    return load_dual_encoder(pretrained, params, state)

  if pretrained is not None:
    model = model._replace(load=load_both)
  elif sources:
    model = model._replace(load=load)
  return with_adapters(model, lora_rank) if lora_rank else model

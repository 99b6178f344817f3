"""The published encoders in PyTorch, at tiny and at full size: transformers'.

Weights are random, including batch statistics and biases, so that leaving one
out cannot go unnoticed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers


class Case(NamedTuple):
  """One encoder (or CLIP's two) in both libraries."""

  name: str
  layout: str
  make: Callable[[], torch.nn.Module]
  forward: Callable[[torch.nn.Module, dict], dict[str, torch.Tensor]]
  towers: dict[str, Any]  # arguments of `models.towers`
  inputs: dict[str, np.ndarray]  # "image": normalized NHWC, "text": ids
  train: bool = False  # whether to compare batch statistics too
  golden: bool = True  # whether the tests have its tiny version


def randomized(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
  """Fills all arrays so that each of them matters, at any size.

  Matrices preserve the scale of their input: with PyTorch's initialization
  attention is almost uniform and activations almost linear. Scales of batch
  normalization are small to make deep ResNets less sensitive: otherwise
  rounding errors decide on which side of 0 some inputs of every ReLU lie, and
  float32 gradients differ by percents from float64 ones.
  """
  generator = torch.Generator().manual_seed(seed)
  state = model.state_dict()
  for name, x in state.items():
    is_batch_norm = name.replace("weight", "running_var") in state
    if name.endswith("running_var"):
      x.uniform_(0.5, 1.5, generator=generator)
    elif name.endswith("running_mean"):
      x.normal_(0, 0.1, generator=generator)
    elif is_batch_norm and name.endswith("weight"):
      x.uniform_(0.2, 0.6, generator=generator)
    elif x.ndim == 3 and name.endswith("gamma"):  # starts as 0.00001
      x.uniform_(0.5, 1.5, generator=generator)
    elif x.ndim == 1 and name.endswith("weight"):
      x.uniform_(0.5, 1.5, generator=generator)
    elif x.ndim == 2:
      x.normal_(0, x.shape[1] ** -0.5, generator=generator)
    elif x.ndim == 1 and x.is_floating_point():
      x.normal_(0, 0.1, generator=generator)
  return model.eval()


def images(size, batch=2, seed=0) -> np.ndarray:
  """Draws normally distributed pixels [batch, size, size, 3]."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=(batch, size, size, 3)).astype(np.float32)


def texts(vocab_size, length, batch=3, clip=False) -> np.ndarray:
  """Draws captions of several lengths; CLIP's end with the largest id."""
  rng = np.random.default_rng(0)
  ids = rng.integers(1, vocab_size - 1, (batch, length)).astype(np.int32)
  for row, end in enumerate(rng.integers(2, length, batch)):
    ids[row, end + 1 :] = 0
    if clip:
      ids[row, end] = vocab_size - 1
  return ids


def channels_first(x) -> torch.Tensor:
  """Returns images as PyTorch's models take them."""
  return torch.from_numpy(x).permute(0, 3, 1, 2).double()


def token_ids(x) -> torch.Tensor:
  """Returns token ids as PyTorch's models take them."""
  return torch.from_numpy(x).long()


def resnet(*, tiny: bool) -> Case:
  """Makes the case of Hugging Face's ResNet."""
  config = transformers.ResNetConfig()
  ours, size = {}, 224
  if tiny:
    config = transformers.ResNetConfig(
      embedding_size=4, hidden_sizes=[16, 32], depths=[2, 1]
    )
    ours, size = dict(stages=(2, 1), width=4), 40

  def forward(model, inputs):
    out = model(channels_first(inputs["image"]))
    return {"image": out.pooler_output.flatten(1)}

  return Case(
    "HF ResNet",
    "hf_resnet",
    lambda: transformers.ResNetModel(config),
    forward,
    dict(image=dict(name="resnet50", **ours), dim=32 if tiny else 2048),
    dict(image=images(size)),
    train=True,
  )


def basic_resnet(*, tiny: bool) -> Case:
  """Makes the case of a ResNet with two convolutions per block: ResNet-34."""
  sizes = ([4, 8], [1, 2]) if tiny else ([64, 128, 256, 512], [3, 4, 6, 3])
  config = transformers.ResNetConfig(
    embedding_size=sizes[0][0],
    hidden_sizes=sizes[0],
    depths=sizes[1],
    layer_type="basic",
  )
  case = resnet(tiny=tiny)
  image = dict(
    name="resnet50",
    stages=tuple(sizes[1]),
    width=sizes[0][0],
    bottleneck=False,
  )
  return case._replace(
    name="HF ResNet, basic",
    make=lambda: transformers.ResNetModel(config),
    towers=dict(image=image, dim=sizes[0][-1]),
  )


def vit(*, tiny: bool, pooler: bool = False) -> Case:
  """Makes the case of Hugging Face's ViT."""
  config, ours, size = transformers.ViTConfig(), {}, 224
  if tiny:
    config = transformers.ViTConfig(
      hidden_size=16,
      num_hidden_layers=2,
      num_attention_heads=4,
      intermediate_size=24,
      image_size=24,
      patch_size=8,
    )
    ours = dict(width=16, layers=2, heads=4, hidden=24, patch=8)
    size = 24

  def forward(model, inputs):
    out = model(channels_first(inputs["image"]))
    first = out.last_hidden_state[:, 0]
    return {"image": out.pooler_output if pooler else first}

  return Case(
    "HF ViT" + ", pooler" * pooler,
    "hf_vit",
    lambda: transformers.ViTModel(config, add_pooling_layer=pooler),
    forward,
    dict(
      image=dict(name="vit_b16", eps=1e-12, pooler=pooler, **ours),
      dim=config.hidden_size,
    ),
    dict(image=images(size)),
    golden=pooler,
  )


def distilbert(*, tiny: bool) -> Case:
  """Makes the case of Hugging Face's DistilBERT."""
  config, ours, vocab, length = transformers.DistilBertConfig(), {}, 30522, 64
  if tiny:
    vocab, length = 30, 8
    config = transformers.DistilBertConfig(
      vocab_size=vocab,
      dim=16,
      n_layers=2,
      n_heads=4,
      hidden_dim=24,
      max_position_embeddings=12,
    )
    ours = dict(width=16, layers=2, heads=4, hidden=24, max_length=12)
  return Case(
    "HF DistilBERT",
    "hf_distilbert",
    lambda: transformers.DistilBertModel(config),
    _first_token,
    dict(
      text=dict(name="distilbert", **ours), dim=config.dim, vocab_size=vocab
    ),
    dict(text=texts(vocab, length)),
  )


def bert(*, tiny: bool, pooler: bool = False, mean: bool = False) -> Case:
  """Makes the case of Hugging Face's BERT."""
  config, ours, vocab, length = transformers.BertConfig(), {}, 30522, 64
  if tiny:
    vocab, length = 30, 8
    config = transformers.BertConfig(
      vocab_size=vocab,
      hidden_size=16,
      num_hidden_layers=2,
      num_attention_heads=4,
      intermediate_size=24,
      max_position_embeddings=12,
    )
    ours = dict(width=16, layers=2, heads=4, hidden=24, max_length=12)

  def pooled(model, inputs):
    ids = token_ids(inputs["text"])
    return {"text": model(ids, attention_mask=ids != 0).pooler_output}

  def averaged(model, inputs):
    ids = token_ids(inputs["text"])
    x = model(ids, attention_mask=ids != 0).last_hidden_state
    mask = (ids != 0)[:, :, None]
    return {"text": (x * mask).sum(1) / mask.sum(1)}

  ours |= dict(pooler=pooler, pooling="mean" if mean else "first")
  forward = averaged if mean else _first_token
  return Case(
    "HF BERT" + ", pooler" * pooler + ", mean" * mean,
    "hf_bert",
    lambda: transformers.BertModel(config, add_pooling_layer=pooler),
    pooled if pooler else forward,
    dict(
      text=dict(name="bert", **ours),
      dim=config.hidden_size,
      vocab_size=vocab,
    ),
    dict(text=texts(vocab, length)),
    golden=pooler or mean,
  )


def _first_token(model, inputs):
  ids = token_ids(inputs["text"])
  out = model(ids, attention_mask=(ids != 0).long())
  return {"text": out.last_hidden_state[:, 0]}


def clip(*, tiny: bool) -> Case:
  """Makes the case of Hugging Face's CLIP: both towers, projections, norm."""
  config = transformers.CLIPConfig(vision_config=dict(patch_size=16))
  image, text = dict(name="clip_vit_b16"), dict(name="clip_text")
  vocab, length, size, dim = 49408, 77, 224, 512
  if tiny:
    vocab, length, size, dim = 30, 8, 24, 12
    shape = dict(num_hidden_layers=2, num_attention_heads=4)
    shape |= dict(hidden_size=16, intermediate_size=24)
    config = transformers.CLIPConfig(
      text_config=shape
      | dict(
        vocab_size=vocab,
        max_position_embeddings=12,
        bos_token_id=0,
        pad_token_id=0,
        eos_token_id=vocab - 1,
      ),
      vision_config=shape | dict(image_size=size, patch_size=8),
      projection_dim=dim,
    )
    ours = dict(width=16, layers=2, heads=4, hidden=24)
    image |= ours | dict(patch=8)
    text |= ours | dict(max_length=12)

  def forward(model, inputs):
    out = model(
      input_ids=token_ids(inputs["text"]),
      pixel_values=channels_first(inputs["image"]),
    )
    return {"image": out.image_embeds, "text": out.text_embeds}

  return Case(
    "HF CLIP",
    "hf_clip",
    lambda: transformers.CLIPModel(config),
    forward,
    dict(
      image=image,
      text=text,
      dim=dim,
      vocab_size=vocab,
      projection_bias=False,
    ),
    dict(image=images(size), text=texts(vocab, length, 2, clip=True)),
  )


def metaclip_2() -> Case:
  """Makes the case of MetaCLIP 2: CLIP whose end token has a small id."""
  case = clip(tiny=True)
  shape = dict(num_hidden_layers=2, num_attention_heads=4)
  shape |= dict(hidden_size=16, intermediate_size=24)
  config = transformers.MetaClip2Config(
    text_config=shape
    | dict(vocab_size=30, max_position_embeddings=12, eos_token_id=2),
    vision_config=shape | dict(image_size=24, patch_size=8),
    projection_dim=12,
  )
  ids = case.inputs["text"].copy()
  ids[ids == 2] = 3
  ids[ids == 29] = 2
  text = case.towers["text"] | dict(end_id=2)
  return case._replace(
    name="HF MetaCLIP 2",
    make=lambda: transformers.MetaClip2Model(config),
    towers=case.towers | dict(text=text),
    inputs=case.inputs | dict(text=ids),
    golden=False,
  )


def siglip(*, tiny: bool) -> Case:
  """Makes the case of Hugging Face's SigLIP: both towers, one projection."""
  config = transformers.SiglipConfig()
  image, text = dict(name="siglip_vit_b16"), dict(name="siglip_text")
  vocab, length, size, dim = 32000, 64, 224, 768
  if tiny:
    vocab, length, size, dim = 30, 8, 24, 16
    shape = dict(num_hidden_layers=2, num_attention_heads=4)
    shape |= dict(hidden_size=dim, intermediate_size=24)
    ends = dict(bos_token_id=0, eos_token_id=1)
    config = transformers.SiglipConfig(
      text_config=shape
      | ends
      | dict(vocab_size=vocab, max_position_embeddings=length),
      vision_config=shape | dict(image_size=size, patch_size=8),
    )
    ours = dict(width=dim, layers=2, heads=4, hidden=24)
    image |= ours | dict(patch=8)
    text |= ours | dict(max_length=length)

  def forward(model, inputs):
    out = model(
      input_ids=token_ids(inputs["text"]),
      pixel_values=channels_first(inputs["image"]),
    )
    return {"image": out.image_embeds, "text": out.text_embeds}

  return Case(
    "HF SigLIP",
    "hf_siglip",
    lambda: transformers.SiglipModel(config),
    forward,
    dict(image=image, text=text, dim=dim, vocab_size=vocab, projected=["text"]),
    dict(image=images(size), text=texts(vocab, length, 2)),
  )


def naflex(*, tiny: bool) -> Case:
  """Makes the case of SigLIP 2 for images of any aspect ratio, packed."""
  config = transformers.Siglip2Config()
  case = siglip(tiny=tiny)
  patch, size, grids = 16, 256, ((9, 28), (16, 16))
  image, text = dict(name="naflex_vit"), case.inputs["text"]
  if tiny:
    # Of less than the 3 x 3 positions, of more, and of both.
    patch, size, grids = 8, 32, ((2, 5), (16, 1), (4, 4), (1, 1))
    shape = dict(num_hidden_layers=2, num_attention_heads=4)
    shape |= dict(hidden_size=16, intermediate_size=24)
    config = transformers.Siglip2Config(
      text_config=shape
      | dict(vocab_size=30, max_position_embeddings=8)
      | dict(bos_token_id=0, eos_token_id=1),
      vision_config=shape | dict(patch_size=patch, num_patches=9),
    )
    image = case.towers["image"] | image | dict(grid=3)
    text = texts(30, 8, len(grids))

  def forward(model, inputs):
    pixels, mask = unpacked(inputs["image"], grids, patch)
    out = model(
      input_ids=token_ids(inputs["text"]),
      pixel_values=pixels,
      pixel_attention_mask=mask,
      spatial_shapes=torch.tensor(grids),
    )
    return {"image": out.image_embeds, "text": out.text_embeds}

  return case._replace(
    name="HF SigLIP 2, NaFlex",
    make=lambda: transformers.Siglip2Model(config),
    forward=forward,
    towers=case.towers | dict(image=image),
    inputs=dict(image=packed(grids, size, patch), text=text),
  )


def packed(grids, size: int, patch: int) -> np.ndarray:
  """Draws pixels of images with these rows and columns of patches, packed."""
  pixels = np.zeros((len(grids), size, size + patch, 3), np.float32)
  pixels[:, :, :size] = images(size, len(grids))
  for x, grid in zip(pixels, grids, strict=True):
    x[:2, size, 1] = grid
  return pixels


def unpacked(image, grids, patch: int) -> tuple:
  """Returns patches as transformers takes them, and which are of the image."""
  size = image.shape[1]
  side = size // patch
  x = image[:, :, :size].reshape(-1, side, patch, side, patch, 3)
  x = torch.from_numpy(x).permute(0, 1, 3, 2, 4, 5).double()
  lengths = torch.tensor([rows * columns for rows, columns in grids])
  mask = torch.arange(side * side)[None] < lengths[:, None]
  return x.reshape(len(grids), side * side, -1), mask.long()


def dinov2(*, tiny: bool) -> Case:
  """Makes the case of Hugging Face's DINOv2, ViT-S/14."""
  shape = dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=6)
  ours, size, patch = {}, 224, 14
  if tiny:
    shape = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
    ours = dict(width=16, layers=2, heads=4, hidden=32, patch=8)
    shape["mlp_ratio"], size, patch = 2, 24, 8
  config = transformers.Dinov2Config(image_size=size, patch_size=patch, **shape)

  def forward(model, inputs):
    return {"image": model(channels_first(inputs["image"])).pooler_output}

  return Case(
    "HF DINOv2",
    "hf_dinov2",
    lambda: transformers.Dinov2Model(config),
    forward,
    dict(image=dict(name="dinov2_vit_s14", **ours), dim=shape["hidden_size"]),
    dict(image=images(size)),
  )


def cases(*, tiny: bool) -> list[Case]:
  """Makes all cases of transformers at one size."""
  return [
    resnet(tiny=tiny),
    basic_resnet(tiny=tiny),
    vit(tiny=tiny),
    vit(tiny=tiny, pooler=True),
    distilbert(tiny=tiny),
    bert(tiny=tiny),
    bert(tiny=tiny, pooler=True),
    bert(tiny=tiny, mean=True),
    clip(tiny=tiny),
    *([metaclip_2()] if tiny else []),
    siglip(tiny=tiny),
    naflex(tiny=tiny),
    dinov2(tiny=tiny),
  ]

"""Hugging Face's `config.json` of a model, from the arguments of our towers."""

from collections.abc import Mapping
from typing import Any

from nuclr_jax.lab.models.pretrained.published import LARGEST_ID

Arguments = Mapping[str, Any]  # of a tower's factory, defaults included
# Activations that Hugging Face names differently.
HIDDEN_ACT = {"gelu_tanh": "gelu_pytorch_tanh"}


def image_config(image: Arguments, *, image_size: int) -> dict[str, Any]:
  """Returns the config of a single image tower.

  Raises:
    ValueError: If Hugging Face has no such tower.
  """
  if "bottleneck" in image:
    widths = [image["width"] * 2**i for i in range(len(image["stages"]))]
    return {
      "model_type": "resnet",
      "architectures": ["ResNetModel"],
      "num_channels": 3,
      "embedding_size": image["width"],
      "hidden_sizes": [x * (4 if image["bottleneck"] else 1) for x in widths],
      "depths": list(image["stages"]),
      "layer_type": "bottleneck" if image["bottleneck"] else "basic",
      "hidden_act": "relu",
      "downsample_in_first_stage": False,
      "downsample_in_bottleneck": False,
    }
  if not image["name"].startswith("vit_"):
    raise ValueError(
      f"Hugging Face has no layout for {image['name']!r}; export a model with "
      "a ResNet or a ViT, or one of OpenCLIP's with --layout=open_clip"
    )
  return {
    "model_type": "vit",
    "architectures": ["ViTModel"],
    "image_size": image_size,
    "patch_size": image["patch"],
    "num_channels": 3,
    "qkv_bias": True,
    "layer_norm_eps": image["eps"],
    "hidden_dropout_prob": image["dropout"],
    "attention_probs_dropout_prob": 0.0,
  } | _sizes(image)


def text_config(text: Arguments, *, vocab_size: int) -> dict[str, Any]:
  """Returns the config of a single text tower.

  Raises:
    ValueError: If Hugging Face has no such tower.
  """
  if text["name"] in ("rows", "transformer"):
    raise ValueError(
      f"Hugging Face has no layout for {text['name']!r}; export a model with a "
      "BERT or a DistilBERT"
    )
  if text["name"] == "distilbert":
    if text["eps"] != 1e-12 or text["activation"] != "gelu":
      raise ValueError(
        "Hugging Face's DistilBERT has eps 1e-12 and activation 'gelu', got "
        f"{text['eps']} and {text['activation']!r}; export a BERT instead"
      )
    return {
      "model_type": "distilbert",
      "architectures": ["DistilBertModel"],
      "vocab_size": vocab_size,
      "max_position_embeddings": text["max_length"],
      "dim": text["width"],
      "n_layers": text["layers"],
      "n_heads": text["heads"],
      "hidden_dim": text["hidden"] or 4 * text["width"],
      "activation": "gelu",
      "dropout": text["dropout"],
      "attention_dropout": text["dropout"],
      "pad_token_id": 0,
    }
  return {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": vocab_size,
    "max_position_embeddings": text["max_length"],
    "type_vocab_size": 2,
    "layer_norm_eps": text["eps"],
    "hidden_dropout_prob": text["dropout"],
    "attention_probs_dropout_prob": text["dropout"],
    "pad_token_id": 0,
  } | _sizes(text)


def dual_encoder_config(
  image: Arguments,
  text: Arguments,
  *,
  image_size: int,
  vocab_size: int,
  dim: int,
) -> dict[str, Any]:
  """Returns the config of one model with a ViT and a BERT."""
  return {
    "model_type": "vision-text-dual-encoder",
    "architectures": ["VisionTextDualEncoderModel"],
    "projection_dim": dim,
    "vision_config": image_config(image, image_size=image_size),
    "text_config": text_config(text, vocab_size=vocab_size),
  }


def clip_config(
  image: Arguments,
  text: Arguments,
  *,
  image_size: int,
  vocab_size: int,
  dim: int,
) -> dict[str, Any]:
  """Returns the config of one model with CLIP's two towers.

  Raises:
    ValueError: If the end token has an id that means another one there.
  """
  if text["end_id"] == LARGEST_ID:
    raise ValueError(
      f"Hugging Face's CLIP reads the end token {LARGEST_ID} as that with the "
      "largest id; choose --layout=open_clip"
    )
  vision = {
    "model_type": "clip_vision_model",
    "image_size": image_size,
    "patch_size": image["patch"],
    "layer_norm_eps": image["eps"],
    "projection_dim": dim,
  }
  language = {
    "model_type": "clip_text_model",
    "vocab_size": vocab_size,
    "max_position_embeddings": text["max_length"],
    "layer_norm_eps": text["eps"],
    # The first published configs had the id 2 by mistake. Ever since,
    # transformers has taken it to mean what None means to our tower: that the
    # token with the largest id is the end.
    "eos_token_id": LARGEST_ID if text["end_id"] is None else text["end_id"],
    "projection_dim": dim,
  }
  return {
    "model_type": "clip",
    "architectures": ["CLIPModel"],
    "projection_dim": dim,
    "vision_config": vision | _sizes(image),
    "text_config": language | _sizes(text),
  }


def siglip_config(
  image: Arguments, text: Arguments, *, image_size: int, vocab_size: int
) -> dict[str, Any]:
  """Returns the config of one model with SigLIP's two towers, or SigLIP 2's.

  Args:
    image: The image tower, for squares or for images of any aspect ratio.
    text: The text tower.
    image_size: The side of squares, in pixels.
    vocab_size: The number of token ids.
  """
  vision = {
    "model_type": "siglip_vision_model",
    "image_size": image_size,
    "patch_size": image["patch"],
    "layer_norm_eps": image["eps"],
  }
  language = {
    "model_type": "siglip_text_model",
    "vocab_size": vocab_size,
    "max_position_embeddings": text["max_length"],
    "layer_norm_eps": text["eps"],
  }
  kind, architecture = "siglip", "SiglipModel"
  if image["name"] == "naflex_vit":  # SigLIP 2's model of that kind
    del vision["image_size"]
    vision["model_type"] = "siglip2_vision_model"
    vision["num_patches"] = image["grid"] ** 2  # with a learned position
    language["model_type"] = "siglip2_text_model"
    kind, architecture = "siglip2", "Siglip2Model"
  return {
    "model_type": kind,
    "architectures": [architecture],
    "vision_config": vision | _sizes(image),
    "text_config": language | _sizes(text),
  }


def _sizes(tower: Arguments) -> dict[str, Any]:
  """Returns the part of the config that all transformers share."""
  return {
    "hidden_size": tower["width"],
    "num_hidden_layers": tower["layers"],
    "num_attention_heads": tower["heads"],
    "intermediate_size": tower["hidden"] or 4 * tower["width"],
    "hidden_act": HIDDEN_ACT.get(tower["activation"], tower["activation"]),
  }

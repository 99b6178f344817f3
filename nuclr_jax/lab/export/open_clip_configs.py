"""OpenCLIP's config of a model, from the arguments of our towers."""

from collections.abc import Mapping
from typing import Any

from nuclr_jax.lab.models.pretrained.timm_towers import SIGLIP_SIZES

Arguments = Mapping[str, Any]  # of a tower's factory, defaults included
# Both towers of CLIP have these in OpenCLIP.
EPS, ACTIVATIONS = 1e-5, ("gelu", "quick_gelu")


def open_clip_config(
  image: Arguments,
  text: Arguments,
  *,
  image_size: int,
  vocab_size: int,
  length: int,
  dim: int,
) -> tuple[str, dict[str, Any]]:
  """Returns the name of the layout of the weights, and `model_cfg`.

  Args:
    image: The arguments of the image tower, and its name.
    text: The arguments of the text tower, and its name.
    image_size: Height and width of the images, in pixels.
    vocab_size: The number of token ids.
    length: The number of token ids per text.
    dim: The width of the embeddings.

  Raises:
    ValueError: If OpenCLIP has no such towers.
  """
  kinds = text["name"], image["name"].partition("_")[0]
  if kinds == ("clip_text", "clip"):
    layout, vision = _clip_vision(image)
    if len({x["activation"] for x in (image, text) if "activation" in x}) > 1:
      raise ValueError(
        "OpenCLIP has one activation for both towers, got "
        f"{image['activation']!r} and {text['activation']!r}"
      )
    more = {"quick_gelu": _clip_blocks("text", text)}
    end_id = text["end_id"]
    language = {} if end_id is None else {"pool_type": "eos", "eos_id": end_id}
  elif kinds == ("siglip_text", "siglip"):
    layout, vision = "open_clip_siglip", _siglip_vision(image, image_size)
    more = {"custom_text": True, "init_logit_bias": -10}
    language = _siglip_text(text)
  else:
    raise ValueError(
      "OpenCLIP has CLIP's two towers or SigLIP's two, got "
      f"{image['name']!r} and {text['name']!r}; choose --layout=hugging_face"
    )
  language |= {
    "context_length": text["max_length"],
    "vocab_size": vocab_size,
    "width": text["width"],
    "heads": text["heads"],
    "layers": text["layers"],
    "mlp_ratio": _ratio(text),
    # OpenCLIP reads the tokenizer from the folder if any name is given.
    "hf_tokenizer_name": "tokenizer.json",
    "tokenizer_kwargs": {"clean": "whitespace"},
  }
  if text["max_length"] != length:
    raise ValueError(
      f"OpenCLIP pads texts to the {text['max_length']} positions of the text "
      f"tower, and the tokenizer has {length}; they must be the same"
    )
  return layout, {
    "embed_dim": dim,
    "vision_cfg": vision | {"image_size": image_size},
    "text_cfg": language,
  } | more


def _clip_vision(image: Arguments) -> tuple[str, dict[str, Any]]:
  """Returns the layout and `vision_cfg` of CLIP's ViT or ResNet."""
  if "stages" in image:
    sizes = {"layers": list(image["stages"]), "width": image["width"]}
    return "open_clip", sizes
  _clip_blocks("image", image)
  return "open_clip", {
    "layers": image["layers"],
    "width": image["width"],
    "head_width": image["width"] // image["heads"],
    "patch_size": image["patch"],
    "mlp_ratio": _ratio(image),
  }


def _clip_blocks(side: str, tower: Arguments) -> bool:
  """Returns whether CLIP's blocks have quick GELUs; checks the rest."""
  if tower["eps"] != EPS or tower["activation"] not in ACTIVATIONS:
    raise ValueError(
      f"OpenCLIP's towers have eps {EPS} and an activation of {ACTIVATIONS}, "
      f"got {tower['eps']} and {tower['activation']!r} of the {side} tower"
    )
  return tower["activation"] == "quick_gelu"


def _siglip_vision(image: Arguments, image_size: int) -> dict[str, Any]:
  """Returns `vision_cfg` of SigLIP, which names a model of timm."""
  if (image["activation"], image["eps"]) != ("gelu", 1e-6):
    raise ValueError(
      "OpenCLIP takes SigLIP's image tower from timm, which has the activation "
      f"'gelu' and eps 1e-6, got {image['activation']!r} and {image['eps']}; "
      "choose --layout=hugging_face"
    )
  hidden = image["hidden"] or 4 * image["width"]
  sizes = (image["width"], image["layers"], image["heads"], hidden)
  names = [name for name, x in SIGLIP_SIZES.items() if x == sizes]
  if not names:
    raise ValueError(
      "OpenCLIP takes SigLIP's image tower from timm, which has these widths, "
      f"layers, heads and hidden units: {SIGLIP_SIZES}, got {sizes}; choose "
      "--layout=hugging_face"
    )
  return {
    "timm_model_name": (
      f"vit_{names[0]}_patch{image['patch']}_siglip_{image_size}"
    ),
    "timm_model_pretrained": False,
    "timm_pool": "map",
    "timm_proj": "none",
  }


def _siglip_text(text: Arguments) -> dict[str, Any]:
  """Returns what SigLIP's `text_cfg` has beyond CLIP's."""
  language = {
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
    "norm_kwargs": {"eps": text["eps"]},
  }
  if text["activation"] == "gelu_tanh":
    language["act_kwargs"] = {"approximate": "tanh"}
  return language


def _ratio(tower: Arguments) -> float:
  return (tower["hidden"] or 4 * tower["width"]) / tower["width"]

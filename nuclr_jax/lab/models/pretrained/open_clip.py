"""What an `open_clip_config.json` says of a model, as keys of our configs.

OpenCLIP takes some image towers from timm and some text towers from
transformers, by name. `timm_towers` and `HF_TEXTS` say what the names mean.
"""

from collections.abc import Sequence
import os
from typing import Any, NamedTuple

from nuclr_jax.lab.models.layers import MEAN, STD
from nuclr_jax.lab.models.pretrained import hub, inputs, timm_towers
from nuclr_jax.lab.models.pretrained.specs import Json
from nuclr_jax.types import Sides

CLIP_TOKENIZER = "openai/clip-vit-base-patch32"  # of most models
LENGTH = 77  # of texts, where a config has none
EPS = 1e-5  # of LayerNorm, likewise


def _hf_text(name: str, *sizes: int) -> dict[str, Any]:
  names = ("width", "layers", "heads", "hidden")
  return {"name": name} | dict(zip(names, sizes, strict=True))


_NLLB = "facebook/nllb-200-distilled"
# Of transformers' text encoders: our tower, and the number of its token ids.
HF_TEXTS = {
  "roberta-base": (_hf_text("roberta", 768, 12, 12, 3072), 50_265),
  "xlm-roberta-base": (_hf_text("roberta", 768, 12, 12, 3072), 250_002),
  "xlm-roberta-large": (_hf_text("roberta", 1024, 24, 16, 4096), 250_002),
  f"{_NLLB}-600M": (_hf_text("nllb", 1024, 12, 16, 4096), 256_206),
  f"{_NLLB}-1.3B": (_hf_text("nllb", 1024, 24, 16, 8192), 256_206),
}
HF_HEADS = {  # pooling and projection of our towers
  "roberta": ("mean_pooler", "mlp"),
  "nllb": ("cls_pooler", "linear"),
}
HF_PADDING = 1  # the id of all of them
PADDING = {"facebook/xlm-v-base": 1}  # of tokenizers that do not pad with 0
GEMMA = 256_000  # ids of the only vocabulary of SigLIP that pads with 0
ROBERTA_POSITIONS = 514
# OpenCLIP leaves the language of NLLB's tokenizer at its default.
NLLB_TEMPLATE = "eng_Latn $A </s>"


class Part(NamedTuple):
  """One tower of a model, and its projection."""

  tower: dict[str, Any]  # keys of `config.model.image` or `.text`
  is_projected: bool = True
  is_biased: bool = False
  vocab_size: int | None = None  # of texts


def read_open_clip(source, spec: Json) -> tuple[dict, dict]:
  """Reads an `open_clip_config.json`: `(config.model, config.data)`.

  Args:
    source: The folder, or the name on the hub.
    spec: The content of the file.

  Raises:
    ValueError: If the model has a part that the towers of this library do not
      have.
    KeyError: If something is missing.
  """
  whole, preprocessing = spec["model_cfg"], spec.get("preprocess_cfg") or {}
  image, text = read_image(whole), read_text(whole)
  parts = Sides(image, text)._asdict().items()
  projected = tuple(side for side, part in parts if part.is_projected)
  biased = tuple(side for side, part in parts if part.is_biased)
  model = {
    "dim": whole["embed_dim"],
    "projection_bias": bool(biased) if biased in ((), projected) else biased,
    "image": dict(image.tower),
    "text": text.tower,
  }
  if len(projected) < 2:
    model["projected"] = projected
  preprocessing = {key: x for key, x in preprocessing.items() if x is not None}
  pixels, data = inputs.of_open_clip(
    source,
    whole | {"text_cfg": whole["text_cfg"] | {"vocab_size": text.vocab_size}},
    {"mean": MEAN, "std": STD} | preprocessing,
  )
  model["image"] |= pixels
  if pad_id := _padding(source, whole["text_cfg"], text):
    data["pad_id"] = pad_id
  if text.tower["name"] == "nllb":
    data["template"] = NLLB_TEMPLATE
  tokenizer = _tokenizer(source, whole["text_cfg"])
  return model, data | {"tokenizer": tokenizer}


def _padding(source, spec: Json, text: Part) -> int:
  """Returns the id with which texts are padded."""
  if text.tower["name"] in HF_HEADS:
    return HF_PADDING
  name = spec.get("hf_tokenizer_name")
  otherwise = PADDING.get(name, 0)
  if text.tower["name"] == "siglip_text":
    # The id of </s> in T5's and mT5's vocabularies, and of <pad> in Gemma's.
    otherwise = 0 if spec["vocab_size"] == GEMMA else 1
  elif not name:  # OpenCLIP's own tokenizer
    return 0
  return inputs.pad_id_beside(source, otherwise)


def _tokenizer(source, text: Json) -> str:
  """Returns where the tokenizer is: beside the weights, or another model's."""
  try:
    hub.find_file(source, inputs.TOKENIZERS)
  except ValueError:
    name = text.get("hf_tokenizer_name", CLIP_TOKENIZER)
    # A model's files say nothing about this machine, or about buckets.
    if not hub.is_name(name) or name != CLIP_TOKENIZER and os.path.exists(name):
      raise ValueError(
        f"hf_tokenizer_name is {str(name)[:200]!r}, but it must be a name on "
        "the Hugging Face hub, of which there is no file or folder here; copy "
        "that tokenizer's tokenizer.json into the model's folder"
      ) from None
    return name
  return os.fspath(source)


def read_image(whole: Json) -> Part:
  """Reads the image tower of a `model_cfg`.

  Raises:
    ValueError: If there is no such tower here.

  Example:
    >>> vision = {"timm_model_name": "convnext_base", "timm_pool": ""}
    >>> read_image({"embed_dim": 8, "vision_cfg": vision}).tower["width"]
    128
  """
  vision = whole["vision_cfg"]
  if "timm_model_name" in vision:
    tower, is_projected, is_biased = timm_towers.read_timm(
      vision, whole["embed_dim"]
    )
    return Part(tower, is_projected, is_biased)
  if isinstance(vision["layers"], Sequence):
    return _resnet(vision, whole["embed_dim"])
  return _vit(vision, _activation(whole), whole["embed_dim"])


def _activation(whole: Json) -> str:
  return "quick_gelu" if whole.get("quick_gelu") else "gelu"


def _resnet(vision: Json, dim: int) -> Part:
  known = {"layers", "width", "patch_size", "image_size", "head_width"}
  inputs.reject("vision_cfg", vision, known)
  tower = {
    "name": "clip_resnet50",
    "stages": tuple(vision["layers"]),
    "width": vision["width"],
    "heads": vision["width"] * 32 // vision.get("head_width", 64),
    "features": dim,
  }
  return Part(tower, is_projected=False)


def _vit(vision: Json, activation: str, dim: int) -> Part:
  known = {"layers", "width", "patch_size", "image_size", "head_width"}
  known |= {"mlp_ratio", "no_ln_pre", "pool_type", "final_ln_after_pool"}
  # CoCa's; what it outputs for its decoder of captions is not read.
  known |= {"attentional_pool", "attn_pooler_heads", "output_tokens"}
  inputs.reject("vision_cfg", vision, known)
  width = vision["width"]
  tower = {
    "name": "clip_vit_b32",
    "patch": vision["patch_size"],
    "width": width,
    "layers": vision["layers"],
    "heads": width // vision.get("head_width", 64),
    "hidden": int(width * vision.get("mlp_ratio", 4.0)),
    "activation": activation,
  }
  if vision.get("no_ln_pre"):
    tower |= {"norm_before": False, "patch_bias": False}
  if attends := vision.get("attentional_pool"):
    if attends is not True:
      raise ValueError(
        f"attentional_pool is {attends!r}; our towers have that of True"
      )
    heads = vision.get("attn_pooler_heads", 8)
    tower |= {"pool": "query", "probe": (dim, heads)}
  pool = vision.get("pool_type", "tok")
  pooled_first = bool(vision.get("final_ln_after_pool"))
  if pool == "avg" and pooled_first:
    tower["pool"] = "mean"
  elif pool != "tok":
    raise ValueError(
      f"pool_type is {pool!r} and final_ln_after_pool is {pooled_first}; our "
      "towers have a pool_type of 'tok', or of 'avg' before the last LayerNorm"
    )
  return Part(tower)


def read_text(whole: Json) -> Part:
  """Reads the text tower of a `model_cfg`; see `read_image`.

  Example:
    >>> text = dict(width=8, heads=2, layers=1, vocab_size=9, eos_id=3)
    >>> part = read_text({"text_cfg": text | {"pool_type": "eos"}})
    >>> part.tower["name"], part.tower["end_id"], part.vocab_size
    ('clip_text', 3, 9)
  """
  text = whole["text_cfg"]
  if text.get("hf_model_name"):
    return _of_transformers(text, whole["embed_dim"])
  known = {"context_length", "vocab_size", "width", "heads", "layers"}
  known |= {"mlp_ratio", "hf_tokenizer_name", "tokenizer_kwargs"}
  known |= {"pool_type", "eos_id", "no_causal_mask", "norm_kwargs"}
  known |= {"act_kwargs", "proj_bias", "proj_type"}
  known |= {"embed_cls", "output_tokens"}  # CoCa's
  inputs.reject("text_cfg", text, known)
  norm, act = (text.get(f"{x}_kwargs") or {} for x in ("norm", "act"))
  inputs.reject("norm_kwargs", norm, {"eps"})
  inputs.reject("act_kwargs", act, {"approximate"})
  if isinstance(text["layers"], Sequence):
    raise ValueError(
      f"layers must be a number in text_cfg, got {text['layers']}"
    )
  is_siglip = "norm_kwargs" in text and bool(text.get("no_causal_mask"))
  tanh = act.get("approximate") == "tanh"
  tower = {
    "name": "siglip_text" if is_siglip else "clip_text",
    "max_length": text.get("context_length", LENGTH),
    "width": text["width"],
    "layers": text["layers"],
    "heads": text["heads"],
    "hidden": int(text["width"] * text.get("mlp_ratio", 4.0)),
    "activation": "gelu_tanh" if tanh else _activation(whole),
  }
  if is_siglip or norm:
    tower["eps"] = norm.get("eps", EPS)
  if (kind := text.get("proj_type", "linear")) not in ("linear", "none"):
    raise ValueError(f"proj_type is {kind!r}; it can be 'linear' or 'none'")
  projected = kind == "linear"
  return Part(
    tower | _pooling(text, is_siglip),
    is_projected=projected,
    is_biased=projected and bool(text.get("proj_bias")),
    vocab_size=text["vocab_size"],
  )


def _pooling(text: Json, is_siglip: bool) -> dict[str, Any]:
  """Returns whether a text's tokens attend to later ones, and its feature."""
  if text.get("embed_cls"):
    if text.get("no_causal_mask"):
      raise ValueError("embed_cls needs a causal mask; no_causal_mask is true")
    return {"pool": "class", "max_length": text.get("context_length", 77) + 1}
  pool = text.get("pool_type", "argmax")
  pools = {"argmax": "end", "eos": "end", "last": "last"}
  if pool not in pools:
    raise ValueError(
      f"pool_type is {pool!r} in text_cfg; it can be one of {sorted(pools)}"
    )
  causal = not text.get("no_causal_mask", False)
  found = {} if causal or is_siglip else {"causal": False}
  if pools[pool] != ("end" if causal else "last"):
    found["pool"] = pools[pool]
  return found | ({"end_id": text.get("eos_id", 2)} if pool == "eos" else {})


def _of_transformers(text: Json, dim: int) -> Part:
  known = {"hf_model_name", "hf_tokenizer_name", "tokenizer_kwargs"}
  known |= {"hf_pooler_type", "hf_proj_type", "hf_model_pretrained"}
  known |= {"context_length"}
  # OpenCLIP's own sizes say nothing about these towers.
  known |= {"width", "heads", "layers", "vocab_size"}
  inputs.reject("text_cfg", text, known)
  name = str(text["hf_model_name"]).removeprefix("FacebookAI/")
  if name not in HF_TEXTS:
    raise ValueError(
      f"the text tower is transformers' {name[:100]!r}; those that can be read "
      f"are {sorted(HF_TEXTS)}"
    )
  tower, vocab_size = HF_TEXTS[name]
  defaults = {"hf_pooler_type": "mean_pooler", "hf_proj_type": "mlp"}
  head = tuple(text.get(key) or x for key, x in defaults.items())
  if head != (expected := HF_HEADS[tower["name"]]):
    raise ValueError(
      f"hf_pooler_type and hf_proj_type are {head}; with {name!r}, they can be "
      f"{expected}"
    )
  if tower["name"] == "roberta":
    hidden = (tower["width"] + dim) // 2
    tower = tower | {"head": hidden, "max_length": ROBERTA_POSITIONS}
  return Part(tower, vocab_size=vocab_size)

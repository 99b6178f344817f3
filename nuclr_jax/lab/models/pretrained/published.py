"""What the files of a published model say about it, as keys of our configs.

`read_published` reads `config.json` (CLIP, MetaCLIP 2, SigLIP, SigLIP 2 and ViT
with BERT in Hugging Face's layout, and what `nuclr export` writes) or
`open_clip_config.json` (`open_clip`), and the files for images and texts beside
them (`inputs`); a folder with a `modules.json` is a sentence encoder
(`sentence_encoders`). The result names our towers, their sizes, and the
preprocessing that the model was trained with.
"""

import logging
import math
import os
import pathlib
from typing import Any, NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.models.pretrained import (
  architectures,
  hub,
  inputs,
  load,
  sentence_encoders,
)
from nuclr_jax.lab.models.pretrained.open_clip import (
  CLIP_TOKENIZER,
  read_open_clip,
)
from nuclr_jax.lab.models.pretrained.specs import (
  Json,
  read_spec,
  sizes_of,
)

log = logging.getLogger(__name__)

CONFIGS = ("config.json", "open_clip_config.json")
ADAPTER = "adapter_config.json"  # which peft writes, as for LoRA
# CLIP's end token in Hugging Face's configs that name none; and the id that the
# first ones named by mistake, which means that the largest id is the end.
END_ID, LARGEST_ID = 49_407, 2


class Published(NamedTuple):
  """A published model, as keys of our configs."""

  model: dict[str, Any]  # `config.model`, for a sentence encoder that of views
  data: dict[str, Any]  # the keys of `config.data` for its inputs
  temperature: float | None  # as learned; None if the file has none


def read_published(
  source: str | os.PathLike, *, architecture: str | os.PathLike | None = None
) -> Published:
  """Reads how to build a published model, and how to prepare its inputs.

  Args:
    source: A folder, or a name on the hub such as
      "openai/clip-vit-base-patch32". Or a file of weights, such as a checkpoint
      of OpenCLIP's training, with its architecture.
    architecture: What such a file is of: an architecture for
      `architectures.find_architecture`, or a folder or a name on the hub of a
      model like it.

  Raises:
    ValueError: If there is no such model, or it has a part that the towers of
      this library do not have.

  Example:
    >>> model = read_published("google/siglip2-base-patch16-224").model
    ... # doctest: +SKIP
    >>> model["image"]["name"], model["projected"]  # doctest: +SKIP
    ('siglip_vit_b16', ('text',))
  """
  described = source
  if architectures.is_weights(source):
    if architecture is None:
      raise ValueError(
        f"{source} has nothing but weights, which do not say how many heads "
        "and which activation the towers have, which tokenizer they take and "
        f"how images are prepared; give the architecture: {architectures.HOW}"
      )
    described = architecture
  elif architecture is not None and architectures.is_missing(source):
    raise ValueError(f"{source}, the weights of {architecture}, does not exist")
  elif architecture is not None:
    raise ValueError(
      f"--architecture is for a file of weights alone, such as epoch_3.pt, and "
      f"{source} is none; leave it out"
    )
  spec = None
  if described is not source:
    spec = architectures.find_architecture(architecture)
  if spec is None:
    model, data = _description(described)
  else:
    model, data = _of_architecture(architecture, spec)
  of_texts = "encoder" in model
  if described is not source and (of_texts or _is_separate(described)):
    raise ValueError(
      f"{described} is not a model of images and texts in one file, and "
      f"{source} cannot be its weights; give {architectures.HOW}"
    )
  scale = None if of_texts else load.read_logit_scale(source)
  temperature = None if scale is None else math.exp(-scale)
  leave_rest(model, data)
  model = {"name": "towers", "pretrained": os.fspath(source)} | model
  data = {"name": "image_text", "tokenizer": os.fspath(described)} | data
  return Published(model, data, temperature)


def _is_separate(source: str | os.PathLike) -> bool:
  """Returns whether a model is a folder of `nuclr export` with two encoders."""
  folder = files.remote.fetch(source).expanduser()
  return (folder / load.PROJECTIONS).exists()


def _description(source: str | os.PathLike) -> tuple[dict, dict]:
  """Reads a model's own files: `(config.model, config.data)`."""
  if _is_separate(source):
    folder = files.remote.fetch(source).expanduser()
    with files.reading(folder / load.PROJECTIONS):
      return _of_separate_encoders(folder)
  of_texts = _is_of_texts(source)
  # The hub is asked for the adapters of sentence encoders only: offline, each
  # further question delays a model that has been downloaded.
  is_here = files.remote.fetch(source).expanduser().is_dir()
  if (of_texts or is_here) and hub.find_optional(source, ADAPTER):
    raise ValueError(
      f"{source} has an {ADAPTER}: its weights change those of another model; "
      "merge them, and save the whole model"
    )
  if of_texts:
    return sentence_encoders.read_sentence_encoder(source)
  path = hub.find_file(source, CONFIGS)
  read = read_open_clip if path.name == CONFIGS[1] else _of_hugging_face
  spec = read_spec(path)
  with files.reading(path):
    try:
      return read(source, spec)
    except KeyError as error:
      raise ValueError(f"it lacks {error}") from error


def _of_architecture(name: str | os.PathLike, spec: Json) -> tuple[dict, dict]:
  """Reads OpenCLIP's own config of a model, whose tokenizer is another's."""
  words = spec["text_cfg"].get("hf_tokenizer_name") or CLIP_TOKENIZER
  log.warning(
    "%s does not say how images were prepared: they are as OpenCLIP's default "
    "has them, OpenAI's mean and std, and cropped; if training was otherwise, "
    "set --config.model.image.mean, .std, --config.data.resize and .kernel",
    name,
  )
  try:
    return read_open_clip(words, {"model_cfg": spec})
  except KeyError as error:
    raise ValueError(f"architecture {name}: it lacks {error}") from error
  except ValueError as error:
    raise ValueError(f"architecture {name}: {error}") from error


def leave_rest(model: dict[str, Any], data: dict[str, Any]) -> None:
  """Lets a ViT leave out what its patches do not fill, as its library does.

  Args:
    model: `config.model`, which is changed.
    data: `config.data`.
  """
  image = model.get("image", {})
  if "vit_" in image.get("name", "") and data["size"] % image["patch"]:
    image["leave_rest"] = True


def _is_of_texts(source) -> bool:
  """Returns whether a model is a sentence encoder.

  Its library also saves models of images and texts, in their own layout.
  """
  try:
    path = hub.find_file(source, CONFIGS)
    kind = read_spec(path).get("model_type")
  except ValueError:  # its transformer is elsewhere, or a file is damaged
    return sentence_encoders.find_modules(source) is not None
  if path.name == CONFIGS[1] or kind in _readers():
    return False
  return sentence_encoders.find_modules(source) is not None


def _readers() -> dict[str, Any]:
  """Returns what reads models of images and texts, by their types."""
  return {
    "clip": _hf_clip,
    "metaclip_2": _hf_metaclip_2,
    "siglip": _hf_siglip,
    "siglip2": _hf_siglip2,
    "vision-text-dual-encoder": _hf_dual_encoder,
  }


def _of_hugging_face(source, spec: Json) -> tuple[dict, dict]:
  """Reads a `config.json`: `(config.model, config.data)`."""
  kind, readers = spec.get("model_type"), _readers()
  if kind is None and "objective" in spec:
    raise ValueError(f"{source} is a run; give it as --workdir")
  if kind not in readers:
    raise ValueError(
      f"{source} is a model of type {kind!r}; models of images and texts that "
      f"can be read are of the types {sorted(readers)}, or in OpenCLIP's "
      f"layout; those of texts alone have a {sentence_encoders.MODULES}"
    )
  towers = {
    side: dict(spec.get(f"{name}_config") or {})
    # Older files repeat what differs from the defaults; it takes precedence.
    | dict(spec.get(f"{name}_config_dict") or {})
    for side, name in (("image", "vision"), ("text", "text"))
  }
  model, length = readers[kind](spec, towers["image"], towers["text"])
  processors = {"clip": "CLIP", "metaclip_2": "CLIP", "siglip": "Siglip"}
  processors["siglip2"] = "Siglip2"
  kind = processors.get(kind, "ViT")
  image, data = inputs.of_processor(source, kind)
  _check_patches(model["image"], data)
  size = towers["image"].get("image_size")
  if "patch" not in data and size not in (None, data["size"]):
    log.warning(
      "%s: its images are prepared at %d pixels, and its config says %d, for "
      "which its positions are; they are resized. --config.data.size=%d takes "
      "images of that size",
      source,
      data["size"],
      size,
      size,
    )
  model["image"] |= image
  kind = kind.removesuffix("2")  # whose tokenizers are prepared alike
  return model, data | inputs.of_tokenizer(source, kind, length, towers["text"])


def _check_patches(image: Json, data: Json) -> None:
  """Raises ValueError unless images have the patches of their tower."""
  own = image["patch"] if image["name"] == "naflex_vit" else None
  found = data.get("patch")
  if found != own:
    patches = {x: f"patches of {x} pixels" for x in (own, found)}
    patches[None] = "squares"
    raise ValueError(
      f"its processor of images makes {patches[found]}, and the model takes "
      f"{patches[own]}; correct image_processor_type, or patch_size, in the "
      "preprocessor_config.json or the processor_config.json"
    )


def _of_separate_encoders(folder: pathlib.Path) -> tuple[dict, dict]:
  """Reads a folder of `nuclr export` with two encoders."""
  parts = [folder / "image_encoder", folder / "text_encoder"]
  image, text = (read_spec(part / CONFIGS[0]) for part in parts)
  readers = {
    "resnet": _resnet,
    "vit": _vit,
    **dict.fromkeys(("distilbert", "bert"), sentence_encoders.encoder_of),
  }
  tensors = load.read_tensors(folder / load.PROJECTIONS)
  model = {
    "dim": len(tensors["image_projection.weight"]),
    "projection_bias": "image_projection.bias" in tensors,
    "image": readers[image["model_type"]](image),
    "text": readers[text["model_type"]](text),
  }
  if sentence_encoders.find_modules(parts[1]):  # which has the pooling
    whole, _ = sentence_encoders.read_sentence_encoder(parts[1])
    model["text"] = whole["encoder"]
  normalization, data = inputs.of_processor(parts[0], "ViT")
  model["image"] |= normalization
  length = model["text"]["max_length"]
  data |= inputs.of_tokenizer(parts[1], "ViT", length, text)
  return model, data | {"tokenizer": os.fspath(parts[1])}


def _hf_clip(spec: Json, image: Json, text: Json) -> tuple[dict, int]:
  """Reads CLIP's config: `(config.model, length of texts)`."""
  # The defaults of transformers' configs, which files leave out.
  image = dict(hidden_size=768, num_hidden_layers=12, patch_size=32) | image
  text = dict(hidden_size=512, num_attention_heads=8) | text
  length = text.get("max_position_embeddings", 77)
  model = {
    "dim": spec.get("projection_dim", 512),
    "projection_bias": False,
    "image": {"name": "clip_vit_b32", "patch": image["patch_size"]}
    | sizes_of(image, eps=1e-5, activation="quick_gelu"),
    "text": {"name": "clip_text", "max_length": length}
    | sizes_of(text, eps=1e-5, activation="quick_gelu")
    | _end(text),
  }
  return model, length


def _hf_metaclip_2(spec: Json, image: Json, text: Json) -> tuple[dict, int]:
  """Reads MetaCLIP 2's config: CLIP's, but its end token always has its id."""
  model, length = _hf_clip(spec, image, text)
  model["text"]["end_id"] = text.get("eos_token_id", END_ID)
  return model, length


def _end(text: Json) -> dict[str, int]:
  """Reads whose feature is a caption's: by default that of the largest id."""
  end_id = text.get("eos_token_id", END_ID)
  num_ids = text.get("vocab_size", END_ID + 1)
  if type(end_id) is not int or not 0 <= end_id < num_ids:
    raise ValueError(
      f"eos_token_id of text_config must be one of the {num_ids} ids, the one "
      f"with which captions end, got {end_id}"
      f"{'' if 'eos_token_id' in text else ', the default'}"
    )
  return {} if end_id in (LARGEST_ID, num_ids - 1) else {"end_id": end_id}


def _hf_siglip(spec: Json, image: Json, text: Json) -> tuple[dict, int]:
  """Reads SigLIP's config, which SigLIP 2 has for images of one size."""
  if not image.get("vision_use_head", True):
    raise ValueError(
      "the model has no attention pooling (vision_use_head is false), and so "
      "no embedding of an image"
    )
  length = text.get("max_position_embeddings", 64)
  shared = dict(eps=1e-6, activation="gelu_pytorch_tanh")
  model = {
    "projected": ("text",),
    "projection_bias": True,
    "image": {
      "name": "siglip_vit_b16",
      "patch": image.get("patch_size", 16),
    }
    | sizes_of(image, **shared),
    "text": {"name": "siglip_text", "max_length": length}
    | sizes_of(text, **shared),
  }
  return model | {"dim": model["image"]["width"]}, length


def _hf_siglip2(spec: Json, image: Json, text: Json) -> tuple[dict, int]:
  """Reads the config of SigLIP 2 for images of any aspect ratio (NaFlex)."""
  model, length = _hf_siglip(spec, image, text)
  count = image.get("num_patches", 256)
  side = math.isqrt(count)
  if side**2 != count:
    raise ValueError(
      f"num_patches of vision_config is {count}, and must be a square number: "
      "the learned positions form a square"
    )
  model["image"] |= {"name": "naflex_vit", "grid": side}
  return model, length


def _hf_dual_encoder(spec: Json, image: Json, text: Json) -> tuple[dict, int]:
  """Reads a config of ViT and BERT, both with their pooler."""
  kinds = image.get("model_type"), text.get("model_type")
  if kinds != ("vit", "bert"):
    raise ValueError(
      f"the encoders are of the types {kinds}; 'vit' and 'bert' can be read"
    )
  model = {
    "dim": spec.get("projection_dim", 512),
    "projection_bias": False,
    "image": _vit(image) | {"pooler": True},
    "text": sentence_encoders.encoder_of(text) | {"pooler": True},
  }
  return model, model["text"]["max_length"]


def _vit(spec: Json) -> dict[str, Any]:
  return {
    "name": "vit_b16",
    "patch": spec.get("patch_size", 16),
  } | sizes_of(spec, eps=1e-12, activation="gelu")


def _resnet(spec: Json) -> dict[str, Any]:
  return {
    "name": "resnet50",
    "stages": tuple(spec["depths"]),
    "width": spec["embedding_size"],
    "bottleneck": spec["layer_type"] == "bottleneck",
  }

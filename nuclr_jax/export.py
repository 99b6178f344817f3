"""Models as other libraries read them: folders in Hugging Face's layouts.

Three kinds of folder, by the towers:

  CLIP's two towers       one `CLIPModel`
  ViT and BERT, both with their pooler and no bias in the projections
                          one `VisionTextDualEncoderModel`
  ResNet or ViT, BERT or DistilBERT
                          `image_encoder/` and `text_encoder/`, each a model of
                          its own, `projections.safetensors` and `load.py`

The tokenizer, cleaning of captions included, and the preprocessing of pictures
lie beside the weights. `config.model.pretrained` reads all of them back.
"""

from collections.abc import Mapping
import inspect
import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax import hf_configs, host
from nuclr_jax.data.tokenizer import FIRST, LAST, PAD, UNKNOWN, Tokenizer
from nuclr_jax.models import IMAGE_TOWERS, TEXT_TOWERS, pretrained, weights
from nuclr_jax.types import Params, PyTree, Sides, both

WEIGHTS, CONFIG, LOADER = "model.safetensors", "config.json", "load.py"
LOGIT_SCALE = 2.6592  # log(1 / 0.07), where those of Hugging Face begin
FEATURES = {  # of a tower in PyTorch, by its `model_type`
  "resnet": "found.pooler_output.flatten(1)",
  "vit": "found.last_hidden_state[:, 0]",
}


class Exported(NamedTuple):
  """A model to be written."""

  spec: Mapping[str, Any]  # `config.model`, of name "towers"
  params: Params
  state: PyTree
  tokenizer: Tokenizer
  size: int  # of the pictures, in pixels
  temperature: float | None = None  # of the objective, if there is one


class Encoder(NamedTuple):
  """What a folder of Hugging Face's holds, of one tower or of both."""

  config: Mapping[str, Any]
  tensors: Mapping[str, np.ndarray]


def write(model: Exported, folder: str | os.PathLike) -> pathlib.Path:
  """Writes a model, all of it or nothing.

  Args:
    model: Its towers are those of `models.towers`.
    folder: Is made; it must not be there.

  Returns:
    The folder.

  Raises:
    ValueError: If the folder is there, or Hugging Face has no such towers;
      nothing is written then.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  if folder.exists():
    raise ValueError(f"{folder} is there already; choose another --output")
  if model.spec["name"] != "towers":
    raise ValueError(
      "only models of name 'towers' can be exported, this is "
      f"{model.spec['name']!r}"
    )
  image, text = (_arguments(model.spec, side) for side in Sides._fields)
  is_clip = bool(image.get("norm_before")), text["name"] == "clip_text"
  pooled = bool(image.get("pooler")), bool(text.get("pooler"))
  biased = "image_projection_bias" in model.params
  if all(is_clip) and not biased:
    whole = _whole(model, image, text, "hf_clip")
  elif all(pooled) and not biased:
    whole = _whole(model, image, text, "hf_dual_encoder")
  elif any(is_clip + pooled):
    raise ValueError(
      "Hugging Face has no layout of these towers. Towers of CLIP go with "
      "each other; with a pooler both towers must have one; and in both cases "
      "projection_bias must be False"
    )
  else:
    whole, parts = None, _parts(model, image, text)
  with host.complete_folder(folder) as work:
    if whole:
      places = both(work)
      _write_encoder(work, whole)
    else:
      places = Sides(work / "image_encoder", work / "text_encoder")
      for place, part in zip(places, parts, strict=True):
        _write_encoder(place, part)
      _write_joint(work, model.params, parts.image.config["model_type"])
    _write_pictures(places.image, image, model.size)
    _write_tokenizer(places.text, model.tokenizer)
  return folder


def _arguments(spec, side: str) -> dict[str, Any]:
  """All arguments of a tower, with their defaults, and its name."""
  spec = dict(spec[side])
  tables = {"image": IMAGE_TOWERS, "text": TEXT_TOWERS}
  factory = tables[side][spec["name"]]
  known = inspect.signature(factory).parameters
  defaults = {
    name: x.default
    for name, x in known.items()
    if x.default is not inspect.Parameter.empty
  }
  return defaults | spec


def _whole(model: Exported, image, text, layout: str) -> Encoder:
  """One model with both towers."""
  configs = {
    "hf_clip": hf_configs.clip,
    "hf_dual_encoder": hf_configs.dual_encoder,
  }
  config = configs[layout](
    image,
    text,
    size=model.size,
    vocab_size=model.tokenizer.vocab_size,
    dim=model.params["image_projection"].shape[1],
  )
  tensors = weights.to_layout(model.params, model.state, layout)
  scale = LOGIT_SCALE
  if model.temperature:
    scale = float(np.log(1 / model.temperature))
  tensors["logit_scale"] = np.array(scale, np.float32)
  return Encoder(config | {"logit_scale_init_value": scale}, tensors)


def _parts(model: Exported, image, text) -> Sides:
  """A model for each tower, an `Encoder`."""
  vocab_size = model.tokenizer.vocab_size
  configs = Sides(
    image=hf_configs.image_tower(image, size=model.size),
    text=hf_configs.text_tower(text, vocab_size=vocab_size),
  )

  def part(side, config):
    layout = f"hf_{config['model_type']}"
    return Encoder(
      config,
      weights.to_layout(model.params, model.state, layout, sides=(side,)),
    )

  return Sides(*(part(*x) for x in configs._asdict().items()))


def _write_encoder(folder, encoder: Encoder) -> None:
  folder.mkdir(exist_ok=True)
  config = {"torch_dtype": "float32"} | encoder.config
  (folder / CONFIG).write_text(json.dumps(config, indent=2))
  _save(encoder.tensors, folder / WEIGHTS)


def _write_joint(folder, params: Params, kind: str) -> None:
  """The projections of two models, and how to load them."""
  projections = {
    key: np.ascontiguousarray(np.asarray(params[name], np.float32).T)
    for name, key in pretrained.PROJECTION_KEYS.items()
    if name in params
  }
  _save(projections, folder / pretrained.PROJECTIONS)
  loader = pathlib.Path(__file__).with_name("export_loader.txt").read_text()
  loader = loader.replace("FEATURES", FEATURES[kind])
  (folder / LOADER).write_text(loader)


def _save(tensors, path) -> None:
  from safetensors import numpy as safetensors

  safetensors.save_file(tensors, path, metadata={"format": "pt"})


def _write_pictures(folder, image, size: int) -> None:
  """How pictures become numbers."""
  kind = (
    "CLIPImageProcessor" if image.get("norm_before") else "ViTImageProcessor"
  )
  described = {
    "image_processor_type": kind,
    "do_resize": True,
    "size": {"height": size, "width": size},
    "resample": 3,  # bicubic
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": list(image["mean"]),
    "image_std": list(image["std"]),
  }
  path = folder / "preprocessor_config.json"
  path.write_text(json.dumps(described, indent=2))


def _write_tokenizer(folder, tokenizer: Tokenizer) -> None:
  """The tokenizer, with the cleaning of captions."""
  (folder / "tokenizer.json").write_text(tokenizer.text, encoding="utf-8")
  described = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": tokenizer.length,
    "padding_side": "right",
  }
  known = json.loads(tokenizer.text)["model"]["vocab"]
  special = dict(pad=PAD, unk=UNKNOWN, cls=FIRST, sep=LAST)
  described |= {f"{k}_token": x for k, x in special.items() if x in known}
  path = folder / "tokenizer_config.json"
  path.write_text(json.dumps(described, indent=2))

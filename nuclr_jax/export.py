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

from collections.abc import Iterator, Mapping
import contextlib
import inspect
import json
import os
import pathlib
import shutil
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax import hf_configs
from nuclr_jax.data.tokenizer import FIRST, LAST, PAD, UNKNOWN, Tokenizer
from nuclr_jax.models import IMAGE_TOWERS, TEXT_TOWERS, pretrained, weights
from nuclr_jax.types import Params, PyTree

WEIGHTS, CONFIG, LOADER = "model.safetensors", "config.json", "load.py"


class Exported(NamedTuple):
  """A model to be written."""

  spec: Mapping[str, Any]  # `config.model`, of name "towers"
  params: Params
  state: PyTree
  tokenizer: Tokenizer
  size: int  # of the pictures, in pixels
  temperature: float | None = None  # of the objective, if there is one


def write(model: Exported, folder: str | os.PathLike) -> pathlib.Path:
  """Writes a model, all of it or nothing.

  Args:
    model: Its towers are those of `models.towers`.
    folder: Is made; it must not be there.

  Returns:
    The folder.

  Raises:
    ValueError: If the folder is there, or Hugging Face has no such towers.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  if folder.exists():
    raise ValueError(f"{folder} is there already; choose another --output")
  if model.spec["name"] != "towers":
    raise ValueError(
      "only models of name 'towers' can be exported, this is "
      f"{model.spec['name']!r}"
    )
  image, text = (_arguments(model.spec, side) for side in weights.SIDES)
  one = {
    "size": model.size,
    "vocab_size": model.tokenizer.vocab_size,
    "dim": model.spec.get("dim", 256),
  }
  is_clip = bool(image.get("norm_before")), text["name"] == "clip_text"
  pooled = bool(image.get("pooler")), bool(text.get("pooler"))
  with _complete(folder) as work:
    if all(is_clip):
      config = hf_configs.clip(image, text, **one)
      _write_whole(work, model, "hf_clip", config)
    elif all(pooled) and not model.spec.get("projection_bias", True):
      config = hf_configs.dual_encoder(image, text, **one)
      _write_whole(work, model, "hf_dual_encoder", config)
    elif any(is_clip + pooled):
      raise ValueError(
        "Hugging Face has no layout of these towers. Towers of CLIP go with "
        "each other; with a pooler both towers must have one, and "
        "projection_bias be False"
      )
    else:
      _write_parts(work, model, image, text)
  return folder


@contextlib.contextmanager
def _complete(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder that has its name when it is complete."""
  work = folder.with_name(f"{folder.name}.incomplete")
  shutil.rmtree(work, ignore_errors=True)
  work.mkdir(parents=True)
  try:
    yield work
    work.rename(folder)
  finally:
    shutil.rmtree(work, ignore_errors=True)


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


def _write_whole(folder, model: Exported, layout: str, config) -> None:
  """One model with both towers."""
  tensors = weights.to_layout(model.params, model.state, layout)
  scale = float(np.log(1 / model.temperature)) if model.temperature else 2.6592
  tensors["logit_scale"] = np.array(scale, np.float32)
  _write_model(folder, tensors, config | {"logit_scale_init_value": scale})
  _write_pictures(folder, model)
  _write_tokenizer(folder, model.tokenizer)


def _write_parts(folder, model: Exported, image, text) -> None:
  """A model for each tower, their projections, and how to load them."""
  vocab_size = model.tokenizer.vocab_size
  configs = {
    "image": hf_configs.image_tower(image, size=model.size),
    "text": hf_configs.text_tower(text, vocab_size=vocab_size),
  }
  for side, config in configs.items():
    layout = f"hf_{config['model_type']}"
    tensors = weights.to_layout(
      model.params, model.state, layout, sides=(side,)
    )
    _write_model(folder / f"{side}_encoder", tensors, config)
  _write_pictures(folder / "image_encoder", model)
  _write_tokenizer(folder / "text_encoder", model.tokenizer)
  projections = {
    f"{side}_projection.{end}": np.asarray(model.params[name], np.float32)
    for side in weights.SIDES
    for end, name in (
      ("weight", f"{side}_projection"),
      ("bias", f"{side}_projection_bias"),
    )
    if name in model.params
  }
  projections = {
    key: np.ascontiguousarray(x.T) for key, x in projections.items()
  }
  _save(projections, folder / pretrained.PROJECTIONS)
  features = {
    "resnet": "found.pooler_output.flatten(1)",
    "vit": "found.last_hidden_state[:, 0]",
  }
  loader = pathlib.Path(__file__).with_name("export_loader.txt").read_text()
  loader = loader.replace("FEATURES", features[configs["image"]["model_type"]])
  (folder / LOADER).write_text(loader)


def _write_model(folder, tensors, config) -> None:
  folder.mkdir(exist_ok=True)
  config = {"torch_dtype": "float32"} | config
  (folder / CONFIG).write_text(json.dumps(config, indent=2))
  _save(tensors, folder / WEIGHTS)


def _save(tensors, path) -> None:
  from safetensors import numpy as safetensors

  safetensors.save_file(tensors, path, metadata={"format": "pt"})


def _write_pictures(folder, model: Exported) -> None:
  """How pictures become numbers."""
  image = _arguments(model.spec, "image")
  size = {"height": model.size, "width": model.size}
  kind = (
    "CLIPImageProcessor" if image.get("norm_before") else "ViTImageProcessor"
  )
  described = {
    "image_processor_type": kind,
    "do_resize": True,
    "size": size,
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

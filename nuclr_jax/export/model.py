"""Writes models to folders that other libraries read, in Hugging Face layouts.

The towers decide which of three kinds of folder is written:

  CLIP's two towers       one `CLIPModel`
  ViT and BERT, both with their pooler and no bias in the projections
                          one `VisionTextDualEncoderModel`
  ResNet or ViT, BERT or DistilBERT
                          `image_encoder/` and `text_encoder/`, a model each,
                          `projections.safetensors` and `load.py`

The tokenizer with its cleaning of captions and the preprocessing of images are
written beside the weights. `config.model.pretrained` reads all of them back.
"""

from collections.abc import Mapping
import inspect
import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax import files
from nuclr_jax.data.tokenizer import FIRST, LAST, PAD, UNKNOWN, Tokenizer
from nuclr_jax.export import hf_configs
from nuclr_jax.models import IMAGE_TOWERS, TEXT_TOWERS, pretrained
from nuclr_jax.types import Params, PyTree, Sides, both

WEIGHTS, CONFIG, LOADER = "model.safetensors", "config.json", "load.py"
LOGIT_SCALE = 2.6592  # log(1 / 0.07), where Hugging Face's models start
# The loader's expression for a tower's features, by the tower's `model_type`.
FEATURES = {
  "resnet": "output.pooler_output.flatten(1)",
  "vit": "output.last_hidden_state[:, 0]",
}


class Exported(NamedTuple):
  """Everything about a trained model that its folder records."""

  spec: Mapping[str, Any]  # `config.model`, whose name is "towers"
  params: Params
  state: PyTree
  tokenizer: Tokenizer
  image_size: int  # in pixels
  temperature: float | None = None  # the objective's, if it has one


class HFModel(NamedTuple):
  """A Hugging Face model of one tower, or of both."""

  config: Mapping[str, Any]
  tensors: Mapping[str, np.ndarray]


def write_model(model: Exported, folder: str | os.PathLike) -> pathlib.Path:
  """Writes a model in Hugging Face's layouts, all of it or nothing.

  Args:
    model: The model; its towers are those of `models.towers`.
    folder: The folder to make; it must not exist.

  Returns:
    The folder's path.

  Raises:
    ValueError: If the folder exists, or if Hugging Face has no such towers;
      nothing is written then.
  """
  folder = pathlib.Path(folder).expanduser().absolute()
  if folder.exists():
    raise ValueError(f"{folder} exists already; choose another --output")
  if model.spec["name"] != "towers":
    raise ValueError(
      "only models with the name 'towers' can be exported, got "
      f"{model.spec['name']!r}"
    )
  image, text = (_arguments(model.spec, side) for side in Sides._fields)
  is_clip = bool(image.get("norm_before")), text["name"] == "clip_text"
  pooled = bool(image.get("pooler")), bool(text.get("pooler"))
  biased = "image_projection_bias" in model.params
  if all(is_clip) and not biased:
    joint = _joint_model(model, image, text, "hf_clip")
  elif all(pooled) and not biased:
    joint = _joint_model(model, image, text, "hf_dual_encoder")
  elif any(is_clip + pooled):
    raise ValueError(
      "Hugging Face has no layout for these towers. A tower of CLIP needs the "
      "other one; if one tower has a pooler, both must; and in both cases "
      "projection_bias must be False"
    )
  else:
    joint, separate = None, _separate_models(model, image, text)
  with files.complete_folder(folder) as work:
    if joint:
      folders = both(work)
      _write_hf_model(work, joint)
    else:
      folders = Sides(work / "image_encoder", work / "text_encoder")
      for part, hf_model in zip(folders, separate, strict=True):
        _write_hf_model(part, hf_model)
      _write_projections(work, model.params)
      _write_loader(work, separate.image.config["model_type"])
    _write_preprocessing(folders.image, image, model.image_size)
    _write_tokenizer(folders.text, model.tokenizer)
    files.write_digests(work)
  return folder


def _arguments(spec, side: str) -> dict[str, Any]:
  """Returns all arguments of a tower, defaults included, and its name."""
  spec = dict(spec[side])
  tables = {"image": IMAGE_TOWERS, "text": TEXT_TOWERS}
  parameters = inspect.signature(tables[side][spec["name"]]).parameters
  defaults = {
    name: x.default
    for name, x in parameters.items()
    if x.default is not inspect.Parameter.empty
  }
  return defaults | spec


def _joint_model(model: Exported, image, text, layout: str) -> HFModel:
  """Makes one model of both towers and their projections."""
  make_config = {
    "hf_clip": hf_configs.clip_config,
    "hf_dual_encoder": hf_configs.dual_encoder_config,
  }
  hf_config = make_config[layout](
    image,
    text,
    image_size=model.image_size,
    vocab_size=model.tokenizer.vocab_size,
    dim=model.params["image_projection"].shape[1],
  )
  tensors = pretrained.to_layout(model.params, model.state, layout)
  scale = LOGIT_SCALE
  if model.temperature:
    scale = float(np.log(1 / model.temperature))
  tensors["logit_scale"] = np.array(scale, np.float32)
  hf_config["logit_scale_init_value"] = scale
  return HFModel(hf_config, tensors)


def _separate_models(model: Exported, image, text) -> Sides:
  """Makes an `HFModel` for each tower, without its projection."""
  vocab_size = model.tokenizer.vocab_size
  configs = Sides(
    image=hf_configs.image_config(image, image_size=model.image_size),
    text=hf_configs.text_config(text, vocab_size=vocab_size),
  )

  def one_tower(side, hf_config):
    layout = f"hf_{hf_config['model_type']}"
    tensors = pretrained.to_layout(
      model.params, model.state, layout, sides=(side,)
    )
    return HFModel(hf_config, tensors)

  return Sides(*(one_tower(*x) for x in configs._asdict().items()))


def _write_hf_model(folder, model: HFModel) -> None:
  folder.mkdir(exist_ok=True)
  hf_config = {"torch_dtype": "float32"} | model.config
  (folder / CONFIG).write_text(json.dumps(hf_config, indent=2))
  _write_tensors(folder / WEIGHTS, model.tensors)


def _write_projections(folder, params: Params) -> None:
  """Writes the projections of two separate models."""
  projections = {
    key: np.ascontiguousarray(np.asarray(params[name], np.float32).T)
    for name, key in pretrained.PROJECTION_KEYS.items()
    if name in params
  }
  _write_tensors(folder / pretrained.PROJECTIONS, projections)


def _write_loader(folder, image_type: str) -> None:
  """Writes the script that loads two separate models in PyTorch."""
  loader = pathlib.Path(__file__).with_name("loader.txt").read_text()
  loader = loader.replace("FEATURES", FEATURES[image_type])
  (folder / LOADER).write_text(loader)


def _write_tensors(path, tensors) -> None:
  from safetensors import numpy as safetensors

  safetensors.save_file(tensors, path, metadata={"format": "pt"})


def _write_preprocessing(folder, image, image_size: int) -> None:
  """Writes how images are preprocessed for the tower."""
  kind = (
    "CLIPImageProcessor" if image.get("norm_before") else "ViTImageProcessor"
  )
  processor = {
    "image_processor_type": kind,
    "do_resize": True,
    "size": {"height": image_size, "width": image_size},
    "resample": 3,  # bicubic
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": list(image["mean"]),
    "image_std": list(image["std"]),
  }
  path = folder / "preprocessor_config.json"
  path.write_text(json.dumps(processor, indent=2))


def _write_tokenizer(folder, tokenizer: Tokenizer) -> None:
  """Writes the tokenizer, which includes the cleaning of captions."""
  (folder / "tokenizer.json").write_text(tokenizer.text, encoding="utf-8")
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": tokenizer.length,
    "padding_side": "right",
  }
  vocabulary = json.loads(tokenizer.text)["model"]["vocab"]
  special = dict(pad=PAD, unk=UNKNOWN, cls=FIRST, sep=LAST)
  settings |= {f"{k}_token": x for k, x in special.items() if x in vocabulary}
  path = folder / "tokenizer_config.json"
  path.write_text(json.dumps(settings, indent=2))

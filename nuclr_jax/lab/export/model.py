"""Writes models to folders that other libraries read.

In Hugging Face's layout, the towers decide which kind of folder is written:

  CLIP's two towers       one `CLIPModel`
  SigLIP's two towers     one `SiglipModel`, or one `Siglip2Model` for images of
                          any aspect ratio
  ViT and BERT, both with their pooler and no bias in the projections
                          one `VisionTextDualEncoderModel`
  ResNet or ViT, BERT or DistilBERT
                          `image_encoder/` and `text_encoder/`, a model each,
                          `projections.safetensors` and `load.py`; a text
                          encoder that pools over all tokens is one of
                          sentence-transformers

OpenCLIP's layout takes all towers that are read from its models: CLIP's,
CLIPA's, MetaCLIP 2's and CoCa's, SigLIP's, those of EVA, EVA-02, the Perception
Encoder, ConvNeXt, ViTamin and MobileCLIP, RoBERTa and NLLB. It has the files
`open_clip_config.json` and `open_clip_model.safetensors`. The tokenizer with
its cleaning of captions and the preprocessing of images are written beside the
weights. `config.model.pretrained` and `--model` read all of them back.
"""

from collections.abc import Callable, Mapping
from functools import partial
import json
import logging
import os
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
import tokenizers

from nuclr_jax.lab import files
from nuclr_jax.lab.data import elsewhere
from nuclr_jax.lab.data.elsewhere import LAYOUTS
from nuclr_jax.lab.data.source import DEFAULT_RESIZE, Resize
from nuclr_jax.lab.data.tokenizer import FIRST, LAST, UNKNOWN, Tokenizer
from nuclr_jax.lab.export import hf_configs, logits, open_clip_configs
from nuclr_jax.lab.models import lora, pretrained
from nuclr_jax.lab.models.pretrained import sentence_encoders
from nuclr_jax.lab.models.pretrained.inputs import REPAIR
from nuclr_jax.lab.models.towers import TOWERS, bound_tower
from nuclr_jax.lab.train import checkpoint, interpolate, loop
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import Params, PyTree, Sides, both

log = logging.getLogger(__name__)

WEIGHTS, CONFIG, LOADER = "model.safetensors", "config.json", "load.py"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
OPEN_CLIP_CONFIG = "open_clip_config.json"
RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers
REPAIRS = {  # how captions differ there from those of the run
  "hugging_face": (
    "config.data.repair is True, and transformers does not repair captions: "
    "give it captions after nuclr_jax.lab.data.cleaning.repaired, or those "
    "with HTML entities, typographic quotes or broken encodings differ"
  ),
  "open_clip": (
    "config.data.repair is False, and OpenCLIP repairs captions (ftfy, "
    "html.unescape): those with HTML entities, typographic quotes or broken "
    "encodings differ from the run's"
  ),
}
# The loader's expression for a tower's features, by the tower's `model_type`,
# and for those of texts, by the tower's pooling.
FEATURES = {
  "resnet": "output.pooler_output.flatten(1)",
  "vit": "output.last_hidden_state[:, 0]",
}
TEXT_FEATURES = {
  "first": "x[:, 0]",
  "mean": "(x * mask).sum(1) / mask.sum(1)",
  "max": "x.masked_fill(mask == 0, -torch.inf).amax(1)",
}


class Exported(NamedTuple):
  """Everything about a trained model that its folder records."""

  spec: Mapping[str, Any]  # what a config says of the model `towers`
  params: Params
  state: PyTree
  tokenizer: Tokenizer
  image_size: int  # in pixels
  temperature: float | None = None  # the objective's, if it has one for all
  resize: Resize = DEFAULT_RESIZE  # how images become squares
  logit_bias: float | None = None  # SigLIP's, if the objective has one
  mean_temperature: float | None = None  # of all anchors, if each has its own


def model_of_run(
  workdir: str | os.PathLike,
  *,
  data_dir: str | os.PathLike | None = None,
  checkpoints: str = checkpoint.NEWEST,
  averaged: bool = True,
  share: float | None = None,
) -> Exported:
  """Loads what `write_model` writes of a run; its data need not be here.

  Args:
    workdir: The run's folder.
    data_dir: The folder of prepared data sets.
    checkpoints: `checkpoint.NEWEST` or `checkpoint.BEST`.
    averaged: Whether to take the average of the weights, if the run keeps one.
    share: The share of these weights in a mixture with those that the run began
      from, see `interpolate.of_run`; None takes them alone. In a mixture, batch
      statistics are computed from the data.

  Raises:
    ValueError: If there is no such run, or it did not begin from a model.
  """
  load = partial(
    loop.load,
    workdir,
    data_dir=data_dir,
    checkpoints=checkpoints,
    averaged=averaged,
  )
  parts, mesh, state = load(pairs=False)
  if share is None:
    return exported(parts, state)
  if interpolate.has_statistics(state):
    parts, mesh, state = load()
  with jax.set_mesh(mesh):
    return exported(parts, interpolate.of_run(parts, mesh, state)(share))


def exported(parts: Experiment, state: TrainState) -> Exported:
  """Returns what `write_model` writes of parts that are open, and their state.

  Args:
    parts: What `loop.load` or `untrained.open_untrained` returned.
    state: The same.
  """
  readout = loop.readout(parts, state)
  tau, bias = readout.temperature, readout.logit_bias
  mean, num_pairs = None, parts.data.train.sizes.num_pairs
  if isinstance(tau, Sides):
    mean = logits.mean_temperature(tau, readout.log_u, num_pairs=num_pairs)
    tau = None
  return Exported(
    parts.settings.model.spec,
    lora.merged(state.params["model"]),
    state.model_state,
    parts.data.tokenizer,
    parts.data.image_shape[0],
    None if tau is None else float(tau),
    parts.data.resize,
    None if bias is None else float(bias),
    mean,
  )


class HFModel(NamedTuple):
  """A Hugging Face model of one tower, or of both."""

  config: Mapping[str, Any]
  tensors: Mapping[str, np.ndarray]


def write_model(
  model: Exported,
  folder: str | os.PathLike,
  *,
  layout: str = LAYOUTS[0],
  add: Callable[[pathlib.Path], None] = lambda folder: None,
) -> str | pathlib.Path:
  """Writes a model in another library's layout, all of it or nothing.

  Args:
    model: The model; its towers are those of `models.towers`.
    folder: The folder to make, here or in a bucket; it must not exist.
    layout: "hugging_face" or "open_clip".
    add: Writes more files to the folder, before it gets its name. They have no
      digests, since a card may be edited later.

  Returns:
    The folder's path, in full.

  Raises:
    ValueError: If the folder exists, or if the library has no such towers;
      nothing is written then.
  """
  if layout not in LAYOUTS:
    raise ValueError(f"layout must be one of {LAYOUTS}, got {layout!r}")
  folder = files.bucket.absolute(folder)
  if model.spec["name"] != "towers":
    raise ValueError(
      "only models with the name 'towers' can be exported, such as those of "
      f"--model and of the config cc3m, got {model.spec['name']!r}"
    )
  image, text = (_arguments(model.spec, side) for side in Sides._fields)
  for difference in elsewhere.differences(model.resize, [layout]):
    log.warning("%s", difference)
  if layout == "open_clip":
    return _write_open_clip(model, image, text, folder, add)
  _check_features(image, text)
  is_clip = bool(image.get("norm_before")), text["name"] == "clip_text"
  is_siglip = _attends(image), text["name"] == "siglip_text"
  pooled = bool(image.get("pooler")), bool(text.get("pooler"))
  biased = "image_projection_bias" in model.params
  if all(is_clip) and not biased:
    joint = _joint_model(model, image, text, "hf_clip")
  elif all(is_siglip) and "image_projection" not in model.params:
    joint = _joint_model(model, image, text, "hf_siglip")
  elif all(pooled) and not biased:
    joint = _joint_model(model, image, text, "hf_dual_encoder")
  elif any(is_clip + is_siglip + pooled) or len(_projected(model)) < 2:
    raise ValueError(
      "Hugging Face has no layout for these towers. A tower of CLIP or SigLIP "
      "needs the other one; if one tower has a pooler, both must; "
      "projection_bias must be False, but for SigLIP, which projects texts "
      "only. For towers of OpenCLIP's other models, choose --layout=open_clip"
    )
  else:
    joint, separate = None, _separate_models(model, image, text)
  with files.remote.new_folder(folder) as work:
    if joint:
      folders = both(work)
      _write_hf_model(work, joint)
    else:
      folders = Sides(work / "image_encoder", work / "text_encoder")
      for part, hf_model in zip(folders, separate, strict=True):
        _write_hf_model(part, hf_model)
      _write_projections(work, model)
      if text["pooling"] != "first":
        sentence_encoders.write_modules(folders.text, text)
      kinds = separate.image.config["model_type"], text["pooling"]
      _write_loader(work, *kinds)
    _write_preprocessing(folders.image, image, model)
    _write_tokenizer(folders.text, model.tokenizer, layout)
    files.write_digests(work)
    add(work)
  return folder


def _arguments(spec, side: str) -> dict[str, Any]:
  """Returns all arguments of a tower, defaults included, and its name."""
  tower = bound_tower(side, spec[side])
  if tower.name not in TOWERS[side].known:
    raise ValueError(
      f"only towers of this library can be exported, got {tower.name!r}"
    )
  return tower.values() | {"name": tower.name}


def _attends(image: Mapping[str, Any]) -> bool:
  """Returns whether an image tower has SigLIP's attention pooling."""
  return image["name"] == "naflex_vit" or image.get("pool") == "attention"


def _check_features(image, text) -> None:
  """Raises ValueError for features that Hugging Face's configs cannot name."""
  norm_before = image.get("norm_before")
  patch_bias = image.get("patch_bias")
  found = {
    "image.pool": image.get("pool") in ("mean", "query"),
    "image.patch_bias": patch_bias is not None and patch_bias == norm_before,
    "image.head": bool(image.get("head")),
    "text.head": bool(text.get("head")),
    "text.pad_id": bool(text.get("pad_id")),
    "text.causal": text["name"] == "clip_text" and not text["causal"],
    "text.pool": text.get("pool")
    not in (None, "end" if text.get("causal") else "last"),
  }
  if names := [name for name, is_other in found.items() if is_other]:
    raise ValueError(
      f"Hugging Face has no layout for models with this {', '.join(names)}; "
      "choose --layout=open_clip"
    )


def _joint_model(model: Exported, image, text, layout: str) -> HFModel:
  """Makes one model of both towers and their projections."""
  make_config = {
    "hf_clip": hf_configs.clip_config,
    "hf_siglip": hf_configs.siglip_config,
    "hf_dual_encoder": hf_configs.dual_encoder_config,
  }
  sizes = dict(
    image_size=model.image_size, vocab_size=model.tokenizer.vocab_size
  )
  if layout != "hf_siglip":
    sizes["dim"] = model.params["image_projection"].shape[1]
  hf_config = make_config[layout](image, text, **sizes)
  tensors = pretrained.to_layout(model.params, model.state, layout)
  scalars = _scalars(model, bias=layout == "hf_siglip")
  if layout != "hf_siglip":
    scalars = {"logit_scale": scalars["logit_scale"].reshape(())}
    hf_config["logit_scale_init_value"] = float(scalars["logit_scale"])
  return HFModel(hf_config, tensors | scalars)


def _scalars(model: Exported, *, bias: bool) -> dict[str, np.ndarray]:
  """Returns the scale of the logits and, for SigLIP, their bias, [1] each."""
  return logits.scalars(
    model.spec,
    model.temperature,
    model.logit_bias,
    mean=model.mean_temperature,
    bias=bias,
  )


def _projected(model: Exported) -> list[str]:
  """Returns the sides that have a projection."""
  return [x for x in Sides._fields if f"{x}_projection" in model.params]


def _crops(resize: Resize) -> bool:
  """Returns whether images are cropped; by default captioned ones are not."""
  return resize.mode in ("crop", "crop_torchvision")


def _write_open_clip(model: Exported, image, text, folder, add):
  """Writes a folder that OpenCLIP opens as `local-dir:` and its path."""
  projections = {x for x in model.params if "projection" in x}
  dim = text.get("width", 1)  # what is not projected has this width
  if "text_projection" in projections:
    dim = np.shape(model.params["text_projection"])[1]
  found = open_clip_configs.open_clip_config(
    Sides(image, text),
    dim=dim,
    image_size=model.image_size,
    vocab_size=model.tokenizer.vocab_size,
    length=model.tokenizer.length,
    projections=projections,
  )
  # SigLIP's models have a bias of the logits, others if they were trained so.
  has_bias = model.logit_bias is not None or "siglip" in found.layout
  if has_bias:
    found.config["init_logit_bias"] = logits.LOGIT_BIAS
  tensors = {
    key if key.startswith("visual.") else found.prefix + key: x
    for key, x in pretrained.to_layout(
      model.params, model.state, found.layout
    ).items()
  }
  pretrained.recognize(list(tensors))  # or it could not be read back
  # OpenCLIP keeps the numbers themselves, Hugging Face's SigLIP lists of one.
  tensors |= {
    name: x.reshape(()) for name, x in _scalars(model, bias=has_bias).items()
  }
  preprocessing = {
    "size": model.image_size,
    "mode": "RGB",
    "mean": list(image["mean"]),
    "std": list(image["std"]),
    "interpolation": model.resize.kernel,
    "resize_mode": "shortest" if _crops(model.resize) else "squash",
  }
  config = {"model_cfg": found.config, "preprocess_cfg": preprocessing}
  with files.remote.new_folder(folder) as work:
    files.write_text(work / OPEN_CLIP_CONFIG, json.dumps(config, indent=2))
    _write_tensors(work / OPEN_CLIP_WEIGHTS, tensors)
    _write_tokenizer(work, model.tokenizer, LAYOUTS[1])
    files.write_digests(work)
    add(work)
  return folder


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
  folder = files.folder_in(folder.parent, folder.name)
  hf_config = {"torch_dtype": "float32"} | model.config
  files.write_text(folder / CONFIG, json.dumps(hf_config, indent=2))
  _write_tensors(folder / WEIGHTS, model.tensors)


def _write_projections(folder, model: Exported) -> None:
  """Writes what two separate models share: projections, and what logits need.

  It has a scale and a bias of the logits only if the run has them.
  """
  tensors = {
    key: np.ascontiguousarray(np.asarray(model.params[name], np.float32).T)
    for name, key in pretrained.PROJECTION_KEYS.items()
    if name in model.params
  }
  if model.temperature is not None:
    scalars = _scalars(model, bias=model.logit_bias is not None)
    tensors |= {name: x.reshape(()) for name, x in scalars.items()}
  _write_tensors(folder / pretrained.PROJECTIONS, tensors)


def _write_loader(folder, image_type: str, pooling: str) -> None:
  """Writes the script that loads two separate models in PyTorch."""
  loader = pathlib.Path(__file__).with_name("loader.txt").read_text()
  for name, expression in (
    ("TEXT_FEATURES", TEXT_FEATURES[pooling]),
    ("FEATURES", FEATURES[image_type]),
  ):
    loader = loader.replace(name, expression)
  files.write_text(folder / LOADER, loader)


def _write_tensors(path, tensors) -> None:
  from safetensors import numpy as safetensors

  with files.replacing(path) as new:
    mode = new.stat().st_mode  # of any other file
    safetensors.save_file(tensors, new, metadata={"format": "pt"})
    new.chmod(mode)


def _write_preprocessing(folder, image, model: Exported) -> None:
  """Writes how images are preprocessed for the tower."""
  kind = "ViTImageProcessor"
  if image.get("norm_before"):
    kind = "CLIPImageProcessor"
  elif _attends(image):
    kind = "SiglipImageProcessor"
  square = {"height": model.image_size, "width": model.image_size}
  crop, patch = _crops(model.resize), model.resize.patch
  if crop:  # the other processors do not crop
    kind = "CLIPImageProcessor"
  processor = {
    "image_processor_type": kind,
    "do_resize": True,
    "size": {"shortest_edge": model.image_size} if crop else square,
    "resample": RESAMPLE[model.resize.kernel],
    "do_center_crop": crop,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": list(image["mean"]),
    "image_std": list(image["std"]),
  } | ({"crop_size": square} if crop else {})
  if patch is not None:
    for key in ("size", "do_center_crop"):
      del processor[key]
    processor |= {
      "image_processor_type": "Siglip2ImageProcessor",
      "patch_size": patch,
      "max_num_patches": (model.image_size // patch) ** 2,
    }
  path = folder / "preprocessor_config.json"
  files.write_text(path, json.dumps(processor, indent=2))


def _write_tokenizer(folder, tokenizer: Tokenizer, layout: str) -> None:
  """Writes the tokenizer, which includes the cleaning of captions.

  Their repair is not part of it; warns where the library does otherwise.
  """
  if tokenizer.repair != (layout == "open_clip"):
    log.warning(REPAIRS[layout])
  files.write_text(folder / "tokenizer.json", tokenizer.text)
  settings = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": tokenizer.length,
    "padding_side": "right",
  }
  if tokenizer.repair:
    settings[REPAIR] = True
  words = tokenizers.Tokenizer.from_str(tokenizer.text)
  special = dict(unk=UNKNOWN, cls=FIRST, sep=LAST)
  settings |= {
    f"{name}_token": x
    for name, x in special.items()
    if words.token_to_id(x) is not None
  }
  settings["pad_token"] = pad_token = words.id_to_token(tokenizer.pad_id)
  if tokenizer.pad_id:
    token = {"content": pad_token, "special": True}
    settings["added_tokens_decoder"] = {str(tokenizer.pad_id): token}
  path = folder / "tokenizer_config.json"
  files.write_text(path, json.dumps(settings, indent=2))

"""Builds all models of OpenCLIP in both libraries, and compares their shapes.

.venv-parity/bin/python -m experiments.parity.open_clip_models

Neither library takes memory for it. The names of all models with published
weights go to tests/golden/open_clip_names.json, and the number of arrays that
our towers read of each to open_clip_models.json. Exits with 1 unless every
model that is read has OpenCLIP's arrays and numbers of heads, and unless
OpenCLIP makes the same of the config that `nuclr export` writes for it.
"""

import functools
import json
import pathlib
import sys
from unittest import mock

import jax
import numpy as np
import torch
import transformers

from experiments.parity import optional
from experiments.parity.__main__ import NAMES, read_config
from nuclr_jax.lab import files
from nuclr_jax.lab.export.open_clip_configs import open_clip_config
from nuclr_jax.lab.models.pretrained import convert
from nuclr_jax.lab.models.towers import towers
from nuclr_jax.types import Sides

HEAD_WIDTH = 32  # of all FastViTs
HERE = pathlib.Path(__file__).parent
# What differs from the defaults of transformers, which are of the size "base".
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
LARGE |= dict(intermediate_size=4096)
SHARED = dict(max_position_embeddings=514, type_vocab_size=1, pad_token_id=1)
NLLB = dict(d_model=1024, encoder_attention_heads=16, vocab_size=256_206)
ENCODERS = {
  "roberta-base": dict(vocab_size=50_265),
  "xlm-roberta-base": dict(vocab_size=250_002),
  "xlm-roberta-large": dict(vocab_size=250_002) | LARGE,
  "facebook/nllb-200-distilled-600M": NLLB
  | dict(encoder_layers=12, encoder_ffn_dim=4096),
  "facebook/nllb-200-distilled-1.3B": NLLB
  | dict(encoder_layers=24, encoder_ffn_dim=8192),
}


def theirs(config: dict) -> torch.nn.Module:
  """Makes OpenCLIP's model without memory."""
  config = json.loads(json.dumps(config))
  hf = config["text_cfg"].get("hf_model_name")
  custom = config.pop("custom_text", False) or hf
  library = optional.load("open_clip.model")
  kind = library.CustomTextCLIP if custom else library.CLIP
  if "multimodal_cfg" in config:
    kind = optional.load("open_clip.coca_model").CoCa
  if hf:
    config["text_cfg"]["hf_model_pretrained"] = False
  automatic = optional.load("open_clip.hf_model").AutoConfig

  def config_of(name):
    if "nllb" in name:
      return transformers.M2M100Config(**ENCODERS[name])
    return transformers.RobertaConfig(**SHARED | ENCODERS[name])

  patched = mock.patch.object(automatic, "from_pretrained", config_of)
  with torch.device("meta"), patched:
    return kind(**config)


def heads(module: torch.nn.Module) -> set[int]:
  """Returns the numbers of heads of all attention in a module."""
  names = ("num_heads", "num_attention_heads")
  return {
    getattr(x, name)
    for x in module.modules()
    for name in names
    if hasattr(x, name)
  }


def heads_of(model: torch.nn.Module) -> tuple[set[int], set[int]]:
  """Returns the numbers of heads of the image tower and of the text tower."""
  text = model.text if hasattr(model, "text") else model.transformer
  return heads(model.visual), heads(text)


def shapes_of(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a model's arrays, by key.

  CoCa's decoder of captions is left out, and the bias of SigLIP's logits, which
  is no part of the towers.
  """
  return {
    key: tuple(x.shape)
    for key, x in module.state_dict().items()
    if not key.startswith("text_decoder.") and key != "logit_bias"
  }


def compare(config: dict) -> int:
  """Returns how many of OpenCLIP's arrays ours has.

  Raises:
    ValueError: If one is left over or missing, or has another shape, or if
      attention has other numbers of heads; likewise for OpenCLIP's model of the
      config that is exported.
  """
  model, data = read_config(config)
  module = theirs(config)
  tensors = {
    key: np.broadcast_to(np.float32(0), tuple(x.shape))
    for key, x in module.state_dict().items()
  }
  size = data["size"]
  ours = towers(
    image_shape=(size, size, 3),
    vocab_size=data["vocab_size"],
    length=data["length"],
    **model,
  )
  leaves = jax.tree_util.tree_leaves_with_path(
    jax.eval_shape(ours.init, jax.random.key(0))
  )
  name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
  shapes = {name(path[1:]): x.shape for path, x in leaves}
  layout = convert.recognize(list(tensors))
  _, matches = convert.check_layout(tensors, layout, shapes)
  image, text = model["image"], model["text"]
  probe = image.get("probe", (0, 8))[1]
  has_probe = "probe" in image or image["name"] == "perception_encoder"
  expected = {image["heads"]} if "heads" in image else set()
  expected |= {probe} if has_probe else set()
  if image["name"] == "fastvit":
    widths = [image["width"] * 2**s for s in range(len(image["stages"]))]
    attending = image.get("attending", 1)
    expected = {width // HEAD_WIDTH for width in widths[-attending:]}
  expected = expected, {text["heads"]}
  if heads_of(module) != expected:
    raise ValueError(f"{heads_of(module)} heads")
  exported = open_clip_config(
    Sides(image, text),
    dim=model["dim"],
    image_size=size,
    vocab_size=data["vocab_size"],
    length=data["length"],
    projections=[x for x in shapes if "projection" in x],
  )
  other = theirs(exported.config)
  if exported.layout != layout or shapes_of(other) != shapes_of(module):
    raise ValueError(f"exported as {exported.layout} with other arrays")
  if heads_of(other) != expected:
    raise ValueError(f"exported with {heads_of(other)} heads")
  return sum(len(match.theirs) for match in matches)


def main() -> None:
  """Compares all models that are read."""
  library = optional.load("open_clip")
  names = list(dict.fromkeys(name for name, _ in library.list_pretrained()))
  configs = {name: library.get_model_config(name) for name in names}
  versions = {"open_clip_torch": optional.versions()["open_clip_torch"]}
  tags = {"tags": len(library.list_pretrained())}
  content = versions | tags | {"names": names}
  files.write_atomically(NAMES, json.dumps(content, indent=0) + "\n")
  arrays, failed = {}, []
  for name, config in configs.items():
    try:
      read_config(config)
    except ValueError:
      continue
    try:
      arrays[name] = compare(config)
    except ValueError as error:
      failed.append(f"FAILED: {name}: {error}")
    print(name, arrays.get(name), flush=True)
  results = versions | {"arrays": arrays}
  path = HERE / "open_clip_models.json"
  files.write_atomically(path, json.dumps(results, indent=2) + "\n")
  sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
  main()

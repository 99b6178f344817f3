"""Exports for OpenCLIP: configs and arrays are those that it has itself.

`experiments.parity.exported_open_clip` opens such folders with OpenCLIP.
"""

import json
from unittest import mock

import jax
import numpy as np
import pytest
from repository import GOLDEN, PUBLISHED, ROOT
from safetensors import numpy as safetensors

from nuclr_jax.lab import files, models
from nuclr_jax.lab.data import tokenizer
from nuclr_jax.lab.export import Exported, open_clip_configs, write_model
from nuclr_jax.lab.export.model import exported as exported_of
from nuclr_jax.lab.export.open_clip_configs import open_clip_config
from nuclr_jax.lab.models.pretrained import (
  architectures,
  convert,
  open_clip,
  read_published,
  timm_towers,
)
from nuclr_jax.lab.models.towers import bound_tower
from nuclr_jax.lab.train import untrained
from nuclr_jax.types import Sides

PARITY = ROOT / "experiments" / "parity" / "open_clip_models.json"
ARRAYS = files.read_json(PARITY)["arrays"]  # of all models that are read
TABLE = files.read_json(architectures.TABLE)
FAMILIES = sorted((GOLDEN / "towers").glob("openclip*.npz"))
# What OpenCLIP takes where a config says nothing (`open_clip.model`).
DEFAULTS = {
  "vision_cfg": dict(head_width=64, mlp_ratio=4.0, timm_proj="linear"),
  "text_cfg": dict(context_length=77, hf_proj_type="mlp", mlp_ratio=4.0),
}
# What an export has of its own, or does not keep: the tokenizer, what training
# drops, and what CoCa's images and texts give to its decoder.
OTHER = {
  *("hf_tokenizer_name", "tokenizer_kwargs", "hf_model_pretrained"),
  *("timm_drop", "timm_drop_path", "timm_model_pretrained", "output_tokens"),
}
# Two names of the same tower.
SAME = {f"vitamin_large2_{x}": f"vitamin_large_{x}" for x in (224, 256, 336)}
SAME |= {"vitamin_large2_384": "vitamin_large_384"}


def read(config):
  """Reads OpenCLIP's config without any files beside it."""
  missing = mock.Mock(side_effect=ValueError)
  with mock.patch.object(open_clip.hub, "find_file", missing):
    return open_clip.read_open_clip("a/b", {"model_cfg": config})


def written(model, data, **changes):
  """The config of the towers that `read` returned."""
  projected = model.get("projected", Sides._fields)
  biased = model["projection_bias"]
  biased = projected if biased is True else biased or ()
  names = [f"{side}_projection" for side in projected]
  arguments = dict(
    dim=model["dim"],
    image_size=data["size"],
    vocab_size=data["vocab_size"],
    length=data["length"],
    projections=names + [f"{side}_projection_bias" for side in biased],
  )
  return open_clip_config(
    Sides(model["image"], model["text"]), **arguments | changes
  )


def facts(config, part):
  """What a part of a config says, with its defaults."""
  spec = DEFAULTS[part] | config[part]
  spec["mlp_ratio"] = int(spec.get("width", 0) * spec["mlp_ratio"])
  name = spec.get("timm_model_name")
  if name == "vitamin_xlarge_384":  # which one model has for small images
    name = f"vitamin_xlarge_{spec['image_size']}"
  spec["timm_model_name"] = SAME.get(name, name)
  empty = (None, False, "")
  return {k: x for k, x in spec.items() if k not in OTHER and x not in empty}


def test_configs_of_all_published_models():
  """What is read from OpenCLIP's own table is written as it has it."""
  for name in ARRAYS:
    config = TABLE[name]
    model, data = read(config)
    found = written(model, data).config
    for part in DEFAULTS:
      assert facts(found, part) == facts(config, part), name
    for key in ("embed_dim", "custom_text", "quick_gelu"):
      assert found.get(key) == config.get(key), name
  assert len(ARRAYS) == 115


def model_of(path):
  """The arrays, the towers and the inputs of one of PyTorch's tiny models."""
  with np.load(path) as file:
    parts = {name: file[name] for name in file.files}
  weights = {
    name.removeprefix("weights:"): x
    for name, x in parts.items()
    if name.startswith("weights:")
  }
  spec = json.loads(str(parts["spec"]))
  return weights, spec, parts["inputs:image"].shape[1], parts["inputs:text"]


def opened(path, folder):
  """The same in this library, with a tokenizer of as many ids."""
  weights, spec, size, tokens = model_of(path)
  words = tokenizer.build_tokenizer(
    ["a dog"], length=tokens.shape[1], first_and_last=True
  )._replace(num_ids=spec["towers"]["vocab_size"])
  model = models.towers(
    image_shape=(size, size, 3), length=words.length, **spec["towers"]
  )
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  params, state = convert.from_layout(weights, spec["layout"], *zeros)
  whole = {key: x for key, x in spec["towers"].items() if key != "vocab_size"}
  return weights, Exported(
    whole | {"name": "towers"}, params, state, words, size, 0.05
  )


@pytest.fixture
def tiny_names(monkeypatch):
  """Gives towers of timm and transformers names that stand for their sizes."""

  def give(image, text, size):
    if image["name"] in timm_towers.HEADS:
      image = {key: x for key, x in image.items() if key != "head"}
      monkeypatch.setitem(timm_towers.TOWERS, f"tiny_{size}", image)
    if text["name"] in open_clip.HF_HEADS:
      keys = ("name", "width", "layers", "heads", "hidden")
      tower = {key: text[key] for key in keys}
      monkeypatch.setitem(open_clip.HF_TEXTS, "tiny", (tower, 30))

  return give


@pytest.mark.parametrize("path", FAMILIES, ids=lambda x: x.stem)
def test_arrays_are_those_of_open_clip(path, tiny_names, tmp_path):
  """By its keys, bit for bit; and its config is of the same towers."""
  weights, model = opened(path, tmp_path)
  tiny_names(model.spec["image"], model.spec["text"], model.image_size)
  folder = tmp_path / "out"
  write_model(model, folder, layout="open_clip")
  tensors = safetensors.load_file(folder / "open_clip_model.safetensors")
  assert tensors.keys() - {"logit_bias"} == {
    x for x in weights if not x.endswith("num_batches_tracked")
  } - {"logit_bias"}
  for key in tensors.keys() - {"logit_scale", "logit_bias"}:
    np.testing.assert_array_equal(tensors[key], weights[key])
  assert tensors["logit_scale"] == np.float32(np.log(20))
  found = read_published(folder).model
  for side in Sides._fields:
    ours = dict(model.spec[side])
    bound = [bound_tower(side, x).values() for x in (ours, found[side])]
    free = {*open_clip_configs.OF_TRAINING, "patch_bias", "pool"}
    for key in bound[0].keys() - free:
      theirs, ours = (x[key] for x in bound)
      assert np.all(np.equal(theirs, ours)), key
  assert found["dim"] == model.spec["dim"]


@pytest.mark.parametrize("name", ("captions", "clipa", "roberta"))
def test_folders_of_open_clip(name, tiny_names, tmp_path):
  """A folder that was read is written with its own config and arrays."""
  source, folder = PUBLISHED / f"open_clip_{name}", tmp_path / "out"
  roberta = dict(name="roberta", width=16, layers=1, heads=4, hidden=64)
  with mock.patch.dict(open_clip.HF_TEXTS, {"tiny-roberta": (roberta, 30)}):
    config = untrained.config_of_published(source)
    parts, _, state = untrained.open_untrained(config, pairs=False)
    write_model(exported_of(parts, state), folder, layout="open_clip")
  old, new = (
    safetensors.load_file(x / "open_clip_model.safetensors")
    for x in (source, folder)
  )
  assert old.keys() == new.keys()
  added = "text.transformer.embeddings.token_type_embeddings.weight"
  positions = "text.transformer.embeddings.position_embeddings.weight"
  for key, x in old.items():
    assert x.shape == new[key].shape
    if key == positions:
      x = x + old[added]
    if key != added:
      np.testing.assert_allclose(new[key], x, rtol=1e-6)
  old, new = (
    files.read_json(x / "open_clip_config.json") for x in (source, folder)
  )
  for part in DEFAULTS:
    theirs, ours = (facts(x["model_cfg"], part) for x in (old, new))
    assert ours == theirs
  keys = ("size", "mean", "std", "interpolation", "resize_mode")
  for key in keys:
    assert new["preprocess_cfg"][key] == old["preprocess_cfg"][key]


CLIP_VIT = dict(name="clip_vit_b32", patch=8, width=16, layers=1, heads=2)
CLIP_TEXT = dict(name="clip_text", width=16, layers=1, heads=2, max_length=8)
SIGLIP = dict(name="siglip_vit_b16", activation="gelu")
BOTH = ("image_projection", "text_projection")


@pytest.mark.parametrize(
  ("image", "text", "more", "message"),
  [
    (dict(name="resnet50"), {}, {}, "has no image tower like 'resnet50'"),
    ({}, dict(name="transformer"), {}, "no text tower like 'transformer'; ch"),
    (
      {},
      dict(name="bert"),
      {},
      "roberta-base, it differs: width is 16 and the",
    ),
    (
      {},
      dict(name="roberta", layers=7, head=8),
      {},
      "layers is 7 and there 12",
    ),
    (dict(eps=1e-6), {}, {}, "its own, it differs: eps is 1e-06 and there 1e-"),
    (dict(pooler=True), {}, {}, "pooler is True and there False"),
    (dict(layer_scale=0.1), {}, {}, "layer_scale is True and there False"),
    (
      dict(activation="gelu"),
      {},
      {},
      "one activation .* 'gelu' and 'quick_gelu'",
    ),
    (
      dict(SIGLIP, layers=11),
      {},
      {},
      "base_patch16_siglip_224, it differs: pa",
    ),
    (
      dict(name="eva", gated=True, rotary=16, hidden=2048, patch=16, width=768)
      | dict(layers=12, heads=12),
      {},
      dict(image_size=256, projections=("image_projection_bias", *BOTH)),
      "images of 224 pixels only, and the run has 256; train with one of",
    ),
    (
      dict(SIGLIP, patch=16, width=768, layers=12, heads=12),
      {},
      dict(image_size=64, projections=("text_projection",)),
      "for images of 224, 256, 384, 512 pixels only, and the run has 64",
    ),
    ({}, {}, dict(length=7), "the tokenizer has 7; they must be the same"),
    (
      {},
      {},
      dict(projections=(*BOTH, "image_projection_bias")),
      "bias is True",
    ),
    (
      *({}, {}, dict(projections=(*BOTH, "text_projection_bias"))),
      "together, with the projections .*'text_projection_bias'",
    ),
  ],
)
def test_what_open_clip_does_not_have(image, text, more, message):
  arguments = dict(
    dim=8, image_size=224, vocab_size=9, length=8, projections=BOTH
  )
  towers = Sides(CLIP_VIT | image, CLIP_TEXT | text)
  known = (
    bound_tower(s, {"name": x["name"]}) for s, x in towers._asdict().items()
  )
  towers = Sides(
    *(
      {key: x for key, x in tower.items() if key in (*bound.values(), "name")}
      for tower, bound in zip(towers, known, strict=True)
    )
  )
  with pytest.raises(ValueError, match=message):
    open_clip_config(towers, **arguments | more)


def test_hidden_units_survive_rounding():
  """OpenCLIP rounds the product of width and ratio down."""
  for width in range(4, 400, 4):
    for hidden in range(8, 4 * width, 7):
      ratio = open_clip_configs._ratio(dict(width=width, hidden=hidden))
      assert int(width * ratio) == hidden


def test_a_bias_of_logits_is_kept(tmp_path):
  """Also of towers that SigLIP does not have, and none is made up."""
  path = next(x for x in FAMILIES if x.stem == "openclip")
  _, model = opened(path, tmp_path)
  for name, bias in (("with", -12.5), ("without", None)):
    folder = tmp_path / name
    write_model(model._replace(logit_bias=bias), folder, layout="open_clip")
    tensors = safetensors.load_file(folder / "open_clip_model.safetensors")
    config = files.read_json(folder / "open_clip_config.json")["model_cfg"]
    assert ("logit_bias" in tensors) == (bias is not None)
    assert ("init_logit_bias" in config) == (bias is not None)
    assert tensors.get("logit_bias", None) == bias

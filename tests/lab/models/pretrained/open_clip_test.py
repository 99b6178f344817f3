"""OpenCLIP's models with published weights: which are read, and as what."""

import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import GOLDEN, ROOT

from nuclr_jax.lab import files
from nuclr_jax.lab.data.tokenizer import pretrained_tokenizer
from nuclr_jax.lab.models import base, layers, vit
from nuclr_jax.lab.models.heads import rows
from nuclr_jax.lab.models.pretrained import (
  architectures,
  convert,
  open_clip,
  timm_towers,
)
from nuclr_jax.lab.models.towers import bound_tower

NAMES = files.read_json(GOLDEN / "open_clip_names.json")["names"]
TABLE = files.read_json(architectures.TABLE)
CONFIGS = {name: TABLE[name] for name in NAMES}
PARITY = ROOT / "experiments" / "parity" / "open_clip_models.json"


def read(name, **text):
  """Reads a model's config, without any files beside it."""
  config = TABLE[name]
  config = config | {"text_cfg": config["text_cfg"] | text}
  missing = mock.Mock(side_effect=ValueError)
  with mock.patch.object(open_clip.hub, "find_file", missing):
    return open_clip.read_open_clip("a/b", {"model_cfg": config})


def test_all_models():
  """What is read was compared with OpenCLIP's model, and the guide names it."""
  page = (ROOT / "docs" / "guides" / "published_models.md").read_text()
  refused = {}
  for name in CONFIGS:
    assert name in page
    try:
      model, data = read(name)
    except ValueError as error:
      refused[name] = str(error)
      continue
    for side in ("image", "text"):  # all names and values are those of towers
      bound_tower(side, model[side])
    assert data["vocab_size"] > 10_000
  assert (len(CONFIGS), refused) == (115, {})
  compared = files.read_json(PARITY)["arrays"]
  assert compared.keys() == CONFIGS.keys()


@pytest.mark.parametrize(
  ("name", "image", "text", "data", "more"),
  [
    (
      "ViT-H-14-worldwide",
      dict(name="clip_vit_b32", width=1280, heads=16, activation="gelu"),
      dict(name="clip_text", end_id=2, max_length=77),
      dict(pad_id=1, vocab_size=901_629, tokenizer="facebook/xlm-v-base"),
      dict(dim=1024, projection_bias=False),
    ),
    (
      "ViT-L-14-CLIPA",
      dict(pool="mean", norm_before=False, patch_bias=False),
      dict(name="clip_text", causal=False, max_length=32),
      dict(length=32, template="[CLS] $A [PAD]"),
      {},
    ),
    (
      "xlm-roberta-large-ViT-H-14",
      dict(name="clip_vit_b32"),
      dict(name="roberta", layers=24, head=1024, max_length=514),
      dict(pad_id=1, vocab_size=250_002, length=77),
      {},
    ),
    (
      "nllb-clip-large-siglip",
      dict(name="siglip_vit_b16", patch=14),
      dict(name="nllb", layers=24, hidden=8192),
      dict(pad_id=1, template="eng_Latn $A </s>", resize="crop_torchvision"),
      dict(projected=("text",), projection_bias=False),
    ),
    (
      "PE-Core-bigG-14-448",
      dict(name="perception_encoder", class_token=False, rotary=32),
      dict(name="clip_text", max_length=72),
      dict(size=448),
      dict(projection_bias=("image",), dim=1280),
    ),
    (
      "MobileCLIP2-L-14",
      dict(name="clip_vit_l14", activation="gelu"),
      dict(name="clip_text", causal=False, pool="end"),
      {},
      dict(projection_bias=("image",)),
    ),
    (
      "MobileCLIP-B",
      dict(name="mobileclip_vit", width=768, stem=192),
      dict(name="clip_text", max_length=77),
      dict(size=224, vocab_size=49_408),
      dict(projection_bias=("image",), dim=512),
    ),
    (
      "MobileCLIP2-S3",
      dict(name="fastvit", stages=(2, 12, 24, 4, 2), norm="layer", gated=0),
      dict(name="clip_text", causal=False, pool="end", width=768),
      dict(size=256),
      dict(projection_bias=("image",), dim=768),
    ),
    (
      "ViT-SO400M-16-SigLIP-i18n-256",
      dict(name="siglip_vit_b16", width=1152),
      dict(name="siglip_text", eps=1e-6),
      dict(pad_id=1, clean="canonicalize"),
      dict(projected=(), projection_bias=False, dim=1152),
    ),
    (
      "coca_ViT-L-14",
      dict(pool="query", probe=(768, 8)),
      dict(pool="class", max_length=77),
      dict(length=76),
      {},
    ),
    (
      "convnext_large_d_320",
      dict(name="convnext", width=192, head=1536),
      dict(layers=16),
      dict(size=320),
      dict(projection_bias=False),
    ),
  ],
)
def test_what_is_read(name, image, text, data, more):
  model, found = read(name)
  assert image.items() <= model["image"].items()
  assert text.items() <= model["text"].items()
  assert data.items() <= found.items()
  assert more.items() <= model.items()


@pytest.mark.parametrize(
  ("name", "text", "message"),
  [
    ("coca_ViT-L-14", dict(no_causal_mask=True), "embed_cls needs a causal"),
    ("roberta-ViT-B-32", dict(hf_proj_type="linear"), "can be .'mean_pooler'"),
    ("roberta-ViT-B-32", dict(output_tokens=True), "has .'output_tokens'."),
    (
      "ViT-L-14-CLIPA",
      dict(norm_kwargs=dict(elementwise=1)),
      "norm_kwargs has",
    ),
  ],
)
def test_what_the_towers_do_not_have(name, text, message):
  with pytest.raises(ValueError, match=message):
    read(name, **text)


TINY = sorted((GOLDEN / "towers").glob("*.npz"))


@pytest.mark.parametrize("path", TINY, ids=lambda x: x.stem)
def test_depth_of_the_weights(path):
  """Also of ResNets, where half of the arrays are in few blocks only."""
  with np.load(path) as file:
    towers = json.loads(str(file["spec"]))["towers"]
    shapes = {
      name.removeprefix("weights:"): file[name].shape
      for name in file.files
      if name.startswith("weights:")
    }
    sides = [side for side in towers if f"inputs:{side}" in file.files]
    size = file["inputs:image"].shape[1] if "image" in sides else 1
  for side in sides:
    tower = towers[side]
    convert.check_sizes(shapes, side, tower, size)
    deeper = {"layers": tower.get("layers", 0) + 1}
    if "stages" in tower:
      deeper = {"stages": (*tower["stages"], 1)}
    with pytest.raises(ValueError, match="layers in the weights, and"):
      convert.check_sizes(shapes, side, tower | deeper, size)


def test_a_tower_of_timm_that_is_not_here():
  name = "vit_relpos_medium_patch16_cls_224"
  with pytest.raises(ValueError, match=f"is timm's '{name}'; of timm's, those"):
    read(name)


@pytest.mark.parametrize("name", ["MobileCLIP-S1", "MobileCLIP2-S4"])
def test_pixels_of_mobileclip(name):
  """What its files say (OpenCLIP's `_mccfg` and `_mc2cfg`) is followed."""
  given = dict(mean=[0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0], fill_color=0)
  given |= dict(interpolation="bilinear", resize_mode="shortest", mode="RGB")
  missing = mock.Mock(side_effect=ValueError)
  with mock.patch.object(open_clip.hub, "find_file", missing):
    model, data = open_clip.read_open_clip(
      "a/b", {"model_cfg": CONFIGS[name], "preprocess_cfg": given}
    )
  assert model["image"]["mean"] == (0.0, 0.0, 0.0)
  assert model["image"]["std"] == (1.0, 1.0, 1.0)
  expected = dict(size=256, resize="crop_torchvision", kernel="bilinear")
  assert expected.items() <= data.items()
  tower = bound_tower("image", model["image"])(
    image_shape=(256, 256, 3), vocab_size=9, length=4, dtype="float32"
  )
  assert tower.num_features == {"S1": 1024, "S4": 4096}[name[-2:]]


def test_pooling_of_timm():
  vision = dict(timm_model_name="convnext_base", timm_pool="map", timm_proj="")
  with pytest.raises(ValueError, match="projection .'map', ''.; ours has"):
    timm_towers.read_timm(vision, 8)


def test_pixels_behind_the_last_patch():
  make = dict(patch=2, width=8, layers=1, heads=2)
  with pytest.raises(ValueError, match="patch must divide"):
    vit.vit(image_shape=(5, 7, 3), **make)
  vit.vit(image_shape=(5, 7, 3), leave_rest=True, **make)
  with pytest.raises(ValueError, match="patch must divide"):
    vit.vit(image_shape=(1, 7, 3), leave_rest=True, **make)
  tower = base.from_nnx(
    lambda rngs: layers.Patches(
      2, 3, 4, use_bias=True, dtype=jnp.float32, rngs=rngs
    ),
    4,
  )
  params = dict(kernel=jnp.ones((2, 2, 3, 4)), bias=jnp.zeros(4))
  x = np.arange(5 * 7 * 3, dtype=np.float32).reshape(1, 5, 7, 3)
  whole, _ = tower.apply(params, {}, jnp.array(x[:, :4, :6]))
  found, _ = tower.apply(params, {}, jnp.array(x))
  np.testing.assert_array_equal(found, whole)


def test_a_bias_of_one_projection():
  sides = [rows(length=3)] * 2
  model = base.dual_encoder(*sides, dim=3, projection_bias=("image",))
  params, _ = model.init(jax.random.key(0))
  assert "image_projection_bias" in params
  assert "text_projection_bias" not in params
  with pytest.raises(ValueError, match="has .'image'., and projected does not"):
    base.dual_encoder(
      *sides, dim=3, projected=["text"], projection_bias=("image",)
    )


@pytest.mark.parametrize(
  ("template", "ids"),
  [("[CLS] $A [PAD]", [2, 4, 5, 0]), ("$A", [4, 5, 0, 0]), ("[CLS]", None)],
)
def test_templates(tmp_path, template, ids):
  (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\ndog")
  read = dict(length=4, template=template)
  if ids is None:
    with pytest.raises(ValueError, match="must have .A once, and tokens of"):
      pretrained_tokenizer(tmp_path, **read)
    return
  words = pretrained_tokenizer(tmp_path, **read)
  assert words.encode(["a dog", "a dog dog dog"])[0].tolist() == ids

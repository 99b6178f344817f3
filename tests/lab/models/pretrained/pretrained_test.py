"""Weights of other libraries: names, shapes, files, and a run's first state."""

import functools
import json
import logging

import jax
import ml_dtypes
import numpy as np
from PIL import Image
import pytest
from safetensors.numpy import save_file

from nuclr_jax import Batch
from nuclr_jax.lab import models
from nuclr_jax.lab.models import pretrained
from nuclr_jax.lab.models.pretrained import load
from tests.lab.models.towers_test import (
  GOLDEN_TOWERS,
  read_golden,
)

SMALL = dict(width=16, layers=2, heads=4, hidden=24)
TEXT = dict(name="distilbert", width=8, layers=1, heads=2)
CLIP = dict(
  image=dict(name="clip_vit_b16", patch=8, **SMALL),
  text=dict(name="clip_text", **SMALL),
)
SIGLIP = dict(
  image=dict(name="siglip_vit_b16", patch=8, **SMALL),
  text=dict(name="siglip_text", **SMALL),
  dim=16,
  projection_bias=True,
  projected=("text",),
)
# For each layout towers that have it; what follows a colon tells apart several
# of a layout.
TOWERS = {
  "torchvision_resnet": dict(
    image=dict(name="resnet50", stages=(2, 1), width=4)
  ),
  "hf_resnet": dict(
    image=dict(name="resnet50", stages=(1, 2), width=4, bottleneck=False)
  ),
  "timm_vit": dict(image=dict(name="vit_b16", patch=8, **SMALL)),
  "timm_vit:dinov2": dict(image=dict(name="dinov2_vit_s14", patch=8, **SMALL)),
  "timm_vit:siglip": dict(image=SIGLIP["image"]),
  "hf_vit": dict(image=dict(name="vit_b16", patch=8, pooler=True, **SMALL)),
  "hf_dinov2": dict(image=dict(name="dinov2_vit_b14", patch=8, **SMALL)),
  "hf_distilbert": dict(text=dict(name="distilbert", **SMALL)),
  "hf_bert": dict(text=dict(name="bert", pooler=True, **SMALL)),
  "hf_clip": CLIP,
  "hf_siglip": SIGLIP,
  "hf_dual_encoder": dict(
    image=dict(name="vit_b16", patch=8, **SMALL),
    text=dict(name="bert", **SMALL),
  ),
  "open_clip": CLIP,
  "open_clip:resnet": dict(
    image=dict(
      name="clip_resnet50", stages=(2, 1), width=4, heads=4, features=12
    ),
    text=CLIP["text"],
    projected=("text",),
  ),
  "open_clip_siglip": SIGLIP,
  "open_clip_timm": dict(
    image=dict(name="eva", patch=8, **SMALL),
    text=CLIP["text"],
    projection_bias=("image",),
  ),
  "open_clip_timm:perception_encoder": dict(
    image=dict(
      name="perception_encoder", patch=8, rotary=3, pool_heads=2, **SMALL
    ),
    text=CLIP["text"],
    projection_bias=("image",),
  ),
  "open_clip_eva02": dict(
    image=dict(name="eva", patch=8, gated=True, rotary=3, **SMALL),
    text=CLIP["text"],
    projection_bias=("image",),
  ),
  "open_clip_convnext": dict(
    image=dict(name="convnext", stages=(1, 1), width=4), text=CLIP["text"]
  ),
  "open_clip_convnext_mlp": dict(
    image=dict(name="convnext", stages=(1, 1), width=4, head=24),
    text=CLIP["text"],
  ),
  "open_clip_vitamin": dict(
    image=dict(
      name="vitamin", width=16, layers=1, heads=4, stem=8, stem_blocks=(1, 2)
    ),
    text=CLIP["text"],
    image_shape=(32, 32, 3),
  ),
  "open_clip_mobileclip_vit": dict(
    image=dict(name="mobileclip_vit", stem=4, **SMALL),
    text=CLIP["text"],
    image_shape=(32, 32, 3),
    projection_bias=("image",),
  ),
  "open_clip_fastvit": dict(
    image=dict(name="fastvit", width=16, stages=(1, 2, 1)),
    text=CLIP["text"],
    projection_bias=("image",),
  ),
  "open_clip_fastvit:layer": dict(
    image=dict(
      name="fastvit",
      width=16,
      stages=(1, 2),
      gated=0,
      norm="layer",
      stem_scale=False,
    ),
    text=CLIP["text"],
    projection_bias=("image",),
  ),
  "open_clip_bert": dict(
    image=CLIP["image"], text=dict(name="roberta", head=14, **SMALL)
  ),
  "open_clip_nllb": dict(image=CLIP["image"], text=dict(name="nllb", **SMALL)),
  "open_clip_siglip_nllb": dict(
    image=SIGLIP["image"],
    text=dict(name="nllb", **SMALL),
    dim=16,
    projected=("text",),
  ),
}
# Of a tower alone, its file tells which layout it has.
ALONE = {"hf_clip", "hf_siglip", "open_clip", "open_clip_siglip"}


def make(**changes):
  arguments = dict(
    image_shape=(24, 24, 3),
    vocab_size=30,
    length=6,
    dim=12,
    image=dict(name="resnet50", stages=(1,), width=2),
    text=TEXT,
    projection_bias=False,
  )
  return models.towers(**arguments | changes)


def filled(model, seed=None):
  """Params and state of random numbers, or of zeros."""
  rng = np.random.default_rng(seed)

  def fill(x):
    if seed is None:
      return np.zeros(x.shape, np.float32)
    return rng.normal(size=x.shape).astype(np.float32)

  return jax.tree.map(fill, shapes_of(model))


@functools.cache
def shapes_of(model):
  return jax.eval_shape(model.init, jax.random.key(0))


@functools.cache
def model_of(layout):
  return make(**TOWERS[layout])


def exported(layout, seed=0, **changes):
  """A file's arrays, and the model and the numbers that they are of."""
  model = make(**TOWERS[layout] | changes) if changes else model_of(layout)
  params, state = filled(model, seed)
  layout = layout.partition(":")[0]
  return pretrained.to_layout(params, state, layout), model, (params, state)


def sides_of(layout):
  return tuple(x for x in ("image", "text") if x in TOWERS[layout])


def golden(name):
  (path,) = (path for path in GOLDEN_TOWERS if path.stem == name)
  return read_golden(path)[1]["weights"]


@pytest.mark.parametrize("layout", TOWERS)
def test_round_trip(layout):
  """Every number of a tower is written once and read back bit by bit."""
  tensors, model, expected = exported(layout)
  sides = sides_of(layout)
  layout = layout.partition(":")[0]
  assert pretrained.recognize(list(tensors)) == layout
  loaded = pretrained.from_layout(tensors, layout, *filled(model))
  both = len(sides) == 2  # such files have projections, too
  for tree, original in zip(loaded, expected, strict=True):
    for name in tree:
      here = both or name in sides
      numbers = (
        original[name] if here else jax.tree.map(np.zeros_like, original[name])
      )
      jax.tree.map(np.testing.assert_array_equal, tree[name], numbers)
  again = pretrained.to_layout(*loaded, layout)
  assert set(again) == set(tensors)
  for key, x in tensors.items():
    assert x.dtype == np.float32 and x.flags.c_contiguous
    np.testing.assert_array_equal(again[key], x)


@pytest.mark.parametrize("path", GOLDEN_TOWERS, ids=lambda path: path.stem)
def test_written_keys_are_those_of_the_library(path):
  """A file that was read and written again has the same arrays."""
  spec, parts = read_golden(path)
  tensors, towers = parts["weights"], spec["towers"]
  sides = [side for side in ("image", "text") if side in towers]
  shape = parts["inputs"].get("image", np.zeros((1, 24, 24, 3))).shape[1:]
  towers |= dict(length=8, image_shape=shape)
  towers.setdefault("projection_bias", "siglip" in spec["layout"])
  model = make(**towers)
  loaded = pretrained.from_layout(tensors, spec["layout"], *filled(model))
  written = pretrained.to_layout(*loaded, spec["layout"], sides=sides)
  ignored = {k for k in tensors if k.endswith("batches_tracked")}
  ignored |= {"logit_scale", "logit_bias", "embeddings.mask_token"}
  ignored |= {"transformer.embed_positions.weights"}  # computed
  prefix = pretrained.LAYOUTS[spec["layout"]].prefix
  tensors = {k.removeprefix(prefix): x for k, x in tensors.items()}
  assert set(written) == set(tensors) - ignored
  types = "embeddings.token_type_embeddings.weight"
  for key, x in written.items():
    expected = tensors[key]
    if key == types:
      expected = np.zeros_like(expected)
    if types in tensors and key == "embeddings.position_embeddings.weight":
      expected = expected + tensors[types][:1]
    np.testing.assert_array_equal(x, expected)


def test_names_of_torchvision():
  """Facts of its ResNet-50, `to_layout` being an export, too."""
  model = make(image=dict(name="resnet50"))
  tensors = pretrained.to_layout(*filled(model), "torchvision_resnet")
  assert len(tensors) == 53 + 4 * 53
  assert tensors["conv1.weight"].shape == (64, 3, 7, 7)
  assert tensors["layer2.0.downsample.0.weight"].shape == (512, 256, 1, 1)
  assert tensors["layer4.2.conv2.weight"].shape == (512, 512, 3, 3)
  assert tensors["layer3.5.bn3.running_var"].shape == (1024,)


@pytest.mark.parametrize(
  "layout, prefix, heads",
  [
    ("torchvision_resnet", "", ["fc.weight", "bn1.num_batches_tracked"]),
    ("hf_resnet", "resnet.", ["classifier.1.bias"]),
    ("timm_vit", "", ["head.weight"]),
    ("timm_vit:dinov2", "", ["mask_token"]),
    ("hf_dinov2", "dinov2.", ["embeddings.mask_token", "classifier.bias"]),
    ("hf_vit", "vit.", ["classifier.weight"]),
    (
      "hf_distilbert",
      "distilbert.",
      ["vocab_projector.bias", "vocab_layer_norm.weight"],
    ),
    ("hf_bert", "bert.", ["cls.predictions.bias", "embeddings.position_ids"]),
    ("hf_clip", "", ["logit_scale", "text_model.embeddings.position_ids"]),
    ("hf_siglip", "", ["logit_scale", "logit_bias"]),
    ("hf_dual_encoder", "", ["logit_scale"]),
    ("open_clip", "", ["logit_scale", "input_resolution"]),
    ("open_clip:resnet", "", ["visual.bn1.num_batches_tracked"]),
    ("open_clip_siglip", "", ["logit_scale", "logit_bias"]),
  ],
)
def test_prefixes_and_heads(layout, prefix, heads, tmp_path, caplog):
  tensors, model, expected = exported(layout)
  tensors = {prefix + key: x for key, x in tensors.items()}
  tensors |= {key: np.zeros(3, np.float32) for key in heads}
  save_file(tensors, tmp_path / "model.safetensors")
  sides = sides_of(layout)
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    params, state = pretrained.load_towers(
      tmp_path, *filled(model), sides=sides
    )
  for side in sides:
    for loaded, original in zip((params, state), expected, strict=True):
      jax.tree.map(np.testing.assert_array_equal, loaded[side], original[side])
  # The scale of the logits is read elsewhere.
  heads = [x for x in heads if not x.startswith("logit_")]
  if not heads:
    assert not caplog.messages
    return
  (line,) = caplog.messages
  counts = f"{len(heads)} of {len(tensors)} arrays not loaded into the towers"
  assert counts in line and heads[0] in line


@pytest.mark.parametrize(
  "wrap",
  [
    lambda key: f"module.{key}",
    lambda key: f"_orig_mod.module.{key}",
    lambda key: key.replace("visual.", "visual._orig_mod."),  # a part alone
    # With "custom_text" in the config, OpenCLIP's text tower has a name.
    lambda key: key if key.startswith("visual.") else f"text.{key}",
  ],
)
def test_keys_of_wrapped_models(wrap, tmp_path):
  tensors, model, expected = exported("open_clip")
  scale = "logit_scale" if "text" in wrap("") else wrap("logit_scale")
  tensors = {wrap(key): x for key, x in tensors.items()}
  tensors[scale] = np.float32([2.5])
  index = {"weight_map": dict.fromkeys(tensors, "one.safetensors")}
  save_file(tensors, tmp_path / "one.safetensors")
  np.savez(tmp_path / "one.npz", **tensors)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
  for source in (tmp_path, tmp_path / "one.safetensors", tmp_path / "one.npz"):
    loaded = pretrained.load_towers(
      source, *filled(model), sides=("image", "text")
    )
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)
    assert pretrained.load.read_logit_scale(source) == 2.5


def test_an_unused_pooler_is_left_out():
  for name, tower in (
    ("hf_bert_pooler", dict(text=dict(name="bert", max_length=12, **SMALL))),
    ("hf_vit_pooler", dict(image=TOWERS["timm_vit"]["image"])),
  ):
    model, tensors = make(**tower), golden(name)
    layout = pretrained.recognize(list(tensors))
    params, _ = pretrained.from_layout(tensors, layout, *filled(model))
    assert "pooler" not in params[next(iter(tower))]


def test_old_names_of_layer_norm():
  tensors, model, (params, _) = exported("hf_bert")
  old = {
    key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
      "LayerNorm.bias", "LayerNorm.beta"
    ): x
    for key, x in tensors.items()
  }
  assert set(old) != set(tensors)
  loaded, _ = pretrained.from_layout(old, "hf_bert", *filled(model))
  jax.tree.map(np.testing.assert_array_equal, loaded["text"], params["text"])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_files(dtype, tmp_path):
  tensors, model, (params, _) = exported("hf_distilbert")
  tensors = {key: x.astype(dtype) for key, x in tensors.items()}
  path = tmp_path / "half.safetensors"
  save_file(tensors, path)
  loaded, _ = pretrained.load_towers(path, *filled(model), sides=("text",))
  expected = jax.tree.map(
    lambda x: x.astype(dtype).astype(np.float32), params["text"]
  )
  jax.tree.map(np.testing.assert_array_equal, loaded["text"], expected)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype("float32")}


def test_quantized_weights_are_refused():
  tensors, model, _ = exported("hf_distilbert")
  key = next(x for x in tensors if x.endswith("lin1.weight"))
  tensors[key] = np.ones(tensors[key].shape, np.int8)
  with pytest.raises(ValueError, match=f"{key}' is of int8: quantized weights"):
    pretrained.from_layout(tensors, "hf_distilbert", *filled(model))


def test_weights_in_several_files(tmp_path):
  tensors, *_ = exported("hf_distilbert")
  names = sorted(tensors)
  files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
  for file, part in files.items():
    save_file({name: tensors[name] for name in part}, tmp_path / file)
  index = {
    "weight_map": {x: file for file, part in files.items() for x in part}
  }
  path = tmp_path / "model.safetensors.index.json"
  path.write_text(json.dumps(index))
  for source in (tmp_path, path):
    arrays = pretrained.read_tensors(source)
    assert set(arrays) == set(tensors)
    np.testing.assert_array_equal(arrays[names[1]], tensors[names[1]])


@pytest.mark.parametrize(
  "prefix", ["module.", "_orig_mod.", "module._orig_mod."]
)
def test_prefixes_of_wrappers(prefix, tmp_path):
  """DataParallel and torch.compile put one before every name."""
  tensors = {"logit_scale": np.float32([3.5]), "x": np.zeros(2)}
  wrapped = {f"{prefix}{name}": x for name, x in tensors.items()}
  save_file(wrapped, tmp_path / "x.safetensors")
  np.savez(tmp_path / "x.npz", **wrapped)
  index = {"weight_map": dict.fromkeys(wrapped, "x.safetensors")}
  (tmp_path / "x.json").write_text(json.dumps(index))
  for source in ("x.safetensors", "x.npz", "x.json"):
    found = pretrained.read_tensors(tmp_path / source)
    assert found.keys() == tensors.keys()
    assert load.read_logit_scale(tmp_path / source) == 3.5
  np.savez(tmp_path / "x.npz", **wrapped, x=np.ones(1))
  with pytest.raises(ValueError, match="has some weights twice"):
    pretrained.read_tensors(tmp_path / "x.npz")


def test_files_that_cannot_be_read(tmp_path):
  broken = tmp_path / "broken.safetensors"
  broken.write_bytes(b"\x00" * 30)
  (tmp_path / "empty").mkdir()
  (tmp_path / "weights.bin").write_bytes(b"PK")
  (tmp_path / "weights.h5").write_bytes(b"x")
  for source, message in (
    (tmp_path / "none.safetensors", "does not exist; give a file"),
    ("./weights/here", "does not exist; give a file"),
    (tmp_path / "empty", "has none of model.safetensors"),
    (broken, "cannot be read"),
    (tmp_path / "weights.bin", "is not a zip archive"),
    (tmp_path / "weights.h5", "must be .safetensors, .npz, .msgpack, .bin"),
  ):
    with pytest.raises(ValueError, match=message):
      pretrained.read_tensors(source)


def test_without_the_hub(monkeypatch):
  """The error of a machine without a network says what to do."""
  import huggingface_hub

  def unreachable(*_, **__):
    raise OSError("no route to host")

  monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
  with pytest.raises(ValueError, match="yourself and give its path"):
    pretrained.read_tensors("nobody/no-such-model")


def without(tensors, *keys):
  return {key: x for key, x in tensors.items() if key not in keys}


@pytest.mark.parametrize(
  "layout, change, message",
  [
    (
      "hf_distilbert",
      lambda x: without(x, "embeddings.LayerNorm.bias"),
      "1 keys are missing: embeddings.LayerNorm.bias",
    ),
    (
      "torchvision_resnet",
      lambda x: x | {"layer3.0.conv1.weight": np.zeros(1)},
      "1 keys are left over: layer3.0.conv1.weight",
    ),
    (
      "hf_bert",
      lambda x: {k.replace("layer.1.", "layer.2."): v for k, v in x.items()},
      "16 keys are missing.*and 6 more.*16 keys are left over",
    ),
    (
      "timm_vit",
      lambda x: x | {"norm.bias": np.zeros(3), "norm.weight": np.zeros(4)},
      r"2 arrays have other shapes: .*norm.bias \[3\] instead of \[16\]",
    ),
    (
      "hf_bert",
      lambda x: (
        x | {"embeddings.position_embeddings.weight": np.zeros((9, 16))}
      ),
      r"position_embeddings.weight \[9, 16\] instead of \[512, 16\]",
    ),
    (
      "timm_vit",
      lambda x: x | {"pos_embed": np.zeros((1, 6, 16))},
      "of 5 patches, which do not form a square",
    ),
    (
      "timm_vit",
      lambda x: x | {"pos_embed": np.zeros((1, 1, 16))},
      "of 0 patches, which do not form a square",
    ),
    (
      "hf_dinov2",
      lambda x: without(x, "encoder.layer.1.layer_scale2.lambda1"),
      "1 keys are missing: encoder.layer.1.layer_scale2.lambda1",
    ),
    (
      "timm_vit",
      lambda x: x | {"blocks.0.ls1.gamma": np.zeros(16)},
      "1 keys are left over: blocks.0.ls1.gamma; does the file belong",
    ),
    (
      "open_clip:resnet",
      lambda x: x | {"visual.proj": np.zeros((16, 12))},
      "left over: visual.proj; projected and projection_bias must be those of",
    ),
    (
      "hf_siglip",
      lambda x: without(x, "text_model.head.bias"),
      "missing: text_model.head.bias; projected and projection_bias must be",
    ),
    (
      "hf_clip",
      lambda x: {"a": np.zeros(1)},
      "fit one of the layouts.*fit none: a",
    ),
  ],
)
def test_files_that_do_not_fit(layout, change, message, tmp_path):
  tensors, model, _ = exported(layout)
  np.savez(tmp_path / "x.npz", **change(tensors))
  sides = sides_of(layout)
  with pytest.raises(ValueError, match=message):
    pretrained.load_towers(tmp_path / "x.npz", *filled(model), sides=sides)


@pytest.mark.parametrize(
  "layout, changes, message",
  [
    (
      "hf_distilbert",
      dict(vocab_size=31),
      r"\[30, 16\] instead of \[31, 16\]; the tokenizer's vocabulary must be",
    ),
    ("hf_clip", dict(dim=13), "instead of .13, 16.*; the model's dim must be"),
    ("open_clip", dict(dim=13), "the model's dim must be that of the file"),
    (
      "hf_vit",
      dict(image=TOWERS["torchvision_resnet"]["image"]),
      "layout is hf_vit, which describes another kind of tower",
    ),
    (
      "hf_vit",
      TOWERS["hf_dinov2"],
      "another kind of tower: it has no image/blocks/0/scale1",
    ),
    (
      "hf_clip",
      dict(text=CLIP["text"] | dict(max_length=76)),
      "position embeddings of 77 tokens, the text tower of 76 .max_length.",
    ),
    (
      "hf_siglip",
      dict(projected=("image", "text")),
      "hf_siglip, which has no image_projection; leave the side out",
    ),
  ],
)
def test_towers_that_do_not_fit(layout, changes, message):
  tensors, *_ = exported(layout)
  model = make(**TOWERS[layout] | changes)
  with pytest.raises(ValueError, match=message):
    pretrained.from_layout(tensors, layout, *filled(model))


def test_a_file_of_the_other_side():
  tensors, model, _ = exported("hf_bert")
  with pytest.raises(ValueError, match="hf_bert, which has no image tower"):
    pretrained.from_layout(tensors, "hf_bert", *filled(model), sides=("image",))


def test_no_projection_is_lost():
  """A layout that cannot hold a model's projection is refused."""
  model = make(**SIGLIP | dict(projected=("image", "text")))
  for layout in ("hf_siglip", "open_clip_siglip"):
    with pytest.raises(ValueError, match="which has no image_projection"):
      pretrained.to_layout(*filled(model), layout)
    sides = dict(sides=("text",))
    tensors = pretrained.to_layout(*filled(model), layout, **sides)
    assert pretrained.recognize(list(tensors)) == layout


@pytest.mark.parametrize("layout", ["hf_siglip", "open_clip_siglip"])
def test_one_side_of_siglip(layout):
  """The image tower has no projection: the model's own may stay."""
  tensors, _, (params, _) = exported(layout)
  for side in ("image", "text"):
    other = dict(dim=16, projection_bias=True)
    model = make(**other | {side: SIGLIP[side]})
    zeros = filled(model)
    loaded, _ = pretrained.from_layout(tensors, layout, *zeros, sides=(side,))
    jax.tree.map(np.testing.assert_array_equal, loaded[side], params[side])
    assert not np.any(loaded["image_projection"])
    for name in ("text_projection", "text_projection_bias"):
      expected = params[name] if side == "text" else 0 * loaded[name]
      np.testing.assert_array_equal(loaded[name], expected)


def test_queries_are_the_first_third():
  """Of timm's pooling, which has keys and values together."""
  tensors, _, (params, _) = exported("timm_vit:siglip")
  qkv = params["image"]["pool"]["attention"]["qkv"]
  for i, (name, columns) in enumerate((("q", (0, 16)), ("kv", (16, 48)))):
    columns = slice(*columns)
    key = f"attn_pool.{name}"
    assert tensors[f"{key}.weight"].shape == (16 * (i + 1), 16)
    np.testing.assert_array_equal(
      tensors[f"{key}.weight"], qkv["kernel"][:, columns].T
    )
    np.testing.assert_array_equal(tensors[f"{key}.bias"], qkv["bias"][columns])


def long_clip(old, keep=20, times=4):
  """The stretching in Long-CLIP's code, one position after the other.

  The positions after the last one continue the line through the last two.
  """
  new = [old[i] for i in range(keep)]
  for i in range(keep, len(old) - 1):
    for j in range(times):
      new.append(old[i] * (times - j) / times + old[i + 1] * j / times)
  for j in range(times):
    new.append(old[-1] + j * (old[-1] - old[-2]) / times)
  return np.stack(new)


@pytest.mark.parametrize("layout", ["hf_clip", "open_clip"])
def test_positions_of_long_texts(layout, caplog):
  """To 248 as in Long-CLIP, to other lengths by linear interpolation."""
  tensors, _, (params, _) = exported(layout)
  old = np.float64(params["text"]["positions"])
  assert old.shape == (77, 16)

  def loaded(length):
    text = CLIP["text"] | dict(max_length=length)
    model = make(image=CLIP["image"], text=text, length=length)
    new, _ = pretrained.from_layout(tensors, layout, *filled(model))
    return model, new

  with caplog.at_level(logging.INFO, "nuclr_jax"):
    model, new = loaded(248)
  assert "positions of texts stretched from 77 to 248" in caplog.text
  np.testing.assert_allclose(
    new["text"]["positions"], long_clip(old), rtol=1e-5, atol=1e-5
  )
  assert len(pretrained.to_layout(new, {"image": {}, "text": {}}, layout)) == (
    len(tensors)
  )
  inside = 20 + np.arange(80) * 57 / 80  # of which the last is beyond 76
  expected = [np.interp(inside[:-1], np.arange(77), x) for x in old.T]
  positions = loaded(100)[1]["text"]["positions"]
  np.testing.assert_allclose(
    positions[20:-1], np.stack(expected, 1), rtol=1e-5, atol=1e-5
  )
  np.testing.assert_array_equal(
    positions[:20], params["text"]["positions"][:20]
  )
  # A caption of up to 20 ids has the features that it had.
  short = make(image=CLIP["image"], text=CLIP["text"], length=20)
  ids = np.random.default_rng(0).integers(1, 30, (3, 20)).astype(np.int32)
  states = {"image": {}, "text": {}}
  few, _ = short.apply(params, states, Batch(None, ids, None))
  padded = np.pad(ids, ((0, 0), (0, 228)))
  many, _ = model.apply(new, states, Batch(None, padded, None))
  np.testing.assert_allclose(few.text, many.text, atol=1e-5)


def test_files_with_few_positions_are_not_stretched():
  tensors, *_ = exported("hf_clip", text=CLIP["text"] | dict(max_length=21))
  model = make(**CLIP | dict(text=CLIP["text"] | dict(max_length=30)))
  with pytest.raises(ValueError, match="more only of a file with at least 22"):
    pretrained.from_layout(tensors, "hf_clip", *filled(model))


@pytest.mark.parametrize("layout", ["hf_clip", "open_clip"])
def test_one_side_of_clip(layout):
  """It comes with its projection; the other side's arrays are known."""
  tensors, _, (params, _) = exported(layout)
  model = make(image=CLIP["image"])
  loaded, _ = pretrained.from_layout(
    tensors, layout, *filled(model), sides=("image",)
  )
  for name in ("image", "image_projection"):
    jax.tree.map(np.testing.assert_array_equal, loaded[name], params[name])
  assert not np.any(loaded["text_projection"])


@pytest.mark.parametrize("layout", ["timm_vit", "timm_vit:siglip"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (48, 16, 3), (8, 72, 3)])
def test_positions_are_resized_as_pillow_resizes(shape, layout, caplog):
  """Bicubic; also to nine patches that are no square."""
  tensors, *_ = exported(layout)
  model = make(**TOWERS[layout], image_shape=shape)
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    params, _ = pretrained.from_layout(tensors, "timm_vit", *filled(model))
  assert "positions resized from (3, 3)" in caplog.text
  rest = tensors["pos_embed"][0]
  if layout == "timm_vit":
    first, rest = rest[0], rest[1:]
    np.testing.assert_array_equal(params["image"]["class_position"], first)
  size = (shape[1] // 8, shape[0] // 8)
  expected = [
    np.asarray(Image.fromarray(x).resize(size, Image.Resampling.BICUBIC))
    for x in np.moveaxis(rest.reshape(3, 3, -1), -1, 0)
  ]
  np.testing.assert_allclose(
    params["image"]["positions"], np.stack(expected, -1), atol=1e-5
  )


def test_layouts_have_marks_of_their_own():
  """For each tower of CLIP and SigLIP alone, too."""
  for towers in TOWERS:
    tensors, _, numbers = exported(towers)
    layout = towers.partition(":")[0]
    assert pretrained.recognize(list(tensors)) == layout
    for side in sides_of(towers) if layout in ALONE else ():
      tensors = pretrained.to_layout(*numbers, layout, sides=(side,))
      assert pretrained.recognize(list(tensors)) == layout
  assert {x.partition(":")[0] for x in TOWERS} == set(pretrained.LAYOUTS)

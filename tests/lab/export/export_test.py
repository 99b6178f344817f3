"""Models in Hugging Face's layouts, and back."""

import inspect
import json
import os
import stat

import jax
from make_weights import numbers
import numpy as np
import pytest
from safetensors import numpy as safetensors

from nuclr_jax.lab import models
from nuclr_jax.lab.data import tokenizer
from nuclr_jax.lab.export import Exported, hf_configs, model, write_model
from nuclr_jax.lab.models import pretrained
from nuclr_jax.types import Batch

SIZE, LENGTH = 32, 8
WORDS = tokenizer.build_tokenizer(
  ["a dog", "two cats on a mat"], length=LENGTH, first_and_last=True
)
BERT = dict(name="bert", width=16, layers=2, heads=2, max_length=12)
VIT = dict(name="vit_s16", patch=8, width=16, layers=2, heads=2, eps=1e-12)
TOWERS = {
  "resnet and distilbert": dict(
    image=dict(name="resnet50", stages=(1, 2), width=4),
    text=BERT | dict(name="distilbert"),
  ),
  "vit and bert": dict(image=VIT, text=BERT, projection_bias=False),
  "mean of bert": dict(image=VIT, text=BERT | dict(pooling="mean")),
  "max of distilbert": dict(
    image=VIT, text=BERT | dict(name="distilbert", pooling="max")
  ),
  "dual encoder": dict(
    image=VIT | dict(pooler=True),
    text=BERT | dict(pooler=True),
    projection_bias=False,
  ),
  "clip": dict(
    image=dict(name="clip_vit_b32", patch=8, width=16, layers=2, heads=2),
    text=dict(name="clip_text", width=16, layers=2, heads=2, max_length=12),
    projection_bias=False,
  ),
}


def make(spec, **more):
  return models.towers(
    image_shape=(SIZE, SIZE, 3),
    vocab_size=WORDS.vocab_size,
    length=LENGTH,
    dim=6,
    **spec,
    **more,
  )


def first(model, seed):
  """Parameters and statistics, none of them 0 or 1."""
  leaves, structure = jax.tree.flatten(numbers(model.init, seed))
  rng = np.random.default_rng(seed)
  moved = [x + 0.1 * np.abs(rng.normal(size=x.shape)) for x in leaves]
  return jax.tree.unflatten(structure, [np.float32(x) for x in moved])


def exported(name, folder):
  spec = TOWERS[name]
  params, state = first(make(spec), seed=1)
  whole = dict(spec, name="towers", dim=6)
  write_model(Exported(whole, params, state, WORDS, SIZE, 0.05), folder)
  return params, state


@pytest.mark.parametrize("name", TOWERS)
def test_what_was_written_is_read_back(name, tmp_path):
  """Every array bit for bit, and so the embeddings."""
  params, state = exported(name, tmp_path / "out")
  model = make(TOWERS[name], pretrained=str(tmp_path / "out"))
  loaded = model.load(*model.init(jax.random.key(2)))
  for old, new in zip(
    jax.tree.leaves((params, state)), jax.tree.leaves(loaded), strict=True
  ):
    np.testing.assert_array_equal(old, new)
  rng = np.random.default_rng(0)
  batch = Batch(
    rng.integers(0, 256, (3, SIZE, SIZE, 3)).astype(np.uint8),
    WORDS.encode(["a dog", "cats", "mat on a dog"]),
    None,
  )
  apply = jax.jit(lambda x: model.apply(*x, batch)[0])
  pairs = [apply(x) for x in ((params, state), loaded)]
  np.testing.assert_array_equal(pairs[0].image, pairs[1].image)
  np.testing.assert_array_equal(pairs[0].text, pairs[1].text)


def test_folders_say_what_they_are(tmp_path):
  folder = tmp_path / "out"
  exported("resnet and distilbert", folder)
  config = json.loads((folder / "image_encoder" / "config.json").read_text())
  assert config["model_type"] == "resnet"
  assert config["hidden_sizes"] == [16, 32] and config["depths"] == [1, 2]
  assert not config["downsample_in_bottleneck"]  # the stride is on the 3 x 3
  config = json.loads((folder / "text_encoder" / "config.json").read_text())
  assert (config["dim"], config["hidden_dim"]) == (16, 64)
  assert config["vocab_size"] == WORDS.vocab_size
  tokenizer_json = (folder / "text_encoder" / "tokenizer.json").read_text()
  assert json.loads(tokenizer_json) == json.loads(WORDS.text)
  seen = (folder / "image_encoder" / "preprocessor_config.json").read_text()
  assert json.loads(seen)["size"] == {"height": SIZE, "width": SIZE}
  tensors = safetensors.load_file(folder / "projections.safetensors")
  assert {key: x.shape for key, x in tensors.items()} == {
    "image_projection.weight": (6, 32),
    "image_projection.bias": (6,),
    "text_projection.weight": (6, 16),
    "text_projection.bias": (6,),
    "logit_scale": (),
  }
  compile((folder / "load.py").read_text(), "load.py", "exec")
  assert "FEATURES" not in (folder / "load.py").read_text()


@pytest.mark.parametrize("name", ["mean of bert", "max of distilbert"])
def test_how_texts_are_pooled(name, tmp_path):
  """The text encoder's folder says it, and a tower that differs is refused."""
  folder = tmp_path / "out"
  exported(name, folder)
  text = TOWERS[name]["text"]
  found = pretrained.read_published(folder).model["text"]
  assert (found["name"], found["pooling"]) == (text["name"], text["pooling"])
  loader = (folder / "load.py").read_text()
  compile(loader, "load.py", "exec")
  assert "FEATURES" not in loader and "x[:, 0]" not in loader
  spec = TOWERS[name] | {"text": text | dict(pooling="first")}
  other = make(spec, pretrained=str(folder))
  with pytest.raises(ValueError, match="is a sentence encoder with .'pooling'"):
    other.load(*other.init(jax.random.key(0)))


def test_where_captions_end():
  """Id 2 means another one in Hugging Face's configs, and is not written."""
  tower = inspect.signature(models.TEXT_TOWERS["clip_text"]).parameters
  text = {name: x.default for name, x in tower.items()}
  image = dict(text, patch=8)
  sizes = dict(image_size=SIZE, vocab_size=9, dim=6)

  def written(end_id):
    language = text | dict(end_id=end_id)
    config = hf_configs.clip_config(image, language, **sizes)
    return config["text_config"]["eos_token_id"]

  assert (written(None), written(5), written(0)) == (2, 5, 0)
  with pytest.raises(ValueError, match="reads the end token 2 as that with"):
    written(2)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_weights_have_the_permissions_of_other_files(umask, tmp_path):
  before = os.umask(umask)
  try:
    model._write_tensors(tmp_path / "x", {"bias": np.zeros(3)})
  finally:
    os.umask(before)
  assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~umask
  assert safetensors.load_file(tmp_path / "x").keys() == {"bias"}


def test_one_model_of_two(tmp_path):
  exported("dual encoder", tmp_path / "out")
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config["model_type"] == "vision-text-dual-encoder"
  tensors = safetensors.load_file(tmp_path / "out" / "model.safetensors")
  np.testing.assert_allclose(tensors["logit_scale"], np.log(20), rtol=1e-6)
  assert tensors["visual_projection.weight"].shape == (6, 16)
  key = "vision_model.encoder.layer.1.attention.attention.query.weight"
  assert tensors[key].shape == (16, 16)
  assert "text_model.pooler.dense.bias" in tensors


@pytest.mark.parametrize(
  "spec, message",
  [
    (dict(image=VIT | dict(pooler=True), text=BERT), "no layout for these tow"),
    (dict(TOWERS["clip"], text=BERT), "no layout for these towers"),
    # CLIP's projections have no bias; it must not be left out silently.
    (dict(TOWERS["clip"], projection_bias=True), "projection_bias must be"),
    (
      dict(
        TOWERS["vit and bert"], text=BERT | dict(name="distilbert", eps=1e-5)
      ),
      "DistilBERT has eps 1e-12",
    ),
    (
      dict(image=VIT, text=dict(name="transformer", width=16, heads=2)),
      "no layout for 'transformer'; export a model with a BERT",
    ),
  ],
)
def test_what_has_no_layout(spec, message, tmp_path):
  params, state = make(spec).init(jax.random.key(0))
  whole = dict(spec, name="towers", dim=6)
  with pytest.raises(ValueError, match=message):
    write_model(Exported(whole, params, state, WORDS, SIZE), tmp_path / "out")
  assert not list(tmp_path.iterdir())


def test_a_vgg_has_no_layout(tmp_path):
  image = dict(name="vgg16", stages=((4, 1), (8, 1)))
  params, state = make(dict(image=image, text=BERT)).init(jax.random.key(0))
  whole = dict(name="towers", image=image, text=BERT)
  with pytest.raises(ValueError, match="no layout for 'vgg16'; export a model"):
    write_model(
      Exported(whole, params, state, WORDS, SIZE), tmp_path / "a" / "out"
    )
  assert not list(tmp_path.iterdir())


def test_errors_when_reading(tmp_path):
  exported("resnet and distilbert", tmp_path / "out")
  spec = TOWERS["resnet and distilbert"]
  model = make(dict(spec, projection_bias=False), pretrained=tmp_path / "out")
  with pytest.raises(ValueError, match="projection_bias must be those of the"):
    model.load(*model.init(jax.random.key(0)))
  with pytest.raises(ValueError, match="exists already"):
    exported("resnet and distilbert", tmp_path / "out")
  for name in ("image_encoder/model", "projections"):
    file = tmp_path / "out" / f"{name}.safetensors"
    intact = file.read_bytes()
    file.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    model = make(spec, pretrained=tmp_path / "out")
    with pytest.raises(ValueError, match=f"damaged: {name}.safetensors has ch"):
      model.load(*model.init(jax.random.key(0)))
    file.write_bytes(intact)


def test_names_of_activations():
  """What transformers calls them."""
  arguments = dict(BERT, eps=1e-12, dropout=0.0, hidden=None)
  for ours, theirs in (
    ("gelu", "gelu"),
    ("quick_gelu", "quick_gelu"),
    ("gelu_tanh", "gelu_pytorch_tanh"),
  ):
    config = hf_configs.text_config(
      arguments | dict(activation=ours), vocab_size=9
    )
    assert config["hidden_act"] == theirs

"""How images were normalized, by the files beside weights."""

import json
import logging

import pytest
from safetensors import numpy as safetensors

from nuclr_jax.lab import models
from nuclr_jax.lab.config import load_config, override
from nuclr_jax.lab.models import pretrained
from nuclr_jax.lab.models.layers import MEAN, STD
from tests.lab.models.pretrained.pretrained_test import (
  TOWERS,
  exported,
  filled,
  make,
)

HALF = dict(mean=[0.5] * 3, std=[0.5] * 3)
OF_PROCESSOR = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)
FILES = {
  "timm": ("config.json", dict(architecture="x", pretrained_cfg=HALF)),
  "old timm": ("config.json", dict(architecture="x", **HALF)),
  "processor": (
    "preprocessor_config.json",
    OF_PROCESSOR | dict(do_normalize=True, rescale_factor=1 / 255),
  ),
  "open_clip": (
    "open_clip_config.json",
    dict(model_cfg={}, preprocess_cfg=HALF),
  ),
}
SAID = '--config.model.image.mean="(0.5, 0.5, 0.5)" --config.model.image.std='


@pytest.mark.parametrize("kind", FILES)
def test_weights_of_another_mean_and_std(kind, tmp_path, caplog):
  """The message has both, and the flags that follow the file."""
  tensors, *_ = exported("timm_vit")
  safetensors.save_file(tensors, tmp_path / "model.safetensors")
  name, content = FILES[kind]
  (tmp_path / name).write_text(json.dumps(content))
  image = TOWERS["timm_vit"]["image"]
  for source in (tmp_path, tmp_path / "model.safetensors"):
    caplog.clear()
    model = make(image=image | dict(pretrained=str(source)))
    model.load(*filled(model))
    assert f"config's have ({MEAN[0]:.6g}, " in caplog.text
    assert SAID in caplog.text
  caplog.clear()
  told = {key: tuple(x) for key, x in HALF.items()}
  model = make(image=image | told | dict(pretrained=str(tmp_path)))
  model.load(*filled(model))
  assert not caplog.text


def test_one_encoder_of_views(tmp_path, caplog):
  tensors, *_ = exported("timm_vit")
  safetensors.save_file(tensors, tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text(json.dumps(HALF))
  model = models.views(
    image_shape=(24, 24, 3),
    vocab_size=2,
    length=2,
    encoder=TOWERS["timm_vit"]["image"],
    dim=4,
    pretrained=str(tmp_path),
  )
  model.load(*filled(model))
  assert "--config.model.encoder.mean=" in caplog.text


@pytest.mark.parametrize("layout", ["hf_clip", "hf_siglip"])
def test_whole_models(layout, tmp_path, caplog):
  tensors, *_ = exported(layout)
  safetensors.save_file(tensors, tmp_path / "model.safetensors")
  (tmp_path / "preprocessor_config.json").write_text(json.dumps(OF_PROCESSOR))
  model = make(**TOWERS[layout], pretrained=str(tmp_path))
  model.load(*filled(model))
  assert (SAID in caplog.text) == (layout == "hf_clip")


@pytest.mark.parametrize(
  "content",
  [
    "{}",
    "{",
    "[]",
    '{"mean": [0.5, 0.5, 0.5]}',
    '{"mean": 0.5, "std": -1}',
    '{"mean": [0.5, 0.5], "std": [0.5, 0.5]}',
    '{"pretrained_cfg": "augreg"}',
    json.dumps(dict(image_mean=MEAN, image_std=[round(x, 3) for x in STD])),
  ],
)
def test_files_that_do_not_say_it(content, tmp_path, caplog):
  """Or say the same, rounded. Weights are read without them."""
  (tmp_path / "config.json").write_text(content)
  with caplog.at_level(logging.WARNING, "nuclr_jax"):
    tower = dict(mean=MEAN, std=STD)
    pretrained.check_normalization(tmp_path, tower, "model.image")
    pretrained.check_normalization("/gone", tower, "model.image")
  assert not caplog.text


def test_a_config_takes_the_flags_of_the_message():
  changes = [("model.image.mean", "(0.5, 0.5, 0.5)")]
  config = override(load_config("cc3m"), changes)
  assert config["model"]["image"]["mean"] == (0.5, 0.5, 0.5)

"""Files of SigLIP 2 for images of any aspect ratio, right and wrong.

`published_test` computes with them.
"""

import json
import shutil

import jax
import numpy as np
import pytest
from repository import PUBLISHED
from safetensors import numpy as safetensors

from nuclr_jax.lab.config import ConfigError, override
from nuclr_jax.lab.models.pretrained import read_published, timm_towers
from nuclr_jax.lab.train import untrained

NAFLEX, SIGLIP = PUBLISHED / "hf_siglip2_naflex", PUBLISHED / "hf_siglip"
CONFIG, PROCESSOR = "config.json", "processor_config.json"
MISSING = object()


def changed(tmp_path, source, changes):
  """A copy of a model with other values, by file and keys."""
  folder = shutil.copytree(source, tmp_path / "model")
  for (file, *keys, last), value in changes.items():
    spec = inner = json.loads((folder / file).read_text())
    for key in keys:
      inner = inner[key]
    if value is MISSING:
      del inner[last]
    else:
      inner[last] = value
    (folder / file).write_text(json.dumps(spec))
  return folder


def of_processor(key):
  return PROCESSOR, "image_processor", key


class TestConfigs:
  def test_google_siglip2(self, tmp_path):
    """google/siglip2-base-patch16-naflex says little but the defaults."""
    spec = dict(
      model_type="siglip2",
      text_config=dict(model_type="siglip2_text_model", vocab_size=256_000),
      vision_config=dict(model_type="siglip2_vision_model", num_patches=256),
    )
    processor = dict(
      image_processor_type="Siglip2ImageProcessor",
      do_resize=True,
      do_rescale=True,
      rescale_factor=1 / 255,
      do_normalize=True,
      image_mean=[0.5] * 3,
      image_std=[0.5] * 3,
      max_num_patches=256,
      patch_size=16,
      resample=2,
      processor_class="Siglip2Processor",
    )
    words = dict(
      tokenizer_class="GemmaTokenizer",
      do_lower_case=True,
      padding_side="right",
      pad_token="<pad>",
      added_tokens_decoder={"0": dict(content="<pad>")},
    )
    for file, content in (
      (CONFIG, spec),
      ("preprocessor_config.json", processor),
      ("tokenizer_config.json", words),
    ):
      (tmp_path / file).write_text(json.dumps(content))
    scale = {"logit_scale": np.float32([4.7])}
    safetensors.save_file(scale, tmp_path / "model.safetensors")
    found = read_published(tmp_path)
    blocks = dict(width=768, layers=12, heads=12, hidden=3072)
    blocks |= dict(eps=1e-6, activation="gelu_tanh")
    assert found.model["image"] == blocks | dict(
      name="naflex_vit",
      patch=16,
      grid=16,
      mean=(0.5, 0.5, 0.5),
      std=(0.5, 0.5, 0.5),
    )
    assert found.model["text"] == blocks | dict(
      name="siglip_text", max_length=64
    )
    assert found.model["projected"] == ("text",) and found.model["dim"] == 768
    assert found.data == dict(
      name="image_text",
      tokenizer=str(tmp_path),
      size=256,
      resize="naflex",
      kernel="bilinear",
      patch=16,
      length=64,
      clean="lower",
      pad_id=0,
      vocab_size=256_000,
    )

  @pytest.mark.parametrize(
    ("changes", "size"),
    [
      ({}, 48),
      # As the processor of transformers has it by default.
      ({of_processor("max_num_patches"): MISSING}, 128),
      ({of_processor("max_num_patches"): None}, 128),
      ({of_processor("max_num_patches"): 1024}, 256),
      ({of_processor("image_processor_type"): "Siglip2ImageProcessorFast"}, 48),
      # What its fast form has written for all models.
      (
        {
          of_processor("default_to_square"): True,
          of_processor("size"): None,
          of_processor("crop_size"): None,
          of_processor("data_format"): "channels_first",
        },
        48,
      ),
    ],
  )
  def test_most_patches(self, tmp_path, changes, size):
    data = read_published(changed(tmp_path, NAFLEX, changes)).data
    assert (data["size"], data["patch"], data["resize"]) == (size, 8, "naflex")


class TestWrong:
  @pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
      (
        NAFLEX,
        {of_processor("max_num_patches"): 35},
        "at most a square number of patches, .* max_num_patches 35, next to 25 "
        "and 36",
      ),
      (NAFLEX, {of_processor("max_num_patches"): 1}, "max_num_patches 1, next"),
      (NAFLEX, {of_processor("max_num_patches"): -4}, "max_num_patches must"),
      (NAFLEX, {of_processor("max_num_patches"): 10**9}, "whole number from 1"),
      (NAFLEX, {of_processor("resample"): 1}, "got resample 1"),
      (NAFLEX, {of_processor("do_resize"): False}, "do_resize is false"),
      (NAFLEX, {of_processor("do_pad"): True}, "'do_pad'"),
      (
        NAFLEX,
        {of_processor("patch_size"): 16},
        "patches of 16 pixels, and the model takes patches of 8 pixels; corre",
      ),
      (NAFLEX, {of_processor("patch_size"): MISSING}, "of 16 pixels, and the"),
      (
        NAFLEX,
        {of_processor("image_processor_type"): "SiglipImageProcessor"},
        "'max_num_patches', 'patch_size'",
      ),
      (
        SIGLIP,
        {
          ("preprocessor_config.json", "image_processor_type"): "Siglip2Imag"
          "eProcessor",
          ("preprocessor_config.json", "size"): None,
          ("preprocessor_config.json", "patch_size"): 8,
        },
        "makes patches of 8 pixels, and the model takes squares",
      ),
      (NAFLEX, {(CONFIG, "vision_config", "num_patches"): 15}, "is 15, and mu"),
      (NAFLEX, {(CONFIG, "vision_config", "num_patches"): 0}, "num_patches mu"),
      (
        NAFLEX,
        {(CONFIG, "vision_config", "num_patches"): 25},
        "have 16 learned positions of patches, and the config has 25",
      ),
      (
        NAFLEX,
        {(CONFIG, "vision_config", "vision_use_head"): False},
        "no attention pooling",
      ),
      (
        NAFLEX,
        {(CONFIG, "vision_config", "patch_size"): [8, 8]},
        "patch_size must be",
      ),
    ],
  )
  def test_before_anything_is_built(self, tmp_path, source, changes, message):
    folder = changed(tmp_path, source, changes)
    with pytest.raises(ValueError, match=message):
      untrained.config_of_published(folder)

  def test_weights_for_squares(self, tmp_path):
    """A convolution does not become a linear layer unnoticed."""
    folder = shutil.copytree(NAFLEX, tmp_path / "model")
    tensors = safetensors.load_file(folder / "model.safetensors")
    key = "vision_model.embeddings.patch_embedding.weight"
    tensors[key] = (
      tensors[key].reshape(16, 8, 8, 3).transpose(0, 3, 1, 2).copy()
    )
    safetensors.save_file(tensors, folder / "model.safetensors")
    config = untrained.config_of_published(folder)
    with pytest.raises(ValueError, match="16, 3, 8, 8. instead of .16, 192"):
      untrained.open_untrained(config, pairs=False)

  @pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
      (NAFLEX, {"data.size": "50"}, "multiple of patch"),
      (NAFLEX, {"data.patch": "16"}, "packed patches of 8 pixels"),
      (NAFLEX, {"data.resize": "squash"}, "set both or neither"),
      (
        NAFLEX,
        {"data.resize": "squash", "data.patch": "None"},
        "packed patches of 8 pixels, .* got .48, 48, 3.; set data.resize to 'n",
      ),
      (
        SIGLIP,
        {"data.resize": "naflex", "data.patch": "8"},
        "which 'siglip_vit_b16' does not take; choose another resize",
      ),
    ],
  )
  def test_settings_that_do_not_fit(self, source, changes, message):
    config = untrained.config_of_published(source)
    changed = override(config, list(changes.items()))
    with pytest.raises(ValueError, match=message):
      untrained.open_untrained(changed, pairs=False)

  def test_positions_are_those_of_the_weights(self):
    config = untrained.config_of_published(NAFLEX)
    other = {**config["model"], "image": config["model"]["image"] | {"grid": 5}}
    with pytest.raises(ConfigError, match="model.image.grid is 4 in the files"):
      untrained.check_kept(config["model"], other)

  def test_timms(self):
    vision = dict(timm_model_name="naflexvit_base_patch16_siglip")
    with pytest.raises(
      ValueError, match="naflexvit_base.*from the files of tr"
    ):
      timm_towers.read_timm(vision, 768)


def test_more_patches():
  """`size` may be another: the weights do not depend on it."""
  config = untrained.config_of_published(NAFLEX)
  config = override(config, [("data.size", "64")])
  parts, _, state = untrained.open_untrained(config, pairs=False)
  assert parts.data.image_shape == (64, 72, 3)
  positions = state.params["model"]["image"]["positions"]
  tensors = safetensors.load_file(NAFLEX / "model.safetensors")
  key = "vision_model.embeddings.position_embedding.weight"
  np.testing.assert_array_equal(
    jax.device_get(positions).reshape(16, 16), tensors[key]
  )

"""Pixels of exports: what OpenCLIP and transformers make of the same photos.

`tests/golden/export_images.npz` has photos and pixels of both libraries, which
opened exports; `experiments/parity/export_images.py` wrote it.
"""

import json
import logging

import jpeg
import numpy as np
import pytest
from repository import CLIP, ROOT

from nuclr_jax.lab import export
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.data import HeldOut, elsewhere, images
from nuclr_jax.lab.data.source import Resize
from nuclr_jax.lab.train import build, untrained

MODES = ("squash", "crop", "crop_torchvision", None)
KERNELS = ("bicubic", "bilinear")


@pytest.fixture(scope="module")
def golden():
  with np.load(ROOT / "tests" / "golden" / "export_images.npz") as arrays:
    return dict(arrays)


@pytest.fixture(scope="module")
def opened():
  config = untrained.config_of_published(CLIP)
  return untrained.open_untrained(config, pairs=False)


@jpeg.golden_pixels
@pytest.mark.parametrize("layout", elsewhere.LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mode", MODES)
def test_pixels_are_those_of_the_libraries_or_it_is_said(
  mode, kernel, layout, golden
):
  kind = "crop" if "crop" in str(mode) else "squash"
  expected = golden[f"{layout}/{kind}/{kernel}"]
  photos = [golden[f"jpeg/{i}"].tobytes() for i in range(len(expected))]
  how, size = Resize(mode, kernel), expected.shape[1]
  found = [images.resize(images.decode(x), size, how) for x in photos]
  other = (np.stack(found) != expected).any(axis=(1, 2, 3))
  assert len(other) == 17
  told = elsewhere.differences(how, [layout], labelled=False)
  assert len(told) == other.any()
  if told:  # by a pixel, in some photos
    assert 0.2 < other.mean() < 0.6


@pytest.mark.parametrize("mode", MODES)
def test_an_export_has_the_preprocessing_of_the_run(
  mode, opened, tmp_path, caplog
):
  parts, _, state = opened
  data = parts.data._replace(resize=Resize(mode, "bilinear"))
  model = export.model.exported(parts._replace(data=data), state)
  cropped, size = "crop" in str(mode), model.image_size
  config = {}
  for layout, name in (
    ("open_clip", "open_clip_config.json"),
    ("hugging_face", "preprocessor_config.json"),
  ):
    export.write_model(model, tmp_path / layout, layout=layout)
    config[layout] = json.loads((tmp_path / layout / name).read_text())
  theirs = config["open_clip"]["preprocess_cfg"]
  assert theirs["resize_mode"] == ("shortest" if cropped else "squash")
  assert (theirs["interpolation"], theirs["size"]) == ("bilinear", size)
  theirs, square = config["hugging_face"], {"height": size, "width": size}
  assert (theirs["do_center_crop"], theirs["resample"]) == (cropped, 2)
  assert theirs["size"] == ({"shortest_edge": size} if cropped else square)
  said = [x for x in caplog.messages if "config.data.resize" in x]
  about = {"crop": ["OpenCLIP"], "crop_torchvision": ["transformers"]}
  for text, words in zip(
    said, about.get(mode, ["labelled"] * 2 * (mode is None)), strict=True
  ):
    assert words in text


def test_it_is_said_before_training(opened, caplog):
  """Only of what an export can have, and of labelled sets only if there are."""
  parts = opened[0]
  config = complete(parts.settings.recorded)
  labelled = {"test": HeldOut(zero_shot={"pets": None})}
  for mode, held_out, expected in (
    ("crop", {}, ["OpenCLIP rounds the margins"]),
    ("squash", labelled, []),
    (None, {}, []),
    (None, labelled, ["labelled sets (zero-shot, probes) are cropped"]),
  ):
    data = parts.data._replace(resize=Resize(mode), held_out=held_out)
    caplog.clear()
    with caplog.at_level(logging.INFO, "nuclr_jax"):
      build.build(config, data=data)
    said = [x for x in caplog.messages if "config.data.resize" in x]
    assert len(said) == len(expected)
    assert all(x in y for x, y in zip(expected, said, strict=True))

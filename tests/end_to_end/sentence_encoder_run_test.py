"""Runs whose text tower is a published sentence encoder."""

import jax
import make_captioned
import numpy as np
import pytest
from repository import GOLDEN

from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.models.pretrained import read_published
from nuclr_jax.lab.train import loop

MEAN = GOLDEN / "sentence_encoders" / "mean"


@pytest.mark.parametrize("locked", [False, True])
def test_a_run(locked, tmp_path, no_diagnostics):
  """Fine-tuned, or locked: then it stays as it was published."""
  rows = [(make_captioned.photo(i), [f"a photo of {i}"]) for i in range(16)]
  make_captioned.prepare(tmp_path, {"train": rows})
  published = read_published(MEAN)
  config = load_config("finetune_clip:smoke").to_dict()
  config["data"] |= {
    **published.data,
    **dict(name="image_text", train="mine", size=16),
    **dict.fromkeys(("validation", "test", "zero_shot"), ()),
  }
  config["model"] |= {
    "dim": 8,
    "image": dict(name="resnet50", stages=(1,), width=2),
    "text": published.model["encoder"] | {"pretrained": str(MEAN)},
  }
  config["optimizer"] |= dict(layer_decay=1.0, weight_average=0.0)
  if locked:
    config["optimizer"]["freeze"] = ("model/text",)
  config |= dict(batch_size=8, num_epochs=2.0, num_devices=1)
  loop.fit(config, tmp_path / "run", data_dir=tmp_path)
  parts, _, state = loop.load(tmp_path / "run", data_dir=tmp_path)
  first = parts.model.load(*parts.model.init(jax.random.key(0)))[0]["text"]
  same = jax.tree.map(
    lambda x, y: bool(np.array_equal(x, y)),
    first,
    state.params["model"]["text"],
  )
  assert all(jax.tree.leaves(same)) == locked

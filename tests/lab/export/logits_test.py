"""The scale and the bias of the logits in exports."""

import pytest
from repository import PUBLISHED
from safetensors import numpy as safetensors

from nuclr_jax.lab.export import exported, write_model
from nuclr_jax.lab.train import untrained

CLIP, SIGLIP = PUBLISHED / "hf_clip", PUBLISHED / "hf_siglip"


def opened(objective, *, source=CLIP, **more):
  """Parts and state of a published model before training on an objective."""
  config = untrained.config_of_published(source)
  config |= {"objective": objective} | more
  parts, _, state = untrained.open_untrained(config, pairs=False)
  return parts, state


def tensors_of(folder, name="model"):
  return safetensors.load_file(folder / f"{name}.safetensors")


@pytest.mark.parametrize(
  "terms", [{}, {"cyclic_consistency": dict(weight=0.5)}], ids=["", "terms"]
)
@pytest.mark.parametrize(
  ("source", "layout", "name"),
  [
    (SIGLIP, "hugging_face", "model"),
    (CLIP, "open_clip", "open_clip_model"),
  ],
)
def test_the_bias_of_siglip_beside_other_terms(
  source, layout, name, terms, tmp_path
):
  objective = dict(name="siglip", init_scale=20.0, init_bias=-7.0)
  model = exported(*opened(objective, source=source, terms=terms))
  assert model.logit_bias == -7
  folder = write_model(model, tmp_path / "out", layout=layout)
  found = tensors_of(folder, name)
  assert found["logit_bias"] == -7
  assert found["logit_scale"] == pytest.approx(2.9957, abs=1e-4)  # log(20)

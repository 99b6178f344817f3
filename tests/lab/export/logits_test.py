"""The scale and the bias of the logits in exports."""

import math

import jax
import jax.numpy as jnp
import pytest
from repository import PUBLISHED
from safetensors import numpy as safetensors

from nuclr_jax import objectives
from nuclr_jax.lab.export import Exported, exported, write_model
from nuclr_jax.lab.models import pretrained
from nuclr_jax.lab.train import untrained
from nuclr_jax.types import Sample, Sides
from tests.lab.export.export_test import SIZE, TOWERS, WORDS, first, make

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


def test_the_mean_of_individual_temperatures(tmp_path, caplog):
  """The geometric one of both sides, of the rows that are no padding."""
  parts, state = opened(dict(name="clip"))
  assert parts.data.train.sizes.num_pairs == 1
  objective = objectives.isogclr(num_pairs=3, rho=0.1)
  _, first = objective.init()
  pair = first.sample.pair._replace(
    temperature=Sides(jnp.array([0.02, 0.5, 0.5]), jnp.array([0.08, 0.5, 0.5])),
    log_u=Sides(jnp.ones(3), jnp.ones(3)),
  )
  state = state._replace(objective=first._replace(sample=Sample(pair)))
  model = exported(parts._replace(objective=objective), state)
  assert model.temperature is None
  folder = write_model(model, tmp_path / "out")
  scale = tensors_of(folder)["logit_scale"]
  assert scale == pytest.approx(math.log(1 / 0.04), rel=1e-6)
  assert "it gets their geometric mean, 0.04" in caplog.text


@pytest.mark.parametrize("source", [CLIP, SIGLIP], ids=["clip", "siglip"])
def test_a_run_without_a_temperature(source, tmp_path, caplog):
  """It takes what the model has that it began from, or else a constant."""
  model = exported(*opened(dict(name="spectral"), source=source))
  first, found = (
    tensors_of(x) for x in (source, write_model(model, tmp_path / "out"))
  )
  assert found["logit_scale"] == first["logit_scale"]
  assert found.get("logit_bias") == first.get("logit_bias")
  assert f"it gets 0.03, that of {source}, from which" in caplog.text
  spec = {k: x for k, x in model.spec.items() if k != "pretrained"}
  folder = write_model(model._replace(spec=spec), tmp_path / "random")
  assert tensors_of(folder)["logit_scale"] == pytest.approx(2.6592)
  assert "it gets 0.07, at which CLIP's training begins" in caplog.text
  gone = model._replace(spec=spec | {"pretrained": "/gone"})
  assert write_model(gone, tmp_path / "gone")
  assert "/gone, where the run began, cannot be read" in caplog.text


@pytest.mark.parametrize(
  ("temperature", "bias"), [(0.01, None), (0.02, -7.0), (None, None)]
)
def test_two_encoders_keep_what_the_run_has(temperature, bias, tmp_path):
  """Beside their projections; a temperature is not made up."""
  spec = TOWERS["vit and bert"]
  whole = spec | dict(name="towers", dim=6)
  params, state = first(make(spec), seed=1)
  model = Exported(whole, params, state, WORDS, SIZE, temperature)
  folder = write_model(model._replace(logit_bias=bias), tmp_path / "out")
  assert pretrained.read_logit_bias(folder) == bias
  found = pretrained.read_published(folder).temperature
  assert found == (temperature and pytest.approx(temperature))
  tower = make(spec, pretrained=str(folder))
  tower.load(*tower.init(jax.random.key(0)))

"""Every config name makes a run that can be trained."""

import functools
import importlib.util
import pathlib
import re

import chex
import jax
import numpy as np
import pytest

from nuclr_jax import datasets, experiment, settings, train_state

PATH = pathlib.Path(__file__).parents[1] / "configs" / "glyphs.py"
README = PATH.parents[1] / "README.md"
SPEC = importlib.util.spec_from_file_location("glyphs_config", PATH)
glyphs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(glyphs)


@pytest.fixture(scope="module")
def data(data_dir):
  return datasets.glyphs(data_dir=data_dir, size=16)


@pytest.mark.parametrize("name", glyphs.OBJECTIVES)
def test_a_step_of_every_config(name, tiny, data, monkeypatch):
  monkeypatch.setitem(experiment.DATASETS, "glyphs", lambda **_: data)
  config = tiny(name)
  config.data = {"name": "glyphs"}
  parts = experiment.build(config)
  pieces = (parts.model, parts.objective, parts.optimizer)
  key = jax.random.key(0)
  state = jax.eval_shape(lambda: train_state.init_state(*pieces, key))
  step = train_state.make_train_step(*pieces, key)
  batch = data.train.fetch(np.arange(64))
  after, metrics = jax.eval_shape(step, state, batch)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
  assert {"train/loss", "train/gradient_norm"} <= set(metrics)


def test_the_command_line_can_change_every_key(tiny):
  assert set(tiny().keys()) == set(settings.DEFAULTS)


def test_the_readme_names_keys_that_exist():
  names = re.findall(r"--config\.([\w.]+)=", README.read_text())
  assert len(names) > 4
  for name in names:
    functools.reduce(
      lambda x, key: x[key], name.split("."), glyphs.get_config()
    )


def test_vicreg_alone_has_embeddings_of_any_norm():
  for name in glyphs.OBJECTIVES:
    assert glyphs.get_config(name).model.normalize == (name != "vicreg")

"""Batch statistics of whole runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax.lab.config import complete
from nuclr_jax.lab.data.source import random_numbers
from nuclr_jax.lab.train import build, loop, records

pytestmark = pytest.mark.usefixtures("no_diagnostics")


@pytest.fixture(scope="module")
def config(tiny):
  """A learning rate so high that running averages are far behind."""
  return tiny(
    **{
      "optimizer.learning_rate.value": 0.05,
      "num_epochs": 0.2,  # 20 steps
      "eval_every": 10,
      "checkpoint_every": 10,
    }
  )


@pytest.fixture(scope="module")
def parts(config, few_pairs):
  return build.build(config, data=few_pairs)


@pytest.fixture(scope="module")
def run(config, parts, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("run")
  loop.fit(config, workdir, parts=parts)
  return workdir


def test_a_run_has_those_of_its_own_weights(run, parts):
  """The mean over batches of the state that they leave, by the definition."""
  _, mesh, state = loop.load(run, parts=parts)
  train = jax.jit(functools.partial(parts.model.apply, key=None, train=True))
  zeros = jax.tree.map(jnp.zeros_like, state.model_state)
  total = None
  for ids in np.random.default_rng(0).choice(6_400, (8, 64), replace=False):
    inputs = parts.data.train.fetch(ids, random_numbers(0, 0, ids))
    _, after = train(state.params["model"], zeros, inputs)
    of_batch = jax.tree.map(lambda x: np.asarray(x, np.float64) / 0.1, after)
    total = of_batch if total is None else jax.tree.map(np.add, total, of_batch)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y / 8, rtol=1e-4, atol=1e-5),
    state.model_state,
    total,
  )


def test_validation_does_not_change_the_training(run, config, parts, tmp_path):
  config = complete(config) | {"eval_every": 0, "checkpoint_every": 0}
  plain = loop.fit(config, tmp_path, parts=parts).train_state
  state = loop.load(run, parts=parts)[2]
  assert int(state.step) == 20
  jax.tree.map(
    np.testing.assert_array_equal,
    jax.device_get(plain),
    jax.device_get(state),
  )
  losses = [
    [x["train/loss"] for x in records.read_history(folder) if "train/loss" in x]
    for folder in (run, tmp_path)
  ]
  assert losses[0] == losses[1]

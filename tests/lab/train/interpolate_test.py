"""Weights between those that a run began from and its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax import sharding
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import interpolate, loop, recalibrate, resume

pytestmark = pytest.mark.usefixtures("no_diagnostics")
SHARES = (0.0, 0.3, 1.0)


def moved(tree, amount):
  return jax.tree.map(lambda x: x + jnp.asarray(amount, x.dtype), tree)


@pytest.fixture(scope="module")
def run(tiny, few_characters):
  """Parts that begin from a model, and a state that they might end with.

  The temperature is learned, and the image tower has batch statistics.
  """
  model = {
    "name": "towers",
    "dim": 16,
    "image": {
      "name": "resnet50",
      "stages": (1,),
      "width": 4,
      "mean": (0.5,),
      "std": (0.25,),
    },
    "text": {"name": "distilbert", "width": 8, "layers": 1, "heads": 2},
    "projection_bias": False,
  }
  config = tiny("ntxent").to_dict() | {"model": model}
  parts = experiment.build(config, data=few_characters)
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    first = resume.first_state(parts, mesh)
  weights = jax.device_get((first.params["model"], first.model_state))

  def load(params, state):
    del params, state
    return weights

  parts = parts._replace(model=parts.model._replace(load=load))
  params = first.params | {"objective": moved(first.params["objective"], 0.5)}
  params["model"] = moved(first.params["model"], 0.25)
  params["model"]["text"] = first.params["model"]["text"]  # as if frozen
  tuned = first._replace(
    step=first.step + 5,
    params=params,
    model_state=moved(first.model_state, 1.0),
  )
  return parts, mesh, first, tuned


@pytest.fixture(scope="module")
def mixed(run):
  parts, mesh, _, tuned = run
  with jax.set_mesh(mesh):
    at = interpolate.of_run(parts, mesh, tuned)
    return {share: at(share) for share in SHARES}


def test_both_ends_are_the_two_models(run, mixed):
  _, _, first, tuned = run
  same = lambda x, y: jax.tree.map(np.testing.assert_array_equal, x, y)
  for share, end in ((0.0, first), (1.0, tuned)):
    same(mixed[share].params, end.params)
    same(mixed[share].model_state, end.model_state)
  same(mixed[0.3].params["model"]["text"], first.params["model"]["text"])


def test_parameters_are_mixed_and_the_temperature_is_by_its_logarithm(
  run, mixed
):
  parts, _, first, tuned = run
  jax.tree.map(
    lambda x, a, b: np.testing.assert_allclose(
      x,
      0.7 * np.asarray(a, float) + 0.3 * np.asarray(b, float),
      rtol=1e-6,
      atol=1e-7,
    ),
    *(x.params for x in (mixed[0.3], first, tuned)),
  )
  a, b, x = (
    float(loop.readout(parts, state).temperature)
    for state in (first, tuned, mixed[0.3])
  )
  np.testing.assert_allclose(x, a**0.7 * b**0.3, rtol=1e-6)
  assert b < a


def test_batch_statistics_in_between_are_of_the_mixed_weights(run, mixed):
  parts, mesh, first, tuned = run
  with jax.set_mesh(mesh):
    expected = recalibrate.of_run(parts, mesh)(
      tuned._replace(params=mixed[0.3].params)
    )
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6),
    mixed[0.3].model_state,
    expected.model_state,
  )
  means = [
    np.concatenate([np.ravel(y) for y in jax.tree.leaves(x.model_state)])
    for x in (mixed[0.3], first, tuned)
  ]
  assert not np.allclose(means[0], 0.7 * means[1] + 0.3 * means[2], rtol=0.1)


def test_what_has_no_weights_in_between_is_refused(run):
  parts, mesh, _, tuned = run

  def begun(load):
    return parts._replace(model=parts.model._replace(load=load))

  with pytest.raises(ValueError, match="this run began with random weights"):
    interpolate.of_run(begun(None), mesh, tuned)

  def towers_only(params, state):
    loaded = parts.model.load(params, state)[0]
    left = {k: x for k, x in params.items() if k.endswith("projection")}
    return loaded | left, state

  with pytest.raises(ValueError, match="with random image_projection, text_"):
    interpolate.of_run(begun(towers_only), mesh, tuned)
  at = interpolate.of_run(parts, mesh, tuned)
  with pytest.raises(ValueError, match="interpolate must be a number from 0"):
    at(1.5)

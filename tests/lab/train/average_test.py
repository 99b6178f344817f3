"""The moving average of the weights: its values, and who sees it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nuclr_jax import sharding
from nuclr_jax.lab.config import complete
from nuclr_jax.lab.train import average, resume
from nuclr_jax.lab.train import build as experiment

pytestmark = pytest.mark.usefixtures("no_diagnostics")

DECAY = 0.8


def by_hand(first, later, decay):
  """The average after each of the parameters `later`, in float64."""
  found, value = [], np.float64(first)
  for t, params in enumerate(later):
    d = min(decay, (1 + t) / (10 + t))
    value = d * value + (1 - d) * np.float64(params)
    found.append(value)
  return found


@pytest.mark.parametrize("decay", [0.5, 0.99, 0.9998])
def test_by_hand(decay):
  optimizer = average.with_average(optax.sgd(0.3), decay)
  params = first = jnp.array([1.0, -2.0, 0.5])
  state, later, found = optimizer.init(params), [], []
  for step in range(40):
    updates, state = optimizer.update(jnp.sin(params + step), state, params)
    params = optax.apply_updates(params, updates)
    later.append(params)
    found.append(average.averaged(state))
  expected = by_hand(first, later, decay)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_of_a_line_it_lags_by_a_closed_form():
  """Of t, an average with decay d is behind by d / (1 - d), in the end."""
  optimizer = average.with_average(optax.sgd(1.0), 0.75)
  params = jnp.zeros(())
  state = optimizer.init(params)
  for _ in range(200):
    updates, state = optimizer.update(-jnp.ones(()), state, params)
    params = optax.apply_updates(params, updates)
  lag = params - average.averaged(state)
  np.testing.assert_allclose(lag, 0.75 / 0.25, rtol=1e-5)


def test_what_does_not_move_keeps_its_bits():
  params = jnp.array(np.random.default_rng(0).normal(size=1000), jnp.float32)
  optimizer = average.with_average(optax.set_to_zero(), 0.9998)
  state = optimizer.init(params)
  step = jax.jit(optimizer.update)
  for _ in range(20):
    _, state = step(params, state, params)
  np.testing.assert_array_equal(average.averaged(state), params)


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_decay_out_of_range(decay):
  with pytest.raises(ValueError, match=r"weight_average must be in \[0, 1\)"):
    average.with_average(optax.sgd(1.0), decay)


def test_a_state_without_an_average():
  state = optax.adam(1.0).init({"x": jnp.ones(3)})
  assert average.averaged(state) is None


@pytest.fixture(scope="module")
def build(few_pairs):
  """Makes the parts of a tiny run."""
  return functools.partial(experiment.build, data=few_pairs)


def test_it_starts_from_the_pretrained_weights(tiny, build):
  parts = build(tiny(**{"optimizer.weight_average": DECAY}))

  def load(params, state):
    return jax.tree.map(lambda x: np.full_like(x, 0.25), params), state

  parts = parts._replace(model=parts.model._replace(load=load))
  state = resume.first_state(parts, experiment.mesh_of(parts.settings))
  assert np.all(state.params["model"]["image_projection"] == 0.25)
  chex.assert_trees_all_equal(
    jax.device_get(average.averaged(state.opt_state)),
    jax.device_get(state.params),
  )


def test_it_is_split_as_the_parameters(tiny, build, monkeypatch):
  monkeypatch.setattr(sharding, "MIN_SPLIT", 64)
  config = tiny(num_devices=8, **{"optimizer.weight_average": DECAY})
  parts = build(complete(config) | {"shard_params": True})
  state = resume.first_state(parts, experiment.mesh_of(parts.settings))
  places = [
    [x.sharding for x in jax.tree.leaves(tree)]
    for tree in (state.params, average.averaged(state.opt_state))
  ]
  assert places[0] == places[1]
  assert any(not x.is_fully_replicated for x in places[0])

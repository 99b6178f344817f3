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
from nuclr_jax.lab.data.source import HeldOut
from nuclr_jax.lab.train import average, checkpoint, loop, recalibrate, resume
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.train.records import read_history
from tests.lab.train.train_test import first_captions

pytestmark = pytest.mark.usefixtures("no_diagnostics")

SCORE = "validation/mean_recall@10"
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
def build(tiny, data_dir):
  """Makes the parts of a tiny run with a few images for retrieval."""
  data = experiment.load_data(tiny().data, data_dir=data_dir)
  held_out = {
    split: HeldOut({"": first_captions(sets.retrieval[""], 100)})
    for split, sets in data.held_out.items()
  }
  data = data._replace(held_out=held_out)
  return functools.partial(experiment.build, data=data)


@pytest.fixture(scope="module")
def run(tiny, build, tmp_path_factory):
  """A finished run: its config, parts, workdir and result."""
  workdir = tmp_path_factory.mktemp("average") / "run"
  config = tiny(
    eval_every=5, keep_best=SCORE, **{"optimizer.weight_average": DECAY}
  )
  parts = build(config)
  return config, parts, workdir, loop.fit(config, workdir, parts=parts)


def test_training_is_that_of_a_run_without_average(tiny, build, run, tmp_path):
  """And hooks, such as the one here, see the weights of training."""
  _, parts, workdir, result = run
  seen = []

  def look(train_state, embed):
    del embed
    seen.append(jax.device_get(train_state.params))
    return train_state

  config = tiny()
  plain = build(config)
  other = loop.fit(
    config, tmp_path, parts=plain._replace(hooks=(Hook(1, look),))
  )
  raw = loop.load(workdir, parts=parts, averaged=False)[2]
  for name in ("params", "objective", "model_state"):
    chex.assert_trees_all_equal(
      jax.device_get(getattr(raw, name)),
      jax.device_get(getattr(other.train_state, name)),
    )
  # The average of what the hook saw is what the run with an average shows.
  first = resume.first_state(plain, experiment.mesh_of(plain.settings)).params
  leaves = zip(*map(jax.tree.leaves, seen), strict=True)
  expected = [
    by_hand(x, later, DECAY)[-1]
    for x, later in zip(jax.tree.leaves(first), leaves, strict=True)
  ]
  found = jax.tree.leaves(result.train_state.params)
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_every_score_is_that_of_the_average(run):
  _, parts, workdir, result = run
  shown = loop.load(workdir, parts=parts)
  mesh, state = shown[1:]
  chex.assert_trees_all_equal(
    jax.device_get(state), jax.device_get(result.train_state)
  )
  with jax.set_mesh(mesh):
    scores = loop.evaluate(*shown)
    assert scores.items() <= result.metrics.items()
    # Batch statistics are those of the averaged weights.
    again = recalibrate.of_run(parts, mesh)(state)
    chex.assert_trees_all_equal(
      jax.device_get(state.model_state), jax.device_get(again.model_state)
    )
    raw = loop.load(workdir, parts=parts, averaged=False)
    assert loop.evaluate(*raw) != scores
  average_of_it = average.averaged(raw[2].opt_state)
  chex.assert_trees_all_equal(
    jax.device_get(state.params), jax.device_get(average_of_it)
  )


def test_the_best_average_is_kept(run):
  _, parts, workdir, _ = run
  scores = {x["step"]: x[SCORE] for x in read_history(workdir) if SCORE in x}
  assert sorted(scores) == [0, 5, 10, 15, 20]
  best = loop.load(workdir, parts=parts, checkpoints=checkpoint.BEST)
  step = max(scores, key=scores.get)
  assert int(best[2].step) == step
  with jax.set_mesh(best[1]):
    assert loop.evaluate(*best)[SCORE] == scores[step]


def test_a_resumed_run_has_equal_bits(run, tmp_path):
  config, parts, workdir, result = run
  for last in (10, parts.num_steps):
    again = loop.fit(config, tmp_path, parts=parts._replace(num_steps=last))
    (tmp_path / "metrics.json").unlink()
  assert again.metrics == result.metrics
  states = [
    jax.device_get(loop.load(x, parts=parts, averaged=averaged)[2])
    for averaged in (True, False)
    for x in (workdir, tmp_path)
  ]
  chex.assert_trees_all_equal(*states[:2])
  chex.assert_trees_all_equal(*states[2:])


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

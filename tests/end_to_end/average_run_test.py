"""A run with a moving average of the weights: who sees which of the two."""

import functools

import chex
import jax
import numpy as np
import pytest

from nuclr_jax.lab.train import (
  average,
  checkpoint,
  loop,
  recalibrate,
  resume,
)
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.train.records import read_history
from tests.lab.train.average_test import DECAY, by_hand

pytestmark = pytest.mark.usefixtures("no_diagnostics")

SCORE = "validation/mean_recall@10"


@pytest.fixture(scope="module")
def build(scored_glyphs):
  """Makes the parts of a tiny run with a few images for retrieval."""
  return functools.partial(experiment.build, data=scored_glyphs)


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

"""Runs that go on with more epochs: what is kept, and what is planned anew."""

import json
import logging
import os
import signal

import jax
import numpy as np
import pytest

from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train import extend, loop, records
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.lab.train.settings import resolve

pytestmark = pytest.mark.usefixtures("no_diagnostics")

STEPS = 100  # of an epoch: 6,400 pairs in batches of 64
CONSTANT = {
  "optimizer.learning_rate.decay": "constant",
  "log_every": 3,
  "checkpoint_every": 0,
}


@pytest.fixture(scope="module")
def build(tiny, few_pairs):
  """Makes a config of some steps and its parts."""

  def make(num_steps, **changes):
    config = tiny(num_epochs=num_steps / STEPS, **CONSTANT | changes)
    return config, experiment.build(config, data=few_pairs)

  return make


@pytest.fixture(scope="module")
def longer(build, tmp_path_factory):
  """The state of a run of 12 steps from the start."""
  workdir = tmp_path_factory.mktemp("longer")
  config, parts = build(12)
  return loop.fit(config, workdir, parts=parts).train_state


def assert_same(state, other):
  jax.tree.map(
    np.testing.assert_array_equal, *map(jax.device_get, (state, other))
  )


def test_a_stopped_run_is_extended_bit_for_bit(build, longer, tmp_path, caplog):
  config, parts = build(8)

  def stop(state, embed):
    os.kill(os.getpid(), signal.SIGTERM)
    return state

  half = loop.fit(
    config, tmp_path, parts=parts._replace(hooks=(Hook(5, stop),))
  )
  assert not half.finished and int(half.train_state.step) == 5
  config, parts = build(12)
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    result = loop.fit(config, tmp_path, parts=parts)
  assert result.finished and result.metrics["step"] == 12
  assert_same(result.train_state, longer)
  assert "from 8 to 12 steps (num_epochs 0.08 to 0.12)" in caplog.text
  assert "goes on at step 5 with its u, zeta, optimizer and" in caplog.text
  assert "optimizer.learning_rate stays as it was planned" in caplog.text
  assert "planned anew" not in caplog.text


def test_a_finished_run_is_extended_bit_for_bit(build, longer, tmp_path):
  config, parts = build(8)
  assert loop.fit(config, tmp_path, parts=parts).finished
  before = records.read_history(tmp_path)
  config, parts = build(12)
  result = loop.fit(config, tmp_path, parts=parts)
  assert_same(result.train_state, longer)
  assert json.loads((tmp_path / "metrics.json").read_text())["step"] == 12
  rows = records.read_history(tmp_path)
  assert rows[: len(before)] == before
  assert [x["step"] for x in rows[len(before) :]] == [9, 12, 12]
  (noted,) = map(json.loads, (tmp_path / "extended.jsonl").open())
  assert noted == {"step": 8, "num_epochs": 0.08}
  # As any other finished run, it is not trained again, nor made shorter.
  again = loop.fit(config, tmp_path, parts=parts)
  assert again.metrics == result.metrics
  config, parts = build(8, log_every=1)
  with pytest.raises(ValueError, match="num_epochs is 0.12 .*, 0.08") as failed:
    loop.fit(config, tmp_path, parts=parts)
  assert "may be raised, not lowered" in str(failed.value)
  assert "(log_every is 3 there, 1 here)" in str(failed.value)
  # More epochs do not let pass what else differs.
  config, parts = build(16, seed=1)
  with pytest.raises(ValueError, match="seed is 0 there, 1 here") as failed:
    loop.fit(config, tmp_path, parts=parts)
  assert "num_epochs" not in str(failed.value)
  assert records.read_config(tmp_path)["num_epochs"] == 0.12
  assert records.read_metrics(tmp_path) == result.metrics


def test_a_cosine_that_had_ended_rises_again(build, tmp_path, caplog):
  cosine = {"optimizer.learning_rate.decay": "cosine"}
  config, parts = build(4, **cosine)
  loop.fit(config, tmp_path, parts=parts)
  config, parts = build(8, **cosine)
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    result = loop.fit(config, tmp_path, parts=parts)
  assert int(result.train_state.step) == 8
  value = config.optimizer.learning_rate.value / 2
  assert (
    f"optimizer.learning_rate is planned anew: at step 4 it is {value:.3g} in "
    "place of 0 (it rises again), and at step 8, the end, 0"
  ) in caplog.text


def test_schedules_are_found_at_any_depth(tiny):
  config = tiny(num_epochs=1, **{"objective.zeta.rate.decay": "cosine"})
  span = {"num_steps": 4, "steps_per_epoch": 2}
  plans = extend.planned(resolve(config), span, {**span, "num_steps": 8})
  assert plans.keys() == {"optimizer.learning_rate", "objective.zeta.rate"}
  before, after = plans["objective.zeta.rate"]
  assert [round(float(before(x)), 3) for x in (0, 4)] == [0.3, 0]
  assert [round(float(after(x)), 3) for x in (0, 4, 8)] == [0.3, 0.15, 0]

"""Runs that predict tokens, too: they learn, stop, and go on bit for bit."""

import os
import signal

import jax
import numpy as np
import pytest

from nuclr_jax.lab.train import build, loop, records
from nuclr_jax.lab.train.hooks import Hook


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_stopped_run_goes_on_bit_for_bit(
  pieces, tiny, few_pairs, tmp_path, no_diagnostics
):
  config = tiny("clip,tokens,smoke", num_epochs=0.2, num_microbatches=pieces)
  parts = build.build(config, data=few_pairs)
  straight = loop.fit(config, tmp_path / "straight", parts=parts)
  state = jax.device_get(straight.train_state)
  seen = state.objective.shared["token_prediction"]
  assert seen.captions == 20 * 64 and seen.with_token[0] == 0
  assert seen.with_token.sum() > seen.captions
  history = records.read_history(tmp_path / "straight")
  losses = [
    x["train/token_prediction/divergence"]
    for x in history
    if "train/token_prediction/divergence" in x
  ]
  assert losses[-1] < losses[0] - 0.2

  def stop(state, embed):
    os.kill(os.getpid(), signal.SIGTERM)
    return state

  interrupted = parts._replace(hooks=(Hook(10, stop),))
  half = loop.fit(config, tmp_path / "halves", parts=interrupted)
  assert not half.finished and int(half.train_state.step) == 10
  whole = loop.fit(config, tmp_path / "halves", parts=parts)
  jax.tree.map(
    np.testing.assert_array_equal, jax.device_get(whole.train_state), state
  )


def test_without_its_weight_it_is_the_plain_run_bit_for_bit(
  tiny, few_pairs, tmp_path, no_diagnostics
):
  found = []
  for name, argument in (
    ("plain", "clip,smoke"),
    ("zero", "clip,tokens,smoke"),
  ):
    config = tiny(argument, num_epochs=0.05)
    if name == "zero":
      config.terms["contrib:token_prediction"].weight = 0.0
    parts = build.build(config, data=few_pairs)
    found.append(loop.fit(config, tmp_path / name, parts=parts).train_state)
  jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, found))

"""Schedules with a constant phase; learning rates by tower and by layer."""

import math

import numpy as np
import pytest

from nuclr_jax.train import optimizer


def by_hand(step, *, decay, freeze, rise, stable, steps, value, end):
  """The value at a step, by the definition of each phase."""
  if step < freeze:
    return 0.0
  if step < freeze + rise:
    return value * (step - freeze) / rise
  x = min(max(step - freeze - rise - stable, 0) / steps, 1)
  left = {
    "constant": 1.0,
    "cosine": (1 + math.cos(math.pi * x)) / 2,
    "linear": 1 - x,
    "sqrt": 1 - math.sqrt(x),
  }[decay]
  return end + (value - end) * left


class TestSchedules:
  @pytest.mark.parametrize("decay", optimizer.DECAYS)
  @pytest.mark.parametrize("fraction", [1.0, 0.5])
  def test_warm_up_then_stable_then_decay(self, decay, fraction):
    schedule = optimizer.make_schedule(
      2.0,
      num_steps=116,
      steps_per_epoch=3,
      freeze_epochs=2,
      warmup_steps=10,
      decay=decay,
      stable_fraction=0.8,
      decay_fraction=fraction,
      end_value=0.5,
    )
    end = 2.0 if decay == "constant" else 0.5
    expected = [
      by_hand(
        step,
        decay=decay,
        freeze=6,
        rise=10,
        stable=80,  # of the 100 steps after the rise
        steps=20 * fraction,
        value=2.0,
        end=end,
      )
      for step in range(120)
    ]
    found = [float(schedule(step)) for step in range(120)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

  def test_a_stable_phase_leaves_a_step_to_decay(self):
    schedule = optimizer.make_schedule(
      1.0, num_steps=3, steps_per_epoch=1, stable_fraction=0.99, decay="linear"
    )
    assert [float(schedule(step)) for step in range(4)] == [1, 1, 1, 0]

  @pytest.mark.parametrize(
    "change, message",
    [
      (dict(stable_fraction=1.0), r"stable_fraction must be in \[0, 1\), got"),
      (dict(stable_fraction=-0.1), "stable_fraction must be in"),
      (dict(decay="wsd"), "one of .*'linear', 'sqrt'.*, got 'wsd'"),
    ],
  )
  def test_values_out_of_range(self, change, message):
    with pytest.raises(ValueError, match=message):
      optimizer.make_schedule(1.0, num_steps=8, steps_per_epoch=2, **change)

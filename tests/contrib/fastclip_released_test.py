"""FastCLIP-v3 as released (golden numbers: golden/README.md)."""

import math

import chex
import jax
import jax.numpy as jnp
from make_step import make_step
from normalizers import (
  BATCH,
  GIVEN,
  MOVING_AVERAGES,
  NUM_PAIRS,
  RATIO,
  TAU,
  arguments_of,
  batch,
  batch_of,
  near,
)
import numpy as np
import pytest

from nuclr_jax import objectives
from nuclr_jax.contrib.objectives import fastclip_released
from nuclr_jax.objectives import log_scale, temperature_rules

RHO = float(GIVEN["fastclip_released/rho"])


pytestmark = pytest.mark.filterwarnings("ignore:rho is (10|11|20)")
KWARGS = dict(num_pairs=NUM_PAIRS, gamma=1.0)


def released(temperature=TAU, rho=RHO):
  return fastclip_released(temperature=temperature, rho=rho, **KWARGS)


def complete(temperature=TAU, rho=RHO):
  rule = temperature_rules.learned(temperature, rho=rho)
  return objectives.sogclr(temperature=rule, **KWARGS)


def step(objective, params=None):
  """The loss, and the gradients of parameters and of both embeddings."""
  first, state = objective.init()

  def loss(params, image, text):
    pairs = batch()._replace(image=image, text=text)
    return objective.apply(params, state, pairs)[0]

  inputs = (params or first, batch().image, batch().text)
  return jax.value_and_grad(loss, (0, 1, 2))(*inputs)


def parts_of_the_derivative():
  """A and H of the docstring, in NumPy."""
  sims = np.asarray(batch().image @ batch().text.T, np.float64)
  away, own = ~np.eye(BATCH, dtype=bool), np.diag(sims)
  log_mean, mean = 0.0, 0.0
  for of_side in (sims, sims.T):
    h = ((of_side - own[:, None]) / TAU)[away].reshape(BATCH, BATCH - 1)
    weights = np.exp(h) / np.exp(h).sum(1, keepdims=True)
    log_mean += np.log(np.exp(h).mean(1)).mean() + RHO
    mean += (weights * h).sum(1).mean()
  return log_mean, mean


def test_what_the_released_code_returns(x64):
  """The logged value is tau (A + 2): the weights' sum of both sides is 2."""
  objective = released()
  loss, (state, _) = objective.apply(*objective.init(), batch())
  near(loss / 2 + 2 * TAU, GIVEN["fastclip_released/loss"])
  ids = batch().pair_id
  for u, side in zip(state.sample.pair.log_u, "IT", strict=True):
    mean = np.exp(u[ids]) / (NUM_PAIRS - 1)
    near(mean, GIVEN[f"fastclip_released/u_{side}"])


def test_gradients_of_the_released_code(x64):
  _, (params, *embeddings) = step(released())
  # By 1 / temperature; the released code averages A over the sides.
  of_scale = params["log_scale"] * TAU / 2
  near(of_scale, GIVEN["fastclip_released/grad_logit_scale"])
  for side, gradient in zip(("image", "text"), embeddings, strict=True):
    near(gradient, GIVEN[f"fastclip_released/grad_{side}"])


def test_the_derivative_by_the_temperature(x64):
  log_mean, mean = parts_of_the_derivative()
  loss, (params, *_) = step(released())
  assert loss == pytest.approx(TAU * log_mean, rel=1e-12)
  by_tau = -params["log_scale"] / TAU
  assert by_tau == pytest.approx(log_mean - 2 * mean, rel=1e-12)
  _, (params, *_) = step(complete())
  by_tau = -params["log_scale"] / TAU
  assert by_tau == pytest.approx(log_mean - mean, rel=1e-12)
  # As a finite difference of the official loss is; its derivative is 12.199.
  assert by_tau / 2 == pytest.approx(10.260, abs=1e-3)


@pytest.mark.parametrize("case", MOVING_AVERAGES)
def test_drrho_and_scent_have_that_derivative(case, x64):
  """In three steps, also the logged value, which is tau (A + H).

  A is the mean over both sides, and H is B / (B - 1) times the library's.
  """
  rho = float(GIVEN[f"{case}/rho"])
  rho += math.log(1 + float(GIVEN[f"{case}/eps"]) - 1 / BATCH)
  objective = fastclip_released(temperature=TAU, rho=rho, **arguments_of(case))
  params, state = objective.init()
  run = jax.jit(make_step(objective))
  for number in range(3):
    (loss, (state, _)), (found, *_) = run(params, state, batch_of(case, number))
    log_mean = loss / (2 * TAU)
    mean = RATIO * (log_mean + found["log_scale"] / (2 * TAU))
    by_tau = log_mean - mean
    near(-(TAU**2) * by_tau, GIVEN[f"{case}/{number}/grad_logit_scale"])
    near(TAU * (log_mean + mean), GIVEN[f"{case}/{number}/loss"])
    if (case, number) == ("drrho_clip", 0):
      assert by_tau == pytest.approx(10.476, abs=1e-3)


def test_only_the_temperature_has_another_gradient(x64):
  loss, (params, *embeddings) = step(released())
  value, (others, *expected) = step(complete())
  assert loss == pytest.approx(float(value), rel=1e-12)
  chex.assert_trees_all_close(embeddings, expected, rtol=1e-12)
  assert abs(params["log_scale"] - others["log_scale"]) > 0.01


def test_the_temperature_stays_in_its_bounds(x64):
  highest = jnp.log(log_scale.MAX_SCALE)
  for rho, is_led_back in ((-20.0, True), (20.0, False)):
    _, (params, *_) = step(released(0.02, rho), {"log_scale": highest + 0.1})
    assert (params["log_scale"] > 0) == is_led_back
    assert params["log_scale"] >= 0


def test_training_moves_as_sogclr_does(x64):
  """The state is that of `sogclr`, and follows from it alone."""
  objective, other = released(), complete()
  params, state = objective.init()
  chex.assert_trees_all_equal((params, state), other.init())
  for number in range(3):
    _, (state, metrics) = objective.apply(params, state, batch(number))
  expected = other.init()[1]
  for number in range(3):
    _, (expected, _) = other.apply(params, expected, batch(number))
  chex.assert_trees_all_close(state, expected, rtol=1e-12)
  assert metrics["temperature"] == pytest.approx(TAU)

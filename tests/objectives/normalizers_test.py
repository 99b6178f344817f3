"""Newer sources of the denominator (golden numbers: golden/README.md)."""

import math

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
  reference,
)
import numpy as np
import pytest

from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.objectives import denominator, zeta_rules
from nuclr_jax.types import Sizes, both


@pytest.mark.parametrize("case", MOVING_AVERAGES)
def test_moving_averages_of_three_steps(case, x64):
  """`SogCLRLoss` of DRRho-CLIP, and the same patched by SCENT."""
  epsilon = float(GIVEN[f"{case}/eps"])
  objective = objectives.sogclr(temperature=TAU, **arguments_of(case))
  params, state = objective.init()
  run = jax.jit(make_step(objective))
  for step in range(3):
    (_, (state, _)), (_, *gradients) = run(params, state, batch_of(case, step))
    for side, anchor, gradient in zip(
      ("image", "text"), "IT", gradients, strict=True
    ):
      expected = GIVEN[f"{case}/{step}/grad_{side}"]
      near(RATIO * gradient[:, : expected.shape[1]], expected)
      log_v = GIVEN[f"{case}/{step}/log_v_{anchor}"]
      log_u = getattr(state.sample.pair.log_u, side)
      unit = (NUM_PAIRS - 1) * RATIO
      seen = log_v != 0
      np.testing.assert_array_equal(np.isfinite(log_u), seen)
      near(np.log(np.exp(log_u[seen]) / unit + epsilon), log_v[seen])


def drrho(epsilon, **options):
  """DRRho with a constant epsilon in the mean of a batch, without memory."""
  weight = (NUM_PAIRS - 1) * epsilon * RATIO
  how = dict(temperature=TAU, gamma=1.0, positive_weight=weight) | options
  return objectives.sogclr(num_pairs=NUM_PAIRS, **how)


def gradients(objective, pairs, reference=None):
  """The gradients of the model's embeddings; with one, of the reference's."""

  def loss_fn(embeddings, reference):
    batch = pairs._replace(image=embeddings.image, text=embeddings.text)
    if reference is not None:
      batch = objectives.relative_to(batch, reference)
    return objective.apply(*objective.init(), batch)[0]

  embeddings = Sides(pairs.image, pairs.text)
  numbers = (0,) if reference is None else (0, 1)
  return jax.jit(jax.grad(loss_fn, numbers))(embeddings, reference)


@pytest.mark.parametrize(
  "objective",
  [
    drrho(1e-2),
    objectives.clip(),
    objectives.isogclr(num_pairs=NUM_PAIRS, rho=2.0),
    objectives.nuclr(num_pairs=NUM_PAIRS, zeta=zeta_rules.queue(dim=11)),
  ],
  ids=repr,
)
def test_a_constant_reference_changes_nothing(objective, x64):
  constant = Sides(*np.ones((2, BATCH, 5)) / math.sqrt(5))
  if "queue" in repr(objective):  # it is as wide as what it remembers
    plain = objectives.nuclr(num_pairs=NUM_PAIRS, zeta=zeta_rules.queue(dim=6))
  else:
    plain = objective
  (expected,) = gradients(plain, batch())
  found, of_reference = gradients(objective, batch(), constant)
  for a, b in zip(found, expected, strict=True):
    near(a, b)
  assert not np.any(of_reference)


def test_a_reference_that_is_the_model_weighs_negatives_alike(x64):
  """All h are 0, so that w = 1 / ((B - 1) (epsilon + (B - 1) / B))."""
  epsilon, pairs = 1e-2, batch()
  found, _ = gradients(drrho(epsilon), pairs, Sides(pairs.image, pairs.text))
  w = RATIO**-1 / ((BATCH - 1) * (epsilon + 1 / RATIO))  # of the library
  others = 1 - np.eye(BATCH)
  # An anchor's loss has the slope w in every h, once for each side.
  slope = 2 * w * (others - (BATCH - 1) * np.eye(BATCH)) / BATCH
  near(found.image, slope @ pairs.text)
  near(found.text, slope.T @ pairs.image)


def test_without_memory_it_is_clip_of_relative_similarities(x64):
  """At epsilon = 1 / B, up to 2 tau."""
  clip = objectives.clip(temperature=TAU, learn_temperature=False)
  found, _ = gradients(drrho(1 / BATCH), batch(), reference())
  expected, _ = gradients(clip, batch(), reference())
  for a, b in zip(found, expected, strict=True):
    near(a, 2 * TAU * b)


@pytest.mark.parametrize(
  ("image", "text"), [((8, 5), (8, 4)), ((7, 5), (7, 5)), ((8,), (8,))]
)
def test_a_reference_of_another_shape_is_refused(image, text):
  given = Sides(np.ones(image), np.ones(text))
  with pytest.raises(ValueError, match=r"both be \[batch, width\] with 8 rows"):
    objectives.relative_to(batch(), given)


def average(gamma, log_v, log_estimate, visits=1, log_epsilon=-math.inf):
  """log of an anchor's (epsilon + u) / (n - 1) after some visits."""
  n, ids = 11, both(jnp.arange(1))
  scale, sizes = math.log(n - 1), Sizes(n, n, n)
  log_epsilon = both(jnp.full(1, log_epsilon + scale))
  log_u = both(jnp.full(1, log_v + scale))
  log_phi = both(jnp.full(1, log_estimate + scale))
  for _ in range(visits):
    weights = denominator.log_weights(
      gamma, jnp.int32(0), log_u, log_epsilon, sizes
    )
    log_u = denominator.track(log_u, ids, log_phi, weights)
  return jnp.logaddexp(log_epsilon.text, log_u.text)[0] - scale


@pytest.mark.parametrize("log_epsilon", [-math.inf, -3.0])
@pytest.mark.parametrize("log_alpha", [-40.0, -2.0, 3.0, 40.0])
def test_adaptive_is_the_proximal_step(log_alpha, log_epsilon, x64):
  """Against its closed form, and its limits: the old value and the new."""
  log_v, log_estimate = -1.0, 2.0
  found = average(
    denominator.Adaptive(log_alpha),
    log_v,
    log_estimate,
    log_epsilon=log_epsilon,
  )
  old, new = np.logaddexp(log_epsilon, (log_v, log_estimate))
  expected = old + np.logaddexp(0, log_alpha + new)
  expected -= np.logaddexp(0, log_alpha + old)
  assert found == pytest.approx(expected, abs=1e-12)
  if log_alpha in (-40.0, 40.0):
    assert found == pytest.approx(old if log_alpha < 0 else new, abs=1e-9)


def test_adaptive_falls_where_a_constant_gamma_cannot(x64):
  """From 1 to 1e-6: v after 1, 5, 20 and 40 visits, to one digit."""
  for gamma, expected in (
    (lambda count: jnp.float32(0.8), (2e-1, 3e-4, 1e-6, 1e-6)),
    (denominator.Adaptive(10.0), (5e-5, 1e-5, 3e-6, 2e-6)),
    (denominator.Adaptive(4.0), (2e-2, 4e-3, 9e-4, 5e-4)),
  ):
    found = [
      math.exp(average(gamma, 0.0, math.log(1e-6), visits))
      for visits in (1, 5, 20, 40)
    ]
    np.testing.assert_allclose(found, expected, rtol=0.2)


def test_adaptive_has_no_unit_and_is_a_gamma(x64):
  """Denominators times c at alpha / c; and its gamma_i, inserted by hand."""
  log_alpha, log_v, log_estimate, log_c = 1.0, -2.0, 0.5, 3.0
  found = average(denominator.Adaptive(log_alpha), log_v, log_estimate)
  in_other_units = average(
    denominator.Adaptive(log_alpha - log_c), log_v + log_c, log_estimate + log_c
  )
  assert in_other_units - log_c == pytest.approx(float(found), rel=1e-12)
  gamma = 1 / (1 + math.exp(-log_alpha - log_v))
  by_hand = average(lambda count: jnp.asarray(gamma), log_v, log_estimate)
  assert found == pytest.approx(float(by_hand), rel=1e-12)


@pytest.mark.parametrize("log_alpha", [-40.0, -2.0, 1.0, 40.0])
def test_adaptive_leaves_a_steady_denominator_alone(log_alpha):
  gamma = denominator.Adaptive(log_alpha)
  assert average(gamma, -5.0, -5.0, visits=3) == pytest.approx(-5.0)


@pytest.mark.parametrize("log_v", [math.log(1e-6), -25.0, -100.0])
def test_adaptive_rises_in_two_visits(log_v, x64):
  """To 1: v is 0.02 after the first visit, and then nearly 1."""
  gamma = denominator.Adaptive(10.0)
  found = [math.exp(average(gamma, log_v, 0.0, x)) for x in (1, 2)]
  assert found == pytest.approx([0.0216, 0.998], rel=0.01)


def test_adaptive_bounds_the_weights():
  """Pairs that were solved, and are not any longer: u is nothing but new.

  So the weights are 1 / gamma, and there is nothing else in the gradient.
  """
  images = np.eye(2, dtype=np.float32)
  texts = np.array([[0.6, 0.8], [0.8, 0.6]], np.float32)
  found = []
  for gamma in (0.8, denominator.Adaptive(10.0)):
    objective = objectives.sogclr(num_pairs=4, temperature=0.01, gamma=gamma)
    params, state = objective.init()
    run = jax.jit(make_step(objective))
    for text in (images, texts):
      pairs = Pairs(images, text, np.arange(2))
      (loss, (state, _)), (_, gradient, _) = run(params, state, pairs)
    assert np.isfinite(loss)
    found.append(gradient)
  weight = 1 + math.exp(-10) / 1e-6
  np.testing.assert_allclose(found[1], 0.8 * weight * found[0], rtol=1e-4)


@pytest.mark.parametrize("zeta", [0.0, 0.13])
def test_adaptive_sees_popularities_and_the_positive(zeta, x64):
  """One zeta for all divides v, the positive's part included: alpha grows."""
  how = dict(num_pairs=NUM_PAIRS, temperature=TAU, positive_weight=3.0)
  plain = objectives.sogclr(**how, gamma=denominator.Adaptive(1.0))
  nuclr = objectives.nuclr(
    **how,
    gamma=denominator.Adaptive(1.0 + zeta / TAU),
    zeta=zeta_rules.fixed(init=zeta),
  )
  states = [plain.init()[1], nuclr.init()[1]]
  for step in range(3):
    results = []
    for i, objective in enumerate((plain, nuclr)):
      run = jax.jit(make_step(objective))
      (_, (states[i], _)), (_, *found) = run({}, states[i], batch(step))
      results.append(found)
    for a, b in zip(*results, strict=True):
      near(a, b)


def test_a_row_at_one_keeps_its_average(x64):
  """DRRho-CLIP's and SCENT's code takes log v = 0 for a row without a visit."""
  found = average(lambda count: jnp.asarray(0.2), 0.0, -5.0)
  assert found == pytest.approx(-0.22, abs=5e-3)


def test_a_floor_below_the_greatest_term_so_far_loses_anchors(x64):
  """TempNet's table (iSogCLR's likewise): a sum in units of its greatest term.

  The floor of 1e-14 holds once a logit has fallen by more than 32.2.
  """
  gamma, high, low, visits = 0.8, 13.3, -26.5, 30
  greatest, total = high, 1.0  # after a first visit
  for _ in range(visits):
    term = math.exp(low - greatest)
    total = (1 - gamma) * total + gamma * term
  floored = max(total, 1e-14)
  assert term / floored == pytest.approx(5e-4, rel=0.1)  # the weight; it is 1
  assert math.log(floored) + greatest == pytest.approx(-18.94, abs=0.01)
  constant = lambda count: jnp.asarray(gamma)
  found = average(constant, high, low, visits)
  assert found == pytest.approx(low, abs=1e-3)

"""The scores of the study of small memories, against autodiff and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import Place
from experiments.popularity.at_scale import data, measure, plan
from experiments.popularity.at_scale.ways import WAYS

TAU, NUM_PAIRS = 0.1, 64
ANCHORS = np.array([0, 5, 33])


@pytest.fixture(scope="module")
def final():
  return data.generate(num_pairs=NUM_PAIRS, dim=8, seed=0)


@pytest.fixture(scope="module")
def terms(final):
  zeta = TAU * np.random.default_rng(0).normal(size=NUM_PAIRS)
  sim = np.float64(final.image[ANCHORS]) @ np.float64(final.text).T
  return measure.weigh(sim, zeta, TAU, ANCHORS), zeta


def test_embeddings(final):
  for x in (*final, *data.early(final, seed=0)):
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-6)
  own = np.sum(final.image * final.text, axis=1)
  assert np.mean(own) > np.mean(final.image @ final.text.T) + 0.2
  first = data.early(final, seed=0)
  assert np.mean(first.image @ first.text.T) > 0.5  # a cone


def test_the_gradient_is_that_of_the_objective(final, terms, x64):
  """tau log sum_j exp((sim_ij - sim_ii - zeta_j) / tau), by autodiff."""
  weighed, zeta = terms

  def loss(image, i):
    sim = jnp.float64(final.text) @ image
    return TAU * jax.nn.logsumexp((sim - sim[i] - zeta) / TAU)

  expected = jax.vmap(jax.grad(loss))(
    jnp.float64(final.image[ANCHORS]), ANCHORS
  )
  found, _ = measure.gradient_of(np.float64(final.text), weighed, ANCHORS)
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_steps_with_averages_that_are_right_are_unbiased(final, terms):
  """As gamma -> 0 nothing of a batch's estimate is in its denominator."""
  weighed, _ = terms
  contrast = np.float64(final.text)
  target, log_u = measure.gradient_of(contrast, weighed, ANCHORS)

  def error(gamma, log_u):
    ways = {"some": WAYS["ζ = 0"]._replace(gamma=gamma)}
    rng = np.random.default_rng(1)
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(measure, "WAYS", ways)
      values = {"batch_size": 9, "way": "some"}
      halves = (
        measure.step_gradient(contrast, weighed, ANCHORS, log_u, values, rng)
        - target
        for _ in range(2)
      )
      return measure.relative(*halves, target)

  assert error(1e-6, log_u) < 0.08
  assert error(0.8, log_u) > 0.2  # the estimate is in the denominator too
  # Twice the denominator, half the gradient.
  own = weighed.own - log_u
  twice = np.log(2 * np.exp(log_u) + np.exp(weighed.own))
  assert np.all(own < 0)
  assert error(1e-6, twice) == pytest.approx(0.5, abs=0.08)


def test_two_noises_without_a_bias():
  rng = np.random.default_rng(0)
  noise = rng.normal(size=(2, 10_000))
  target = np.ones(10_000)
  assert measure.relative(*noise, target) < 0.15
  biased = measure.relative(*(noise + 0.5), target)
  assert biased == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("way", ["ζ exact", "queue 25 %", "sample 25 %"])
def test_a_run(way, tmp_path):
  run = plan.make_run(
    plan.DRIFTING, way, 0, tau=0.1, num_pairs=256, num_epochs=2, dim=8
  )
  row = measure.measure(run, Place(tmp_path / "run", tmp_path / "shared"))
  assert set(row["gradient"]) == {"image", "text"}
  assert ("step" in row) == bool(WAYS[way].rule)
  for side in ("image", "text"):
    if way == "ζ exact":
      assert row["gradient"][side] < 1e-3
      assert row["r2"][side] > 1 - 1e-6
    else:
      assert 0 < row["gradient"][side] < 2
  if WAYS[way].rule:
    assert row["bytes"]["sample"] == 16 * 256  # zeta and u of both sides
    batch = 2 * 16**2 * 8  # flops of a product
    assert row["flops"] >= 3 * batch

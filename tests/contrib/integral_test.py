"""The estimates of the partition function and the risk, by simulation."""

import math

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax.contrib import integral

# p_k(y) on [0, 1] proportional to exp(SLOPES_k y); the integrand exp(2 y).
SLOPES = np.array([-6.0, -2.0, 0.5, 3.0, 8.0])
TRUTH = math.expm1(2) / 2  # the integral of exp(2 y) over [0, 1]


def draw(draws, repetitions):
  """log f(y_jl) and log p_k(y_jl), with leading axis `repetitions`."""
  u = np.random.default_rng(draws).uniform(size=(repetitions, 5, draws))
  slopes = SLOPES[:, None]
  y = np.log1p(u * np.expm1(slopes)) / slopes
  log_norm = np.log(np.expm1(SLOPES) / SLOPES)
  log_density = SLOPES[:, None, None] * y[:, None] - log_norm[:, None, None]
  return jnp.asarray(2 * y), jnp.asarray(log_density)


def uniform(log_density):
  return jnp.full_like(log_density, -math.log(len(SLOPES)))


def squared(log_density):
  """Veach's power heuristic."""
  return integral.balance_heuristic(2 * log_density)


WEIGHTS = {
  "balance": integral.balance_heuristic,
  "uniform": uniform,
  "power": squared,
}


def mean_and_error(x):
  return x.mean(axis=0), x.std(axis=0) / math.sqrt(len(x))


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_unbiased_for_any_weights(weight, draws, x64):
  log_f, log_density = draw(draws, 20_000)
  estimate = jax.vmap(lambda f, p: integral.log_partition(f, p, weight(p)))(
    log_f, log_density
  )
  mean, error = mean_and_error(np.exp(estimate))
  assert error < 0.02 * TRUTH
  assert abs(mean - TRUTH) < 4 * error


def test_without_weights_it_is_the_balance_heuristic(x64):
  log_f, log_density = (x[0] for x in draw(3, 1))
  given = integral.balance_heuristic(log_density)
  np.testing.assert_allclose(
    integral.log_partition(log_f, log_density),
    integral.log_partition(log_f, log_density, given),
    rtol=1e-12,
  )
  q = np.exp(log_density).sum(axis=0)  # equation (4), literally
  expected = np.log((np.exp(log_f) / q).sum() / 3)
  found = integral.log_partition(log_f, log_density)
  np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("other", ["uniform", "power"])
def test_the_balance_heuristic_has_the_smallest_bound(other, x64):
  """Eq. (18): the sum of second moments, which bounds the variance."""
  log_f, log_density = draw(1, 20_000)
  own = np.arange(5)

  def second_moment(weight):
    log_weight = jax.vmap(weight)(log_density)
    log_term = log_f + (log_weight - log_density)[:, own, own]
    return np.exp(2 * log_term).sum(axis=(1, 2))

  gap = second_moment(WEIGHTS[other]) - second_moment(WEIGHTS["balance"])
  mean, error = mean_and_error(gap)
  assert mean > 4 * error


def test_the_variance_falls_with_the_draws(x64):
  variances = []
  for draws in (1, 4):
    log_f, log_density = draw(draws, 20_000)
    estimate = jax.vmap(integral.log_partition)(log_f, log_density)
    variances.append(np.exp(estimate).var())
  # A variance of m draws is 1/m of that of one; +-4 standard errors.
  assert variances[0] / variances[1] == pytest.approx(4, rel=0.15)


def test_many_anchors_at_once(x64):
  log_f, log_density = (x[0] for x in draw(3, 1))
  several = jnp.stack([log_f, 2 * log_f, 0 * log_f])
  found = integral.log_partition(several, log_density)
  alone = [integral.log_partition(f, log_density) for f in several]
  np.testing.assert_allclose(found, jnp.stack(alone), rtol=1e-12)


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda f, p: (f, p[:, :4]), r"log_density must be \[n, n, draws\]"),
    (lambda f, p: (f, p, p[:, :4]), r"log_weight must be \[5, 5, 3\]"),
    (lambda f, p: (f, p, 0 * p), "must sum to 1 over k, found a sum of 5"),
  ],
)
def test_shapes_and_weights_are_checked(change, message):
  log_f, log_density = (x[0] for x in draw(3, 1))
  function = integral.log_partition
  while hasattr(function, "__wrapped__"):  # without the tests' type checker
    function = function.__wrapped__
  with pytest.raises(ValueError, match=message):
    function(*change(log_f, log_density))


class TestRisk:
  """Against the formulas, dense in NumPy."""

  def setup_method(self):
    self.image = make_pairs.unit_rows(0, 40, 5)
    self.text = make_pairs.unit_rows(1, 40, 5)
    rng = np.random.default_rng(2)
    self.q, self.other = rng.uniform(5, 50, (2, 40))
    self.sim = self.image @ self.text.T

  def arrays(self, *log_q):
    return map(jnp.asarray, (self.image, self.text, *map(np.log, log_q)))

  def test_empirical_risk(self, x64):
    tau = 0.2
    found = integral.empirical_risk(*self.arrays(self.q), temperature=tau)
    g = (np.exp(self.sim / tau) / self.q).sum(axis=1)
    expected = -np.mean(tau * np.log(np.exp(np.diag(self.sim) / tau) / g))
    assert found == pytest.approx(expected, rel=1e-12)

  def test_a_factor_on_q_shifts_it(self, x64):
    risks = [
      integral.empirical_risk(*self.arrays(c * self.q), temperature=0.2)
      for c in (1, 7)
    ]
    assert risks[0] - risks[1] == pytest.approx(0.2 * math.log(7), rel=1e-10)

  def test_error_term(self, x64):
    tau = 0.2
    found = integral.error_term(
      *self.arrays(self.other, self.q), temperature=tau
    )
    gap = np.abs(1 / self.other - 1 / self.q)
    expected = (gap * np.exp((self.sim - 1) / tau)).sum() / 40
    assert found == pytest.approx(expected, rel=1e-12)
    none = integral.error_term(*self.arrays(self.q, self.q), temperature=tau)
    assert none == 0

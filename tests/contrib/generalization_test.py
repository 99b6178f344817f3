"""Theorem 1 of the NUCLR paper with its constants, where the truth is known.

x is uniform in [-1, 1], y in [0, 1], E = w x y with |w| <= 1, and the data have
w = 1, so that all integrals are known. Everything but the bound is NumPy.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax.contrib import integral as theory

N, TAU, REPETITIONS = 200, 0.5, 60
SLOPES = np.linspace(-1, 1, 9)  # models w
MODELS = theory.BilinearClass(
  norm=1.0,
  image_radius=1.0,
  text_radius=1.0,
  least_density=2 / math.expm1(2),  # of exp(a y), |a| <= 1 / TAU
  greatest_density=2 / -math.expm1(-2),
  least_popularity=2 / math.expm1(2),
)


def integral(a):
  """The integral of exp(a y) over [0, 1]."""
  a = np.where(np.abs(a) < 1e-9, 1e-9, a)
  return np.expm1(a) / a


@functools.cache
def draw(seed, n=N):
  """Anchors, contrasts, and q of every contrast."""
  rng = np.random.default_rng(seed)
  x = rng.uniform(-1, 1, n)
  a = x / TAU
  y = np.log1p(rng.uniform(size=n) * np.expm1(a)) / a
  q = (np.exp(np.outer(a, y)) / integral(a)[:, None]).sum(axis=0)
  return x, y, q


@functools.cache
def true_risk(w):
  """- E tau log p_w(y | x) by quadrature; E[y | x] is known for w = 1."""
  node, weight = np.polynomial.legendre.leggauss(40)
  mean = 1 / -np.expm1(-node / TAU) - TAU / node
  risk = -w * node * mean + TAU * np.log(integral(w * node / TAU))
  return weight @ risk / 2


def likelihood(w, x, y):
  return np.mean(-w * x * y + TAU * np.log(integral(w * x / TAU)))


def estimated(w, x, y, q):
  """The empirical risk, eq. (5)."""
  kernel = np.exp(w * np.outer(x, y) / TAU)
  return np.mean(-w * x * y + TAU * np.log((kernel / q).sum(axis=1)))


def bound(w, x, y, q, approximation, **changes):
  arguments = dict(temperature=TAU, models=MODELS) | changes
  return theory.generalization_bound(
    jnp.asarray(w * x)[:, None],
    jnp.asarray(y)[:, None],
    jnp.log(approximation),
    jnp.log(q),
    **arguments,
  )


def test_the_formula_in_numpy(x64):
  x, y, q = draw(0)
  approximation = q * np.random.default_rng(1).uniform(0.5, 3, N)
  found = bound(0.7, x, y, q, approximation, failure=0.1)
  low, high, k = MODELS[3:]
  s = math.sqrt(0.5 * math.log(60))
  a = (2 * (1 + 2**0.5) + TAU * math.log(high / low) * s) / N**0.5
  v = high / k * (4 / TAU + s) / N**0.5
  w = (2 * high / TAU + (high - low) * s) / N**0.5
  b = TAU * math.log(high / low) / (1 - low / high) * (v + (1 + v) * w / k)
  kernel = np.exp(0.7 * np.outer(x, y) / TAU)
  gap = np.abs(1 / approximation - 1 / q)
  least = min((kernel / z).sum(axis=1).min() for z in (approximation, q))
  c = TAU / least * (kernel * gap).sum() / N
  assert found.likelihood == pytest.approx(a, rel=1e-12)
  assert found.integration == pytest.approx(b, rel=1e-12)
  assert found.approximation == pytest.approx(c, rel=1e-12)
  assert found.total == pytest.approx(a + b + c, rel=1e-12)


def test_the_last_part_is_the_error_term_times_its_factor(x64):
  x, y, q = draw(0)
  other = q * np.random.default_rng(1).uniform(0.5, 3, N)
  pairs = (jnp.asarray(x)[:, None], jnp.asarray(y)[:, None])
  term = theory.error_term(*pairs, jnp.log(other), jnp.log(q), temperature=TAU)
  kernel = np.exp((np.outer(x, y) - 1) / TAU)
  least = min((kernel / z).sum(axis=1).min() for z in (other, q))
  found = bound(1.0, x, y, q, other).approximation
  assert found == pytest.approx(TAU / least * float(term), rel=1e-12)


def test_each_part_bounds_its_error_for_all_models(x64):
  first, second = [], []
  exact = np.array([true_risk(w) for w in SLOPES])
  for seed in range(REPETITIONS):
    x, y, q = draw(seed)
    by_model = np.array([likelihood(w, x, y) for w in SLOPES])
    first.append(np.abs(by_model - exact).max())
    by_estimate = np.array([estimated(w, x, y, q) for w in SLOPES])
    second.append(np.abs(by_estimate - by_model).max())
  parts = bound(1.0, *draw(0), draw(0)[2])
  assert max(first) <= parts.likelihood
  assert np.quantile(first, 0.95) > parts.likelihood / 20  # it could be wrong
  assert max(second) <= parts.integration
  assert parts.approximation == 0


def test_what_the_second_part_is_made_of_could_be_wrong(x64):
  """v and w of the docstring, against the errors that they bound."""
  node, weight = np.polynomial.legendre.leggauss(40)

  def density(w, y):  # [nodes, y]
    return (
      np.exp(w * np.outer(node, y) / TAU) / integral(w * node / TAU)[:, None]
    )

  errors = {"v": [], "w": []}
  for seed in range(REPETITIONS):
    _, y, q = draw(seed)
    mean = weight @ density(1.0, y) / 2
    every = [np.abs((density(w, y) / mean).mean(axis=1) - 1) for w in SLOPES]
    errors["v"].append(np.max(every))
    errors["w"].append(np.abs(q / N - mean).max())
  low, high, k = MODELS[3:]
  s = math.sqrt(math.log(6 / 0.05) / 2)
  bounds = {
    "v": high / k * (4 / TAU + s) / N**0.5,
    "w": (2 * high / TAU + (high - low) * s) / N**0.5,
  }
  for name, limit in bounds.items():
    assert max(errors[name]) <= limit
    assert np.quantile(errors[name], 0.95) > limit / 100


@pytest.mark.parametrize("factor", [math.exp(-9), math.exp(9)])
def test_a_wrong_constant_needs_the_term_and_its_factor(factor, x64):
  """The second part is left out: for the true model, its error is small."""
  x, y, q = draw(0, 4000)
  error = abs(estimated(1.0, x, y, factor * q) - true_risk(1.0))
  found = bound(1.0, x, y, q, factor * q)
  assert error <= found.approximation + found.likelihood <= found.total
  assert error > 3 * found.likelihood  # a bound without the term fails
  kernel = np.exp((np.outer(x, y) - 1) / TAU)
  of_truth = TAU / (kernel / q).sum(axis=1).min()
  term = np.mean((kernel * np.abs(1 / (factor * q) - 1 / q)).sum(axis=1))
  one_sided = of_truth * term  # the factor for g~ > g^, whatever g~ is
  assert (error <= one_sided + found.likelihood) == (factor < 1)


def test_more_pairs_tighten_it():
  x, y, q = draw(0)
  few, many = (bound(1.0, *draw(0, n), draw(0, n)[2]) for n in (N, 16 * N))
  assert float(few.likelihood) == pytest.approx(4 * float(many.likelihood))
  assert few.integration > 4 * many.integration
  likely = bound(1.0, x, y, q, q, failure=0.5)
  assert likely.total < bound(1.0, x, y, q, q, failure=0.01).total


@pytest.mark.parametrize(
  "changes",
  [
    {"failure": 0.0},
    {"models": MODELS._replace(least_density=0.0)},
    {"models": MODELS._replace(least_popularity=0.1)},
  ],
)
def test_what_is_out_of_range_is_refused(changes):
  x, y, q = draw(0)
  with pytest.raises(ValueError, match="failure must be in"):
    bound(1.0, x, y, q, q, **changes)

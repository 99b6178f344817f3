"""The study of experiments/toy_dpm, against quadrature and plain NumPy."""

import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats
import warm

from experiments.harness import command, rows, runner
from experiments.toy_dpm import __main__ as main
from experiments.toy_dpm import model, risks, summary
from nuclr_jax import popularity
from nuclr_jax.contrib import integral

ROOT = pathlib.Path(__file__).parents[2]
STUDY = ROOT / "experiments" / "toy_dpm"
FIGURES = (
  "bound.png",
  "spaces.png",
  "temperatures.png",
  "without_constants.png",
)
N = risks.EXAMPLE_SIZE  # one size, compiled once
TAUS = pytest.mark.parametrize("tau", [0.2, 1.0])


def f(a):
  """The integral of exp(a t) over [0, 1], by quadrature."""
  return integrate.quad(lambda t: math.exp(a * t), 0, 1)[0]


def draw(n, tau, seed=0):
  return model.sample_pairs(jax.random.key(seed), n, temperature=tau)


def shape_and_truth(n, tau):
  """A learned shape, log q and the pairs they are of."""
  pairs = draw(n, tau)
  log_q = model.log_popularity(pairs, temperature=tau)
  found = popularity.solve(*pairs, temperature=tau, tolerance=1e-10)
  return jnp.asarray(found.zeta.text / tau), log_q, pairs


@jax.jit
def densities(pairs, tau):
  """log p(y_j | x_k) at [k, j, 0]."""
  x, y = pairs
  log_p = model.log_density(x[:, None], y[None], temperature=tau)
  return log_p[:, :, None]


def dense_weights(pairs, tau, log_q):
  """w_ij of the risk, in NumPy."""
  x, y = map(np.asarray, pairs)
  kernel = np.exp(x @ y.T / tau) / np.exp(log_q)
  return kernel / kernel.sum(axis=1, keepdims=True)


@TAUS
@pytest.mark.parametrize(
  "x", [(0.6, 0.7), (-0.9, 0.1), (0.0, 0.5), (1e-9, 0.0), (-1.0, 1e-3)]
)
def test_the_integral_is_that_of_the_density(x, tau, x64):
  expected, _ = integrate.dblquad(
    lambda v, u: math.exp((x[0] * u + x[1] * v) / tau), 0, 1, 0, 1
  )
  found = model.log_integral(jnp.array(x), temperature=tau)
  assert found == pytest.approx(math.log(expected), abs=1e-12)


def test_the_integral_neither_overflows_nor_is_nan(x64):
  x = jnp.array([[0.8, 0.0], [-0.8, 0.0], [0.0, 0.0]])
  found = model.log_integral(x, temperature=1e-3)
  expected = [800 - math.log(800), -math.log(800), 0]
  np.testing.assert_allclose(found, expected, rtol=1e-14)
  slope = jax.grad(lambda x: jnp.sum(model.log_integral(x, temperature=1e-3)))(
    x
  )
  assert np.isfinite(slope).all()


@TAUS
@pytest.mark.parametrize("x", [(0.6, 0.7), (-0.99, 0.0)])
def test_contrasts_have_the_density(x, tau, x64):
  n = 5000
  y = model.sample_contrasts(
    jax.random.key(1), jnp.tile(jnp.array(x), (n, 1)), temperature=tau
  )
  grid = np.linspace(0, 1, 2001)
  for s, values in zip(x, np.asarray(y).T, strict=True):
    density = np.exp(s * grid / tau)
    cdf = integrate.cumulative_simpson(density, x=grid, initial=0)
    test = stats.kstest(values, lambda t, c=cdf: np.interp(t, grid, c / c[-1]))
    assert test.pvalue > 1e-3
  assert abs(np.corrcoef(y.T)[0, 1]) < 4 / math.sqrt(n)


def test_anchors_are_uniform_on_the_half_disc(x64):
  n = 20_000
  x = np.asarray(model.sample_anchors(jax.random.key(2), n))
  assert (x[:, 1] >= 0).all() and (np.sum(x**2, axis=1) <= 1).all()
  moments = {
    0: x[:, 0],
    4 / (3 * math.pi): x[:, 1],
    0.25: x[:, 0] ** 2,
    0.125: np.sum(x**2, axis=1) * (x[:, 0] > 0) * (x[:, 0] > x[:, 1]),
    1 / 24: x[:, 0] ** 2 * x[:, 1] ** 2,
  }
  for expected, values in moments.items():
    assert abs(values.mean() - expected) < 4 * stats.sem(values)


@TAUS
def test_popularity_is_the_sum_of_the_densities(tau, x64):
  pairs = draw(N, tau)
  x, y = map(np.asarray, pairs)
  g = np.array([f(a / tau) * f(b / tau) for a, b in x])
  q = (np.exp(x @ y.T / tau) / g[:, None]).sum(axis=0)
  found = model.log_popularity(pairs, temperature=tau)
  np.testing.assert_allclose(found, np.log(q), rtol=1e-12)
  summed = integral.log_popularity(densities(pairs, tau))[:, 0]
  np.testing.assert_allclose(found, summed, rtol=1e-12)


@TAUS
def test_the_true_risk(tau, x64):
  """Coordinate by coordinate: x_1 and x_2 have semicircle densities."""

  def part(s):
    moment = integrate.quad(lambda t: t * math.exp(s * t / tau), 0, 1)[0]
    norm = f(s / tau)
    return tau * math.log(norm) - s * moment / norm

  def mean(low, scale):
    return integrate.quad(
      lambda s: scale / math.pi * math.sqrt(1 - s * s) * part(s), low, 1
    )[0]

  expected = mean(-1, 2) + mean(0, 4)
  assert model.true_risk(temperature=tau) == pytest.approx(expected, abs=1e-8)
  sampled = model.sampled_risk(jax.random.key(3), 20_000, temperature=tau)
  assert abs(sampled.mean - expected) < 4 * sampled.standard_error
  assert 0 < sampled.standard_error < 0.002


@jax.jit
def likelihood(keys, tau):
  """The risk of MLE and its gradient at the truth, for data of each key."""

  def risk(matrix, key):
    x, y = model.sample_pairs(key, 50, temperature=tau)
    return model.likelihood_risk(x @ matrix, y, temperature=tau)

  return jax.vmap(jax.value_and_grad(risk), in_axes=(None, 0))(jnp.eye(2), keys)


@TAUS
def test_mle_is_unbiased_and_so_is_its_gradient(tau, x64):
  """Over 200 data sets; at the truth the expected gradient is 0."""
  keys = jax.random.split(jax.random.key(4), 200)
  risk, gradient = map(np.asarray, likelihood(keys, tau))
  truth = model.true_risk(temperature=tau)
  assert abs(risk.mean() - truth) < 4 * stats.sem(risk)
  assert (np.abs(gradient.mean(axis=0)) < 4 * stats.sem(gradient)).all()


def test_the_mis_estimate_is_unbiased_here(x64):
  """Eq. (4) with the exact densities, against the exact integral."""
  tau, x = 0.2, jnp.array([0.3, 0.8])

  @jax.jit
  @jax.vmap
  def estimate(key):
    pairs = model.sample_pairs(key, 8, temperature=tau)
    log_f = (pairs.text @ x / tau)[:, None]
    log_density = densities(pairs, tau)
    weights = integral.balance_heuristic(log_density)
    return integral.log_partition(log_f, log_density), weights

  log_g, weights = estimate(jax.random.split(jax.random.key(5), 1000))
  np.testing.assert_allclose(np.exp(weights).sum(axis=1), 1, rtol=1e-12)
  found = np.exp(log_g - model.log_integral(x, temperature=tau))
  assert stats.sem(found) < 0.03
  assert abs(found.mean() - 1) < 4 * stats.sem(found)


@TAUS
def test_two_ways_to_the_popularities_agree(tau, x64):
  example = risks.make_example(tau)
  assert len(example.log_q) == 100
  assert example.difference < 1e-10
  assert example.gradient_norm <= 1e-15
  assert example.residual <= 1e-13
  # Eq. (9), literally.
  weights = dense_weights(example.pairs, tau, example.log_learned)
  np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-10)
  # The paper's Z = max q~' / max q.
  q, learned = np.exp(example.log_q), np.exp(example.log_learned)
  assert learned.max() == pytest.approx(q.max(), rel=1e-12)
  assert np.corrcoef(q, learned)[0, 1] > 0.98


def test_rules_for_the_constant(x64):
  shape, log_q, _ = shape_and_truth(N, 0.2)
  log_c = risks.log_constants(shape, log_q)
  prime, q = np.exp(shape), np.exp(log_q)  # q~' is exp(zeta / tau)
  z = {
    "maxima": prime.max() / q.max(),
    "means": stats.gmean(prime) / stats.gmean(q),
    "area": 1 / np.sum(1 / prime),  # makes the sum of 1 / q~ 1
  }
  assert set(z) == set(log_c)
  for rule, expected in z.items():
    found = N * np.exp(log_c[rule] + shape)
    np.testing.assert_allclose(found, prime / expected, rtol=1e-12)
  uniform = risks.log_constants(jnp.zeros(N), log_q)
  assert uniform["area"] == 0  # GCL with c = 1


def test_no_constant_has_a_smaller_error_term(x64):
  learned, log_q, pairs = shape_and_truth(N, 0.2)
  for shape in (learned, jnp.zeros(N)):
    best = risks.best_log_constant(pairs, shape, log_q, temperature=0.2)
    around = best + jnp.linspace(-0.5, 0.5, 101)
    term = jax.vmap(
      lambda c, s=shape: integral.error_term(
        *pairs, jnp.log(N) + c + s, log_q, temperature=0.2
      )
    )(around)
    assert np.argmin(term) == 50


def test_measured_numbers_are_those_of_dense_formulas(x64):
  tau = 0.2
  shape, log_q, pairs = shape_and_truth(N, tau)
  found = risks.measure_pairs(pairs, temperature=tau)
  again = risks.measure_pairs(draw(N, tau), temperature=tau)
  for name, value in found.items():
    np.testing.assert_array_equal(value, again[name])
  x, y = map(np.asarray, pairs)
  kernel, own = np.exp(x @ y.T / tau), np.sum(x * y, axis=1)
  log_approximations = {
    "true q": log_q,
    "learned": math.log(N) + shape,
    "GCL": np.full(N, math.log(N)),
  }
  for name, log_q_tilde in log_approximations.items():
    expected_y = dense_weights(pairs, tau, log_q_tilde) @ y
    np.testing.assert_allclose(
      found[f"gradient/{name}"], x.T @ (expected_y - y) / N, atol=1e-9
    )
  expected = np.mean(tau * np.log((kernel / N).sum(axis=1)) - own)
  assert found["risk/GCL, area"] == pytest.approx(expected, rel=1e-10)
  log_density = densities(pairs, tau)
  log_kernel = jnp.asarray(np.log(kernel)[:, :, None])
  log_g = np.asarray(integral.log_partition(log_kernel, log_density))
  assert found["risk/true q"] == pytest.approx(
    np.mean(tau * log_g - own), rel=1e-10
  )
  gap = np.abs(1 / N - 1 / np.exp(log_q))
  expected = (kernel * math.exp(-1 / tau) * gap).sum() / N
  assert found["error_term/GCL, area"] == pytest.approx(expected, rel=1e-10)
  assert found["shape/GCL"] == pytest.approx(float(jnp.std(log_q)), rel=1e-10)


@TAUS
def test_densities_of_the_class_are_within_its_bounds(tau, x64):
  """And are reached: a random W and the corners of both spaces come near."""
  models = model.bilinear_class(temperature=tau)
  rng = np.random.default_rng(0)
  matrix = rng.normal(size=(4000, 2, 2))
  matrix *= models.norm / np.linalg.norm(matrix, axis=(1, 2))[:, None, None]
  turn = rng.uniform(0, np.pi, 4000)
  v = np.einsum("kij,ki->kj", matrix, np.stack([np.cos(turn), np.sin(turn)], 1))
  y = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [0.3, 0.8]])
  p = np.exp(model.log_density(v[:, None], y[None], temperature=tau))
  low, high, least = models[3:]
  assert low <= p.min() < 1.3 * low
  assert high >= p.max() > high / 1.3
  _, log_q, _ = shape_and_truth(N, tau)
  assert least <= np.exp(log_q).min() / N


def test_the_bound_is_compared_with_errors_of_the_same_data(x64):
  tau, pairs = 0.2, draw(N, 0.2)
  found = risks.measure_pairs(pairs, temperature=tau)
  columns = {name: np.atleast_2d(x) for name, x in found.items() if x.ndim == 0}
  bound = summary.bounds(columns, {"GCL, area": np.array([[1e9]])})
  change = abs(found["risk/GCL, area"] - found["risk/true q"])
  assert bound["change: GCL, area"] == pytest.approx(change)
  assert bound["holds: GCL, area"] == bound["holds: all"] == 0
  parts = ("likelihood", "integration", "GCL, area")
  total = sum(found[f"bound/{x}"] for x in parts)
  assert bound["total: GCL, area"] == pytest.approx(total)
  bound = summary.bounds(columns, {"GCL, area": np.array([[change]])})
  assert bound["holds: GCL, area"] == 100


def test_a_constant_is_fitted_to_the_other_repetitions():
  risk = np.array([[5.0, 1.0], [5.0, 3.0], [5.0, 8.0]])
  found = summary.fit_constant(risk, truth=1.0)
  # Offsets at the largest size 0, 2, 7: means of the others 4.5, 3.5, 1.
  np.testing.assert_allclose(found, [[0.5, -3.5], [1.5, -0.5], [4.0, 7.0]])


def test_the_conclusions_are_of_the_rows():
  options = command.parse_arguments(main.STUDY, [])
  results = runner.results(main.STUDY, options)
  numbers = summary.summarise_all(results)
  assert numbers["sizes"] == list(risks.SIZES)
  assert numbers["repetitions"] == main.STUDY.seeds
  for x in numbers["temperatures"].values():
    assert x["example"]["difference"] < 1e-10
    assert x["example"]["gradient_norm"] <= 1e-15
  text = (STUDY / "README.md").read_text()
  said = " ".join(text.split("## Conclusions")[1].split("**Limits")[0].split())
  found = re.findall(r"0\.\d{4} ± 0\.\d{4}", said)
  assert len(found) > 10
  assert all(x in text.split("**Limits")[1] for x in found)


def test_one_command_does_everything(tmp_path):
  (tmp_path / "README.md").write_text((STUDY / "README.md").read_text())
  where = [f"--output={tmp_path}", f"--workdir={tmp_path / 'work'}"]
  words = ["-m", "experiments.toy_dpm", "--smoke", "--workers=1", *where]
  done = warm.run(words, cwd=ROOT)
  assert not done.returncode, done.stderr
  assert re.search(
    r"repetition: τ = 1, seed 1  \d+ s  ETA \d:\d\d", done.stdout
  )
  options = command.parse_arguments(main.STUDY, ["--smoke", *where])
  results = runner.results(main.STUDY, options)
  numbers = summary.summarise_all(results)
  assert numbers["sizes"] == list(risks.SMOKE_SIZES)
  text = (tmp_path / "README.md").read_text()
  assert "2 repetitions, seed 0, n = 30, 100, float64" in text
  for x in numbers["temperatures"].values():
    for name in ("MLE", "learned, maxima", "learned, means", "GCL, fitted"):
      assert ((x["error"][name].mean > 0) & (x["error"][name].mean < 0.2)).all()
    assert x["shape"]["learned"].mean.max() < 0.1
  for figure in FIGURES:
    assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
  stored = rows.index(rows.read(STUDY / rows.FILE))
  exact = ("image", "text", "log_q", "log_learned", "quadrature", "sampled")
  compared = 0
  for key, row in results.rows.items():  # of the same seeds
    for name, value in row.items():
      if name in exact or row["part"] == risks.REPETITION and "/" in name:
        expected = np.array(stored[key][name])
        if row["part"] == risks.REPETITION:
          expected = expected[: len(risks.SMOKE_SIZES)]
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        compared += 1
  assert compared > 80

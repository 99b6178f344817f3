r"""The runs and their measurements: empirical risks and their errors.

An approximation of the popularities is q~_j = n c exp(s_j) with a shape s and a
constant c. GCL has s = 0. The learned one has s = zeta / tau with zeta of mean
0; that leaves c open, as eq. (8) does. `log_constants` has the rules for c.
"""

from collections.abc import Mapping
import functools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from experiments.harness import Options, Place, Row, Run
from experiments.toy_dpm import model
from nuclr_jax import Sides, popularity
from nuclr_jax.contrib import gradient_descent, integral
from nuclr_jax.lab.evaluate import agreement
from nuclr_jax.pairwise import tiles

SIZES, SMOKE_SIZES = (30, 100, 300, 1000, 3000), (30, 100)
TEMPERATURES = (0.2, 1.0)
SEED = 0  # the seed of all keys; see `key_of`
TOLERANCE = 1e-8  # residual of the popularities in the repetitions
EXAMPLE_SIZE = 100  # pairs in the data set of the figures and solver checks
EXAMPLE_TOLERANCE = 1e-13
TRUTH_PAIRS = 50_000
FAILURE = 0.05  # the probability that Theorem 1's bound does not hold
LEARNED, GCL = "learned", "GCL"  # the two approximations
MLE, TRUE = "MLE", "true q"  # the methods that they are compared with
# The parts of the study.
EXAMPLE, TRUTH, REPETITION = "example", "true risk", "repetition"


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans all runs; none depends on the results of another."""
  del rows
  sizes = SMOKE_SIZES if options.smoke else SIZES
  example = {"pairs": EXAMPLE_SIZE, "tolerance": EXAMPLE_TOLERANCE}
  values = {"sizes": sizes, "tolerance": TOLERANCE, "failure": FAILURE}

  def make(part, tau, values, repetition=0):
    values = {"temperature": tau} | values
    return Run(part, f"τ = {tau:g}", repetition, tuple(values.items()))

  return [
    *(make(EXAMPLE, tau, example) for tau in TEMPERATURES),
    *(make(TRUTH, tau, {"pairs": TRUTH_PAIRS}) for tau in TEMPERATURES),
    *(
      make(REPETITION, tau, values, repetition)
      for repetition in range(options.seeds)
      for tau in TEMPERATURES
    ),
  ]


def measure(run: Run, place: Place) -> Row:
  """Measures any run of the study, in float64."""
  del place
  tau = dict(run.values)["temperature"]
  with jax.enable_x64(True):
    if run.part == EXAMPLE:
      example = make_example(tau)
      row = example._asdict() | example.pairs._asdict()
      del row["pairs"]
    elif run.part == TRUTH:
      key = key_of(SEED, 3)
      pairs = dict(run.values)["pairs"]
      sampled = model.sampled_risk(key, pairs, temperature=tau)
      row = {
        "quadrature": model.true_risk(temperature=tau),
        "sampled": sampled.mean,
        "standard_error": sampled.standard_error,
      }
    else:
      row = measure_sizes(run)
    return {name: np.asarray(x).tolist() for name, x in row.items()}


class Example(NamedTuple):
  """A data set of `EXAMPLE_SIZE` pairs, for figures and for checks."""

  pairs: Sides
  log_q: Float[Array, "n"]
  log_learned: Float[Array, "n"]  # with the constant of the paper
  difference: float  # largest difference of zeta by `solve` and `descend`
  gradient_norm: float  # where `descend` stopped
  steps: int  # steps of `descend`
  residual: float  # where `solve` stopped
  iterations: int  # iterations of `solve`


def key_of(seed: int, *path: int) -> Array:
  """Makes a different key for every path."""
  return functools.reduce(jax.random.fold_in, path, jax.random.key(seed))


def make_example(temperature: float) -> Example:
  """Draws a data set and computes its popularities in two ways."""
  key = key_of(SEED, 1)
  pairs = model.sample_pairs(key, EXAMPLE_SIZE, temperature=temperature)
  solved = popularity.solve(
    *pairs, temperature=temperature, tolerance=EXAMPLE_TOLERANCE
  )
  descended = gradient_descent.descend(*pairs, temperature=temperature)
  log_q = model.log_popularity(pairs, temperature=temperature)
  shape = jnp.asarray(solved.zeta.text / temperature)
  log_c = log_constants(shape, log_q)["maxima"]
  gap = solved.zeta.text - descended.zeta
  return Example(
    pairs=pairs,
    log_q=log_q,
    log_learned=jnp.log(EXAMPLE_SIZE) + shape + log_c,
    difference=float(jnp.max(jnp.abs(gap - jnp.mean(gap)))),
    gradient_norm=float(descended.gradient_norm),
    steps=int(descended.steps),
    residual=solved.residual,
    iterations=solved.iterations,
  )


@jax.jit
def log_constants(
  shape: Float[Array, "n"], log_q: Float[Array, "n"]
) -> dict[str, Float[Array, ""]]:
  r"""Computes log c of q~_j = n c exp(s_j) by three rules.

  - area: sum_j 1 / q~_j, the MIS estimate of Y's area, equals the area, 1. GCL
    gets c = 1. This rule does not use the truth.
  - maxima: max q~ = max q; the paper's Z = max q~' / max q.
  - means: mean log q~ = mean log q.
  """
  log_n = jnp.log(len(shape))
  return {
    "area": jnp.log(jnp.mean(jnp.exp(-shape)) / model.AREA),
    "maxima": jnp.max(log_q) - jnp.max(shape) - log_n,
    "means": jnp.mean(log_q) - jnp.mean(shape) - log_n,
  }


@jax.jit
def best_log_constant(
  pairs: Sides,
  shape: Float[Array, "n"],
  log_q: Float[Array, "n"],
  *,
  temperature: float,
) -> Float[Array, ""]:
  r"""Computes the log c with the smallest error term on these pairs.

  The term is sum_j a_j |1 / c - v_j| with v_j = n exp(s_j) / q_j and a_j =
  sum_i exp((E_ij - 1) / tau - s_j) / n^2, so 1 / c is a weighted median of v.
  """
  log_weight = tiles.row_log_sum_exp(
    pairs.text, pairs.image, jnp.zeros(len(shape)), temperature=temperature
  )
  log_weight -= shape
  log_v = jnp.log(len(shape)) + shape - log_q
  order = jnp.argsort(log_v)
  share = jnp.cumsum(jnp.exp(log_weight - jnp.max(log_weight))[order])
  return -log_v[order[jnp.searchsorted(share, share[-1] / 2)]]


def measure_pairs(
  pairs: Sides,
  *,
  temperature: float,
  tolerance: float = TOLERANCE,
  failure: float = FAILURE,
) -> dict[str, np.ndarray]:
  r"""Measures one data set.

  Args:
    pairs: The data set.
    temperature: The temperature of the model.
    tolerance: The largest allowed residual of the popularities.
    failure: The probability that the bound does not hold.

  Returns:
    The numbers by "what/method", where a method with a constant is called
    "approximation, rule". `risk` is the empirical risk and `error_term` that of
    Theorem 1; `bound` is a part of its bound for the models of
    `model.bilinear_class`, of which those of a method depend on q~ and the
    others do not. `gradient` [2, 2] is the gradient of the risk with respect to
    W in E(x, y) = x' W y at W = 1, where it is 0 for the true risk (q~ is held
    fixed, and its constant has no influence). `shape` is the standard deviation
    of log q~ / q, and `correlation` compares the learned and the true log q.
  """
  n = len(pairs.image)
  log_q = model.log_popularity(pairs, temperature=temperature)
  solved = popularity.solve(
    *pairs, temperature=temperature, tolerance=tolerance
  )
  shapes = {
    LEARNED: jnp.asarray(solved.zeta.text / temperature),
    GCL: jnp.zeros(n),
  }

  def with_matrix(risk, *more):
    """Returns the risk, and its gradient with respect to W."""

    def value(matrix):
      anchors = pairs.image @ matrix
      result = risk(anchors, pairs.text, *more, temperature=temperature)
      return result, result

    gradient, result = jax.jacfwd(value, has_aux=True)(jnp.eye(2))
    return result, gradient

  def error_term(log_approximation):
    return integral.error_term(
      *pairs, log_approximation, log_q, temperature=temperature
    )

  models = model.bilinear_class(temperature=temperature)
  bound_of = partial(
    integral.generalization_bound,
    *pairs,
    log_popularity=log_q,
    temperature=temperature,
    models=models,
    failure=failure,
  )
  numbers = {}
  numbers[f"risk/{MLE}"], numbers[f"gradient/{MLE}"] = with_matrix(
    model.likelihood_risk
  )
  numbers[f"risk/{TRUE}"], numbers[f"gradient/{TRUE}"] = with_matrix(
    integral.empirical_risk, log_q
  )
  for name, shape in shapes.items():
    log_shape = jnp.log(n) + shape
    risk, numbers[f"gradient/{name}"] = with_matrix(
      integral.empirical_risk, log_shape
    )
    constants = log_constants(shape, log_q)
    for rule, log_c in constants.items():
      numbers[f"risk/{name}, {rule}"] = risk - temperature * log_c
    constants["best"] = best_log_constant(
      pairs, shape, log_q, temperature=temperature
    )
    for rule, log_c in constants.items():
      numbers[f"error_term/{name}, {rule}"] = error_term(log_shape + log_c)
      bound = bound_of(log_approximation=log_shape + log_c)
      numbers[f"bound/{name}, {rule}"] = bound.approximation
    numbers[f"shape/{name}"] = jnp.std(shape - log_q)
  # These two are the same for every approximation.
  numbers["bound/likelihood"] = bound.likelihood
  numbers["bound/integration"] = bound.integration
  scores = agreement.compare(shapes[LEARNED], log_q)
  numbers["correlation"] = scores["pearson"]
  return {key: np.asarray(value) for key, value in numbers.items()}


def measure_sizes(run: Run) -> dict[str, np.ndarray]:
  """Measures one repetition at all sizes.

  The data sets of both temperatures share anchors and uniform random numbers.

  Returns:
    The numbers of `measure_pairs`, each as a list over the sizes, with the
    norms of the gradients instead of the gradients.
  """
  values = dict(run.values)
  tau, columns = values["temperature"], {}
  for n in values["sizes"]:
    key = key_of(SEED, 2, run.seed, n)
    numbers = measure_pairs(
      model.sample_pairs(key, n, temperature=tau),
      temperature=tau,
      tolerance=values["tolerance"],
      failure=values["failure"],
    )
    for name, value in numbers.items():
      size = np.linalg.norm(value) if value.ndim else value
      columns.setdefault(name, []).append(size)
  return {"sizes": values["sizes"]} | columns

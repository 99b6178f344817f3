r"""What is measured: empirical risks and what they differ by from the truth.

An approximation of the popularities is q~_j = n c exp(s_j) with a shape s and a
constant c. GCL has s = 0; the learned one has s = zeta / tau, zeta of mean 0,
which leaves c open, as eq. (8) does. Rules for c are in `log_constants`.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np
import toy_model

from nuclr_jax import Sides, popularity, tiles

TOLERANCE = 1e-8  # of the popularities in the repetitions
EXAMPLE_SIZE = 100  # pairs of the figures' data set and the solvers' check
EXAMPLE_TOLERANCE = 1e-13
TRUTH_PAIRS = 50_000
LEARNED, GCL = "learned", "GCL"  # the two approximations
MLE, TRUE = "MLE", "true q"  # what they are compared with


class Settings(NamedTuple):
  """What a run measures."""

  sizes: tuple[int, ...] = (30, 100, 300, 1000, 3000)
  temperatures: tuple[float, ...] = (0.2, 1.0)
  repetitions: int = 40
  seed: int = 0


SHORT = Settings(sizes=(30, EXAMPLE_SIZE), repetitions=3)


class Example(NamedTuple):
  """One data set of `EXAMPLE_SIZE` pairs, for figures and for checks."""

  pairs: Sides
  log_q: Float[Array, "n"]
  log_learned: Float[Array, "n"]  # with the constant of the paper
  difference: float  # largest of `solve`'s from `descend`'s zeta
  gradient_norm: float  # of `descend`
  steps: int  # of `descend`
  residual: float  # of `solve`
  iterations: int  # of `solve`


def key_of(seed: int, *path: int) -> Array:
  """A key of its own for every path."""
  return functools.reduce(jax.random.fold_in, path, jax.random.key(seed))


def make_example(seed: int, temperature: float) -> Example:
  """Draws a data set and finds its popularities in two ways."""
  key = key_of(seed, 1)
  pairs = toy_model.sample_pairs(key, EXAMPLE_SIZE, temperature=temperature)
  solved = popularity.solve(
    *pairs, temperature=temperature, tolerance=EXAMPLE_TOLERANCE
  )
  descended = popularity.descend(*pairs, temperature=temperature)
  log_q = toy_model.log_popularity(pairs, temperature=temperature)
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


def make_examples(settings: Settings) -> dict[float, Example]:
  """An example for each temperature."""
  return {
    tau: make_example(settings.seed, tau) for tau in settings.temperatures
  }


@jax.jit
def log_constants(
  shape: Float[Array, "n"], log_q: Float[Array, "n"]
) -> dict[str, Float[Array, ""]]:
  r"""Log c of q~_j = n c exp(s_j) by three rules.

  - area: sum_j 1 / q~_j, the MIS estimate of Y's area, is 1, the area; c = 1
    for GCL. Knows nothing of the truth.
  - maxima: max q~ = max q, the paper's Z = max q~' / max q.
  - means: mean log q~ = mean log q.
  """
  log_n = jnp.log(len(shape))
  return {
    "area": jnp.log(jnp.mean(jnp.exp(-shape)) / toy_model.AREA),
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
  r"""Log c with the smallest error term on these very pairs.

  The term is sum_j a_j |1 / c - v_j| with v_j = n exp(s_j) / q_j and a_j =
  sum_i exp((E_ij - 1) / tau - s_j) / n^2: a weighted median of v is 1 / c.
  """
  log_weight = tiles.log_sum_exp(
    pairs.text, pairs.image, jnp.zeros(len(shape)), temperature=temperature
  )
  log_weight -= shape
  log_v = jnp.log(len(shape)) + shape - log_q
  order = jnp.argsort(log_v)
  share = jnp.cumsum(jnp.exp(log_weight - jnp.max(log_weight))[order])
  return -log_v[order[jnp.searchsorted(share, share[-1] / 2)]]


def measure(pairs: Sides, *, temperature: float) -> dict[str, np.ndarray]:
  r"""Measures one data set.

  Returns:
    By "what/method", where methods with a constant are "approximation, rule":
    `risk`; `error_term` of Theorem 1; `gradient` [2, 2], that of the risk with
    respect to W in E(x, y) = x' W y at W = 1, where it is 0 for the true risk
    (q~ is held fixed, its constant has no influence); `shape`, the standard
    deviation of log q~ / q; and `correlation` of learned and true log q.
  """
  n = len(pairs.image)
  log_q = toy_model.log_popularity(pairs, temperature=temperature)
  solved = popularity.solve(
    *pairs, temperature=temperature, tolerance=TOLERANCE
  )
  shapes = {
    LEARNED: jnp.asarray(solved.zeta.text / temperature),
    GCL: jnp.zeros(n),
  }

  def with_matrix(risk, *more):
    """The risk, and its gradient with respect to W."""

    def value(matrix):
      found = risk(
        pairs.image @ matrix, pairs.text, *more, temperature=temperature
      )
      return found, found

    gradient, found = jax.jacfwd(value, has_aux=True)(jnp.eye(2))
    return found, gradient

  def error_term(log_approximation):
    return popularity.error_term(
      *pairs, log_approximation, log_q, temperature=temperature
    )

  found = {}
  found[f"risk/{MLE}"], found[f"gradient/{MLE}"] = with_matrix(
    toy_model.likelihood_risk
  )
  found[f"risk/{TRUE}"], found[f"gradient/{TRUE}"] = with_matrix(
    popularity.empirical_risk, log_q
  )
  for name, shape in shapes.items():
    log_shape = jnp.log(n) + shape
    risk, found[f"gradient/{name}"] = with_matrix(
      popularity.empirical_risk, log_shape
    )
    constants = log_constants(shape, log_q)
    for rule, log_c in constants.items():
      found[f"risk/{name}, {rule}"] = risk - temperature * log_c
    constants["best"] = best_log_constant(
      pairs, shape, log_q, temperature=temperature
    )
    for rule, log_c in constants.items():
      found[f"error_term/{name}, {rule}"] = error_term(log_shape + log_c)
    found[f"shape/{name}"] = jnp.std(shape - log_q)
  found["correlation"] = popularity.compare(shapes[LEARNED], log_q)["pearson"]
  return {key: np.asarray(value) for key, value in found.items()}


def measure_all(settings: Settings) -> dict[float, dict[str, np.ndarray]]:
  """Measures every repetition; arrays are [repetitions, sizes, ...].

  Data sets of two temperatures have the same anchors and uniform numbers.
  """
  found = {tau: [] for tau in settings.temperatures}
  began = time.monotonic()
  for repetition in range(settings.repetitions):
    for tau, rows in found.items():
      row = []
      for n in settings.sizes:
        key = key_of(settings.seed, 2, repetition, n)
        pairs = toy_model.sample_pairs(key, n, temperature=tau)
        row.append(measure(pairs, temperature=tau))
      rows.append(jax.tree.map(lambda *x: np.stack(x), *row))
    now = time.monotonic()
    line = f"repetition {repetition + 1} of {settings.repetitions}"
    if repetition == 0:
      first = now  # with the time of compiling
    else:
      left = (
        (now - first) / repetition * (settings.repetitions - repetition - 1)
      )
      line += f", ETA {left:.0f} s"
    print(f"{now - began:5.0f} s  {line}")
  return {
    tau: jax.tree.map(lambda *x: np.stack(x), *rows)
    for tau, rows in found.items()
  }

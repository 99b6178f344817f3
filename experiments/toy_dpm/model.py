r"""The toy model of Section 3.3: anchors in a half disc, contrasts in a square.

X = {x : |x| <= 1, x_2 >= 0} with x uniform, Y = [0, 1]^2, E(x, y) = x . y and

  p(y | x) = exp(x . y / tau) / g(x),  g(x) = f(x_1 / tau) f(x_2 / tau),
  f(a) = int_0^1 exp(a t) dt = (exp(a) - 1) / a.

p(y | x) is a product over the two coordinates of y, each of which has an
inverse CDF in closed form. Pairs are `Sides`: anchors are `.image`, contrasts
are `.text`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from nuclr_jax import Sides
from nuclr_jax.contrib.integral import BilinearClass
from nuclr_jax.pairwise import tiles

AREA = 1.0  # the area of Y
NORM = 2**0.5  # the Frobenius norm of W = 1 in E(x, y) = x' W y
NODES = 64  # quadrature nodes along each of two axes
ANGLES = 721  # directions that are tried for the greatest density

Anchors = Float[Array, "*batch 2"]


class Estimate(NamedTuple):
  """A Monte Carlo mean."""

  mean: Float[Array, ""]
  standard_error: Float[Array, ""]


def sample_anchors(key: Array, count: int) -> Anchors:
  """Draws uniform points of the half disc.

  |x|^2 and the angle are uniform: the area within a radius grows as its square.
  """
  square, turn = jax.random.uniform(key, (2, count), float)
  angle = jnp.pi * turn
  direction = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
  return jnp.sqrt(square)[:, None] * direction


def sample_contrasts(
  key: Array, anchor: Anchors, *, temperature: float
) -> Float[Array, "*batch 2"]:
  r"""Draws y from p(y | x) for each x by the inverse CDF.

  Each coordinate is t = log(1 + u (exp(a) - 1)) / a with a = x_k / tau and u
  uniform in [0, 1].
  """
  a = anchor / temperature
  uniform = jax.random.uniform(key, a.shape, float)
  safe = jnp.where(a == 0, 1, a)
  t = jnp.log1p(uniform * jnp.expm1(safe)) / safe
  return jnp.where(a == 0, uniform, t)


@partial(jax.jit, static_argnames="count")
def sample_pairs(key: Array, count: int, *, temperature: float) -> Sides:
  """Draws pairs (x, y) with a new y for each x."""
  anchor_key, contrast_key = jax.random.split(key)
  anchor = sample_anchors(anchor_key, count)
  contrast = sample_contrasts(contrast_key, anchor, temperature=temperature)
  return Sides(image=anchor, text=contrast)


def log_integral(
  anchor: Anchors, *, temperature: float
) -> Float[Array, "*batch"]:
  r"""Computes log g(x), the exact partition function.

  It uses log f(a) = max(a, 0) + log[(1 - exp(-|a|)) / |a|], which neither
  overflows nor loses digits to cancellation.
  """
  a = anchor / temperature
  size = jnp.where(a == 0, 1, jnp.abs(a))
  log_f = jnp.maximum(a, 0) + jnp.log(-jnp.expm1(-size) / size)
  return jnp.sum(jnp.where(a == 0, 0, log_f), axis=-1)


def log_density(
  anchor: Anchors, contrast: Float[Array, "*batch 2"], *, temperature: float
) -> Float[Array, "*batch"]:
  """Computes log p(y | x) of each pair."""
  similarity = jnp.sum(anchor * contrast, axis=-1) / temperature
  return similarity - log_integral(anchor, temperature=temperature)


@jax.jit
def log_popularity(pairs: Sides, *, temperature: float) -> Float[Array, "n"]:
  """Computes log q_j of every contrast, q_j = sum_i p(y_j | x_i)."""
  log_g = log_integral(pairs.image, temperature=temperature)
  return tiles.row_log_sum_exp(
    pairs.text, pairs.image, -log_g, temperature=temperature
  )


@jax.jit
def likelihood_risk(
  anchor: Anchors, contrast: Float[Array, "n 2"], *, temperature: float
) -> Float[Array, ""]:
  """Computes MLE's risk with the exact integral, - mean_i tau log p."""
  log_p = log_density(anchor, contrast, temperature=temperature)
  return -temperature * jnp.mean(log_p)


@jax.jit
def risk_of_anchors(
  anchor: Anchors, *, temperature: float
) -> Float[Array, "*batch"]:
  r"""Computes - E[tau log p(y | x)] over y, for each x.

  It equals tau log g - x . E[y | x], where E[y | x] = tau grad log g(x).
  """
  log_g, pullback = jax.vjp(
    partial(log_integral, temperature=temperature), anchor
  )
  (slope,) = pullback(jnp.ones_like(log_g))
  return temperature * (log_g - jnp.sum(anchor * slope, axis=-1))


def true_risk(*, temperature: float) -> float:
  """Computes - E[tau log p(y | x)] by quadrature over the half disc."""
  node, weight = np.polynomial.legendre.leggauss(NODES)
  node, weight = (node + 1) / 2, weight / 2
  radius, angle = np.meshgrid(node, np.pi * node, indexing="ij")
  x = radius[..., None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
  density = 2 * node[:, None] * np.outer(weight, weight)  # sums to 1
  risk = risk_of_anchors(jnp.asarray(x), temperature=temperature)
  return float(np.sum(density * risk))


@partial(jax.jit, static_argnames="count")
def sampled_risk(key: Array, count: int, *, temperature: float) -> Estimate:
  """Estimates the true risk from sampled pairs, as in Appendix G.1."""
  pairs = sample_pairs(key, count, temperature=temperature)
  risk = -temperature * log_density(*pairs, temperature=temperature)
  return Estimate(jnp.mean(risk), jnp.std(risk, ddof=1) / jnp.sqrt(count))


def density_range(
  radius: float, *, temperature: float, upper: bool = False
) -> tuple[float, float]:
  """Returns the least and the greatest density exp(v . y / tau) / g(v).

  Both are at a corner of Y. Along a ray of v they fall and rise, so they are
  found where |v| is the radius; `upper` has v in the half plane only.

  Example:
    >>> low, high = density_range(1.0, temperature=1.0)
    >>> print(f"{low:.3f} {high:.3f}")
    0.473 1.946
  """
  turns = jnp.linspace(0, (1 if upper else 2) * jnp.pi, ANGLES)
  v = radius * jnp.stack([jnp.cos(turns), jnp.sin(turns)], axis=1)
  corners = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]], float)
  log_p = log_density(v[:, None], corners[None], temperature=temperature)
  return float(jnp.exp(jnp.min(log_p))), float(jnp.exp(jnp.max(log_p)))


def bilinear_class(*, temperature: float) -> BilinearClass:
  """Returns the models x' W y with |W| <= NORM; the truth is W = 1."""
  low, high = density_range(NORM, temperature=temperature)
  least, _ = density_range(1.0, temperature=temperature, upper=True)
  return BilinearClass(NORM, 1.0, 2**0.5, low, high, least)

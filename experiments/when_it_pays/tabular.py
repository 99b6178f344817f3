"""What zeta adds when nothing is estimated: encoders fitted to a known density.

Texts are points whose frequencies follow Zipf's law, images are noisy views of
them, and p(x, y) is known. Unit vectors of every image and text are fitted to
the joint objective of the whole population, for both sides as anchors,

  -2 sum p(x, y) E(x, y) + tau sum_x p(x) log sum_y p(y) e^((E - zeta_y) / tau)
  + sum_y p(y) zeta_y + the same with texts as anchors,

so that only three things can matter: what zeta is, the width of the vectors,
and which score answers which queries.
"""

from typing import NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Float
import numpy as np
from scipy import optimize

TEXTS, IMAGES = 40, 160
SPACE = 3  # dimensions of the points
NOISE = 0.35  # standard deviation of the views in p(x | y)
RESTARTS = 3
Table = Float[np.ndarray, "images texts"]


class Fit(NamedTuple):
  """Fitted similarities, and the zeta that belongs to them."""

  excess: float  # the objective above its unconstrained minimum, over tau
  similarity: Table
  zeta: Float[np.ndarray, "texts"]
  params: dict  # vectors (and zeta), to start another fit from


def make_density(seed: int, exponent: float) -> Table:
  """Returns p(x, y); the frequencies of texts fall as rank^-exponent."""
  rng = np.random.default_rng(seed)
  p = np.arange(1, TEXTS + 1.0) ** -exponent
  p = rng.permutation(p / p.sum())
  text = rng.normal(size=(TEXTS, SPACE))
  centre = text[np.arange(IMAGES) % TEXTS]
  image = centre + 2 * NOISE * rng.normal(size=(IMAGES, SPACE))
  distance = np.sum((image[:, None] - text) ** 2, axis=2)
  density = np.exp(-distance / (2 * NOISE**2))
  return density / density.sum(0) * p


def fit(
  density: Table, *, dim: int, zeta: str, tau: float, start: Fit | None = None
) -> Fit:
  """Minimizes the joint objective over unit vectors.

  Args:
    density: p(x, y).
    dim: The width of the vectors.
    zeta: "0", "tau log p", or "learned" (minimized as well).
    tau: The temperature.
    start: The fit whose vectors to start from, with zeta = 0; None means the
      best of random starts, of zeta as well.
  """
  p = density.sum(1), density.sum(0)
  log_p = tuple(map(np.log, p))
  mutual = np.sum(density * (np.log(density) - np.log(np.outer(*p))))
  known = tuple(tau * (x - w @ x) for x, w in zip(log_p, p, strict=True))

  def parts(params):
    f, g = (
      x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in params["vectors"]
    )
    if zeta == "learned":
      return f @ g.T, *params["zeta"]
    factor = 1.0 if zeta == "tau log p" else 0.0
    return f @ g.T, *(factor * x for x in known)

  def objective(flat):
    sim, of_image, of_text = parts(unravel(flat))
    texts = logsumexp((sim - of_text[None]) / tau, axis=1, b=p[1][None])
    images = logsumexp((sim - of_image[:, None]) / tau, axis=0, b=p[0][:, None])
    value = p[0] @ texts + p[1] @ images - 2 * jnp.sum(density * sim) / tau
    return value + (p[0] @ of_image + p[1] @ of_text) / tau

  rng = np.random.default_rng(dim)
  best = None
  for _ in range(1 if start else RESTARTS):
    vectors = [rng.normal(size=(len(x), dim)) for x in p]
    params = {"vectors": start.params["vectors"] if start else vectors}
    if zeta == "learned":
      spread = 0.0 if start else tau
      params["zeta"] = [spread * rng.normal(size=len(x)) for x in p]
    flat, unravel = ravel_pytree(params)
    gradient = jax.jit(jax.value_and_grad(objective))
    found = optimize.minimize(
      lambda x, f=gradient: tuple(np.asarray(y) for y in f(x)),
      flat,
      jac=True,
      method="L-BFGS-B",
      options=dict(maxiter=3000, maxfun=4000),
    )
    if best is None or found.fun < best.fun:
      best = found
  params = jax.tree.map(np.asarray, unravel(best.x))
  similarity, _, of_text = map(np.asarray, parts(params))
  return Fit(float(best.fun + 2 * mutual), similarity, of_text, params)


def accuracies(density: Table, score: Table) -> dict[str, float]:
  """Returns how often the best score is right.

  "natural": texts are asked for as often as they occur; "balanced": all
  equally often. Every text is a candidate once.
  """
  chosen = np.argmax(score, axis=1)
  rows = np.arange(len(score))
  equal = density / density.sum(0) / density.shape[1]
  return {
    "natural": float(np.sum(density[rows, chosen])),
    "balanced": float(np.sum(equal[rows, chosen])),
  }


def measure(*, seed: int, dim: int, exponent: float, tau: float) -> dict:
  """Fits with each zeta and scores the fits in all ways; a row of the study."""
  density = make_density(seed, exponent)
  log_p = tau * np.log(density.sum(0))
  with jax.enable_x64(True):
    plain = fit(density, dim=dim, zeta="0", tau=tau)
    fits = {
      "0": plain,
      "learned": fit(density, dim=dim, zeta="learned", tau=tau, start=plain),
      "learned from elsewhere": fit(density, dim=dim, zeta="learned", tau=tau),
      "tau log p": fit(density, dim=dim, zeta="tau log p", tau=tau),
    }
  row = {
    "best": accuracies(density, np.log(density))
    | {"balanced": accuracies(density, density / density.sum(0))["balanced"]}
  }
  for name, found in fits.items():
    sim, zeta = found.similarity, found.zeta
    row[name] = {
      "excess": found.excess,
      "zeta_sd": float(np.std(zeta) / tau),
      "E": accuracies(density, sim),
      "E - zeta": accuracies(density, sim - zeta),
      "E - zeta + tau log p": accuracies(density, sim - zeta + log_p),
    }
  return row

r"""The integral behind a contrastive denominator, and its estimates.

The probability of y given x is exp(E(x, y) / tau) / g(x) with
g(x) = int exp(E(x, y) / tau) dy. A sample (x_j, y_j), j = 1 ... n, gives
draws from the n distributions p_j = p(. | x_j); multiple importance sampling
(MIS) combines them into an estimate of g(x) for any x.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from nuclr_jax import checks
from nuclr_jax.pairwise import tiles

LogDensity = Float[Array, "n n draws"]  # [k, j, l]: log p_k(y_jl)


def log_popularity(log_density: LogDensity) -> Float[Array, "n draws"]:
  r"""Returns log q of every draw; q(y) = sum_k p_k(y) is how popular y is.

  Args:
    log_density: log p_k(y_jl) at [k, j, l]; y_jl is the l-th draw from p_j.

  Example:
    >>> print(log_popularity(jnp.log(jnp.full((4, 4, 1), 0.5)))[0])
    [0.6931472]
  """
  return logsumexp(log_density, axis=0)


def balance_heuristic(log_density: LogDensity) -> LogDensity:
  r"""Returns log omega_k(y_jl), omega_k(y) = p_k(y) / sum_k' p_k'(y).

  Among all weights, these give the smallest bound on the variance of
  `log_partition` (Appendix B; Veach and Guibas, SIGGRAPH 1995).

  Example:
    >>> weight = balance_heuristic(jnp.log(jnp.full((4, 4, 1), 0.5)))
    >>> print(jnp.exp(weight[0, 0]))  # four equal densities
    [0.25]
  """
  return log_density - log_popularity(log_density)[None]


def log_partition(
  log_integrand: Float[Array, "*anchors n draws"],
  log_density: LogDensity,
  log_weight: LogDensity | None = None,
) -> Float[Array, "*anchors"]:
  r"""Estimates the integral of f by MIS, from draws of n distributions.

    g^ = sum_j 1/m sum_l omega_j(y_jl) f(y_jl) / p_j(y_jl)         (eq. 16)

  for m draws from each. The estimate g^ is unbiased if the weights are at least
  0 and sum_k omega_k(y) = 1 wherever f(y) > 0. With the balance heuristic and
  m = 1 it is eq. (4): each draw contributes f / q.

  Args:
    log_integrand: log f(y_jl) at [..., j, l], such as E(x_i, y_jl) / tau for
      every anchor x_i.
    log_density: log p_k(y_jl) at [k, j, l].
    log_weight: log omega_k(y_jl) at [k, j, l]; None means `balance_heuristic`.

  Returns:
    log g^ of every anchor.

  Raises:
    ValueError: If shapes do not fit, or the weights do not sum to 1.

  Example:
    >>> y = jax.random.uniform(jax.random.key(0), (200, 1))  # p_j uniform
    >>> log_density = jnp.zeros((200, 200, 1))
    >>> print(jnp.exp(log_partition(jnp.log(y), log_density)).round(1))
    0.5

  Reference: Wang et al., ICLR 2025, Remark 2 and Appendix B.
  """
  n, draws = log_integrand.shape[-2:]
  if log_density.shape != (n, n, draws):
    raise ValueError(
      f"log_density must be [n, n, draws] = {[n, n, draws]} for log_integrand "
      f"{list(log_integrand.shape)}, got {list(log_density.shape)}"
    )
  if log_weight is None:
    log_ratio = -log_popularity(log_density)
  else:
    _check_weight(log_weight, log_density.shape)
    j = jnp.arange(n)
    log_ratio = log_weight[j, j] - log_density[j, j]
  logs = log_integrand + log_ratio.reshape(
    (1,) * (log_integrand.ndim - 2) + (n, draws)
  )
  return logsumexp(logs, axis=(-2, -1)) - jnp.log(draws)


@checks.checked
def empirical_risk(
  image: Float[Array, "pairs dim"],
  text: Float[Array, "pairs dim"],
  log_popularity: Float[Array, "pairs"],
  *,
  temperature: checks.Temperature,
) -> Float[Array, ""]:
  r"""Computes the discriminative risk for given popularities.

    L^ = - mean_i tau log[ exp(E_ii / tau) / sum_j exp(E_ij / tau) / q_j ]

  This is eq. (5), with images as anchors; for texts as anchors, swap the first
  two arguments. A constant q gives the global contrastive loss; a factor c on q
  adds -tau log c. The sum is taken tile by tile, so memory is not quadratic.

  Args:
    image: Embeddings of the images; E_ij = image_i . text_j.
    text: Embeddings of the texts.
    log_popularity: log q~_j of every text.
    temperature: tau; greater than 0.

  Example:
    >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> risk = empirical_risk(x, x, jnp.zeros(2), temperature=1.0)
    >>> print(f"{risk:.4f}")  # log(1 + exp(-1))
    0.3133

  Reference: Wang et al., ICLR 2025, eq. (5).
  """
  dtype = jnp.result_type(jnp.float32, image, text)
  image, text = image.astype(dtype), text.astype(dtype)
  log_g = tiles.row_log_sum_exp(
    image, text, -log_popularity, temperature=temperature
  )
  return jnp.mean(temperature * log_g - jnp.sum(image * text, axis=1))


@checks.checked
def error_term(
  image: Float[Array, "pairs dim"],
  text: Float[Array, "pairs dim"],
  log_approximation: Float[Array, "pairs"],
  log_popularity: Float[Array, "pairs"],
  *,
  temperature: checks.Temperature,
) -> Float[Array, ""]:
  r"""Computes the term that wrong popularities add to the error in Theorem 1.

    1/n sum_ij |1 / q~_j - 1 / q_j| exp((E_ij - 1) / tau)

  Args:
    image: Embeddings of the images; E_ij = image_i . text_j.
    text: Embeddings of the texts.
    log_approximation: log q~_j.
    log_popularity: log q_j.
    temperature: tau; greater than 0.

  Example:
    >>> x, log_q = jnp.eye(2), jnp.zeros(2)
    >>> term = error_term(x, x, log_q + jnp.log(2.0), log_q, temperature=1.0)
    >>> print(f"{term:.4f}")  # (1 + exp(-1)) / 2
    0.6839

  Reference: Wang et al., ICLR 2025, Theorem 1.
  """
  log_gap = _log_gap(log_approximation, log_popularity)
  logs = tiles.row_log_sum_exp(image, text, log_gap, temperature=temperature)
  return jnp.mean(jnp.exp(logs - 1 / temperature))


class BilinearClass(NamedTuple):
  """The models E(x, y) = x' W y with |W| <= norm that a bound holds for.

  The data are drawn from one of them. Its and all other densities p(y | x) lie
  between the two given ones; exp(-2b / tau) / mu(Y) and exp(2b / tau) / mu(Y)
  with b = norm * image_radius * text_radius always do.
  """

  norm: float  # B, the largest Frobenius norm of W
  image_radius: float  # c_1, the largest norm of an x
  text_radius: float  # c_2, the largest norm of a y
  least_density: float  # l, of every p(y | x) of the class
  greatest_density: float  # h
  least_popularity: float  # k, with q(y) >= n k for every y; at least l


class RiskBound(NamedTuple):
  """The parts of `generalization_bound`; the bound is their sum."""

  likelihood: Float[Array, ""]  # of MLE's risk, with the exact integral
  integration: Float[Array, ""]  # of the integral's estimate, with the true q
  approximation: Float[Array, ""]  # of q~ for q: C times the error term

  @property
  def total(self) -> Float[Array, ""]:
    """The bound."""
    return self.likelihood + self.integration + self.approximation


@checks.checked
def generalization_bound(
  image: Float[Array, "pairs dim"],
  text: Float[Array, "pairs dim"],
  log_approximation: Float[Array, "pairs"],
  log_popularity: Float[Array, "pairs"],
  *,
  temperature: checks.Temperature,
  models: BilinearClass,
  failure: float = 0.05,
) -> RiskBound:
  r"""Bounds the error of the empirical risk, with all constants (Theorem 1).

  With probability 1 - delta over n independent pairs, for every W of the class,

    |L^(W; q~) - L(W)| <= a + b + C / n sum_ij |1/q~_j - 1/q_j| exp(E_ij / tau)

    a = [2 B c_1 c_2 (1 + sqrt(2 d)) + tau log(h / l) s] / sqrt(n)
    b = tau log(h / l) / (1 - l / h) [v + (1 + v) w / k]
    v = h / k [4 B c_1 c_2 / tau + s] / sqrt(n)
    w = [2 h B c_1 c_2 / tau + (h - l) s] / sqrt(n)
    s = sqrt(log(6 / delta) / 2)
    C = tau / min_i min(g~_i, g^_i),  g~_i = sum_j exp(E_ij / tau) / q~_j,

  where g^_i is g~_i with the true q. The paper states the bound as O(1/n +
  sqrt(d/n) + sqrt(log(1/delta)/n) + error term) and gives no constants. These
  are for one linear layer, and from a proof that differs from the paper's in
  two places: the logarithms of an estimated and of the exact integral are
  compared anchor by anchor (the factor C of eq. (20) would need the first
  integral to be the larger one), and q / n is compared with its mean before a
  sum over j is symmetrized (its terms share q). Only the last part of the bound
  depends on q~ and on W.

  Args:
    image: x_i W of every pair for a W of the class; E_ij = image_i . text_j.
    text: y_i of every pair.
    log_approximation: log q~_j.
    log_popularity: log q_j.
    temperature: tau; greater than 0.
    models: The class of models.
    failure: delta, the probability that the bound does not hold.

  Returns:
    a, b and the term of q~, as `likelihood`, `integration`, `approximation`.

  Raises:
    ValueError: If delta or the densities are out of range.

  Example:
    >>> x, log_q = jnp.eye(2), jnp.zeros(2)
    >>> models = BilinearClass(1.0, 1.0, 1.0, 0.5, 2.0, 1.0)
    >>> bound = generalization_bound(
    ...   x, x, log_q + jnp.log(2.0), log_q, temperature=1.0, models=models
    ... )
    >>> print(f"{bound.approximation:.4f}")  # the risk changes by log 2
    1.0000

  Reference: Wang et al., ICLR 2025, Theorem 1 and Appendix D.
  """
  low, high, least = models[3:]
  if not (0 < failure < 1 and 0 < low < high and low <= least <= high):
    raise ValueError(
      "failure must be in (0, 1), and densities 0 < least_density <= "
      "least_popularity <= greatest_density, the first below the last; got "
      f"failure {failure} and {low}, {least}, {high}"
    )
  n, dim = text.shape
  slope = models.norm * models.image_radius * models.text_radius
  tail = math.sqrt(math.log(6 / failure) / 2)
  log_range = temperature * math.log(high / low)
  likelihood = 2 * slope * (1 + math.sqrt(2 * dim)) + log_range * tail
  relative = high / least * (4 * slope / temperature + tail) / math.sqrt(n)
  of_q = (2 * high * slope / temperature + (high - low) * tail) / math.sqrt(n)
  off = relative + (1 + relative) * of_q / least
  log_gap = _log_gap(log_approximation, log_popularity)
  log_error, learned, exact = (
    tiles.row_log_sum_exp(image, text, weight, temperature=temperature)
    for weight in (log_gap, -log_approximation, -log_popularity)
  )
  least_integral = jnp.min(jnp.minimum(learned, exact))
  return RiskBound(
    jnp.asarray(likelihood / math.sqrt(n)),
    jnp.asarray(log_range / (1 - low / high) * off),
    temperature * jnp.mean(jnp.exp(log_error - least_integral)),
  )


def _log_gap(log_approximation, log_popularity) -> Float[Array, "pairs"]:
  """Returns log |1 / q~_j - 1 / q_j|."""
  gap = jnp.exp(-log_approximation) - jnp.exp(-log_popularity)
  return jnp.log(jnp.abs(gap))


def _check_weight(log_weight, shape) -> None:
  """Raises ValueError unless these are weights of the given shape."""
  if log_weight.shape != shape:
    raise ValueError(
      f"log_weight must be {list(shape)}, got {list(log_weight.shape)}"
    )
  if isinstance(log_weight, jax.core.Tracer):
    return  # under jit there are no values to check
  total = jnp.exp(logsumexp(log_weight, axis=0))
  if not jnp.allclose(total, 1, atol=1e-3):
    raise ValueError(
      "the weights omega_k of a draw must sum to 1 over k, found a sum of "
      f"{float(total.flatten()[jnp.argmax(jnp.abs(total - 1))]):g}"
    )

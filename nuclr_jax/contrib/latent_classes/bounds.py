"""Bounds: what the contrastive loss says about classification.

Each bound is a function of numbers that the other modules compute. L_sup^mu,
the loss of the mean classifier, is
`supervised.task_loss(features @ class_means.T)`.
"""

from jaxtyping import Float
import numpy as np
from scipy.special import gammaln, xlogy

from nuclr_jax.contrib.latent_classes.classes import (
  check_probability,
  collision,
)
from nuclr_jax.types import AnyArray

MAX_DRAWS = 5_000


def of_pairs(
  unsupervised: float, probability: Float[np.ndarray, "classes"]
) -> float:
  """Bounds the mean classifier's loss, averaged over tasks of two classes.

  L_sup^mu <= (L_un - tau) / (1 - tau), for one negative and losses that are
  1 at margin 0 (hinge, logistic). The block loss gives a tighter bound.

  Args:
    unsupervised: The `unsupervised_loss` or the `block_loss`.
    probability: The class probabilities, rho.

  Returns:
    A bound on `average_loss(ways=2, probability=rho)`.

  Example:
    >>> of_pairs(1.0, np.array([0.5, 0.5]))
    1.0

  Reference: Saunshi et al., Lemma 4.3 and Proposition 6.2.
  """
  tau = collision(probability)
  if tau == 1:
    raise ValueError("there must be two classes or more, got one")
  return (unsupervised - tau) / (1 - tau)


def of_all_classes(
  unsupervised: float, probability: Float[np.ndarray, "classes"]
) -> float:
  """Bounds the mean classifier's loss on the task of all classes.

  L_sup^mu <= L_un / rho_min + log C.

  Args:
    unsupervised: `unsupervised_loss(loss="cross_entropy")` of one negative.
    probability: The class probabilities, rho.

  Returns:
    A bound on `task_loss(loss="cross_entropy")`.

  Example:
    >>> round(of_all_classes(0.5, np.array([0.5, 0.5])), 4)
    1.6931

  Reference: Merad et al., Lemma 1.
  """
  rho = check_probability(probability)
  return float(unsupervised / rho.min() + np.log(len(rho)))


def by_coverage(
  unsupervised: float,
  probability: Float[np.ndarray, "classes"],
  num_negatives: int,
) -> float:
  """Bounds the mean classifier's loss by the coverage of N negatives.

  L_sup^mu <= L_un^N / p_cc(N), for the task of all classes.

  Args:
    unsupervised: `unsupervised_loss(loss="cross_entropy")` of N negatives.
    probability: The class probabilities, rho.
    num_negatives: The number of negatives, N.

  Returns:
    A bound on `task_loss(loss="cross_entropy")`; inf if N negatives cannot
    cover all classes.

  Example:
    >>> by_coverage(0.5, np.array([0.5, 0.5]), 2)
    1.0

  Reference: Merad et al., Lemma 2.
  """
  covered = coverage(probability, num_negatives)
  return unsupervised / covered if covered else float("inf")


def of_average_task(
  unsupervised: float, num_classes: int, num_negatives: int, ways: int
) -> float:
  """Bounds the mean classifier's loss, averaged over tasks of k + 1 classes.

  L_sup,k^mu <= k / (1 - tau_N^+) (L_un^N - tau_N^+ log(N + 1)) with
  k = ways - 1, for classes that are equally probable. tau_N^+ = C^-N is the
  probability that all negatives are of the anchor's class, where the loss is at
  least log(N + 1); the factor k is from k two-class losses, which add up to at
  least one of k + 1 classes. docs/papers/bounds.md has the steps.

  Args:
    unsupervised: `unsupervised_loss(loss="cross_entropy")` of N negatives.
    num_classes: The number of classes.
    num_negatives: The number of negatives, N.
    ways: The number of classes in a task.

  Returns:
    A bound on `average_loss(loss="cross_entropy", ways=ways)`.

  Example:
    >>> round(of_average_task(np.log(2), 2, 1, 2), 4)
    0.6931

  Reference: Merad et al., Proposition 1.
  """
  if not 2 <= ways <= num_classes or num_negatives < 1:
    raise ValueError(
      "ways must be in [2, num_classes] and num_negatives at least 1, got "
      f"{ways} of {num_classes} classes and {num_negatives}"
    )
  tau = float(num_classes) ** -num_negatives
  rest = unsupervised - tau * np.log(num_negatives + 1)
  return float((ways - 1) / (1 - tau) * rest)


def coverage(
  probability: Float[np.ndarray, "classes"], num_draws: int
) -> float:
  """Returns p_cc(N), the probability that N draws from rho hit every class.

  The classes are halved recursively; each level sums, over the number of draws
  that fall into the first half, the probability that both halves are hit. All
  terms are positive, so nothing cancels. Time and memory grow with N^2; halves
  with equal probabilities are computed once.

  Args:
    probability: The class probabilities, rho.
    num_draws: The number of draws, N.

  Raises:
    ValueError: If there are more than `MAX_DRAWS` draws.

  Example:
    >>> coverage(np.array([0.5, 0.5]), 2)
    0.5

  Reference: Merad et al., Lemma 2.
  """
  rho = check_probability(probability)
  if num_draws != int(num_draws):
    raise ValueError(f"num_draws must be a whole number, got {num_draws}")
  if num_draws < len(rho):
    return 0.0
  if num_draws > MAX_DRAWS:
    raise ValueError(f"num_draws must be at most {MAX_DRAWS}, got {num_draws}")
  covered = _covered(tuple(sorted(rho.tolist())), num_draws, {})
  return float(min(covered[-1], 1.0))


def norms(
  features: Float[AnyArray, "rows dim"],
) -> tuple[float, float]:
  """Returns the smallest and the largest norm ||f(x)||.

  Training converges if they stay away from 0 and from infinity.

  Example:
    >>> norms(np.array([[3.0, 4.0], [0.0, 1.0]]))
    (1.0, 5.0)

  Reference: Merad et al., Assumption 2.
  """
  norm = np.linalg.norm(np.asarray(features, np.float64), axis=1)
  return float(norm.min()), float(norm.max())


def smoothness(largest_norm: float) -> float:
  """Bounds the smoothness of the loss of a triplet with norms of at most C.

  L_smooth <= 2 + 8 C^2 for the loss log(1 + exp(z_1^T (z_3 - z_2))) as a
  function of all three vectors: its gradient is Lipschitz with this constant
  while norms stay below C (Assumption 2). sqrt(2) + 3/2 C^2 is enough; see
  docs/papers/bounds.md.

  Args:
    largest_norm: The largest norm, C.

  Example:
    >>> smoothness(1.0)
    10.0

  Reference: Merad et al., Lemma 3.
  """
  return 2 + 8 * largest_norm**2


def _covered(rho: tuple[float, ...], num_draws: int, known: dict) -> np.ndarray:
  """Returns P(all classes are hit | m draws), for m = 0 ... num_draws."""
  if rho in known:
    return known[rho]
  draws = np.arange(num_draws + 1)
  if len(rho) == 1:
    return np.float64(draws > 0)
  halves = rho[: len(rho) // 2], rho[len(rho) // 2 :]
  first, second = (_covered(half, num_draws, known) for half in halves)
  share = sum(halves[0]) / sum(rho)
  j, m = draws[:, None], draws[None]  # j of m draws fall into the first half
  rest = np.maximum(m - j, 0)
  log_p = gammaln(m + 1) - gammaln(j + 1) - gammaln(rest + 1)
  log_p += xlogy(j, share) + xlogy(rest, 1 - share)
  p = np.where(j <= m, np.exp(log_p), 0.0)
  known[rho] = np.sum(p * first[:, None] * second[rest], axis=0)
  return known[rho]

"""Probabilities, collisions and spread of the classes of features."""

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax import checks
from nuclr_jax.types import AnyArray


def probabilities(
  label: Int[np.ndarray, "rows"],
) -> Float[np.ndarray, "classes"]:
  """Returns rho, the share of each class among the rows.

  Raises:
    ValueError: If labels are not 0, 1, ... with rows of every class.

  Example:
    >>> probabilities(np.array([0, 1, 1, 1]))
    array([0.25, 0.75])
  """
  label = np.asarray(label)
  counts = np.bincount(label) if label.size and label.min() >= 0 else []
  if not len(counts) or not np.all(counts):
    raise ValueError(
      "labels must be 0, 1, ... with rows of every class, found "
      f"{np.unique(label)[:10].tolist()}"
    )
  return counts / len(label)


def labelled(
  features: Float[AnyArray, "rows dim"], label: Int[np.ndarray, "rows"]
) -> tuple[Float[np.ndarray, "rows dim"], Int[np.ndarray, "rows"]]:
  """Returns features in float64 and their labels, as arrays.

  Raises:
    ValueError: If a feature is not finite, or the lengths differ.
  """
  x, label = np.asarray(features, np.float64), np.asarray(label)
  if x.ndim != 2 or label.shape != x.shape[:1]:
    raise ValueError(
      "features and labels must be [rows, dim] and [rows], got "
      f"{list(x.shape)} and {list(label.shape)}"
    )
  wrong = np.flatnonzero(~np.isfinite(x).all(axis=1))
  if wrong.size:
    raise ValueError(
      f"features must be finite; row {wrong[0]} is not ({wrong.size} such rows)"
    )
  return x, label


def rho_of(
  label: Int[np.ndarray, "rows"],
  probability: Float[np.ndarray, "classes"] | None,
) -> Float[np.ndarray, "classes"]:
  """Returns rho; by default it is the share of each class among the rows."""
  shares = probabilities(label)
  if probability is None:
    return shares
  rho = check_probability(probability)
  if len(rho) != len(shares):
    raise ValueError(
      f"the rows have {len(shares)} classes but {len(rho)} probabilities were "
      "given"
    )
  return rho


def check_probability(
  probability: Float[np.ndarray, "classes"],
) -> Float[np.ndarray, "classes"]:
  """Returns rho in float64; raises ValueError if it is not a distribution."""
  rho = np.asarray(probability, np.float64)
  if rho.ndim != 1 or not np.all(rho > 0) or abs(rho.sum() - 1) > 1e-6:
    raise ValueError(
      "probabilities of the classes must be positive with sum 1, got "
      f"{rho.tolist() if rho.size < 20 else rho.shape}"
    )
  return rho


@checks.checked
def collision(
  probability: Float[np.ndarray, "classes"], num_negatives: checks.Count = 1
) -> float:
  """Returns the probability that all N negatives are of the anchor's class.

  tau_N^+ = sum_c rho(c)^(N + 1).

  Args:
    probability: The class probabilities, rho.
    num_negatives: The number of negatives, N.

  Example:
    >>> collision(np.array([0.5, 0.5])), collision(np.array([0.5, 0.5]), 2)
    (0.5, 0.25)

  Reference: Saunshi et al., Section 4; Merad et al., Proposition 1.
  """
  rho = check_probability(probability)
  return float(np.sum(rho ** (num_negatives + 1)))


@checks.checked
def any_collision(
  probability: Float[np.ndarray, "classes"], num_negatives: checks.Count = 1
) -> float:
  """Returns the probability that any of N negatives is of the anchor's class.

  tau_N = 1 - sum_c rho(c) (1 - rho(c))^N.

  Args:
    probability: The class probabilities, rho.
    num_negatives: The number of negatives, N.

  Example:
    >>> any_collision(np.array([0.5, 0.5]), 2)
    0.75

  Reference: Saunshi et al., Appendix B.1.
  """
  rho = check_probability(probability)
  return float(1 - np.sum(rho * (1 - rho) ** num_negatives))


def deviation(
  features: Float[AnyArray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Computes the intraclass deviation of features.

  s(f) = E_{c ~ nu}[sqrt(||Sigma(f, c)||_2) E_{x ~ D_c}[||f(x)||]], where nu(c)
  is proportional to rho(c)^2, Sigma(f, c) is the covariance of the class and
  ||.||_2 its largest eigenvalue.

  Args:
    features: The features f(x), of any norm.
    label: Class labels 0, 1, ...; every class must have rows.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Example:
    >>> float(deviation(np.array([[1.0], [3.0]]), np.array([0, 0])))
    2.0

  Reference: Saunshi et al., eq. (9).
  """
  rho, (x, label) = rho_of(label, probability), labelled(features, label)
  parts = []
  for c in range(len(rho)):
    rows = x[label == c]
    centred = (rows - rows.mean(axis=0)) / np.sqrt(len(rows))
    spread = np.linalg.norm(centred, ord=2)  # root of the largest eigenvalue
    parts.append(spread * np.linalg.norm(rows, axis=1).mean())
  return float(np.average(parts, weights=rho**2))

"""Losses and accuracies of linear classifiers, averaged over tasks.

A classifier is represented by its scores W f(x), one for each class. A k-way
task consists of k distinct classes, drawn uniformly, and of their rows, with
equal weight for each class. All averages are exact: the wrong classes of a row
matter only through the largest of their scores, or through the sum of a
function of the scores.
"""

import itertools
import math

from jaxtyping import Float, Int
import numpy as np
from scipy.special import gammaln

from nuclr_jax import checks
from nuclr_jax.contrib.latent_classes import losses
from nuclr_jax.contrib.latent_classes.bounds import coverage
from nuclr_jax.contrib.latent_classes.classes import (
  any_collision,
  check_probability,
  probabilities,
  rho_of,
)
from nuclr_jax.types import AnyArray

CHUNK = 2**22  # elements of an intermediate array
MAX_TASKS = 10_000  # that are enumerated


def few_of_each(
  label: Int[np.ndarray, "rows"], count: int, seed: int = 0
) -> Int[np.ndarray, "chosen"]:
  """Draws at most `count` row indices of each class, without replacement.

  Example:
    >>> few_of_each(np.array([0, 0, 1]), 1).shape
    (2,)
  """
  order = np.random.default_rng(seed).permutation(len(label))
  chosen = [order[label[order] == c][:count] for c in np.unique(label)]
  return np.concatenate(chosen)


def task_loss(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  loss: str = "logistic",
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Computes L_sup on the task of all classes.

  L_sup = E_{c ~ rho, x ~ D_c}[loss(margins)], where a margin is the score of
  the row's class minus the score of another class.

  Args:
    scores: The scores W f(x).
    label: Class labels 0, 1, ...; every class must have rows.
    loss: A name in `losses.LOSSES`.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Raises:
    ValueError: If the labels, the loss or the probabilities do not fit.

  Example:
    >>> task_loss(np.zeros((4, 2)), np.array([0, 0, 1, 1]))
    1.0

  Reference: Saunshi et al., Section 2; Merad et al., eq. (5).
  """
  own, others = _own_and_others(scores, label)
  each = losses.of_margins(own[:, None] - others, loss)
  rho = rho_of(label, probability)
  weight = rho[label] / np.bincount(label)[label]
  return float(np.sum(weight * each))


@checks.checked
def average_loss(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  ways: int,
  loss: losses.Loss = "logistic",
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Averages the loss over all tasks of `ways` classes.

  Args:
    scores: The scores W f(x).
    label: Class labels 0, 1, ...; every class must have rows.
    ways: The number of classes in a task, at least 2.
    loss: A name in `losses.LOSSES`.
    probability: For two ways only: rho, from which the two distinct classes of
      a task are drawn; by default they are drawn uniformly.

  Raises:
    ValueError: If the labels, the loss, `ways` or the probabilities do not fit.

  Example:
    >>> average_loss(np.eye(3), np.arange(3), ways=2, loss="hinge")
    0.0

  Reference: Saunshi et al., Definition 2.2; Merad et al., eq. (9).
  """
  own, others = _own_and_others(scores, label)
  count = others.shape[1] + 1
  _check_ways(ways, count)
  if probability is not None:
    if ways != 2:
      raise ValueError("probabilities are allowed for tasks of two ways only")
    return _two_ways(own, others, label, check_probability(probability), loss)
  below = own[:, None] - others
  if loss == "hinge":
    order = np.sort(-below, axis=1)  # the largest is the worst
    share = _is_largest(count - 1, ways - 1)
    each = np.sum(share * np.maximum(0.0, 1.0 + order), axis=1)
  else:
    each = _average_cross_entropy(below, ways - 1)
    each /= math.log(2) if loss == "logistic" else 1.0
  return _balanced(each, label)


@checks.checked
def drawn_task_loss(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  num_negatives: checks.Count,
  loss: str = "logistic",
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """Averages the loss over the tasks that an anchor and k negatives make.

  A task T is the set of distinct classes of c^+, c_1^-, ..., c_k^-, drawn from
  rho, given that c^+ is not among the negatives. It computes

    E_T[rho_min^+(T) |T| L_sup(T)],

  where rho_min^+(T) is the smallest probability P(c^+ = c | T) of a class of T,
  and the classes of L_sup(T) have equal weight. The factor is 1 for equal
  probabilities, and for one negative. All tasks are enumerated.

  Args:
    scores: The scores W f(x).
    label: Class labels 0, 1, ...; every class must have rows.
    num_negatives: The number of negatives, k.
    loss: A name in `losses.LOSSES`.
    probability: The class probabilities, rho; by default the classes' shares
      of the rows.

  Raises:
    ValueError: If the labels, the loss or the probabilities do not fit, or
      there are more than `MAX_TASKS` tasks.

  Example:
    >>> scores, label = np.zeros((3, 3)), np.arange(3)
    >>> round(drawn_task_loss(scores, label, num_negatives=1), 9)
    1.0

  Reference: Saunshi et al., Theorem 6.1 and Appendix B.1.
  """
  _own_and_others(scores, label)  # checks them
  rho, scores = rho_of(label, probability), np.asarray(scores, np.float64)
  k, classes = num_negatives, range(len(rho))
  sizes = range(2, min(k + 1, len(rho)) + 1)
  if (count := sum(math.comb(len(rho), size) for size in sizes)) > MAX_TASKS:
    raise ValueError(
      f"{len(rho)} classes and {k} negatives make {count} tasks, more than "
      f"{MAX_TASKS}; use fewer of them"
    )
  total, rows = 0.0, [scores[label == c] for c in classes]
  for size in sizes:
    for task in map(list, itertools.combinations(classes, size)):
      least, of_classes = np.inf, 0.0
      for c in task:
        rest = [other for other in task if other != c]
        share = rho[rest].sum()
        hit = coverage(rho[rest] / share, k) * share**k
        least = min(least, rho[c] * hit)
        margins = rows[c][:, [c]] - rows[c][:, rest]
        of_classes += losses.of_margins(margins, loss).mean()
      total += least * of_classes
  return float(total / (1 - any_collision(rho, k)))


def average_accuracy(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  ways: int,
) -> float:
  """Averages the accuracy over all tasks of `ways` classes; ties are errors.

  Args:
    scores: The scores W f(x).
    label: Class labels 0, 1, ...; every class must have rows.
    ways: The number of classes in a task, at least 2.

  Raises:
    ValueError: If the labels or `ways` do not fit.

  Example:
    >>> scores = np.array([[2.0, 1.0, 3.0]])
    >>> average_accuracy(np.repeat(scores, 3, 0), np.arange(3), ways=2)
    0.5

  Reference: Saunshi et al., Table 1.
  """
  own, others = _own_and_others(scores, label)
  count = others.shape[1] + 1
  _check_ways(ways, count)
  right = np.sum(others < own[:, None], axis=1)
  at_most = np.cumsum(_is_largest(count - 1, ways - 1))
  each = np.concatenate([[0.0], at_most])[right]
  return _balanced(each, label)


@checks.checked
def top_accuracy(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  top: checks.Count,
) -> float:
  """Returns how often fewer than `top` other classes score at least as high.

  Ties count against the row's own class; every class has the same weight.

  Args:
    scores: The scores W f(x).
    label: Class labels 0, 1, ...; every class must have rows.
    top: The number of best scores that count, at least 1.

  Example:
    >>> top_accuracy(np.eye(3)[[0, 1, 1]], np.arange(3), top=1)
    0.6666666666666666
  """
  own, others = _own_and_others(scores, label)
  above = np.sum(others >= own[:, None], axis=1)
  return _balanced(above < top, label)


def _own_and_others(scores, label):
  """Returns the score of each row's own class, and those of all others."""
  probabilities(label)  # checks them
  scores, classes = np.asarray(scores, np.float64), int(label.max()) + 1
  if not np.isfinite(scores).all():
    raise ValueError("scores are not finite")
  if classes < 2:
    raise ValueError("two classes or more are needed, the labels have one")
  if scores.shape != (len(label), classes):
    raise ValueError(
      f"scores must be [rows, classes], here [{len(label)}, {classes}], got "
      f"{list(scores.shape)}"
    )
  # All classes but the row's own; from that class on, indices shift by one.
  wrong = np.arange(classes - 1)[None] + (
    np.arange(classes - 1)[None] >= label[:, None]
  )
  own = np.take_along_axis(scores, label[:, None], axis=1)[:, 0]
  return own, np.take_along_axis(scores, wrong, axis=1)


def _check_ways(ways: int, count: int) -> None:
  if not 2 <= ways <= count:
    raise ValueError(f"ways must be in [2, {count}], got {ways}")


def _balanced(each, label) -> float:
  """Returns the mean over rows, with equal weight for every class."""
  weight = 1 / np.bincount(label)[label] / (int(label.max()) + 1)
  return float(np.sum(weight * each))


def _two_ways(own, others, label, rho, loss) -> float:
  """Returns the mean over two distinct draws of rho, and a row of the first."""
  each = losses.of_margins((own[:, None] - others)[..., None], loss)
  classes = np.arange(len(rho) - 1)[None]
  other = rho[classes + (classes >= label[:, None])]
  row = (rho[label] / np.bincount(label)[label])[:, None]
  total = np.sum(row * other * each)
  # Two draws differ with probability 1 - sum_c rho(c)^2.
  return float(total / (1 - np.sum(rho**2)))


def _is_largest(count: int, chosen: int) -> np.ndarray:
  """Returns P(the r-th smallest of `count` is the largest of those chosen)."""

  def log_binomial(n, k):
    n = np.asarray(n, np.float64)
    value = gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1)
    return np.where(n >= k, value, -np.inf)

  rank = np.arange(count)  # r: the number of values below it
  return np.exp(log_binomial(rank, chosen - 1) - log_binomial(count, chosen))


def _average_cross_entropy(margins, chosen: int):
  """Averages log(1 + sum exp(-v)) over all choices of `chosen` margins.

  This is the integral of `losses.expected`. The mean over choices of a product
  with one factor for each chosen class is an elementary symmetric polynomial,
  which is built up class by class.
  """
  z = losses.nodes(np.append(-margins.ravel(), 0.0), chosen)
  size = max(1, CHUNK // (len(z) * (chosen + 1)))
  parts = [
    _by_integral(margins[i : i + size], z, chosen)
    for i in range(0, len(margins), size)
  ]
  return np.concatenate(parts)


def _by_integral(margins, z, chosen):
  # missed[j]: mean of 1 - product over all choices of j of the classes so far;
  # of these choices, the fraction j / m includes the m-th class.
  missed = [np.zeros((len(margins), len(z))) for _ in range(chosen + 1)]
  for m, margin in enumerate(margins.T, 1):
    shifted = np.exp(np.minimum(z[None] - margin[:, None], 700.0))
    hit = -np.expm1(-shifted)
    for j in range(min(m, chosen), 0, -1):
      new = hit + (1 - hit) * missed[j - 1]
      missed[j] += (new - missed[j]) * (j / m)
  return losses.SPACING * (missed[-1] @ np.exp(-np.exp(z)))

"""Losses and accuracies of linear classifiers, averaged over tasks.

A classifier is known by its scores W f(x), one for each class. A k-way task is
k distinct classes, drawn uniformly; its rows are those of its classes, each
class as often. All averages are exact: of the wrong classes of a row only the
largest score, or the sum of a function of the scores, matters.
"""

import math

from jaxtyping import Float, Int
import numpy as np
from scipy.special import gammaln

from nuclr_jax import checks
from nuclr_jax.latent_classes import losses
from nuclr_jax.latent_classes.classes import (
  check_probability,
  probabilities,
  rho_of,
)
from nuclr_jax.types import AnyArray

CHUNK = 2**22  # numbers of an array


def class_means(
  rows: Float[np.ndarray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  num_classes: int | None = None,
) -> Float[np.ndarray, "classes dim"]:
  """W^mu: the mean row of each class; zeros for a class without any.

  Args:
    rows: f(x).
    label: Classes 0, 1, ...
    num_classes: By default one more than the largest label.

  Example:
    >>> class_means(np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1]))
    array([[2.],
           [5.]])

  Reference: Saunshi et al., Definition 2.1.
  """
  count = int(label.max()) + 1 if num_classes is None else num_classes
  total = np.zeros((count, rows.shape[1]), rows.dtype)
  np.add.at(total, label, rows)
  return total / np.maximum(np.bincount(label, minlength=count), 1)[:, None]


def few_of_each(
  label: Int[np.ndarray, "rows"], count: int, seed: int = 0
) -> Int[np.ndarray, "chosen"]:
  """Rows, at most `count` of each class, drawn without replacement.

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
  """L_sup of the task of all classes: E_{c ~ rho, x ~ D_c}[loss(margins)].

  A margin is the score of the row's class minus that of another one.

  Args:
    scores: W f(x).
    label: Classes 0, 1, ..., each with rows.
    loss: See `losses`.
    probability: rho; by default the classes' shares of the rows.

  Raises:
    ValueError: For labels, a loss or probabilities that do not fit.

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


def average_loss(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  ways: int,
  loss: str = "logistic",
  probability: Float[np.ndarray, "classes"] | None = None,
) -> float:
  """The mean loss over all tasks of so many ways.

  Args:
    scores: W f(x).
    label: Classes 0, 1, ..., each with rows.
    ways: Classes of a task, from 2 on.
    loss: See `losses`.
    probability: For two ways only: the classes of a task are two draws of rho
      that differ, instead of uniform ones.

  Raises:
    ValueError: For labels, a loss, ways or probabilities that do not fit.

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
      raise ValueError("probabilities go with tasks of two ways only")
    return _two_ways(own, others, label, check_probability(probability), loss)
  checks.choice("loss", loss, losses.LOSSES)
  below = own[:, None] - others
  if loss == "hinge":
    order = np.sort(-below, axis=1)  # the largest is the worst
    share = _is_largest(count - 1, ways - 1)
    each = np.sum(share * np.maximum(0.0, 1.0 + order), axis=1)
  else:
    each = _average_cross_entropy(below, ways - 1)
    each /= math.log(2) if loss == "logistic" else 1.0
  return _balanced(each, label)


def average_accuracy(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  ways: int,
) -> float:
  """The mean accuracy over all tasks of so many ways; ties are errors.

  Args:
    scores: W f(x).
    label: Classes 0, 1, ..., each with rows.
    ways: Classes of a task, from 2 on.

  Raises:
    ValueError: For labels or ways that do not fit.

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


def top_accuracy(
  scores: Float[AnyArray, "rows classes"],
  label: Int[np.ndarray, "rows"],
  *,
  top: int,
) -> float:
  """How often fewer than `top` other classes score as high as the row's own.

  Args:
    scores: W f(x).
    label: Classes 0, 1, ..., each with rows; each class counts as much.
    top: At least 1.

  Example:
    >>> top_accuracy(np.eye(3)[[0, 1, 1]], np.arange(3), top=1)
    0.6666666666666666
  """
  top = checks.count("top", top)
  own, others = _own_and_others(scores, label)
  above = np.sum(others >= own[:, None], axis=1)
  return _balanced(above < top, label)


def _own_and_others(scores, label):
  """Scores of the rows' own classes, and of all others."""
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
  wrong = np.arange(classes - 1)[None] + (
    np.arange(classes - 1)[None] >= label[:, None]
  )
  own = np.take_along_axis(scores, label[:, None], axis=1)[:, 0]
  return own, np.take_along_axis(scores, wrong, axis=1)


def _check_ways(ways: int, count: int) -> None:
  if not 2 <= ways <= count:
    raise ValueError(f"ways must be in [2, {count}], got {ways}")


def _balanced(each, label) -> float:
  """The mean over rows, every class counting as much."""
  weight = 1 / np.bincount(label)[label] / (int(label.max()) + 1)
  return float(np.sum(weight * each))


def _two_ways(own, others, label, rho, loss) -> float:
  """E over two distinct draws of rho, and a row of the first."""
  each = losses.of_margins((own[:, None] - others)[..., None], loss)
  classes = np.arange(len(rho) - 1)[None]
  other = rho[classes + (classes >= label[:, None])]
  row = (rho[label] / np.bincount(label)[label])[:, None]
  total = np.sum(row * other * each)
  return float(total / (1 - np.sum(rho**2)))


def _is_largest(count: int, chosen: int) -> np.ndarray:
  """P(the r-th smallest of `count` is the largest of `chosen` drawn ones)."""

  def log_binomial(n, k):
    n = np.asarray(n, np.float64)
    value = gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1)
    return np.where(n >= k, value, -np.inf)

  rank = np.arange(count)  # of it; so many are smaller
  return np.exp(log_binomial(rank, chosen - 1) - log_binomial(count, chosen))


def _average_cross_entropy(margins, chosen: int):
  """Mean of log(1 + sum exp(-v)) over all choices of so many of the margins.

  The integral of `losses.expected`; the mean over choices of a product, one
  factor for each class that is chosen, is an elementary symmetric polynomial,
  built class after class.
  """
  z = losses.nodes(np.append(-margins.ravel(), 0.0), chosen)
  size = max(1, CHUNK // (len(z) * (chosen + 1)))
  parts = [
    _by_integral(margins[i : i + size], z, chosen)
    for i in range(0, len(margins), size)
  ]
  return np.concatenate(parts)


def _by_integral(margins, z, chosen):
  # missed[j]: the mean of 1 - product over choices of j of the classes so far.
  missed = [np.zeros((len(margins), len(z))) for _ in range(chosen + 1)]
  for m, margin in enumerate(margins.T, 1):
    shifted = np.exp(np.minimum(z[None] - margin[:, None], 700.0))
    hit = -np.expm1(-shifted)
    for j in range(min(m, chosen), 0, -1):
      new = hit + (1 - hit) * missed[j - 1]
      missed[j] += (new - missed[j]) * (j / m)
  return losses.SPACING * (missed[-1] @ np.exp(-np.exp(z)))

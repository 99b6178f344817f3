"""Losses of margins, and their exact expectation over random negatives.

An anchor x with similarities s_+ to its positive and s_1 ... s_N to its
negatives has margins v_i = s_+ - s_i. The losses are

  hinge          max(0, 1 + max_i(-v_i))
  logistic       log2(1 + sum_i exp(-v_i))
  cross_entropy  the same with the natural logarithm.

Hinge and logistic are 1 at a single margin of 0, as Saunshi et al. require;
Merad et al. use the natural logarithm.
"""

import math

from jaxtyping import Float
import numpy as np

from nuclr_jax import checks
from nuclr_jax.types import AnyArray

LOSSES = ("hinge", "logistic", "cross_entropy")
Loss = checks.one_of(LOSSES)
SPACING = 0.3  # of the trapezoid rule, whose error is exp(-pi^2 / SPACING)
TAIL = 36.0  # exp(-TAIL) of the integral is cut off at its left end
NODES = 16  # of the trapezoid rule, evaluated at a time


@checks.checked
def of_margins(
  margins: Float[AnyArray, "*batch negatives"], loss: Loss
) -> Float[AnyArray, "*batch"]:
  """Computes the loss of each row of margins, a NumPy or JAX array.

  Args:
    margins: The similarity to the positive minus that to each negative; inf
      where there is no negative.
    loss: A name in `LOSSES`.

  Raises:
    ValueError: If the loss is unknown.

  Example:
    >>> of_margins(np.zeros((1, 3)), "hinge")
    array([1.])
    >>> of_margins(np.zeros((1, 3)), "logistic")
    array([2.])
  """
  xp = margins.__array_namespace__()
  worst = xp.max(-margins, axis=-1)
  if loss == "hinge":
    return xp.maximum(0.0, 1.0 + worst)
  shift = xp.maximum(worst, 0.0)
  rest = xp.sum(xp.exp(-margins - shift[..., None]), axis=-1)
  total = shift + xp.log(xp.exp(-shift) + rest)
  return total / (math.log(2) if loss == "logistic" else 1.0)


@checks.checked
def expected(
  similarity: Float[np.ndarray, "anchors rows"],
  positive: Float[np.ndarray, "anchors rows"],
  negative: Float[np.ndarray, "anchors rows"],
  *,
  loss: Loss,
  num_negatives: checks.Count = 1,
) -> Float[np.ndarray, "anchors"]:
  r"""Computes E[loss] of each anchor over independent positives and negatives.

  Nothing is sampled. Hinge depends on the largest of N draws, whose
  distribution function is the N-th power of one draw's. For the other losses,

    log(1 + Z) = \int_0^\infty (1 - e^{-tZ}) e^{-t} / t dt

  turns the expectation over N draws into the N-th power of
  psi(t) = E[exp(-t exp(s_-))], a sum over the rows; with t = exp(z) the
  trapezoid rule is exact to rounding. A single negative needs only the sum
  over positives and negatives. Everything is float64. An anchor costs a few
  hundred operations per row; if its similarities range over more than 10, the
  cost grows in proportion.

  Args:
    similarity: The similarity of each anchor to each row.
    positive: The probability that a row is the positive; an anchor's sum to 1.
    negative: The probability that a negative is this row; an anchor's sum to 1.
    loss: A name in `LOSSES`.
    num_negatives: The number of negatives, N.

  Raises:
    ValueError: If the loss is unknown, `num_negatives` is below 1, or
      similarities are not finite.

  Example:
    >>> sim, first, both = np.eye(1, 2), np.eye(1, 2), np.full((1, 2), 0.5)
    >>> expected(sim, first, both, loss="hinge")
    array([0.5])
  """
  rows = [np.asarray(x, np.float64) for x in (similarity, positive, negative)]
  if not np.isfinite(rows[0]).all():
    raise ValueError("similarities are not finite")
  if loss == "hinge":
    of_anchor = _hinge
  else:
    of_anchor = _cross_entropy if num_negatives > 1 else _single_negative
  each = [of_anchor(*x, num_negatives) for x in zip(*rows, strict=True)]
  return np.array(each) / (math.log(2) if loss == "logistic" else 1.0)


def nodes(similarity: Float[np.ndarray, "rows"], count: int) -> np.ndarray:
  """Returns the nodes z = log t - s_+ of the integral for `count` negatives."""
  low = -similarity.max() - math.log(count) - TAIL
  high = -similarity.min() + math.log(TAIL)
  return np.arange(low, high + SPACING, SPACING)


def _single_negative(similarity, positive, negative, count):
  """Returns E[log(1 + exp(s_- - s_+))] of one anchor."""
  del count
  positives = np.flatnonzero(positive)
  each = np.logaddexp(0.0, similarity[None] - similarity[positives, None])
  return positive[positives] @ (each @ negative)


def _cross_entropy(similarity, positive, negative, count):
  """Returns E[log(1 + sum exp(s_i - s_+))] of one anchor.

  At a node, exp(-exp(z + s)) is 1 or 0 for most rows; it is evaluated only for
  the remaining rows, `NODES` nodes at a time.
  """
  order = np.argsort(similarity)
  s, positive, negative = (x[order] for x in (similarity, positive, negative))
  is_one = np.append(0.0, np.cumsum(positive))  # weight of the rows before
  is_zero = np.append(np.cumsum(negative[::-1])[::-1], 0.0)  # from here on
  total = 0.0
  everything = nodes(s, count)
  for start in range(0, len(everything), NODES):
    z = everything[start : start + NODES]
    first, last = np.searchsorted(s, [-TAIL - z[-1], math.log(TAIL) - z[0]])
    mid = slice(first, last)  # neither 1 nor 0
    # Later terms vanish before they overflow.
    shifted = np.exp(np.minimum(z[:, None] + s[mid][None], 700.0))
    missed = np.expm1(-shifted)
    survives = is_one[first] + positive[mid].sum() + missed @ positive[mid]
    # Weights sum to 1 only up to rounding, so this could pass -1.
    missed = np.maximum(missed @ negative[mid] - is_zero[last], -1.0)
    with np.errstate(divide="ignore"):
      hit = -np.expm1(count * np.log1p(missed))  # 1 - psi^N
    total += np.sum(hit * survives)
  return SPACING * total


def _hinge(similarity, positive, negative, count):
  """Returns E[max(0, 1 + largest - s_+)] of one anchor."""
  order = np.argsort(similarity)
  values = similarity[order]
  below = np.minimum(np.cumsum(negative[order]), 1.0)
  largest = np.diff(below**count, prepend=0.0)
  # Sums over the rows that exceed s_+ - 1, from the right.
  total = np.append(np.cumsum((largest * (1.0 + values))[::-1])[::-1], 0.0)
  mass = np.append(np.cumsum(largest[::-1])[::-1], 0.0)
  first = np.searchsorted(values, similarity - 1.0)
  return np.sum(positive * (total[first] - similarity * mass[first]))

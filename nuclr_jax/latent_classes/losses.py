"""Losses of margins, and their exact expectation over random negatives.

An anchor x with similarities s_+ to its positive and s_1 ... s_N to its
negatives has margins v_i = s_+ - s_i. The losses of them are

  hinge          max(0, 1 + max_i(-v_i))
  logistic       log2(1 + sum_i exp(-v_i))
  cross_entropy  the same with the natural logarithm.

Hinge and logistic are 1 at a single margin of 0, as Saunshi et al. want it;
the natural logarithm is that of Merad et al.
"""

import math

from jaxtyping import Float
import numpy as np

from nuclr_jax import checks
from nuclr_jax.types import AnyArray

LOSSES = ("hinge", "logistic", "cross_entropy")
SPACING = 0.3  # of the trapezoid rule; its error is exp(-pi^2 / SPACING)
TAIL = 36.0  # exp(-TAIL) of the integral is left out at its left end
NODES = 16  # of it, evaluated at a time


def of_margins(
  margins: Float[AnyArray, "*batch negatives"], loss: str
) -> Float[AnyArray, "*batch"]:
  """The loss of each row of margins, NumPy's or JAX's.

  Args:
    margins: Similarity to the positive minus that to each negative; inf where
      there is none.
    loss: A name in `LOSSES`.

  Raises:
    ValueError: For an unknown loss.

  Example:
    >>> of_margins(np.zeros((1, 3)), "hinge")
    array([1.])
    >>> of_margins(np.zeros((1, 3)), "logistic")
    array([2.])
  """
  checks.choice("loss", loss, LOSSES)
  xp = margins.__array_namespace__()
  worst = xp.max(-margins, axis=-1)
  if loss == "hinge":
    return xp.maximum(0.0, 1.0 + worst)
  shift = xp.maximum(worst, 0.0)
  rest = xp.sum(xp.exp(-margins - shift[..., None]), axis=-1)
  total = shift + xp.log(xp.exp(-shift) + rest)
  return total / (math.log(2) if loss == "logistic" else 1.0)


def expected(
  similarity: Float[np.ndarray, "anchors rows"],
  positive: Float[np.ndarray, "anchors rows"],
  negative: Float[np.ndarray, "anchors rows"],
  *,
  loss: str,
  num_negatives: int = 1,
) -> Float[np.ndarray, "anchors"]:
  r"""E[loss] of each anchor: a positive and N negatives drawn independently.

  No draw is made. Hinge needs the largest of N draws, whose distribution
  function is the N-th power of one draw's. For the others

    log(1 + Z) = \int_0^\infty (1 - e^{-tZ}) e^{-t} / t dt

  turns the expectation over N draws into the N-th power of
  psi(t) = E[exp(-t exp(s_-))], a sum over the rows; with t = exp(z) the
  trapezoid rule is exact to rounding. A single negative needs the sum over
  positives and negatives only. Float64; for each anchor rows times some hundred
  operations, more in proportion to the range of its similarities beyond 10.

  Args:
    similarity: Of anchors to rows.
    positive: Probability of each row to be the positive; rows sum to 1.
    negative: Likewise of each negative.
    loss: A name in `LOSSES`.
    num_negatives: N.

  Raises:
    ValueError: For an unknown loss, fewer than one negative, or similarities
      that are not finite.

  Example:
    >>> sim, first, both = np.eye(1, 2), np.eye(1, 2), np.full((1, 2), 0.5)
    >>> expected(sim, first, both, loss="hinge")
    array([0.5])
  """
  checks.choice("loss", loss, LOSSES)
  num_negatives = checks.count("num_negatives", num_negatives)
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
  """Where the integral is evaluated, z + s_+, for `count` negatives."""
  low = -similarity.max() - math.log(count) - TAIL
  high = -similarity.min() + math.log(TAIL)
  return np.arange(low, high + SPACING, SPACING)


def _single_negative(similarity, positive, negative, count):
  """E[log(1 + exp(s_- - s_+))] of one anchor."""
  del count
  own = np.flatnonzero(positive)
  each = np.logaddexp(0.0, similarity[None] - similarity[own, None])
  return positive[own] @ (each @ negative)


def _cross_entropy(similarity, positive, negative, count):
  """E[log(1 + sum exp(s_i - s_+))] of one anchor.

  exp(-exp(z + s)) is 1 or 0 for most rows at a node; only the others are
  evaluated, for some nodes at a time.
  """
  order = np.argsort(similarity)
  s, positive, negative = (x[order] for x in (similarity, positive, negative))
  is_one = np.append(0.0, np.cumsum(positive))  # of the rows before
  is_zero = np.append(np.cumsum(negative[::-1])[::-1], 0.0)  # from a row on
  total = 0.0
  everything = nodes(s, count)
  for start in range(0, len(everything), NODES):
    z = everything[start : start + NODES]
    first, last = np.searchsorted(s, [-TAIL - z[-1], math.log(TAIL) - z[0]])
    own = slice(first, last)
    # Later terms vanish before they overflow.
    shifted = np.exp(np.minimum(z[:, None] + s[own][None], 700.0))
    missed = np.expm1(-shifted)
    survives = is_one[first] + positive[own].sum() + missed @ positive[own]
    # The weights sum to 1 up to rounding.
    missed = np.maximum(missed @ negative[own] - is_zero[last], -1.0)
    with np.errstate(divide="ignore"):
      hit = -np.expm1(count * np.log1p(missed))  # 1 - psi^N
    total += np.sum(hit * survives)
  return SPACING * total


def _hinge(similarity, positive, negative, count):
  """E[max(0, 1 + largest - s_+)] of one anchor."""
  order = np.argsort(similarity)
  values = similarity[order]
  below = np.minimum(np.cumsum(negative[order]), 1.0)
  largest = np.diff(below**count, prepend=0.0)
  # Sums over the rows that exceed s_+ - 1, from the right.
  total = np.append(np.cumsum((largest * (1.0 + values))[::-1])[::-1], 0.0)
  some = np.append(np.cumsum(largest[::-1])[::-1], 0.0)
  first = np.searchsorted(values, similarity - 1.0)
  return np.sum(positive * (total[first] - similarity * some[first]))

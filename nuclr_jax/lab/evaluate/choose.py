"""Which pairs to keep, by their scores."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Bool, Float, Integer
import numpy as np

PerPair = Float[np.ndarray, "pairs"]


class Choice(NamedTuple):
  """What one score has chosen."""

  among: Bool[np.ndarray, "pairs"]  # which pairs it had to choose from
  kept: Bool[np.ndarray, "pairs"]  # and which of them it keeps
  threshold: float  # the least score of those


class Chosen(NamedTuple):
  """The pairs that are kept."""

  kept: Bool[np.ndarray, "pairs"]
  choices: list[Choice]  # of each score


def best(
  score: PerPair, count: int, among: Bool[np.ndarray, "pairs"]
) -> Bool[np.ndarray, "pairs"]:
  """Marks the pairs of the highest scores; of equal ones, the first.

  Args:
    score: A score of each pair.
    count: How many to mark; all of `among` if there are no more.
    among: Which pairs may be marked.

  Example:
    >>> score = np.array([1.0, 3.0, 3.0, 2.0])
    >>> best(score, 2, among=score < 5).tolist()
    [False, True, True, False]
  """
  rows = np.flatnonzero(among)
  order = rows[np.argsort(-score[rows], kind="stable")]
  marked = np.zeros(len(score), bool)
  marked[order[:count]] = True
  return marked


def first_of_each(
  copies: Integer[np.ndarray, "pairs"], score: PerPair
) -> Bool[np.ndarray, "pairs"]:
  """Marks one pair of each group of copies: that of the highest score.

  Args:
    copies: Equal numbers for copies.
    score: A score of each pair; of equal ones, the first is marked.

  Example:
    >>> copies = np.array([7, 7, 9], np.uint64)
    >>> first_of_each(copies, np.array([0.1, 0.2, 0.0])).tolist()
    [False, True, True]
  """
  order = np.lexsort((-score, copies))
  is_first = np.ones(len(copies), bool)
  is_first[1:] = copies[order][1:] != copies[order][:-1]
  marked = np.zeros(len(copies), bool)
  marked[order[is_first]] = True
  return marked


def choose(
  scores: Sequence[PerPair],
  *,
  keep: Sequence[float] | None = None,
  threshold: Sequence[float] | None = None,
  intersect: bool = False,
  among: Bool[np.ndarray, "pairs"] | None = None,
) -> Chosen:
  """Chooses pairs by one score, or by several.

  Args:
    scores: The scores, in the order in which they choose.
    keep: A share of all pairs for each score, in (0, 1]. Each score keeps the
      best of those that the scores before it have kept, so many that they are
      this share of all pairs.
    threshold: In place of shares, the least value of each score.
    intersect: Whether each score chooses from all pairs instead, and those are
      kept that all have chosen.
    among: Which pairs may be kept; None means all.

  Returns:
    Which pairs are kept, and what each score has chosen.

  Raises:
    ValueError: If no pair is left.

  Example:
    >>> a, b = np.array([4.0, 3, 2, 1]), np.array([1.0, 2, 3, 4])
    >>> found = choose([a, b], keep=[0.75, 0.5])
    >>> found.kept.tolist(), [x.threshold for x in found.choices]
    ([False, True, True, False], [2.0, 2.0])
    >>> choose([a, b], keep=[0.75, 0.5], intersect=True).kept.tolist()
    [False, False, True, False]
  """
  n = len(scores[0])
  start = np.ones(n, bool) if among is None else among
  kept, choices = start, []
  for i, score in enumerate(scores):
    own = start if intersect else kept
    if threshold is not None:
      marked = own & (score >= threshold[i])
    else:
      # 0.29 * 100 is less than 29.
      marked = best(score, int(keep[i] * n + 1e-9), own)
    least = float(score[marked].min(initial=np.inf))
    choices.append(Choice(own, marked, least))
    kept = kept & marked
  if not kept.any():
    greatest = ", ".join(f"{x[start].max(initial=-np.inf):.4g}" for x in scores)
    raise ValueError(
      f"no pair of {n:,} is kept; lower --threshold, or raise --keep (the "
      f"greatest score is {greatest})"
    )
  return Chosen(kept, choices)

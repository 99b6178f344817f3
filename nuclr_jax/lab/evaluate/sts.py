"""Semantic textual similarity: do embeddings order pairs as people do?"""

from jaxtyping import Float
import numpy as np

from nuclr_jax.lab.data.source import RatedPairs
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.types import Metrics


def rank_correlation(
  first: Float[np.ndarray, "pairs dim"],
  second: Float[np.ndarray, "pairs dim"],
  score: Float[np.ndarray, "pairs"],
) -> float:
  """Computes Spearman's correlation of cosine similarities with scores.

  Args:
    first: Unit-norm embeddings of the first sentences.
    second: Unit-norm embeddings of the second sentences.
    score: The scores, on any scale.

  Returns:
    The correlation, in [-1, 1]; NaN if all scores, or all similarities, are
    equal.

  Example:
    >>> x, y = (
    ...   np.eye(3),
    ...   np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [1, 0, 0]]),
    ... )
    >>> round(rank_correlation(x, y, np.array([5.0, 3.0, 1.0])), 6)
    1.0

  Reference: Cer et al., SemEval-2017 Task 1.
  """
  from scipy import stats  # takes a second to import

  cosine = np.sum(np.asarray(first, np.float64) * second, axis=1)
  if np.ptp(cosine) == 0 or np.ptp(score) == 0:
    return float("nan")
  return float(stats.spearmanr(cosine, score).statistic)


def sts_evaluator(data: RatedPairs, name: str) -> Evaluator:
  """Makes an evaluator of `rank_correlation`, as `<name>/spearman`.

  Args:
    data: The rated pairs.
    name: The name of the data set.
  """

  def evaluate(embed: Embed) -> Metrics:
    first, second = embed.text(data.first), embed.text(data.second)
    return {f"{name}/spearman": rank_correlation(first, second, data.score)}

  return evaluate

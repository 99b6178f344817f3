"""From which similarity on two rows count as near-duplicates.

Cosine similarities of different models are not comparable: in one, unrelated
photos have 0.2, in another one 0.99. The threshold is therefore derived from
how far apart the rows of the data themselves are.
"""

import logging
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab.report import cells

log = logging.getLogger(__name__)

NEIGHBOURS = (8, 16)  # of a row, beyond which copies of it hardly reach
CHANCE = 1e-3  # of a row to have a neighbour nearer than the threshold
SHARE = 0.1  # of the rows, in dense regions, that may have a larger chance
NEARER = 0.5  # times as far as the last neighbour, at most
ANCHORS = 2**10  # sampled rows, at most
LEAST = (2 * cells.ROUNDING) ** 0.5  # distance; rounding hides smaller ones


class Threshold(NamedTuple):
  """The least similarity of near-duplicates, and where it is from."""

  similarity: float  # above 1 if no similarity is safe
  dimension: float | None  # of the data around a row; None without a derivation
  neighbours: int = 0  # of a row, from which it is derived

  @property
  def known(self) -> bool:
    """Whether any two rows can be near-duplicates."""
    return self.similarity <= 1


def derive(
  embedding: Float[np.ndarray, "rows dim"],
  partner: Int[np.ndarray, "rows"] | None = None,
  *,
  temperature: float,
  content: Int[np.ndarray, "rows"] | None = None,
  of: str = "rows",
) -> Threshold:
  """Derives the threshold from the distances to the nearest rows.

  If rows around a row spread evenly in m dimensions, its nearest neighbour is
  nearer than t with the probability

    1 - (1 - (t / r)^m)^(k - 1),    r = the distance to the k-th neighbour,

  whatever their density. The k nearest rows of a sample tell r and m; t is
  where the probability is `CHANCE`, but at most r / 2: in many dimensions, all
  rows are about equally far apart, and what is a bit nearer is rare, but no
  copy. The threshold 1 - t^2 / 2 is that of the t which all but a `SHARE` of
  the rows, those in dense regions, exceed. Copies do not move r as long as a
  row has fewer than k of them, nor m, which only the farther half of the
  neighbours tells. Groups of more near copies hide themselves if they have more
  than a `SHARE` of the rows.

  Where rows come in groups of about k, the distances jump from one neighbour to
  the next one, which looks like a single dimension, and t is too small. So
  there are two k, and the larger t counts.

  Args:
    embedding: Unit-norm embeddings of one side.
    partner: The other side's id for each row, as `near_duplicates.clusters`
      takes it: rows of one partner are no neighbours here.
    temperature: Of up to 16 rows, nothing can be derived, and the
      threshold is 1 - temperature / 2, above which the loss can hardly tell two
      rows apart.
    content: Equal numbers for exact copies, which count once.
    of: What the rows are, for log lines.

  Returns:
    The threshold. It is above 1 if t is too small to be told from roundings,
    as it is for a collapsed model, and in fewer than three dimensions.

  Example:
    >>> x = np.random.default_rng(0).normal(size=(500, 8))
    >>> x /= np.linalg.norm(x, axis=1, keepdims=True)
    >>> found = derive(x, temperature=0.07)
    >>> round(found.similarity, 2), round(found.dimension)
    (0.98, 6)
    >>> derive(x[:5], temperature=0.07)
    Threshold(similarity=0.965, dimension=None, neighbours=0)
  """
  from scipy import special  # slow to import

  if content is not None:
    _, first = np.unique(content, return_index=True)
    if len(first) < len(content):
      embedding = embedding[first]
      partner = None if partner is None else partner[first]
  distance = _distances(embedding, partner)
  if distance is None:
    return Threshold(1 - temperature / 2, None)
  best = Threshold(np.inf, None)
  for k in NEIGHBOURS:
    apart = distance[distance[:, k - 1] > LEAST, :k]
    if not len(apart):
      continue
    # The maximum-likelihood estimate of 1 / m from the neighbours from the
    # middle one on is distributed as a mean of exponentials. Its median is not
    # moved by the rows that have many copies.
    half = k // 2
    far = np.log(apart[:, -1:] / np.maximum(apart[:, half - 1 : -1], 1e-9))
    inverse = (far.sum(axis=1) + (half - 1) * far[:, 0]) / (k - half)
    shift = special.gammaincinv(k - half, 0.5) / (k - half)
    dimension = float(shift / max(np.median(inverse), 1e-9))
    nearest = (1 - (1 - CHANCE) ** (1 / (k - 1))) ** (1 / dimension)
    least = min(nearest, NEARER) * float(np.quantile(apart[:, -1], SHARE))
    if least > LEAST and 1 - least**2 / 2 < best.similarity:
      best = Threshold(1 - least**2 / 2, dimension, k)
  if best.known:
    log.info("%s are near-duplicates from %.6g on", of, best.similarity)
    return best
  log.warning(
    "near copies cannot be told from the neighbours of %s, which are too "
    "similar: only exact copies are duplicates",
    of,
  )
  return best


def _distances(
  x: np.ndarray, partner: np.ndarray | None
) -> Float[np.ndarray, "anchors neighbours"] | None:
  """Returns the distances of sampled rows to their nearest ones, in order.

  None if one of them has too few others.
  """
  n, k = len(x), max(NEIGHBOURS)
  if n <= k:
    return None
  size = min(n, ANCHORS, max(2**7, cells.SAMPLED // n))
  anchors = np.sort(np.random.default_rng(0).permutation(n)[:size])
  distance, size = np.empty((size, k)), max(2**4, cells.SIMILARITIES // n)
  for first in range(0, len(anchors), size):
    some = anchors[first : first + size]
    sim = x[some] @ x.T
    sim[np.arange(len(some)), some] = -np.inf
    if partner is not None:
      sim[partner[some][:, None] == partner] = -np.inf
    near = np.argpartition(-sim, k - 1, axis=1)[:, :k]
    if np.isneginf(np.take_along_axis(sim, near, axis=1)).any():
      return None
    # From differences: those of similarities near 1 are lost to rounding.
    apart = np.float64(x[some])[:, None] - x[near]
    distance[first : first + size] = np.sort(np.linalg.norm(apart, axis=2))
  return distance


def in_words(found: Threshold, of: str) -> str:
  """Says what the threshold is and where it is from, as a paragraph.

  Example:
    >>> in_words(Threshold(np.inf, None), "images")[:44]
    'Near copies cannot be told from other images'
  """
  if not found.known:
    return (
      f"Near copies cannot be told from other {of}: the nearest ones are so "
      "similar that roundings hide the difference. Only exact copies are "
      "listed."
    )
  text = f"Near copies have a cosine similarity of {shown(found)} or more. "
  if found.dimension is None:
    return text + (
      f"This is 1 - τ/2, above which the loss hardly tells two {of} apart: "
      f"there are too few {of} to derive it from them."
    )
  return text + (
    f"This is derived from how far apart these {of} are: for nine of ten, the "
    f"chance that a different one is as near by accident is {CHANCE:.1%} or "
    f"less if the {found.neighbours} nearest ones spread evenly; and no copy "
    "is farther away than half the distance to the last of these."
  )


def shown(found: Threshold) -> str:
  """Returns the similarity with as many digits as tell it from 1.

  Example:
    >>> shown(Threshold(0.98765, 8.0)), shown(Threshold(0.99999876, 8.0))
    ('0.988', '0.9999988')
  """
  digits = max(3, 1 - int(np.floor(np.log10(max(1 - found.similarity, 1e-9)))))
  return f"{found.similarity:.{digits}f}"

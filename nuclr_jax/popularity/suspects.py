"""Samples that a person should look at, from embeddings and popularities."""

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.popularity.exact import Popularity
from nuclr_jax.types import Pairs, Sides, each, swap

CHUNK = 2**26  # similarities at a time, 256 MiB
MAX_LINKS = 32  # links of a row that are followed, the first ones


def log_own_weight(
  found: Popularity, pairs: Pairs, *, temperature: float
) -> Sides:
  """Log of the weight w_ii that each anchor gives to its own pair.

    log w_ii = (sim_ii - zeta_i) / tau - D_i

  Near 0 if the pair finds itself among all data; very negative if others are
  far more likely: then its text may be wrong (label noise).

  Returns:
    [pairs] each, filed with the anchor.
  """
  own = np.einsum("nd,nd->n", pairs.image, pairs.text)
  rows = each(lambda ids, x: np.searchsorted(ids, x), found.ids, pairs.ids)
  zeta = each(lambda z, row: z[row], found.zeta, rows)
  return each(
    lambda z, d: (own - z) / temperature - d,
    swap(zeta),
    found.log_denominator,
  )


def preferred(
  anchors: Float[np.ndarray, "anchors dim"],
  contrast: Float[np.ndarray, "contrast dim"],
  zeta: Float[np.ndarray, "contrast"],
) -> Int[np.ndarray, "anchors"]:
  """The contrast that gets the greatest weight of each of a few anchors.

  Example:
    >>> preferred(np.eye(2), np.eye(2), np.array([0.0, 2.0]))
    array([0, 0])
  """
  return np.argmax(anchors @ contrast.T - zeta, axis=1)


def clusters(
  embedding: Float[np.ndarray, "rows dim"],
  partner: Int[np.ndarray, "rows"],
  *,
  threshold: float,
) -> list[Int[np.ndarray, "members"]]:
  """Groups of near-duplicates that training takes for negatives.

  Two rows are linked if their cosine similarity is at least the threshold and
  they have different partners (images of one text are no negatives of each
  other anyway). A cluster is what links connect; of a row with more
  than `MAX_LINKS` links only the first are followed.

  Args:
    embedding: Unit-norm embeddings of one side, one row per id.
    partner: The other side's id of each row.
    threshold: In (0, 1]; 1 - temperature / 2 is where the loss can hardly tell
      two samples apart.

  Returns:
    Row indices of each cluster, the largest cluster first.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> clusters(x, np.arange(3), threshold=0.9)
    [array([0, 2])]
  """
  from scipy.sparse import csgraph, csr_array  # slow to import

  n = len(embedding)
  size = max(1, CHUNK // n)
  starts, ends = [], []
  for first in range(0, n, size):
    rows = slice(first, first + size)
    linked = embedding[rows] @ embedding.T >= threshold
    linked &= partner[rows, None] != partner
    start, end = np.nonzero(linked)
    # The position of a link among those of its row.
    place = np.arange(len(start)) - np.searchsorted(start, start)
    followed = place < MAX_LINKS
    starts.append(start[followed] + first)
    ends.append(end[followed])
  start, end = np.concatenate(starts), np.concatenate(ends)
  graph = csr_array((np.ones(len(start), bool), (start, end)), shape=(n, n))
  count, label = csgraph.connected_components(graph, directed=False)
  sizes = np.bincount(label, minlength=count)
  order = np.argsort(label, kind="stable")
  members = np.split(order, np.cumsum(sizes)[:-1])
  largest = np.argsort(-sizes, kind="stable")
  return [members[i] for i in largest if sizes[i] > 1]

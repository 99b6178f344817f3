"""What popularities show: agreement, copies, samples not in the data."""

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax import checks, sharding
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import AnyArray, Metrics


def compare(
  learned: Float[AnyArray, "ids"], exact: Float[AnyArray, "ids"]
) -> Metrics:
  """Computes correlations and spreads of the zeta of one side, one row per id.

  Returns:
    `pearson` and `spearman` (NaN where either side is constant), and the
    standard deviations `learned_std` and `exact_std`, in units of similarity.

  Example:
    >>> x = np.array([1.0, 2.0, 4.0])
    >>> round(compare(x, 2 * x)["pearson"], 6)
    1.0
  """
  from scipy import stats  # slow to import

  learned, exact = (np.asarray(x, float) for x in (learned, exact))
  constant = np.ptp(learned) == 0 or np.ptp(exact) == 0
  metrics = {}
  for name, f in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
    value = np.nan if constant else f(learned, exact).statistic
    metrics[name] = float(value)
  return metrics | {
    "learned_std": float(np.std(learned)),
    "exact_std": float(np.std(exact)),
  }


CHUNK = 2**26  # similarities at a time, 256 MiB
MAX_LINKS = 32  # links of a row that are followed, starting with the first


def preferred(
  anchors: Float[np.ndarray, "anchors dim"],
  contrast: Float[np.ndarray, "contrast dim"],
  zeta: Float[np.ndarray, "contrast"],
) -> Int[np.ndarray, "anchors"]:
  """Returns the contrast to which each of a few anchors gives most weight.

  Example:
    >>> preferred(np.eye(2), np.eye(2), np.array([0.0, 2.0]))
    array([0, 0])
  """
  return np.argmax(anchors @ contrast.T - zeta, axis=1)


def clusters(
  embedding: Float[np.ndarray, "rows dim"],
  partner: Int[np.ndarray, "rows"] | None = None,
  *,
  threshold: float,
  content: Int[np.ndarray, "rows"] | None = None,
) -> list[Int[np.ndarray, "members"]]:
  """Finds groups of near-duplicates.

  Two rows are linked if their cosine similarity is at least the threshold.
  Clusters are the connected components; only the first `MAX_LINKS` links of
  each row are followed.

  Args:
    embedding: Unit-norm embeddings of one side.
    partner: The other side's id for each row: rows with the same partner are
      not linked, whose clusters are then of rows that training takes for
      negatives of each other. (A training makes images of one text similar,
      although they are no copies.) None links rows whatever their partners.
    threshold: The least cosine similarity of a link, in (0, 1]; at
      1 - temperature / 2 the loss can hardly tell two samples apart.
    content: Equal numbers for exact copies, which are always linked. None
      knows of no copies.

  Returns:
    Row indices of each cluster, the largest cluster first.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> clusters(x, threshold=0.9)
    [array([0, 2])]
    >>> clusters(x, np.array([5, 6, 5]), threshold=0.9)
    []
  """
  from scipy.sparse import csgraph, csr_array  # slow to import

  n = len(embedding)
  size = max(1, CHUNK // n)
  starts, ends = [], []
  for first in range(0, n, size):
    rows = slice(first, first + size)
    linked = embedding[rows] @ embedding.T >= threshold
    if partner is not None:
      linked &= partner[rows, None] != partner
    if content is not None:
      linked |= content[rows, None] == content
    start, end = np.nonzero(linked)
    # The position of each link among the links of its row.
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


def nearest_members(
  embedding: Float[np.ndarray, "members dim"],
  content: Int[np.ndarray, "members"],
) -> tuple[Int[np.ndarray, "members"], Float[np.ndarray, "members"]]:
  """Finds the member of a cluster that each of its members is most like.

  Args:
    embedding: Unit-norm embeddings of the members, at least two.
    content: Equal numbers for exact copies, whose similarity is 1.

  Returns:
    The position of another member, an exact copy if there is one, and its
    cosine similarity.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
    >>> nearest_members(x, np.array([7, 8, 7]))
    (array([2, 0, 0]), array([1. , 0.6, 1. ]))
  """
  n, exact = len(embedding), 2.0  # above all similarities
  nearest, similarity = np.empty(n, int), np.empty(n)
  for first in range(0, n, max(1, CHUNK // n)):
    rows = np.arange(first, min(n, first + max(1, CHUNK // n)))
    sim = embedding[rows] @ embedding.T
    sim[content[rows, None] == content] = exact
    sim[np.arange(len(rows)), rows] = -np.inf
    nearest[rows] = np.argmax(sim, axis=1)
    similarity[rows] = np.minimum(sim.max(axis=1), 1)
  return nearest, similarity


def zeta_of_unseen(
  unseen: Float[AnyArray, "unseen dim"],
  anchors: Float[AnyArray, "pairs dim"],
  log_denominator: Float[AnyArray, "pairs"],
  *,
  temperature: float,
) -> Float[np.ndarray, "unseen"]:
  r"""Computes zeta of new contrast data from the anchors of a solution.

    zeta_j = tau log sum_i exp(sim_ij / tau - D_i)

  This is eq. (9) read from left to right, with D_i the anchors' denominators in
  the solved data: it says how much of the anchors' weight a new sample would
  attract. A new image or text has no pair of its own among the anchors.
  Subtracting zeta from similarities corrects for hubs, samples that are near to
  all others.

  Args:
    unseen: Embeddings of new texts (or images).
    anchors: Embeddings of the solved pairs' images (or texts).
    log_denominator: The D_i, `Popularity.log_denominator.image` (or `.text`).
    temperature: The tau of the solution.

  Returns:
    zeta, up to a constant that all new samples share.

  Example:
    >>> from nuclr_jax import popularity
    >>> eye = np.eye(3)
    >>> found = popularity.solve(eye, eye, temperature=0.5)
    >>> zeta = zeta_of_unseen(
    ...   np.array([[0.6, 0.8, 0.0], [0.0, 0.0, -1.0]]),
    ...   eye,
    ...   found.log_denominator.image,
    ...   temperature=0.5,
    ... )
    >>> bool(zeta[0] > zeta[1])  # the first is near to two of three
    True
  """
  tau = checks.temperature(temperature)
  unseen, anchors = np.asarray(unseen), np.asarray(anchors)
  dtype = np.result_type(np.float32, unseen, anchors)
  weight = -np.asarray(log_denominator, dtype)
  log_sums = tiles.row_log_sum_exp(
    unseen.astype(dtype), anchors.astype(dtype), weight, temperature=tau
  )
  return tau * np.asarray(sharding.fetch(log_sums), float)

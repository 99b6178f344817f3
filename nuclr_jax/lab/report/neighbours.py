"""Nearest neighbours among many embeddings, compared in cells."""

import logging

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.evaluate.suspects import Neighbours
from nuclr_jax.lab.report import cells

log = logging.getLogger(__name__)

CROWD = 16 * cells.CELL  # rows of a cell among which `nearest` looks, at most
BLOCK = 2**12  # rows for which it looks at a time
FEW = 2**12  # members of a cluster that are all compared with each other


def nearest(
  x: Float[np.ndarray, "rows dim"], k: int, *, of: str = "rows"
) -> Neighbours:
  """Finds the most similar other rows of each row.

  Of more than `cells.EXACT` rows, each one is compared with those of its
  nearest cells only, and with `CROWD` of a cell at most: `share_of_nearest`
  measures what is missed.

  Args:
    x: Embeddings of unit norm.
    k: The number of neighbours; all other rows, if there are fewer.
    of: What the rows are, for log lines.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> found = nearest(x, 1)
    >>> found.row.ravel(), found.distance.round(2).ravel()
    (array([1, 2, 1]), array([0.4, 0.2, 0.2]))
  """
  n, given = len(x), x
  x = np.ascontiguousarray(x, np.float32)  # what faiss takes
  k, grid = max(0, min(k, n - 1)), cells.make_cells(cells.make_bounds(x), of=of)
  row = np.full((n, k), -1)
  sim, done = np.full((n, k), -np.inf, np.float32), 0
  show = progress.reporter(f"{of} compared with neighbours", n, brief=True)
  for own, guests in grid.members():
    crowd = own[:: 1 if grid.count == 1 else -(-len(own) // CROWD) or 1]
    candidates, rows = x[crowd], np.concatenate([own, guests])
    for first in range(0, len(rows) if k and len(crowd) else 0, BLOCK):
      some = rows[first : first + BLOCK]
      near, similarity = _most_similar(x, some, crowd, candidates, k)
      near = np.concatenate([row[some], near], axis=1)
      similarity = np.concatenate([sim[some], similarity], axis=1)
      best = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
      row[some] = np.take_along_axis(near, best, axis=1)
      sim[some] = np.take_along_axis(similarity, best, axis=1)
      show(done + min(first + BLOCK, len(own)))
    done += len(own)
  lonely = np.flatnonzero((row < 0).any(axis=1))  # in small cells only
  for first in range(0, len(lonely), BLOCK):
    some = lonely[first : first + BLOCK]
    row[some], sim[some] = _most_similar(x, some, np.arange(n), x, k)
  if given.dtype != np.float32:
    sim = cells.similarity(given, np.repeat(np.arange(n), k), row.ravel())
    sim = sim.reshape(n, k)
  return Neighbours(row, 1 - sim)


def _most_similar(x, rows, numbers, candidates, k: int):
  """Returns the k candidates most similar to rows, which are none of them.

  Args:
    x: All embeddings.
    rows: The numbers of some rows.
    numbers: The numbers of the candidates.
    candidates: Their embeddings.
    k: How many; fewer, if there are no more candidates.
  """
  import faiss  # slow to import

  sim, near = faiss.knn(
    x[rows],
    candidates,
    min(k + 1, len(candidates)),
    metric=faiss.METRIC_INNER_PRODUCT,
  )
  near = numbers[near]
  # The row itself, if it is among them, is put last.
  itself = near == rows[:, None]
  sim[itself] = -np.inf
  order = np.argsort(itself, axis=1, kind="stable")[:, :k]
  near, sim = (np.take_along_axis(a, order, axis=1) for a in (near, sim))
  return np.where(np.isneginf(sim), -1, near), sim


def share_of_nearest(
  x: Float[np.ndarray, "rows dim"], found: Neighbours, *, of: str = "rows"
) -> float:
  """Measures how many of the nearest rows `nearest` has found, on a sample.

  A row that is as similar as the last of the nearest ones counts as one.

  Args:
    x: Embeddings of unit norm.
    found: The neighbours of all rows.
    of: What the rows are, for log lines.

  Returns:
    The share; 1 if all pairs of rows were compared.

  Example:
    >>> share_of_nearest(np.eye(3), nearest(np.eye(3), 1))
    1.0
  """
  (n, k), x = found.row.shape, np.ascontiguousarray(x, np.float32)
  if n <= cells.EXACT:
    return 1.0
  size = min(n, max(1, cells.SAMPLED // (4 * n)))
  sample = np.sort(np.random.default_rng(1).choice(n, size, replace=False))
  last = np.empty(size, np.float32)
  for rows in progress.slices(f"sampled {of} compared", size, BLOCK // 16):
    _, sim = _most_similar(x, sample[rows], np.arange(n), x, k)
    last[rows] = sim[:, -1]
  # Similarities are rounded differently in products of different shapes.
  right = 1 - found.distance[sample] >= last[:, None] - cells.ROUNDING
  share = float(right.mean())
  log.info("%.4f of the %d nearest of sampled %s are found", share, k, of)
  return share


def nearest_members(
  embedding: Float[np.ndarray, "members dim"],
  content: Int[np.ndarray, "members"],
) -> tuple[Int[np.ndarray, "members"], Float[np.ndarray, "members"]]:
  """Finds the member of a cluster that each of its members is most like.

  Of more than `cells.EXACT` members, it may be one that is nearly as similar
  (see `nearest`).

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
  n = len(embedding)
  if n <= FEW:
    sim = embedding @ embedding.T
    np.fill_diagonal(sim, -np.inf)
    at = np.argmax(sim, axis=1)
    similarity = np.minimum(sim[np.arange(n), at], 1)
  else:
    found = nearest(embedding, 1, of="members of a cluster")
    at, similarity = found.row[:, 0], np.minimum(1 - found.distance[:, 0], 1)
  # The first copy of each one, and of the first one the second.
  order = np.argsort(content, kind="stable")
  _, first, row, count = np.unique(
    content[order], return_index=True, return_inverse=True, return_counts=True
  )
  copy = np.empty(n, int)
  copy[order] = order[first[row]]
  second = np.where(count > 1, first + 1, first)
  copy[order[first]] = order[second]
  copied = copy != np.arange(n)
  return np.where(copied, copy, at), np.where(copied, 1, similarity)

"""Neighbours and near-duplicates among many embeddings.

Up to `EXACT` rows, all pairs of rows are compared. More rows than that are
first put into cells of about `CELL` rows, by k-means, and each row is compared
with those of its `PROBES` nearest cells: of a million rows, with 4,000. Rows as
similar as near-duplicates nearly always meet there; how often is measured on a
sample of rows.

Near-duplicates are first compared by `COMPONENTS` numbers per row, which bound
their similarity.
"""

from collections.abc import Iterable, Iterator
import logging
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax import progress
from nuclr_jax.popularity.suspects import Neighbours

log = logging.getLogger(__name__)

EXACT = 2**15  # rows that are all compared, which takes seconds
CELL = 256  # rows of a cell, on average
PROBES = 16  # cells with which a row is compared
COMPONENTS = 64  # principal components of the embeddings
TRAINING = 32  # rows per cell to which k-means is fitted
ITERATIONS = 8  # of k-means
PIVOTS = 2  # rows of a cell that may connect most of it
SIMILARITIES = 2**22  # at a time, 16 MiB
SAMPLED = 2**29  # bounds of similarities of the sample that recall is from
SHARE = 1 / 64  # of pairs within the bound; if there are more, all are compared
LINKS = 4  # per row, that are held at once
CROWD = 16 * CELL  # rows of a cell among which `nearest` looks, at most
BLOCK = 2**12  # rows for which it looks at a time
ROUNDING = 1e-5  # of a similarity in float32
FEW = 2**12  # members of a cluster that are all compared with each other

Links = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]


class Cells(NamedTuple):
  """Which cells rows are in."""

  of_row: Int[np.ndarray, "rows probes"]  # the nearest ones, its own one first
  count: int

  def members(
    self,
  ) -> Iterator[tuple[Int[np.ndarray, "own"], Int[np.ndarray, "guests"]]]:
    """Yields each cell's own rows, and those that have it as another probe."""
    n, probes = self.of_row.shape
    order = np.argsort(self.of_row.T.ravel(), kind="stable")
    sizes = np.bincount(self.of_row.ravel(), minlength=self.count)
    for start, end in zip(
      np.cumsum(sizes) - sizes, np.cumsum(sizes), strict=True
    ):
      place = order[start:end]  # own rows come first
      own = np.searchsorted(place, n)
      yield place[:own], place[own:] % n


def make_bounds(
  x: Float[np.ndarray, "rows dim"],
) -> Float[np.ndarray, "rows components"]:
  """Returns short rows whose dot products are no less than those of all rows.

  They are the `COMPONENTS` principal components of each row and the norm r of
  what these leave, since <x_i, x_j> is at most <c_i, c_j> + r_i r_j.

  Args:
    x: Unit-norm embeddings; if they have no more dimensions than that, they
      are returned.

  Example:
    >>> x = np.random.default_rng(0).normal(size=(5, 100))
    >>> x /= np.linalg.norm(x, axis=1, keepdims=True)
    >>> short = make_bounds(x)
    >>> short.shape, bool((short @ short.T > x @ x.T).all())
    ((5, 65), True)
  """
  n, dim = x.shape
  if dim <= COMPONENTS:
    return x
  rows = np.random.default_rng(0).choice(n, min(n, 64 * dim), replace=False)
  sample = np.float32(x[np.sort(rows)])
  _, axes = np.linalg.eigh(sample.T @ sample)  # the largest components last
  bounds = np.empty((n, COMPONENTS + 1), np.float32)
  size = max(1, SIMILARITIES // dim)
  for start in range(0, n, size):
    block = np.float32(x[start : start + size])
    components = block @ axes[:, -COMPONENTS:]
    left = np.square(block).sum(axis=1) - np.square(components).sum(axis=1)
    bounds[start : start + size, :-1] = components
    # The difference may be a bit too small.
    bounds[start : start + size, -1] = np.sqrt(np.maximum(left, 0) + 1e-6)
  return bounds


def make_cells(
  bounds: Float[np.ndarray, "rows components"], *, of: str = "rows"
) -> Cells:
  """Puts rows into cells; if they are at most `EXACT`, into a single one.

  The same rows are put into the same cells each time.

  Args:
    bounds: What `make_bounds` returned.
    of: What the rows are, for log lines.
  """
  n, dim = bounds.shape
  if n <= EXACT:
    return Cells(np.zeros((n, 1), np.int32), 1)
  import faiss  # slow to import

  count = n // CELL
  size = min(n, TRAINING * count)
  rows = np.random.default_rng(0).choice(n, size, replace=False)
  kmeans = faiss.Kmeans(
    dim,
    count,
    niter=ITERATIONS,
    seed=0,
    min_points_per_centroid=1,
    max_points_per_centroid=TRAINING,
  )
  log.info("making %d cells of %s", count, of)
  kmeans.train(np.float32(bounds[np.sort(rows)]))
  of_row = np.empty((n, min(PROBES, count)), np.int32)
  size = SIMILARITIES // count
  for rows in progress.slices(f"{of} put into cells", n, size):
    x = np.ascontiguousarray(bounds[rows], np.float32)
    of_row[rows] = kmeans.index.search(x, of_row.shape[1])[1]
  return Cells(of_row, count)


def clusters(
  embedding: Float[np.ndarray, "rows dim"],
  partner: Int[np.ndarray, "rows"] | None = None,
  *,
  threshold: float,
  content: Int[np.ndarray, "rows"] | None = None,
  of: str = "rows",
) -> list[Int[np.ndarray, "_"]]:
  """Finds groups of near-duplicates.

  Two rows are linked if their cosine similarity, computed in float64, is at
  least the threshold. Clusters are the connected components. Of more than
  `EXACT` rows, a few links may be missed (see `recall`). Memory is that of
  about a hundred numbers per row, even if all rows are linked.

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
    of: What the rows are, for log lines.

  Returns:
    Row indices of each cluster, the largest cluster first.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> clusters(x, threshold=0.9)
    [array([0, 2])]
    >>> clusters(x, np.array([5, 6, 5]), threshold=0.9)
    []
  """
  n = len(embedding)
  pairs = _Pairs(embedding, make_bounds(embedding), partner, threshold)

  def links() -> Iterator[Links]:
    if content is not None:
      _, first, row = np.unique(content, return_index=True, return_inverse=True)
      yield first[row], np.arange(n)
    cells, done = make_cells(pairs.bounds, of=of), 0
    show = progress.reporter(f"{of} compared", n, brief=True)
    for own, guests in cells.members():
      for start, end, rows in _links_of_cell(pairs, own, guests):
        yield start, end
        show(done + rows)
      done += len(own)

  label = _components(links(), n)
  sizes = np.bincount(label)
  members = np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])
  largest = np.argsort(-sizes, kind="stable")
  return [members[i] for i in largest if sizes[i] > 1]


def _components(links: Iterable[Links], n: int) -> Int[np.ndarray, "rows"]:
  """Numbers the connected components of n rows, in the order of their first."""
  from scipy.sparse import csgraph, csr_array  # slow to import

  label, kept, count = np.arange(n), [], 0

  def joined() -> Int[np.ndarray, "rows"]:
    start, end = (np.concatenate(x) for x in zip(*kept, strict=True))
    edges = np.ones(len(start), bool), (label[start], label[end])
    graph = csr_array(edges, shape=(n, n))
    return csgraph.connected_components(graph, directed=False)[1][label]

  for start, end in links:
    kept.append((start, end))
    count += len(start)
    if count > LINKS * n:
      label, kept, count = joined(), [], 0
  _, first, row = np.unique(
    joined() if kept else label, return_index=True, return_inverse=True
  )
  return np.argsort(np.argsort(first))[row]


class _Pairs(NamedTuple):
  """Which rows are linked; see `clusters` and `make_bounds`."""

  x: np.ndarray
  bounds: np.ndarray
  partner: np.ndarray | None
  threshold: float

  def linked(self, rows: np.ndarray, others: np.ndarray) -> Links:
    """Returns both ends of the links of rows to others."""
    least = self.threshold - ROUNDING
    bound = self.bounds[rows] @ self.bounds[others].T
    near = np.flatnonzero(bound >= least)
    sim = None
    if len(near) > SHARE * bound.size:  # too many to look at one by one
      sim = self.x[rows] @ self.x[others].T
      near = np.flatnonzero(sim >= least)
      sim = sim.ravel()[near]
    i, j = np.divmod(near, len(others))
    i, j = rows[i], others[j]
    if sim is None:
      sim = _similarity(self.x, i, j)
    right = sim >= least
    if self.partner is not None:
      right &= self.partner[i] != self.partner[j]
    unsure = np.flatnonzero(right & (sim < self.threshold + ROUNDING))
    exact = _similarity(self.x, i[unsure], j[unsure], float)
    right[unsure] = exact >= self.threshold
    return i[right], j[right]


def _similarity(x, i, j, dtype=None) -> np.ndarray:
  """Returns the dot products of the rows i and j, in a type."""
  sim, size = np.empty(len(i), dtype or x.dtype), SIMILARITIES // x.shape[1]
  for start in range(0, len(i), size + 1):
    some = slice(start, start + size + 1)
    a, b = (x[k[some]].astype(sim.dtype, copy=False) for k in (i, j))
    sim[some] = np.einsum("nd,nd->n", a, b)
  return sim


def _links_of_cell(
  pairs: _Pairs, own: np.ndarray, guests: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
  """Yields links that connect what all links of a cell connect.

  Rows that are linked to one row, a pivot, are connected, and need not be
  compared with each other. Where all rows are alike, the time is therefore not
  quadratic, and there are not too many links.

  Args:
    pairs: Says what is linked.
    own: The rows of the cell, which are compared with all.
    guests: Rows that are not compared with each other.

  Yields:
    Both ends of some links, and how many of the own rows are done.
  """
  if not len(own):
    return
  rows, bounds = np.concatenate([own, guests]), pairs.bounds[own]
  tied = np.zeros(len(rows), bool)
  # The first pivot is in the densest part of the cell. The next one is linked
  # to it, and thus has another partner.
  pivot = own[np.argmax(bounds @ bounds.mean(axis=0))]
  for _ in range(PIVOTS):
    start, end = pairs.linked(np.array([pivot]), rows)
    if not len(end):
      break
    yield start, end, 0
    tied |= np.isin(rows, end)
    pivot = end[0]
  tied, tied_guests = tied[: len(own)], tied[len(own) :]
  loose, tied = own[~tied], own[tied]
  done, everything = 0, np.concatenate([loose, tied, guests])
  for some, others in ((loose, everything), (tied, guests[~tied_guests])):
    first, size = 0, max(1, SIMILARITIES // max(1, len(others)))
    while first < len(some):
      block = some[first : first + size]
      # Loose rows are compared with those after them.
      to = others[first:] if some is loose else others
      done, first = done + len(block), first + size
      yield *pairs.linked(block, to), done


def recall(
  embedding: Float[np.ndarray, "rows dim"],
  partner: Int[np.ndarray, "rows"] | None,
  clusters: list[Int[np.ndarray, "_"]],
  *,
  threshold: float,
  of: str = "rows",
) -> float | None:
  """Measures which share of all links is within clusters.

  A sample of rows is compared with all rows: half of them are in clusters, half
  are not, and both are weighted by how many there are.

  Args:
    embedding: As for `clusters`.
    partner: As for `clusters`.
    clusters: What it returned.
    threshold: The least cosine similarity of a link.
    of: What the rows are, for log lines.

  Returns:
    The share; 1 if `clusters` has compared all pairs of rows, and None if the
    sample has no links.

  Example:
    >>> recall(np.eye(2), None, [], threshold=0.9)
    1.0
  """
  n = len(embedding)
  if n <= EXACT:
    return 1.0
  label = np.arange(n)
  for members in clusters:
    label[members] = members[0]
  alone = np.bincount(label)[label] == 1
  rng, size = np.random.default_rng(1), max(2, SAMPLED // n)
  pairs = _Pairs(embedding, make_bounds(embedding), partner, threshold)
  number, links = np.arange(n), np.zeros(2)  # all links, those within clusters
  for rows in map(np.flatnonzero, (alone, ~alone)):
    sample = np.sort(rng.permutation(rows)[: size // 2])
    what = f"sampled {of} compared with all"
    for some in progress.slices(what, len(sample), SIMILARITIES // n):
      start, end = pairs.linked(sample[some], number)
      within = np.sum((label[start] == label[end]) & (start != end))
      weight = len(rows) / len(sample)
      links += weight * np.array([np.sum(start != end), within])
  if not links[0]:
    return None
  share = float(links[1] / links[0])
  log.info("%.4f of the links of sampled %s are within clusters", share, of)
  return share


def in_words(share: float | None) -> str:
  """Says what `recall` has found, as the end of a paragraph.

  Example:
    >>> in_words(1.0), in_words(0.99)
    ('', " Not all pairs were compared; 99.0% of a sample's links are found.")
  """
  if share == 1:
    return ""
  found = "the sample that was has no links"
  if share is not None:
    found = f"{share:.1%} of a sample's links are found"
  return f" Not all pairs were compared; {found}."


def nearest(
  x: Float[np.ndarray, "rows dim"], k: int, *, of: str = "rows"
) -> Neighbours:
  """Finds the most similar other rows of each row.

  Of more than `EXACT` rows, each one is compared with those of its nearest
  cells only, and with `CROWD` of a cell at most (see `share_of_nearest`).

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
  k, cells = max(0, min(k, n - 1)), make_cells(make_bounds(x), of=of)
  row = np.full((n, k), -1)
  sim, done = np.full((n, k), -np.inf, np.float32), 0
  show = progress.reporter(f"{of} compared with neighbours", n, brief=True)
  for own, guests in cells.members():
    crowd = own[:: 1 if cells.count == 1 else -(-len(own) // CROWD) or 1]
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
    sim = _similarity(given, np.repeat(np.arange(n), k), row.ravel())
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
  if n <= EXACT:
    return 1.0
  size = min(n, max(1, SAMPLED // (4 * n)))
  sample = np.sort(np.random.default_rng(1).choice(n, size, replace=False))
  last = np.empty(size, np.float32)
  for rows in progress.slices(f"sampled {of} compared", size, BLOCK // 16):
    _, sim = _most_similar(x, sample[rows], np.arange(n), x, k)
    last[rows] = sim[:, -1]
  # Similarities are rounded differently in products of different shapes.
  right = 1 - found.distance[sample] >= last[:, None] - ROUNDING
  share = float(right.mean())
  log.info("%.4f of the %d nearest of sampled %s are found", share, k, of)
  return share


def nearest_members(
  embedding: Float[np.ndarray, "members dim"],
  content: Int[np.ndarray, "members"],
) -> tuple[Int[np.ndarray, "members"], Float[np.ndarray, "members"]]:
  """Finds the member of a cluster that each of its members is most like.

  Of more than `EXACT` members, it may be one that is nearly as similar (see
  `nearest`).

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

"""Near-duplicates among many embeddings: the clusters that links connect.

Rows are compared by `cells.COMPONENTS` numbers each, which bound their
similarity, with those of the nearest cells. Rows as similar as near-duplicates
nearly always meet there; how often is measured on a sample of rows.
"""

from collections.abc import Iterable, Iterator
import logging
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.report import cells

log = logging.getLogger(__name__)

PIVOTS = 2  # rows of a cell that may connect most of it
SHARE = 1 / 64  # of pairs within the bound; if there are more, all are compared
LINKS = 4  # per row, that are held at once

Links = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]


def partners(
  own: Int[np.ndarray, "pairs"], other: Int[np.ndarray, "pairs"]
) -> Int[np.ndarray, "rows"]:
  """Returns the partner of each id, for `clusters` of a trained model.

  Args:
    own: The id of each pair on the side whose rows are compared.
    other: Its id on the other side.

  Returns:
    For each distinct `own`, in ascending order, the only id it is paired with;
    if there are several, a negative number that no other row has.

  Example:
    >>> partners(np.array([0, 1, 1, 2]), np.array([7, 7, 8, 7]))
    array([ 7, -2,  7])
  """
  _, first, row = np.unique(own, return_index=True, return_inverse=True)
  partner = other[first]
  several = np.zeros(len(first), bool)
  several[row[other != partner[row]]] = True
  return np.where(several, -1 - np.arange(len(first)), partner)


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
  `cells.EXACT` rows, a few links may be missed (see `recall`). Memory is that
  of about a hundred numbers per row, even if all rows are linked.

  Args:
    embedding: Unit-norm embeddings of one side.
    partner: The other side's id for each row: rows with the same partner are
      not linked, whose clusters are then of rows that training takes for
      negatives of each other. (A training makes images of one text similar,
      although they are not copies.) None links rows whatever their partners.
    threshold: The least cosine similarity of a link, greater than 0 (see
      `near_threshold.derive`); above 1, only exact copies are linked.
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
  pairs = _Pairs(embedding, cells.make_bounds(embedding), partner, threshold)

  def links() -> Iterator[Links]:
    if content is not None:
      _, first, row = np.unique(content, return_index=True, return_inverse=True)
      yield first[row], np.arange(n)
    grid, done = cells.make_cells(pairs.bounds, of=of), 0
    show = progress.reporter(f"{of} compared", n, brief=True)
    for own, guests in grid.members():
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
  """Which rows are linked; see `clusters` and `cells.make_bounds`."""

  x: np.ndarray
  bounds: np.ndarray
  partner: np.ndarray | None
  threshold: float

  def linked(self, rows: np.ndarray, others: np.ndarray) -> Links:
    """Returns both ends of the links of rows to others."""
    least = self.threshold - cells.ROUNDING
    # All rows, in their order, are not copied.
    is_all = np.array_equal(others, np.arange(len(self.x)))
    chosen = slice(None) if is_all else others
    bound = self.bounds[rows] @ self.bounds[chosen].T
    near = np.flatnonzero(bound >= least)
    sim = None
    if len(near) > SHARE * bound.size:  # too many to look at one by one
      sim = self.x[rows] @ self.x[chosen].T
      near = np.flatnonzero(sim >= least)
      sim = sim.ravel()[near]
    i, j = np.divmod(near, len(others))
    i, j = rows[i], others[j]
    if sim is None:
      sim = cells.similarity(self.x, i, j)
    right = sim >= least
    if self.partner is not None:
      right &= self.partner[i] != self.partner[j]
    unsure = np.flatnonzero(right & (sim < self.threshold + cells.ROUNDING))
    exact = cells.similarity(self.x, i[unsure], j[unsure], float)
    right[unsure] = exact >= self.threshold
    return i[right], j[right]


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
    first, size = 0, max(1, cells.SIMILARITIES // max(1, len(others)))
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
  if n <= cells.EXACT:
    return 1.0
  label = np.arange(n)
  for members in clusters:
    label[members] = members[0]
  alone = np.bincount(label)[label] == 1
  rng, size = np.random.default_rng(1), max(2, cells.SAMPLED // n)
  pairs = _Pairs(embedding, cells.make_bounds(embedding), partner, threshold)
  number, links = np.arange(n), np.zeros(2)  # all links, those within clusters
  for rows in map(np.flatnonzero, (alone, ~alone)):
    sample = np.sort(rng.permutation(rows)[: size // 2])
    what = f"sampled {of} compared with all"
    for some in progress.slices(what, len(sample), cells.SIMILARITIES // n):
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
  found = "the sampled pairs have no links"
  if share is not None:
    found = f"{share:.1%} of a sample's links are found"
  return f" Not all pairs were compared; {found}."

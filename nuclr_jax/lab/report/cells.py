"""Cells of similar rows, so that not all pairs of rows need to be compared.

Up to `EXACT` rows are in a single cell. More rows than that are put into cells
of about `CELL` rows, by k-means, and each row is compared with those of its
`PROBES` nearest cells: of a million rows, with 4,000.
"""

from collections.abc import Iterator
import logging
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import progress

log = logging.getLogger(__name__)

EXACT = 2**16  # rows that are all compared, which takes seconds
CELL = 256  # rows of a cell, on average
PROBES = 16  # cells with which a row is compared
COMPONENTS = 64  # principal components of the embeddings
TRAINING = 32  # rows per cell to which k-means is fitted
ITERATIONS = 8  # of k-means
SIMILARITIES = 2**22  # at a time, 16 MiB
SAMPLED = 2**29  # similarities of a sample on which recall is measured
ROUNDING = 1e-5  # of a similarity in float32


class Partition(NamedTuple):
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
) -> Partition:
  """Puts rows into cells; if they are at most `EXACT`, into a single one.

  The same rows are put into the same cells each time.

  Args:
    bounds: What `make_bounds` returned.
    of: What the rows are, for log lines.
  """
  n, dim = bounds.shape
  if n <= EXACT:
    return Partition(np.zeros((n, 1), np.int32), 1)
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
  return Partition(of_row, count)


def similarity(
  x: Float[np.ndarray, "rows dim"],
  i: Int[np.ndarray, "pairs"],
  j: Int[np.ndarray, "pairs"],
  dtype: type | None = None,
) -> Float[np.ndarray, "pairs"]:
  """Returns the dot products of rows i and j, in the type of x or another."""
  sim, size = np.empty(len(i), dtype or x.dtype), SIMILARITIES // x.shape[1]
  for start in range(0, len(i), size + 1):
    some = slice(start, start + size + 1)
    a, b = (x[k[some]].astype(sim.dtype, copy=False) for k in (i, j))
    sim[some] = np.einsum("nd,nd->n", a, b)
  return sim

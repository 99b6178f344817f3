"""Ranks among similarities, computed in chunks on all devices."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Integer
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab import progress
from nuclr_jax.pairwise import tiles

SMALLEST_NORM = 1e-12  # used as a divisor
CHUNK_SIMILARITIES = 2**26  # that a device holds at once: 256 MiB


def unit_rows(
  x: Float[np.ndarray, "rows dim"],
) -> Float[np.ndarray, "rows dim"]:
  """Scales rows to unit norm, in a new array; rows of zeros stay zero.

  Example:
    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
  """
  norm = np.linalg.norm(x, axis=1, keepdims=True)
  return x / np.maximum(norm, SMALLEST_NORM)


def class_means(
  rows: Float[np.ndarray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  num_classes: int | None = None,
) -> Float[np.ndarray, "classes dim"]:
  """Returns W^mu, the mean row of each class; zeros for a class without rows.

  Args:
    rows: The features f(x).
    label: The class of each row: 0, 1, ...
    num_classes: The number of classes; by default the largest label plus one.

  Example:
    >>> class_means(np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1]))
    array([[2.],
           [5.]])

  Reference: Saunshi et al., Definition 2.1.
  """
  count = int(label.max()) + 1 if num_classes is None else num_classes
  total = np.zeros((count, rows.shape[1]), rows.dtype)
  np.add.at(total, label, rows)
  return total / np.maximum(np.bincount(label, minlength=count), 1)[:, None]


def in_chunks(
  f: Callable[..., np.ndarray], gallery_size: int, *queries: np.ndarray
) -> np.ndarray:
  """Computes `f(*queries)`, a function of single rows, some rows at a time.

  Every chunk has the same number of rows, a multiple of the devices of the
  current mesh; the last chunk is padded with zeros.

  Args:
    f: Takes a chunk of each of `queries`, and returns as many rows.
    gallery_size: The number of candidates per query; it sets the chunk size.
    *queries: Arrays of equal length.

  Example:
    >>> in_chunks(lambda x: x + 1, 10, np.arange(3))
    array([1, 2, 3])
  """
  devices, total = sharding.num_devices(), len(queries[0])
  chunk = devices * max(1, CHUNK_SIMILARITIES // max(gallery_size, 1))
  chunk = min(chunk, total + -total % devices)
  results = []
  for rows in progress.slices("queries compared with all", total, chunk):
    parts = [x[rows] for x in queries]
    missing = chunk - len(parts[0])
    full = [np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in parts]
    results.append(np.asarray(f(*full))[: chunk - missing])
  return np.concatenate(results)


def ranks(
  queries: Float[np.ndarray, "queries dim"],
  gallery: Float[np.ndarray, "gallery dim"],
  query_group: Integer[np.ndarray, "queries"],
  gallery_group: Integer[np.ndarray, "gallery"],
  penalty: Float[np.ndarray, "gallery"] | float = 0.0,
  left_out: Int[np.ndarray, "queries"] | int = -1,
) -> Int[np.ndarray, "queries"]:
  """Counts the wrong candidates before each query's best right one.

  A candidate is right if its group is the query's. Candidates are ordered by
  similarity - penalty; ties count against the query, and so do embeddings that
  are not finite. Queries are split over the devices of the current mesh; the
  similarities are computed in float32, some queries at a time.

  Args:
    queries: Unit-norm embeddings of the queries.
    gallery: Unit-norm embeddings of the candidates, which every device holds.
    query_group: The group of each query; any integers.
    gallery_group: The group of each candidate.
    penalty: Subtracted from the similarities of each candidate.
    left_out: For each query, the index of a candidate that does not count, such
      as the query itself; -1 if all count.

  Example:
    >>> gallery = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> ranks(gallery, gallery, np.array([0, 0, 2]), np.arange(3)).tolist()
    [0, 2, 0]
  """
  query_group, gallery_group = _numbered(query_group, gallery_group)
  penalty = np.broadcast_to(np.float32(penalty), len(gallery))
  candidates = sharding.replicate((np.float32(gallery), gallery_group, penalty))

  def ranks_of_chunk(queries, group, left_out):
    return _ranks(queries, group, left_out, *candidates)

  left_out = np.broadcast_to(left_out, len(queries))
  return in_chunks(
    ranks_of_chunk, len(gallery), np.float32(queries), query_group, left_out
  )


def ranks_of_matches(
  queries: Float[np.ndarray, "queries dim"],
  gallery: Float[np.ndarray, "gallery dim"],
  query_id: Int[np.ndarray, "queries"],
  gallery_id: Int[np.ndarray, "gallery"],
  right: Sequence[Collection[int]],
  penalty: Float[np.ndarray, "gallery"] | float = 0.0,
) -> Int[np.ndarray, "queries"]:
  """Counts the wrong ids before each query's best right one.

  As `ranks`, for candidates of which any number is right, each for any queries.
  Candidates of one id count once, by their greatest similarity - penalty.

  Args:
    queries: Unit-norm embeddings of the queries.
    gallery: Unit-norm embeddings of the candidates, which every device holds.
    query_id: The id of each query: 0, 1, ...
    gallery_id: The id of each candidate: 0, 1, ...
    right: The ids of candidates that are right, by the id of the query.
    penalty: Subtracted from the similarities of each candidate.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.0, 1.0]])
    >>> ids = np.array([0, 1, 1, 2])
    >>> ranks_of_matches(x, x, ids, ids, [{1}, {2}, {0, 2}]).tolist()
    [1, 1, 1, 0]
  """
  penalty = np.broadcast_to(np.float32(penalty), len(gallery))
  candidates = sharding.replicate(
    (np.float32(gallery), np.int32(gallery_id), penalty)
  )
  num_ids = int(np.max(gallery_id)) + 1

  def ranks_of_chunk(queries, query_id):
    found = [list(right[i]) for i in query_id]
    most = max(map(len, found), default=0)
    # Powers of two, so that few shapes are compiled.
    rows = np.full((len(found), 2 ** max(most - 1, 0).bit_length()), -1)
    for row, ids in zip(rows, found, strict=True):
      row[: len(ids)] = ids
    return _ranks_of_matches(
      queries, np.int32(rows), *candidates, num_ids=num_ids
    )

  return in_chunks(
    ranks_of_chunk, len(gallery), np.float32(queries), np.asarray(query_id)
  )


def _numbered(*groups: np.ndarray) -> list[Int[np.ndarray, "rows"]]:
  """Numbers groups from 0: JAX would cut 64-bit integers down to 32 bits."""
  rows = [np.asarray(x).tolist() for x in groups]
  number = {x: i for i, x in enumerate(dict.fromkeys(itertools.chain(*rows)))}
  return [np.array([number[x] for x in row], np.int32) for row in rows]


@partial(jax.jit, static_argnames="num_ids")
def _ranks_of_matches(queries, right, gallery, gallery_id, penalty, num_ids):
  queries, right = sharding.constrain((queries, right), sharding.ROWS)
  sim = jnp.matmul(queries, gallery.T, precision=tiles.PRECISION)
  sim = sim - penalty[None]
  sim = jnp.where(jnp.isfinite(sim), sim, -jnp.inf)
  sim = jax.ops.segment_max(sim.T, gallery_id, num_ids).T
  of_right = jnp.take_along_axis(sim, jnp.maximum(right, 0), axis=1)
  best = jnp.max(
    of_right, axis=1, keepdims=True, where=right >= 0, initial=-jnp.inf
  )
  before = jnp.sum(sim >= best, axis=1)
  before -= jnp.sum((of_right >= best) & (right >= 0), axis=1)
  return sharding.constrain(before, sharding.REPLICATED)


@jax.jit
def _ranks(queries, query_group, left_out, gallery, gallery_group, penalty):
  queries, query_group, left_out = sharding.constrain(
    (queries, query_group, left_out), sharding.ROWS
  )
  sim = jnp.matmul(queries, gallery.T, precision=tiles.PRECISION)
  sim = sim - penalty[None]
  sim = jnp.where(jnp.isfinite(sim), sim, -jnp.inf)
  counts = left_out[:, None] != jnp.arange(len(gallery))[None]
  right = (query_group[:, None] == gallery_group[None]) & counts
  best = jnp.max(sim, axis=1, keepdims=True, where=right, initial=-jnp.inf)
  before = jnp.sum(~right & counts & (sim >= best), axis=1)
  return sharding.constrain(before, sharding.REPLICATED)

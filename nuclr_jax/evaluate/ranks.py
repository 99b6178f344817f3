"""Ranks among similarities, computed in chunks on all devices."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from nuclr_jax import sharding, tiles
from nuclr_jax.evaluate.chunks import in_chunks


def ranks(
  queries: Float[np.ndarray, "queries dim"],
  gallery: Float[np.ndarray, "gallery dim"],
  query_group: Int[np.ndarray, "queries"],
  gallery_group: Int[np.ndarray, "gallery"],
  penalty: Float[np.ndarray, "gallery"] | float = 0.0,
  left_out: Int[np.ndarray, "queries"] | int = -1,
) -> Int[np.ndarray, "queries"]:
  """How many wrong candidates come before each query's best right one.

  A candidate is right if its group is the query's. Candidates are ordered by
  similarity - penalty; ties count against the query, and so do embeddings that
  are not finite. Queries are split over the devices of the current mesh; the
  similarities are computed in float32, some queries at a time.

  Args:
    queries: Unit-norm embeddings.
    gallery: Likewise; every device holds all of them.
    query_group: The group of each query.
    gallery_group: The group of each candidate.
    penalty: Subtracted from the similarities of each candidate.
    left_out: The number of a candidate that does not count, for each query, as
      of the query itself; -1 if all count.

  Example:
    >>> gallery = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> found = ranks(gallery, gallery, np.array([0, 0, 2]), np.arange(3))
    >>> found.tolist()
    [0, 2, 0]
  """
  penalty = np.broadcast_to(np.float32(penalty), len(gallery))
  candidates = sharding.replicate((np.float32(gallery), gallery_group, penalty))

  def part(queries, group, left_out):
    return _ranks(queries, group, left_out, *candidates)

  left_out = np.broadcast_to(left_out, len(queries))
  return in_chunks(
    part, len(gallery), np.float32(queries), query_group, left_out
  )


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

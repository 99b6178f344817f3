"""Random batches of embeddings for tests."""

import jax.numpy as jnp
import numpy as np

from nuclr_jax import Pairs


def unit_rows(key: int, rows: int, dim: int) -> np.ndarray:
  """Random unit-norm rows, float64."""
  x = np.random.default_rng(key).normal(size=(rows, dim))
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def make_pairs(
  key: int,
  *,
  batch: int = 16,
  dim: int = 8,
  num_pairs: int = 64,
  num_texts: int | None = None,
  dtype=None,
) -> Pairs:
  """A batch of distinct pairs; texts are shared if `num_texts` is given."""
  rng = np.random.default_rng(key + 1000)
  ids = rng.permutation(num_pairs)[:batch]
  text_id = None
  if num_texts is not None:
    text_id = jnp.asarray(ids % num_texts)
  return Pairs(
    image=jnp.asarray(unit_rows(key, batch, dim), dtype),
    text=jnp.asarray(unit_rows(key + 500, batch, dim), dtype),
    pair_id=jnp.asarray(ids),
    text_id=text_id,
  )

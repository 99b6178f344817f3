"""Embeddings on the host: unit rows, queries of a gallery some at a time."""

from collections.abc import Callable

from jaxtyping import Float
import numpy as np

from nuclr_jax import sharding

SMALLEST_NORM = 1e-12  # that is divided by
CHUNK_SIMILARITIES = 2**26  # that a device holds at a time: 256 MiB


def unit_norm(
  x: Float[np.ndarray, "rows dim"],
) -> Float[np.ndarray, "rows dim"]:
  """Rows of unit norm, in a new array; rows of zeros stay.

  Example:
    >>> unit_norm(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
  """
  norm = np.linalg.norm(x, axis=1, keepdims=True)
  return x / np.maximum(norm, SMALLEST_NORM)


def in_chunks(
  f: Callable[..., np.ndarray], gallery_size: int, *queries: np.ndarray
) -> np.ndarray:
  """`f(*queries)`, row by row independent, computed for some rows at a time.

  Every part has the same number of rows, a multiple of the devices of the
  current mesh; the last one is padded with zeros.

  Args:
    f: Takes parts of `queries`, gives an array with as many rows.
    gallery_size: Candidates of a query; it decides how large a part is.
    *queries: Arrays of equal length.

  Example:
    >>> in_chunks(lambda x: x + 1, 10, np.arange(3))
    array([1, 2, 3])
  """
  devices, total = sharding.num_devices(), len(queries[0])
  chunk = devices * max(1, CHUNK_SIMILARITIES // max(gallery_size, 1))
  chunk = min(chunk, total + -total % devices)
  found = []
  for start in range(0, total, chunk):
    parts = [x[start : start + chunk] for x in queries]
    missing = chunk - len(parts[0])
    full = [np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in parts]
    found.append(np.asarray(f(*full))[: chunk - missing])
  return np.concatenate(found)

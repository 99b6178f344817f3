"""Finds drawings that are copies of others, or nearly, by their thumbnails."""

import hashlib

from jaxtyping import Float, Int, UInt8
import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.data.icons.render import FAINTEST

SIDE = 12  # pixels of a thumbnail
# Inner products of thumbnails are then whole numbers below 2**24, which float32
# adds up without an error, in whatever order; so nothing depends on it.
LEVELS = 255
NEAR = 0.98  # the correlation from which two drawings are near copies
NONE, NEARLY, EXACT = 0, 1, 2  # what an image is of another
CHUNK = 2**26  # correlations at a time

Thumbnails = UInt8[np.ndarray, "images pixels"]
Others = UInt8[np.ndarray, "others pixels"]


def thumbnails(images: UInt8[np.ndarray, "images size size 1"]) -> Thumbnails:
  """Makes a small image of each drawing: where it is and how large is lost.

  The smallest box with all ink is centred in a square, blurred and resized.
  Images without ink have thumbnails of zeros.

  Example:
    >>> x = np.zeros((2, 32, 32, 1), np.uint8)
    >>> x[0, 4:20, 4:12], x[1, 14:30, 20:28] = 255, 255
    >>> first, second = thumbnails(x)
    >>> first.shape, bool((first == second).all())
    ((144,), True)
  """
  from PIL import Image, ImageFilter

  found = np.zeros((len(images), SIDE, SIDE), np.uint8)
  ink = images[..., 0] >= FAINTEST
  rows, columns = ink.any(2), ink.any(1)
  for i in np.flatnonzero(rows.any(1)):
    (top, bottom), (left, right) = _ends(rows[i]), _ends(columns[i])
    height, width = bottom - top, right - left
    side = max(height, width)
    square = np.zeros((side, side), np.uint8)
    y, x = (side - height) // 2, (side - width) // 2
    part = images[i, top:bottom, left:right, 0]
    square[y : y + height, x : x + width] = part
    image = Image.fromarray(square).resize(
      (2 * SIDE,) * 2, Image.Resampling.BOX
    )
    image = image.filter(ImageFilter.BoxBlur(1))
    found[i] = image.resize((SIDE, SIDE), Image.Resampling.BOX)
  return found.reshape(len(images), SIDE**2)


def _ends(marked: np.ndarray) -> tuple[int, int]:
  """Returns the first marked position and the one after the last."""
  (positions,) = marked.nonzero()
  return int(positions[0]), int(positions[-1]) + 1


def standardised(x: Thumbnails) -> Float[np.ndarray, "images pixels"]:
  """Shifts and scales rows: inner products are correlations (0 if constant)."""
  centred = x - x.mean(1, keepdims=True, dtype=np.float64)
  norm = np.linalg.norm(centred, axis=1, keepdims=True)
  return (centred / np.maximum(norm, 1e-9)).astype(np.float32)


def near_pairs(
  queries: Thumbnails, candidates: Others, *, least: float = NEAR
) -> tuple[Int[np.ndarray, "pairs 2"], Float[np.ndarray, "pairs"]]:
  """Finds all pairs of thumbnails with a correlation of at least `least`.

  The result depends on neither the number of threads nor the machine.

  Args:
    queries: Some thumbnails.
    candidates: Others.
    least: The least correlation.

  Returns:
    Pairs (query, candidate) in order, and their correlations.
  """
  y = standardised(candidates)
  size, found = max(1, CHUNK // max(len(y), 1)), []
  for part in progress.slices("drawings compared", len(queries), size):
    sim = standardised(queries[part]) @ y.T
    pairs = np.argwhere(sim >= least - 1e-3)
    pairs[:, 0] += part.start
    found.append(pairs)
  pairs = np.concatenate([*found, np.zeros((0, 2), np.int64)])
  exact = _correlations(queries, candidates, pairs)
  keep = exact >= least
  return pairs[keep], exact[keep]


def _correlations(queries, candidates, pairs) -> Float[np.ndarray, "pairs"]:
  """Computes correlations from whole numbers, a few pairs at a time."""
  values = np.zeros(len(pairs))
  for start in range(0, len(pairs), 2**16):
    part = slice(start, start + 2**16)
    x = queries[pairs[part, 0]].astype(np.int64)
    y = candidates[pairs[part, 1]].astype(np.int64)
    n = x.shape[1]
    product = n * (x * y).sum(1) - x.sum(1) * y.sum(1)
    norms = [n * (z * z).sum(1) - z.sum(1) ** 2 for z in (x, y)]
    scale = np.sqrt((norms[0] * norms[1]).astype(float))
    values[part] = product / np.maximum(scale, 1e-9)
  return values


def digests(x: Thumbnails) -> list[bytes]:
  """Returns a digest of each thumbnail."""
  return [hashlib.sha256(row).digest()[:16] for row in x]


def kinds(queries: Thumbnails, others: Others) -> Int[np.ndarray, "images"]:
  """Says of each query whether others have it: `NONE`, `NEARLY` or `EXACT`.

  Example:
    >>> x = np.random.default_rng(0).integers(0, 256, (2, 144), np.uint8)
    >>> near = x[:1] // 4 * 4
    >>> kinds(np.concatenate([x, near]), x[:1]).tolist()
    [2, 0, 1]
  """
  others = np.unique(others, axis=0)
  have, kind = set(digests(others)), np.zeros(len(queries), np.int64)
  kind[[x in have for x in digests(queries)]] = EXACT
  (rest,) = np.nonzero(kind != EXACT)
  pairs, _ = near_pairs(queries[rest], others)
  kind[rest[pairs[:, 0]]] = NEARLY
  return kind

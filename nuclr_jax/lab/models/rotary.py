"""Rotary positions of patches: features are rotated by angles."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

TEMPERATURE = 10_000.0


class Rotary(NamedTuple):
  """How the positions of patches become angles.

  Attributes:
    reference: The height and width of the grid of patches in pretraining; other
      grids are scaled to it.
    offset: The coordinate of the first row and column.
    rows_first: Whether the first half of the angles is by row and the second
      half by column, or the other way round.
  """

  reference: int
  offset: float = 0.0
  rows_first: bool = True

  def angles(
    self, grid: tuple[int, int], width: int
  ) -> Float[np.ndarray, "patches pairs"]:
    """Returns the angles of all patches, in radians.

    Args:
      grid: The number of patches in a column and in a row.
      width: The width of an attention head.

    Example:
      >>> Rotary(reference=2).angles((2, 2), width=4).tolist()
      [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    bands = TEMPERATURE ** -(np.arange(width // 4) / (width // 4))
    rows, columns = np.meshgrid(
      *((np.arange(n) + self.offset) / n * self.reference for n in grid),
      indexing="ij",
    )
    order = (rows, columns) if self.rows_first else (columns, rows)
    angles = [x.reshape(-1, 1) * bands for x in order]
    return np.concatenate(angles, axis=1).astype(np.float32)


def rotated(
  x: Float[Array, "batch length heads width"],
  angles: Float[Array, "length pairs"],
) -> Float[Array, "batch length heads width"]:
  """Rotates pairs of neighbouring features by angles: rotary positions.

  Args:
    x: Queries or keys; the width of a head is twice the number of pairs.
    angles: By how much each pair of a token's features is rotated, in radians.

  Example:
    >>> x = jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> rotated(x, jnp.full((1, 1), jnp.pi / 2)).round().astype(int).ravel()
    Array([0, 1], dtype=int32)

  Reference: Su et al., RoFormer, Neurocomputing 2024.
  """
  angles = angles[None, :, None]
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
  even, odd = pairs[..., 0], pairs[..., 1]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  pairs = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
  return pairs.reshape(x.shape).astype(x.dtype)

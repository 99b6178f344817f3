"""Augmentation: pure functions of a batch and its random numbers.

The random numbers come from (seed, global position), so a batch looks the same
however often, and on however many processes, it is made.
"""

from collections.abc import Callable

import numpy as np

from nuclr_jax.types import Batch

NUM_RANDOM = 8  # uniform numbers in [0, 1) that every example gets

Transform = Callable[[Batch, np.ndarray], Batch]


def random_numbers(seed: int, step: int, batch_size: int) -> np.ndarray:
  """Uniform numbers [batch_size, NUM_RANDOM] of one global batch.

  Example:
    >>> first, again = (random_numbers(0, 7, 4) for _ in range(2))
    >>> bool((first == again).all()), first.shape
    (True, (4, 8))
  """
  bits = np.random.Philox(key=np.array([seed, step], np.uint64))
  return np.random.Generator(bits).random((batch_size, NUM_RANDOM))


def shift_and_scale(*, shift: float, scale: float) -> Transform:
  """Moves and stretches grey pictures a little, each its own way.

  Args:
    shift: Largest move along each axis, in pixels, at least 0.
    scale: Largest change of the logarithm of the size along each axis, at
      least 0; 0.1 is about 10 percent.

  Raises:
    ValueError: If an argument is negative.

  Example:
    >>> move = shift_and_scale(shift=2.0, scale=0.1)
    >>> batch = Batch(np.zeros((4, 8, 8, 1), np.uint8), None, None)
    >>> move(batch, random_numbers(0, 0, 4)).image.shape
    (4, 8, 8, 1)
  """
  if shift < 0 or scale < 0:
    raise ValueError(
      f"shift and scale must be at least 0, got {shift} and {scale}"
    )

  def transform(batch, random):
    height, width = batch.image.shape[1:3]
    centred = 2 * random[:, :4] - 1
    move, grow = centred[:, :2] * shift, np.exp(centred[:, 2:] * scale)
    rows = _interpolation(height, move[:, 0], grow[:, 0])
    columns = _interpolation(width, move[:, 1], grow[:, 1])
    image = np.moveaxis(batch.image.astype(np.float32), -1, 1)
    image = rows[:, None] @ image @ columns[:, None].swapaxes(-1, -2)
    image = np.moveaxis(np.rint(image), 1, -1).astype(np.uint8)
    return batch._replace(image=image)

  return transform


def _interpolation(size, move, grow) -> np.ndarray:
  """Matrices [batch, size, size] that resample one axis linearly."""
  centre = (size - 1) / 2
  pixels = np.arange(size)
  source = (pixels - centre - move[:, None]) / grow[:, None] + centre
  distance = np.abs(source[:, :, None] - pixels)
  return np.maximum(0, 1 - distance).astype(np.float32)

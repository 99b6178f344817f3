"""Augmentation: pure functions of pictures and their random numbers.

The random numbers come from (seed, epoch, pair id), so a pair looks the same in
an epoch whatever the batch size, the processes or the threads.
"""

from collections.abc import Callable

from jaxtyping import Float, Int, UInt8
import numpy as np

NUM_RANDOM = 32  # uniform numbers in [0, 1) that every example gets

Random = Float[np.ndarray, "batch numbers"]
Images = UInt8[np.ndarray, "batch height width channels"]
Transform = Callable[[Images, Random], Images]


def random_numbers(
  seed: int, epoch: int, pair_ids: Int[np.ndarray, "batch"]
) -> Random:
  """Uniform numbers [batch, NUM_RANDOM] in [0, 1), by hashing.

  Args:
    seed: Of the run, at least 0.
    epoch: From 0.
    pair_ids: One row of numbers for each.

  Example:
    >>> numbers = random_numbers(0, 7, np.array([3, 5]))
    >>> again = random_numbers(0, 7, np.array([5]))
    >>> numbers.shape, bool((numbers[1] == again[0]).all())
    ((2, 32), True)

  Reference: the hash is the finaliser of SplitMix64 (Steele et al., Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014).
  """
  rows = _mix(
    _mix(_mix(np.array([seed])) ^ _unsigned(epoch)) ^ _unsigned(pair_ids)
  )
  steps = np.arange(NUM_RANDOM, dtype=np.uint64) * _GOLDEN
  bits = _mix(rows[:, None] + steps)
  return (bits >> np.uint64(11)) * 2.0**-53


def augment(*, shift: float, scale: float, flip: bool = False) -> Transform:
  """Moves and stretches pictures a little, each its own way, and mirrors half.

  Args:
    shift: Largest move along each axis, in pixels, at least 0.
    scale: Largest change of the logarithm of the size along each axis, at
      least 0; 0.1 is about 10 percent.
    flip: Whether half of the pictures are mirrored.

  Raises:
    ValueError: If an argument is negative.

  Example:
    >>> move = augment(shift=2.0, scale=0.1)
    >>> image = np.zeros((4, 8, 8, 1), np.uint8)
    >>> move(image, random_numbers(0, 0, np.arange(4))).shape
    (4, 8, 8, 1)
    >>> mirror = augment(shift=0.0, scale=0.0, flip=True)
    >>> image = np.arange(4, dtype=np.uint8).reshape(1, 1, 4, 1)
    >>> mirror(image, np.full((1, 32), 0.25)).ravel().tolist()
    [3, 2, 1, 0]
  """
  if shift < 0 or scale < 0:
    raise ValueError(
      f"shift and scale must be at least 0, got {shift} and {scale}"
    )

  def transform(image, random):
    if shift or scale:
      height, width = image.shape[1:3]
      centred = 2 * random[:, :4] - 1
      move, grow = centred[:, :2] * shift, np.exp(centred[:, 2:] * scale)
      rows = _interpolation(height, move[:, 0], grow[:, 0])
      columns = _interpolation(width, move[:, 1], grow[:, 1])
      image = np.moveaxis(image.astype(np.float32), -1, 1)
      image = rows[:, None] @ image @ columns[:, None].swapaxes(-1, -2)
      image = np.moveaxis(np.rint(image), 1, -1).astype(np.uint8)
    if flip:
      mirrored = random[:, 4, None, None, None] < 0.5
      image = np.where(mirrored, image[:, :, ::-1], image)
    return image

  return transform


def _interpolation(size, move, grow) -> np.ndarray:
  """Matrices [batch, size, size] that resample one axis linearly."""
  centre = (size - 1) / 2
  pixels = np.arange(size)
  source = (pixels - centre - move[:, None]) / grow[:, None] + centre
  distance = np.abs(source[:, :, None] - pixels)
  return np.maximum(0, 1 - distance).astype(np.float32)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _unsigned(x):
  return np.asarray(x).astype(np.uint64)


def _mix(x):
  """Every bit of the result depends on every bit of x; wraps around."""
  x = _unsigned(x) + _GOLDEN
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))

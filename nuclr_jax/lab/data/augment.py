"""Augmentation: pure functions of images and their random numbers.

`augment` moves and stretches small images in NumPy. `rand_augment` is the
RandAugment of the published CC3M recipe, in OpenCV. Its `OPERATIONS` have one
strength each, and equal Pillow's pixel for pixel where the arithmetic is in
integers. The random numbers come from `source.random_numbers`.
"""

import math

import cv2
from jaxtyping import Float
import numpy as np

from nuclr_jax.lab.data.images import Image
from nuclr_jax.lab.data.source import Transform

GREY = (128, 128, 128)  # of pixels that lie outside the original image
NUMBERS = 3  # uniform numbers that an operation needs
MAX_LEVEL = 10


def augment(*, shift: float, scale: float, flip: bool = False) -> Transform:
  """Makes a transform that moves, stretches and mirrors images at random.

  Args:
    shift: Largest move along each axis, in pixels, at least 0.
    scale: Largest change of the logarithm of the size along each axis, at
      least 0; 0.1 is about 10 percent.
    flip: Whether to mirror half of the images.

  Raises:
    ValueError: If an argument is negative.

  Example:
    >>> from nuclr_jax.lab.data.source import random_numbers
    >>> move = augment(shift=2.0, scale=0.1)
    >>> image = np.zeros((4, 8, 8, 1), np.uint8)
    >>> move(image, random_numbers(0, 0, np.arange(4))).shape
    (4, 8, 8, 1)
    >>> mirror = augment(shift=0.0, scale=0.0, flip=True)
    >>> image = np.arange(4, dtype=np.uint8).reshape(1, 1, 4, 1)
    >>> mirror(image, np.full((1, 32), 0.25)).ravel().tolist()
    [3, 2, 1, 0]
  """
  if not (0 <= shift < math.inf and 0 <= scale < math.inf):
    raise ValueError(
      f"shift and scale must be finite and at least 0, got {shift} and {scale}"
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


def rand_augment(
  image: Image,
  random: Float[np.ndarray, "numbers"],
  *,
  num_ops: int = 2,
  level: float = 7.0,
) -> Image:
  """Draws operations from `OPERATIONS` and applies each with probability 1/2.

  Args:
    image: The image.
    random: At least `NUMBERS * num_ops` uniform numbers in [0, 1).
    num_ops: How many operations to draw.
    level: The strength of the operations, in [0, 10]: contrast factors are
      0.1 + 0.18 level, shears 0.03 level, moves `level` pixels, angles 3 level
      degrees.

  Example:
    >>> grey = np.full((8, 8, 3), 100, np.uint8)
    >>> numbers = np.array([0.35, 0.0, 0.0])  # brightness, applied
    >>> int(rand_augment(grey, numbers, num_ops=1)[0, 0, 0])
    136

  Reference: Cubuk et al., RandAugment, NeurIPS 2020; the list, the strengths
    and the probability of 1/2 are those of the code released with NUCLR (2025).
  """
  operations = list(OPERATIONS.values())
  for which, whether, sign in random[: NUMBERS * num_ops].reshape(-1, NUMBERS):
    if whether < 0.5:
      operation = operations[int(which * len(operations))]
      share = level / MAX_LEVEL
      image = operation(image, share if sign < 0.5 else -share)
  return image


def autocontrast(image: Image) -> Image:
  """Stretches each channel to 0 ... 255."""
  tables = []
  for channel in cv2.split(image):
    low, high, *_ = cv2.minMaxLoc(channel)
    low, high = int(low), int(high)
    scale = 255 / (high - low) if high > low else 1.0
    offset = -low * scale if high > low else 0.0
    tables.append(np.arange(256) * scale + offset)
  return _look_up(image, np.stack(tables, axis=-1))


def equalize(image: Image) -> Image:
  """Makes each channel's histogram flat."""
  tables = []
  for i in range(3):
    counts = cv2.calcHist([image], [i], None, [256], [0, 256]).reshape(-1)
    counts = counts.astype(np.int64)
    # The integer arithmetic of Pillow's `ImageOps.equalize`.
    last = counts[np.flatnonzero(counts)[-1]]
    step = (counts.sum() - last) // 255
    before = np.cumsum(counts) - counts
    table = (step // 2 + before) // step if step else np.arange(256)
    tables.append(table)
  return _look_up(image, np.stack(tables, axis=-1))


def brightness(image: Image, factor: float) -> Image:
  """Multiplies all values by the factor."""
  # In float32 like Pillow: near integers, the precision decides the result.
  table = np.arange(256, dtype=np.float32)[:, None] * np.float32(factor)
  return _look_up(image, np.repeat(table, 3, 1))


def sharpness(image: Image, factor: float) -> Image:
  """Moves the image away from a smoothed copy (factor above 1) or towards it.

  Pixels at the edge are left as they are.
  """
  smooth = np.ones((3, 3), np.float32)
  smooth[1, 1] = 5
  kernel = (1 - factor) * smooth / smooth.sum()
  kernel[1, 1] += factor
  sharp = image.copy()
  sharp[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
  return sharp


def affine(image: Image, matrix) -> Image:
  """Moves the pixel at (x, y) to `matrix` [2, 3] times (x, y, 1)."""
  height, width = image.shape[:2]
  return cv2.warpAffine(
    image,
    np.asarray(matrix, np.float32),
    (width, height),
    flags=cv2.INTER_LINEAR,
    borderValue=GREY,
  )


def rotate(image: Image, degrees: float) -> Image:
  """Rotates counter-clockwise about the centre."""
  height, width = image.shape[:2]
  centre = ((width - 1) / 2, (height - 1) / 2)
  return affine(image, cv2.getRotationMatrix2D(centre, degrees, 1.0))


# Each operation takes an image and the signed strength, in [-1, 1].
OPERATIONS = {
  "identity": lambda x, s: x,
  "autocontrast": lambda x, s: autocontrast(x),
  "equalize": lambda x, s: equalize(x),
  "brightness": lambda x, s: brightness(x, 0.1 + 1.8 * abs(s)),
  "sharpness": lambda x, s: sharpness(x, 0.1 + 1.8 * abs(s)),
  "shear_x": lambda x, s: affine(x, [[1, 0.3 * s, 0], [0, 1, 0]]),
  "shear_y": lambda x, s: affine(x, [[1, 0, 0], [0.3 * s, 1, 0]]),
  "translate_x": lambda x, s: affine(x, [[1, 0, 10 * s], [0, 1, 0]]),
  "translate_y": lambda x, s: affine(x, [[1, 0, 0], [0, 1, 10 * s]]),
  "rotate": lambda x, s: rotate(x, 30 * s),
}


def _interpolation(size, move, grow) -> np.ndarray:
  """Makes matrices [batch, size, size] that resample one axis linearly."""
  centre = (size - 1) / 2
  pixels = np.arange(size)
  source = (pixels - centre - move[:, None]) / grow[:, None] + centre
  distance = np.abs(source[:, :, None] - pixels)
  return np.maximum(0, 1 - distance).astype(np.float32)


def _look_up(image, table) -> Image:
  """Maps values by a table [256, 3]; cuts off fractions, as Pillow does."""
  table = np.clip(table, 0, 255).astype(np.uint8)
  return cv2.LUT(image, table[None])

"""RandAugment as in the published CC3M recipe, with OpenCV.

Operations of Pillow (mirrored pixel for pixel where the arithmetic is of whole
numbers) at one strength each; see `OPERATIONS`.
"""

import cv2
from jaxtyping import Float
import numpy as np

from nuclr_jax.data.images import Picture

GREY = (128, 128, 128)  # what moves into the picture
NUMBERS = 3  # uniform numbers that an operation takes
MAX_LEVEL = 10


def rand_augment(
  picture: Picture,
  random: Float[np.ndarray, "numbers"],
  *,
  num_ops: int = 2,
  level: float = 7.0,
) -> Picture:
  """Applies operations of `OPERATIONS`, each drawn anew, each with chance 1/2.

  Args:
    picture: The picture.
    random: At least `NUMBERS * num_ops` uniform numbers in [0, 1).
    num_ops: How many operations are drawn.
    level: Their strength, in [0, 10]: contrast factors are 0.1 + 0.18 level,
      shears 0.03 level, moves `level` pixels, angles 3 level degrees.

  Example:
    >>> grey = np.full((8, 8, 3), 100, np.uint8)
    >>> numbers = np.array([0.35, 0.0, 0.0])  # brightness, applied
    >>> int(rand_augment(grey, numbers, num_ops=1)[0, 0, 0])
    136

  Reference: Cubuk et al., RandAugment, NeurIPS 2020; list, strengths and the
    chance of 1/2 as in the code released with NUCLR (2025).
  """
  operations = list(OPERATIONS.values())
  for which, whether, sign in random[: NUMBERS * num_ops].reshape(-1, NUMBERS):
    if whether < 0.5:
      operation = operations[int(which * len(operations))]
      share = level / MAX_LEVEL
      picture = operation(picture, share if sign < 0.5 else -share)
  return picture


def autocontrast(picture: Picture) -> Picture:
  """Stretches each channel to 0 ... 255."""
  tables = []
  for channel in cv2.split(picture):
    low, high, *_ = cv2.minMaxLoc(channel)
    low, high = int(low), int(high)
    scale = 255 / (high - low) if high > low else 1.0
    offset = -low * scale if high > low else 0.0
    tables.append(np.arange(256) * scale + offset)
  return _look_up(picture, np.stack(tables, axis=-1))


def equalize(picture: Picture) -> Picture:
  """Makes each channel's histogram flat."""
  tables = []
  for i in range(3):
    counts = cv2.calcHist([picture], [i], None, [256], [0, 256]).reshape(-1)
    counts = counts.astype(np.int64)
    last = counts[np.flatnonzero(counts)[-1]]
    step = (counts.sum() - last) // 255
    before = np.cumsum(counts) - counts
    table = (step // 2 + before) // step if step else np.arange(256)
    tables.append(table)
  return _look_up(picture, np.stack(tables, axis=-1))


def brightness(picture: Picture, factor: float) -> Picture:
  """Multiplies by the factor."""
  # float32 like Pillow: near whole numbers the precision decides.
  table = np.arange(256, dtype=np.float32)[:, None] * np.float32(factor)
  return _look_up(picture, np.repeat(table, 3, 1))


def sharpness(picture: Picture, factor: float) -> Picture:
  """Away from a smoothed copy (factor above 1) or towards it; not the edge."""
  smooth = np.ones((3, 3), np.float32)
  smooth[1, 1] = 5
  kernel = (1 - factor) * smooth / smooth.sum()
  kernel[1, 1] += factor
  sharp = picture.copy()
  sharp[1:-1, 1:-1] = cv2.filter2D(picture, -1, kernel)[1:-1, 1:-1]
  return sharp


def affine(picture: Picture, matrix) -> Picture:
  """Moves the pixel at (x, y) to `matrix` [2, 3] times (x, y, 1)."""
  height, width = picture.shape[:2]
  return cv2.warpAffine(
    picture,
    np.asarray(matrix, np.float32),
    (width, height),
    flags=cv2.INTER_LINEAR,
    borderValue=GREY,
  )


def rotate(picture: Picture, degrees: float) -> Picture:
  """Turns counter-clockwise about the centre."""
  height, width = picture.shape[:2]
  centre = ((width - 1) / 2, (height - 1) / 2)
  return affine(picture, cv2.getRotationMatrix2D(centre, degrees, 1.0))


# Each takes a picture and the signed strength, in [-1, 1].
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


def _look_up(picture, table) -> Picture:
  """Replaces values by a table [256, 3], fractions cut off as Pillow does."""
  table = np.clip(table, 0, 255).astype(np.uint8)
  return cv2.LUT(picture, table[None])

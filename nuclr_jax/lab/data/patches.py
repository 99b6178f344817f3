"""Images of any aspect ratio as arrays of one shape: NaFlex, as in SigLIP 2.

An image is resized to whole patches, of which there are at most as many as in
a square of `size` x `size` pixels. `pack` lays them out in such a square, row
after row of the image, so that they fill the square's own rows of patches from
the top; what is left stays black. Right of the square is one more column of
patches, and the two pixels at its top say how many rows and columns of patches
the image has, each number in two bytes. `models.naflex` reads this.

    image, 2 x 5 patches     packed, size 4 patches
    a b c d e                a b c d | 2 5
    f g h i j                e f g h |
                             i j . . |
                             . . . . |
"""

import math

from jaxtyping import UInt8
import numpy as np

NAFLEX = "naflex"  # the name of this way to prepare images
# The scale of an image is searched between these, to the last of them, as in
# the processor of transformers.
SMALLEST, LARGEST, PRECISION = 1e-6, 100.0, 1e-5


def packed_shape(size: int, patch: int) -> tuple[int, int, int]:
  """Returns the shape of images after `pack`.

  Args:
    size: The side of the square, in pixels.
    patch: The side of a patch, in pixels.

  Raises:
    ValueError: If the square has no whole number of patches, or only one.

  Example:
    >>> packed_shape(256, patch=16)
    (256, 272, 3)
  """
  if size % patch or size < 2 * patch:
    raise ValueError(
      "the size of images must be a multiple of patch, and at least twice it, "
      f"got size {size} and patch {patch}"
    )
  return size, size + patch, 3


def grid_of(
  height: int, width: int, *, size: int, patch: int
) -> tuple[int, int]:
  """Returns how many rows and columns of patches an image is resized to.

  Sides are multiplied by the same number and rounded up to whole patches. The
  number is the largest, up to `LARGEST`, with which there are not too many.

  Args:
    height: The height of the image, in pixels.
    width: The width of the image, in pixels.
    size: The side of the square with as many patches, in pixels.
    patch: The side of a patch, in pixels.

  Example:
    >>> grid_of(480, 640, size=256, patch=16), grid_of(1, 1, size=256, patch=16)
    ((14, 18), (7, 7))

  Source: `Siglip2ImageProcessor` of transformers 5.24, which bisects to the
    same precision; an exact number would now and then lead to another grid.
  """
  most = (size // patch) ** 2

  def grid(scale):
    return tuple(max(1, math.ceil(x * scale / patch)) for x in (height, width))

  low, high = SMALLEST, LARGEST
  while high - low >= PRECISION:
    middle = (low + high) / 2
    rows, columns = grid(middle)
    fits = rows * columns <= most
    low, high = (middle, high) if fits else (low, middle)
  return grid(low)


def pack(
  image: UInt8[np.ndarray, "height width 3"], *, size: int, patch: int
) -> UInt8[np.ndarray, "size across 3"]:
  """Lays out the patches of an image in a square, beside their numbers.

  Args:
    image: The image, of whole patches, at most as many as in the square.
    size: The side of the square, in pixels.
    patch: The side of a patch, in pixels.

  Returns:
    An array of `packed_shape`.

  Example:
    >>> image = np.arange(10, dtype=np.uint8).reshape(2, 5, 1).repeat(3, 2)
    >>> pack(image, size=4, patch=1)[:, :, 0]
    array([[0, 1, 2, 3, 0],
           [4, 5, 6, 7, 0],
           [8, 9, 0, 0, 0],
           [0, 0, 0, 0, 0]], dtype=uint8)
    >>> pack(image, size=4, patch=1)[:2, 4].tolist()  # 2 rows, 5 columns
    [[0, 2, 0], [0, 5, 0]]
  """
  side = size // patch
  rows, columns = (x // patch for x in image.shape[:2])
  patches = np.zeros((side * side, patch, patch, 3), np.uint8)
  cut = image.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2)
  patches[: rows * columns] = cut.reshape(-1, patch, patch, 3)
  square = patches.reshape(side, side, patch, patch, 3).swapaxes(1, 2)
  packed = np.zeros(packed_shape(size, patch), np.uint8)
  packed[:, :size] = square.reshape(size, size, 3)
  packed[:2, size, :2] = [divmod(rows, 256), divmod(columns, 256)]
  return packed

"""scikit-learn's handwritten digits, enlarged, and prompts of their classes."""

import numpy as np
from PIL import Image

PROMPTS = tuple(
  (f"DIGIT {name}",)
  for name in ("ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split())
)


def load(size: int) -> tuple[np.ndarray, np.ndarray]:
  """All 1,797 digits, drawn as large as a glyph is.

  Args:
    size: Height and width of the pictures, in pixels.

  Returns:
    Pictures uint8 [1797, size, size, 1], white on black, and labels 0 ... 9.

  Example:
    >>> images, labels = load(32)
    >>> images.shape, labels[:3].tolist()
    ((1797, 32, 32, 1), [0, 1, 2])
  """
  height = round(0.5 * size)  # a glyph's digit is about half as high as its box
  digits, label = enlarged(height)
  images = np.zeros((len(digits), size, size, 1), np.uint8)
  top = round(0.72 * size) - height  # the glyphs' baseline
  left = (size - height) // 2
  images[:, top : top + height, left : left + height] = digits
  return images, label


def enlarged(size: int) -> tuple[np.ndarray, np.ndarray]:
  """All digits, 8 x 8 pixels, resized to fill the picture.

  Args:
    size: Height and width of the pictures, in pixels.

  Returns:
    As `load`.

  Example:
    >>> enlarged(16)[0].shape
    (1797, 16, 16, 1)
  """
  from sklearn import datasets  # 1 s to import

  def picture(digit):
    pixels = Image.fromarray((digit * (255 / 16)).astype(np.uint8))
    return pixels.resize((size, size), Image.Resampling.BICUBIC)

  data = datasets.load_digits()
  images = np.stack([np.asarray(picture(x)) for x in data.images])
  return images[..., None], data.target.astype(np.int64)

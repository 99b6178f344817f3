"""scikit-learn's handwritten digits, for zero-shot transfer from glyphs."""

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
  from sklearn import datasets  # 1 s to import

  data = datasets.load_digits()
  height = round(0.5 * size)  # a glyph's digit is about half as high as its box
  images = np.zeros((len(data.images), size, size, 1), np.uint8)
  top = round(0.72 * size) - height  # the glyphs' baseline
  left = (size - height) // 2
  for image, digit in zip(images, data.images, strict=True):
    pixels = Image.fromarray((digit * (255 / 16)).astype(np.uint8))
    pixels = pixels.resize((height, height), Image.Resampling.BICUBIC)
    image[top : top + height, left : left + height, 0] = np.asarray(pixels)
  return images, data.target.astype(np.int64)

"""Images of any aspect ratio as patches in a square."""

import fractions
import math

import numpy as np
import PIL.Image
import pytest

from nuclr_jax.lab.data import images, patches
from nuclr_jax.lab.data.image_text import square_maker
from nuclr_jax.lab.data.options import Augmentation, Square
from nuclr_jax.lab.data.source import NUM_RANDOM, Resize

NAFLEX = Resize("naflex", "bilinear", 8)


def photo(height, width):
  return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def grid_in(packed, size):
  return (packed[:2, size, :2].astype(int) @ [256, 1]).tolist()


def laid_out(image, patch, size):
  """The patches one by one."""
  expected = np.zeros((size, size, 3), np.uint8)
  columns, side = image.shape[1] // patch, size // patch
  for number in range(image.shape[0] // patch * columns):
    row, column = (patch * x for x in divmod(number, columns))
    to_row, to_column = (patch * x for x in divmod(number, side))
    expected[to_row : to_row + patch, to_column : to_column + patch] = image[
      row : row + patch, column : column + patch
    ]
  return expected


class TestGrid:
  @pytest.mark.parametrize(("size", "patch"), [(256, 16), (48, 8), (512, 14)])
  def test_the_largest_that_fits(self, size, patch):
    """In fractions: sides only grow where one of them is whole patches."""
    size -= size % patch
    most = (size // patch) ** 2
    rng = np.random.default_rng(0)
    for sides in rng.integers(5, 900, (40, 2)).tolist():

      def grid(scale, sides=sides):
        return [math.ceil(x * scale / patch) for x in sides]

      scales = [
        fractions.Fraction(k * patch, x)
        for x in sides
        for k in range(1, most + 1)
      ]
      fitting = [x for x in scales if x < 100 and math.prod(grid(x)) <= most]
      expected = grid(max(fitting))
      found = patches.grid_of(*sides, size=size, patch=patch)
      assert list(found) == expected, sides

  @pytest.mark.parametrize(
    ("sides", "grid"),
    # As transformers 5.24 resizes them, `experiments/parity/naflex.py`.
    [((40, 220), (3, 12)), ((190, 20), (18, 2)), ((3, 2), (7, 5))]
    + [((33, 33), (6, 6)), ((64, 48), (7, 5)), ((1, 300), (1, 36))],
  )
  def test_of_transformers(self, sides, grid):
    assert patches.grid_of(*sides, size=48, patch=8) == grid

  @pytest.mark.parametrize(
    "sides", [(1, 1), (1, 2**26), (2**26, 1), (8192, 8192), (1, 5), (3, 50_000)]
  )
  def test_always_fits(self, sides):
    rows, columns = patches.grid_of(*sides, size=256, patch=16)
    assert min(rows, columns) >= 1 and rows * columns <= 256


class TestResize:
  @pytest.mark.parametrize(
    "sides", [(40, 220), (190, 20), (3, 2), (1, 300), (1, 1), (4000, 3)]
  )
  def test_pixels_are_pillows(self, sides):
    image = photo(*sides)
    found = images.resize(image, 48, NAFLEX)
    rows, columns = grid_in(found, 48)
    assert (rows, columns) == patches.grid_of(*sides, size=48, patch=8)
    whole = PIL.Image.fromarray(image).resize(
      (8 * columns, 8 * rows), PIL.Image.Resampling.BILINEAR
    )
    expected = laid_out(np.array(whole), 8, 48)
    assert found.shape == patches.packed_shape(48, 8)
    np.testing.assert_array_equal(found[:, :48], expected)
    assert not found[2:, 48:].any()

  def test_augmented(self):
    """A crop has about the shape of its image, and is packed as others are."""
    make = square_maker(
      size=48, resize=NAFLEX, augmentation=Augmentation((0.5, 1.0))
    )
    rng, wide = np.random.default_rng(0), photo(40, 200)
    for _ in range(20):
      found = make(wide, rng.random(NUM_RANDOM))
      rows, columns = grid_in(found, 48)
      assert found.shape == (48, 56, 3) and found[:8, :8].any()
      assert rows * columns <= 36
      assert 5 * 3 / 4 / 2 < columns / rows < 5 * 4 / 3 * 2  # rounded up

  def test_a_whole_crop(self):
    """Without anything drawn but the mirror, it is the image."""
    make = square_maker(
      size=48,
      resize=NAFLEX,
      augmentation=Augmentation((1.0, 1.0), num_ops=0, flip=False),
    )
    image = np.repeat(np.uint8([[[10, 60, 200]]]), 40, 0).repeat(120, 1)
    image[:, 60:] = 90
    random = np.full(NUM_RANDOM, 0.5)  # a ratio of 1
    found, expected = make(image, random), images.resize(image, 48, NAFLEX)
    assert grid_in(found, 48) == grid_in(expected, 48)
    far = np.abs(found.astype(int) - expected)
    assert np.median(far) == 0 and (far > 3).mean() < 0.05  # but for the edge


class TestSquare:
  def test_shapes(self):
    square = Square(256, "naflex", "bilinear", 16)
    assert square.image_shape == (256, 272, 3)
    assert square.how == Resize("naflex", "bilinear", 16)
    assert Square(224, "crop").image_shape == (224, 224, 3)

  @pytest.mark.parametrize(
    ("square", "message"),
    [
      (Square(256, "naflex"), "'naflex' and data.patch is None: .* set both"),
      (Square(256, "crop", patch=16), "'crop' and data.patch is 16"),
      (Square(256, patch=16), "None and data.patch is 16"),
      (Square(250, "naflex", patch=16), "multiple of patch.*250 and patch 16"),
      (Square(16, "naflex", patch=16), "at least twice it"),
    ],
  )
  def test_wrong(self, square, message):
    with pytest.raises(ValueError, match=message):
      _ = square.image_shape

"""Augmentation against Pillow, plain NumPy and uniform distributions."""

import math

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps
import pytest
from scipy import stats
import sklearn.datasets

from nuclr_jax.lab.data import augment, images
from nuclr_jax.lab.data.source import NUM_RANDOM, random_numbers

PHOTO = sklearn.datasets.load_sample_images().images[0]  # [427, 640, 3]
SMALL = cv2.resize(PHOTO, (90, 60), interpolation=cv2.INTER_AREA)
RAMP = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
NOISE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
IMAGES = {
  "photo": np.ascontiguousarray(SMALL[:, 10:70]),
  "noise": NOISE,
  "dull": NOISE // 16 + 40,
  "flat": np.full((16, 16, 3), 7, np.uint8),
  "black and white": NOISE // 128 * 255,
}


def difference(left, right) -> np.ndarray:
  return np.abs(np.float64(left) - np.float64(right))


class TestAugment:
  def test_whole_pixel_moves_are_exact(self):
    image = np.zeros((2, 8, 8, 1), np.uint8)
    image[:, 3, 4] = 200
    random = np.zeros((2, NUM_RANDOM))
    random[:, :4] = [[1.0, 0.5, 0.5, 0.5], [0.5, 0.0, 0.5, 0.5]]
    moved = augment.augment(shift=2, scale=0.5)(image, random)
    assert moved[0, 5, 4, 0] == 200 and moved[0].sum() == 200  # two down
    assert moved[1, 3, 2, 0] == 200 and moved[1].sum() == 200  # two left

  def test_scale_keeps_the_centre(self):
    image = np.zeros((1, 9, 9, 1), np.uint8)
    image[0, 2:7, 2:7] = 100
    random = np.full((1, NUM_RANDOM), 0.5)
    random[0, 2:4] = 1.0
    grown = augment.augment(shift=0, scale=0.3)(image, random)
    assert (grown[0, :, :, 0] == grown[0, ::-1, ::-1, 0]).all()
    assert grown.sum() > image.sum()

  def test_negative(self):
    with pytest.raises(ValueError, match="at least 0"):
      augment.augment(shift=-1, scale=0)
    with pytest.raises(ValueError, match="finite and at least 0, got nan"):
      augment.augment(shift=float("nan"), scale=0)

  def test_flip(self):
    mirror = augment.augment(shift=0.0, scale=0.0, flip=True)
    image = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 1)
    random = np.zeros((2, 32))
    random[1, 4] = 0.9
    found = mirror(image, random)
    np.testing.assert_array_equal(found[0], image[0, :, ::-1])
    np.testing.assert_array_equal(found[1], image[1])


def strength(level):
  return level / augment.MAX_LEVEL


class TestOperations:
  def test_names(self):
    assert (
      list(augment.OPERATIONS)
      == (
        "identity autocontrast equalize brightness sharpness shear_x shear_y "
        "translate_x translate_y rotate"
      ).split()
    )

  @pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
  @pytest.mark.parametrize("name", ["autocontrast", "equalize"])
  def test_same_as_pillow(self, name, image):
    ours = augment.OPERATIONS[name](image, 0.7)
    theirs = getattr(ImageOps, name)(Image.fromarray(image))
    np.testing.assert_array_equal(ours, np.array(theirs))

  @pytest.mark.parametrize("level", np.arange(0, 10.5, 0.5))
  def test_brightness_is_pillows(self, level):
    enhance = ImageEnhance.Brightness(Image.fromarray(RAMP)).enhance
    for sign in (-1, 1):
      ours = augment.OPERATIONS["brightness"](RAMP, sign * strength(level))
      np.testing.assert_array_equal(ours, np.array(enhance(0.1 + 0.18 * level)))

  @pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
  @pytest.mark.parametrize("level", [0, 3, 7, 10])
  def test_sharpness_is_pillows_within_one(self, level, image):
    enhance = ImageEnhance.Sharpness(Image.fromarray(image)).enhance
    ours = augment.OPERATIONS["sharpness"](image, -strength(level))
    assert difference(ours, enhance(0.1 + 0.18 * level)).max() <= 1

  @pytest.mark.parametrize("level", [3, 7, 10, -7])
  @pytest.mark.parametrize(
    ("name", "move"),
    [
      ("shear_x", lambda x, y, level: (x + 0.03 * level * y, y)),
      ("shear_y", lambda x, y, level: (x, y + 0.03 * level * x)),
      ("translate_x", lambda x, y, level: (x + level, y)),
      ("translate_y", lambda x, y, level: (x, y + level)),
    ],
  )
  def test_a_dot_moves(self, name, move, level):
    for x, y in ((30, 40), (50, 20)):
      image = np.full((90, 90, 3), augment.GREY, np.uint8)
      image[y - 1 : y + 2, x - 1 : x + 2] = 255
      moved = augment.OPERATIONS[name](image, strength(level))
      np.testing.assert_allclose(self.dot(moved), move(x, y, level), atol=0.1)

  @pytest.mark.parametrize("level", [3, 7, -10])
  def test_a_dot_turns_as_by_pillow(self, level):
    image = np.full((90, 90, 3), 128, np.uint8)
    image[43:46, 70:73] = 255
    turned = augment.OPERATIONS["rotate"](image, strength(level))
    theirs = Image.fromarray(image).rotate(
      3 * level, Image.BILINEAR, fillcolor=(128, 128, 128)
    )
    x, y = self.dot(turned)
    np.testing.assert_allclose((x, y), self.dot(np.array(theirs)), atol=0.1)
    assert (y < 43) == (level > 0)  # counter-clockwise goes up on the right

  @pytest.mark.parametrize("name", ["shear_x", "translate_x", "rotate"])
  def test_grey_comes_in(self, name):
    white = np.full((40, 40, 3), 255, np.uint8)
    moved = augment.OPERATIONS[name](white, 1.0)
    assert (moved[-1, 0] == 128).all()
    assert (moved[20, 20] == 255).all()

  def dot(self, image):
    weight = np.float64(image[..., 0]) - 128
    rows, columns = np.indices(weight.shape)
    return np.array([(weight * x).sum() for x in (columns, rows)]) / (
      weight.sum()
    )


class TestRandAugment:
  @pytest.fixture
  def mark(self, monkeypatch):
    """Operation i adds 16^i, so an image tells what it went through."""
    count = {name: 0 for name in augment.OPERATIONS}
    signs = []

    def operation(name):
      def apply(image, s):
        count[name] += 1
        signs.append(s)
        return image + 1

      return apply

    marks = {name: operation(name) for name in count}
    monkeypatch.setattr(augment, "OPERATIONS", marks)
    return count, signs

  def test_each_operation_is_equally_likely(self, mark):
    count, signs = mark
    numbers = random_numbers(5, 0, np.arange(5000))
    black = np.zeros((2, 2, 3), np.uint8)
    applied = [
      augment.rand_augment(black, x, num_ops=2, level=7.0)[0, 0, 0]
      for x in numbers[:, images.CROP_NUMBERS :]
    ]
    # Each of two with chance 1/2: none, one or two of them.
    shares = np.bincount(applied, minlength=3)
    assert stats.chisquare(shares, [1250, 2500, 1250]).pvalue > 0.01
    assert stats.chisquare(list(count.values())).pvalue > 0.01
    assert set(signs) == {0.7, -0.7}
    assert abs(np.mean(np.array(signs) > 0) - 0.5) < 0.03

  def test_in_the_order_of_the_numbers(self):
    """First brightness, then the move: what moves in is not made brighter."""
    numbers = np.array([0.39, 0.49, 0.9, 0.71, 0.0, 0.1])
    image = augment.rand_augment(NOISE, numbers, num_ops=2, level=7.0)
    assert (image[:, :7] == 128).all()
    bright = ImageEnhance.Brightness(Image.fromarray(NOISE)).enhance(1.36)
    np.testing.assert_array_equal(image[:, 7:], np.array(bright)[:, :-7])

  def test_none(self):
    numbers = np.zeros(9)
    same = augment.rand_augment(NOISE, numbers, num_ops=0)
    np.testing.assert_array_equal(same, NOISE)
    numbers[1::3] = 0.5
    same = augment.rand_augment(NOISE, numbers, num_ops=3)
    np.testing.assert_array_equal(same, NOISE)

  def test_level_zero(self):
    """Geometry rests; brightness is a tenth, as in the published code."""
    for which in (0.05, 0.55, 0.65, 0.75, 0.85, 0.95):
      numbers = np.array([which, 0.0, 0.0])
      same = augment.rand_augment(NOISE, numbers, num_ops=1, level=0.0)
      np.testing.assert_array_equal(same, NOISE)
    dark = augment.rand_augment(
      NOISE, np.array([0.35, 0.0, 0.0]), num_ops=1, level=0.0
    )
    np.testing.assert_array_equal(dark, NOISE // 10)

  def test_mirrored_images(self):
    """A mirrored image is a view with a negative stride."""
    for i in range(10):
      numbers = np.array([(i + 0.5) / 10, 0.0, 0.0])
      found = [
        augment.rand_augment(x, numbers, num_ops=1)
        for x in (NOISE[:, ::-1], np.ascontiguousarray(NOISE[:, ::-1]))
      ]
      np.testing.assert_array_equal(*found)


class TestRandomNumbers:
  def test_uniform(self):
    numbers = random_numbers(0, 3, np.arange(20_000))
    assert numbers.shape == (20_000, NUM_RANDOM)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 0.01
    each = [stats.kstest(x, "uniform").pvalue for x in numbers.T]
    assert min(each) > 1e-4
    assert np.unique(numbers).size > 0.999_99 * numbers.size

  def test_columns_and_neighbours_are_independent(self):
    numbers = random_numbers(1, 0, np.arange(20_000))
    others = (
      numbers[1:],  # the next id
      random_numbers(1, 1, np.arange(19_999)),  # epoch
      random_numbers(2, 0, np.arange(19_999)),  # seed
    )
    for other in (numbers[:-1], *others):
      found = np.corrcoef(numbers[:-1], other, rowvar=False)
      across = found[: len(found) // 2, len(found) // 2 :]
      if other.base is numbers and np.shares_memory(other[:1], numbers[:1]):
        across = across - np.eye(len(across))
      assert np.abs(across).max() < 5 / math.sqrt(len(other))

  def test_no_repeats(self):
    """Neither do seed, epoch and id stand in for each other."""
    first = [
      random_numbers(seed, epoch, np.arange(500))[:, 0]
      for seed in range(10)
      for epoch in range(20)
    ]
    assert np.unique(first).size == 10 * 20 * 500

  def test_a_function_of_seed_epoch_and_id(self):
    ids = np.array([9, 2**31 - 1, 0, 9])
    numbers = random_numbers(7, 2, ids)
    np.testing.assert_array_equal(numbers[0], numbers[3])
    for i, row in zip(ids, numbers, strict=True):
      alone = random_numbers(7, 2, np.array([i], np.int32))
      np.testing.assert_array_equal(alone[0], row)

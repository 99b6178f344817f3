"""SigLIP 2's tower for images of any aspect ratio, from packed patches on.

`towers_test` and `pretrained/published_test` compare it with transformers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax.lab.data import patches
from nuclr_jax.lab.models import naflex, vit
from nuclr_jax.lab.models.vit import siglip_vit_b16

PATCH, SIDE = 4, 4  # pixels of a patch, and patches of a side of the square
SIZES = dict(width=8, layers=2, heads=2, hidden=12)
GRIDS = [(2, 5), (5, 2), (16, 1), (1, 1), (4, 4)]


@functools.cache
def tower_of(side=SIDE, **changes):
  size = side * PATCH
  arguments = dict(patch=PATCH, grid=3, **SIZES) | changes
  return naflex.naflex_vit(image_shape=(size, size + PATCH, 3), **arguments)


@functools.cache
def weights(grid=3):
  """Random ones, large enough that every part of an image matters."""
  params, _ = tower_of(grid=grid).init(jax.random.key(0))
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.float32(rng.normal(size=x.shape) * x.shape[0] ** -0.5), params
  )


def image_of(grid, seed=0):
  shape = [x * PATCH for x in grid]
  return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


def packed(grids=GRIDS, side=SIDE):
  return np.stack(
    [
      patches.pack(image_of(x, i), size=side * PATCH, patch=PATCH)
      for i, x in enumerate(grids)
    ]
  )


def features_of(images, tower=None):
  return np.asarray(applied(tower or tower_of(), weights(), images))


@functools.partial(jax.jit, static_argnums=0)
def applied(tower, params, images):
  return tower.apply(params, {}, images)[0]


def interpolated(positions, grid):
  """PyTorch's antialiased bilinear resizing: windows of whole numbers."""
  for axis, new in enumerate(grid):
    old = positions.shape[axis]
    ratio = old / new
    support = max(ratio, 1.0)
    rows = []
    for i in range(new):
      centre = ratio * (i + 0.5)
      first = max(int(centre - support + 0.5), 0)
      last = min(int(centre + support + 0.5), old)
      window = np.array(
        [
          max(0.0, 1 - abs((j - centre + 0.5) / support))
          for j in range(first, last)
        ]
      )
      part = np.moveaxis(positions, axis, 0)[first:last]
      rows.append(np.tensordot(window / window.sum(), part, 1))
    positions = np.moveaxis(np.stack(rows), 0, axis)
  return positions.reshape(-1, positions.shape[-1])


class TestUnpack:
  def test_back_to_pixels(self):
    found = naflex.unpack(jnp.asarray(packed()), PATCH)
    np.testing.assert_array_equal(found.grid, GRIDS)
    for i, (rows, columns) in enumerate(GRIDS):
      image = image_of((rows, columns), i)
      assert found.mask[i].sum() == rows * columns
      for number in range(rows * columns):
        row, column = divmod(number, columns)
        assert found.places[i, number].tolist() == [row, column]
        patch = image[PATCH * row :, PATCH * column :][:PATCH, :PATCH]
        np.testing.assert_array_equal(
          found.patches[i, number].reshape(PATCH, PATCH, 3), patch
        )

  def test_more_than_255_columns(self):
    image = np.zeros((1, 300, 3), np.uint8)
    whole = patches.pack(image, size=20, patch=1)
    found = naflex.unpack(jnp.asarray(whole)[None], 1)
    assert found.grid.tolist() == [[1, 300]]


class TestPositions:
  @pytest.mark.parametrize(
    "grid", [(16, 16), (1, 256), (256, 1), (9, 28), (3, 5), (40, 6), (1, 1)]
  )
  def test_as_torch_resizes_them(self, grid):
    positions = np.random.default_rng(0).normal(size=(16, 16, 3))
    places = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), -1)
    found = naflex.resize_positions(
      jnp.float32(positions), jnp.array([grid]), jnp.array([places])
    )
    np.testing.assert_allclose(
      found[0], interpolated(positions, grid), atol=1e-5
    )


class TestTower:
  def test_bfloat16(self):
    exact = features_of(packed())
    coarse = features_of(packed(), tower_of(dtype="bfloat16"))
    assert 0 < np.abs(coarse - exact).max() < 0.05 * np.abs(exact).max()

  def test_what_is_behind_the_last_patch_does_not_matter(self):
    images = packed()
    other = images.copy()
    rng = np.random.default_rng(1)
    for image, (rows, columns) in zip(other, GRIDS, strict=True):
      for number in range(rows * columns, SIDE**2):
        row, column = (PATCH * x for x in divmod(number, SIDE))
        place = image[row : row + PATCH, column : column + PATCH]
        place[:] = rng.integers(0, 256, place.shape)
    assert (images != other).any()
    np.testing.assert_array_equal(features_of(images), features_of(other))

  def test_a_larger_square_has_more_room(self):
    larger = features_of(packed(side=6), tower_of(6))
    np.testing.assert_allclose(features_of(packed()), larger, atol=1e-6)

  def test_alone_and_in_a_batch(self):
    images = packed()
    alone = [features_of(image[None])[0] for image in images]
    np.testing.assert_allclose(features_of(images), alone, atol=1e-6)

  def test_the_shape_of_an_image_matters(self):
    """The same patches in another grid are at other positions."""
    image = packed([(2, 8), (2, 8)])
    image[1, :2, SIDE * PATCH, 1] = (8, 2)
    first, second = features_of(image)
    assert np.abs(first - second).max() > 1e-2

  def test_a_square_is_siglips(self):
    """With a patch for each position, only the files differ."""
    size, params = SIDE * PATCH, weights(grid=SIDE)
    other = siglip_vit_b16(image_shape=(size, size, 3), patch=PATCH, **SIZES)
    kernel = params["patches"]["kernel"].reshape(PATCH, PATCH, 3, -1)
    same = params | {"patches": params["patches"] | {"kernel": kernel}}
    image = image_of((SIDE, SIDE))[None]
    expected = applied(other, same, image)
    found = applied(tower_of(grid=SIDE), params, packed([(SIDE, SIDE)]))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - features_of(packed([(2, 5)]))).max() > 1e-2

  def test_compiled_once(self):
    features_of(packed([GRIDS[0]]))
    count = applied._cache_size()
    for grid in GRIDS:
      features_of(packed([grid]))
    assert applied._cache_size() == count

  def test_rows_that_fill_up_a_batch(self):
    images = np.zeros((1, SIDE * PATCH, (SIDE + 1) * PATCH, 3), np.uint8)
    gradient = jax.jit(
      jax.grad(lambda x: applied(tower_of(), x, images).sum())
    )(weights())
    for x in jax.tree.leaves((features_of(images), gradient)):
      assert np.isfinite(x).all()

  @pytest.mark.parametrize(
    ("shape", "message"),
    [
      ((16, 16, 3), "4 wider than high, got .16, 16, 3.; set data.resize to"),
      ((16, 24, 3), "packed patches of 4 pixels"),
      ((18, 22, 3), "patch must divide"),
    ],
  )
  def test_other_images(self, shape, message):
    with pytest.raises(ValueError, match=message):
      naflex.naflex_vit(image_shape=shape, patch=PATCH, **SIZES)

  def test_too_many_patches(self):
    size = 4 * (vit.MAX_PATCHES**0.5 + 1)
    with pytest.raises(ValueError, match="16,641 patches of 4 x 4"):
      tower_of(int(size) // 4)

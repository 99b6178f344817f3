"""The fixed batches that a run is measured with."""

import numpy as np
import pytest

from nuclr_jax.lab.data import loader
from nuclr_jax.lab.data.source import Share, random_numbers
from nuclr_jax.lab.train import batches
from nuclr_jax.lab.train import build as experiment

LARGE, SMALL, BATCH = 6_300, 100, 64
COUNT = 7  # whole batches of the small share are 3


@pytest.fixture(scope="module")
def build(tiny, few_pairs):
  def make(*weights):
    sizes = LARGE, SMALL
    shares = map(Share, ("large", "small"), sizes, weights)
    train = few_pairs.train._replace(shares=tuple(shares))
    return experiment.build(tiny(seed=3), data=few_pairs._replace(train=train))

  return make


def read(parts, count=COUNT):
  return list(batches.fixed_batches(parts, count)())


def test_batches_have_the_shares_of_training(build):
  parts = build(1.0, 1.0)
  with loader.batches(parts.data.train, batch_size=BATCH, seed=3) as stream:
    wanted = np.sum(next(stream).pair_id < LARGE)
  ids = np.stack([x.pair_id for x in read(parts)])
  assert ids.shape == (COUNT, BATCH) and wanted == BATCH // 2
  assert (np.sum(ids < LARGE, axis=1) == wanted).all()
  # Also each half of a batch, which may be that of a process or a microbatch.
  assert (np.sum(ids[:, : BATCH // 2] < LARGE, axis=1) == wanted // 2).all()


def test_pairs_repeat_only_where_a_share_is_used_up(build):
  ids = np.stack([x.pair_id for x in read(build(1.0, 1.0))])
  assert all(len(set(row)) == BATCH for row in ids.tolist())
  _, visits = np.unique(ids[ids < LARGE], return_counts=True)
  assert (visits == 1).all()
  small = ids[ids >= LARGE].reshape(COUNT, -1)
  for first in range(0, COUNT, 3):
    _, visits = np.unique(small[first : first + 3], return_counts=True)
    assert (visits == 1).all()
  assert ids.max() < LARGE + SMALL


def test_a_repeated_pair_looks_as_in_its_next_epoch(build):
  parts, looks = build(1.0, 1.0), {}
  for i, batch in enumerate(read(parts)):
    for x, image in zip(batch.pair_id.tolist(), batch.image, strict=True):
      epoch = i // 3 if x >= LARGE else 0
      looks[x, epoch] = image
  for (x, epoch), image in looks.items():
    one = np.array([x])
    wanted = parts.data.train.fetch(one, random_numbers(3, epoch, one)).image
    np.testing.assert_array_equal(image, wanted[0])


def test_batches_are_the_same_each_time(build):
  parts = build(2.0, 1.0)
  for x, y in zip(read(parts), read(parts), strict=True):
    np.testing.assert_array_equal(x.pair_id, y.pair_id)
    np.testing.assert_array_equal(x.image, y.image)


def test_without_shares_pairs_are_drawn_from_all(build):
  parts = build()
  ids = np.stack([x.pair_id for x in read(parts, 2)])
  wanted = np.random.default_rng(3).choice(
    LARGE + SMALL, (2, BATCH), replace=False
  )
  np.testing.assert_array_equal(ids, wanted)

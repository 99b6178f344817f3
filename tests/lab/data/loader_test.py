"""The stream of batches: order, position, augmentation, processes, errors."""

import chex
import numpy as np
import pytest

from nuclr_jax.lab.data import augment, loader
from nuclr_jax.lab.data.glyphs import prepare_glyphs
from nuclr_jax.lab.data.records import read_records
from nuclr_jax.lab.data.source import Share, in_memory
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.types import Batch, Sizes


@pytest.fixture(scope="module")
def train(data_dir):
  return read_records(prepare_glyphs(data_dir, size=16), "train")


@pytest.fixture(scope="module")
def source(train):
  words = build_tokenizer(train.captions, length=12)
  move = augment.augment(shift=2.0, scale=0.1)
  return in_memory(train, words.encode(train.captions), move)


def take(source, start, count, **kwargs):
  options = dict(batch_size=1000, seed=3) | kwargs
  with loader.batches(source, start_step=start, **options) as stream:
    return [next(stream) for _ in range(count)]


class TestBatches:
  def test_every_id_at_most_once_per_epoch_and_another_tail(self, source):
    n = source.sizes.num_pairs
    steps = n // 1000
    ids = [b.pair_id for b in take(source, 0, 3 * steps, augment=False)]
    epochs = [
      np.concatenate(ids[i * steps : (i + 1) * steps]) for i in range(3)
    ]
    tails = [frozenset(range(n)) - set(epoch.tolist()) for epoch in epochs]
    assert [len(tail) for tail in tails] == [n % 1000] * 3
    assert len(set(tails)) == 3
    assert not np.array_equal(epochs[0], epochs[1])

  def test_same_seed_same_batches(self, source):
    first = take(source, 0, 3)
    chex.assert_trees_all_equal(first, take(source, 0, 3))
    other = take(source, 0, 3, seed=4)
    assert not np.array_equal(first[0].pair_id, other[0].pair_id)

  def test_position_is_one_integer(self, source):
    steps = source.sizes.num_pairs // 1000
    whole = take(source, 0, steps + 5)
    chex.assert_trees_all_equal(whole[steps - 2 :], take(source, steps - 2, 7))

  def test_threads_change_nothing(self, source):
    chex.assert_trees_all_equal(
      take(source, 0, 4),
      take(source, 0, 4, num_threads=4, prefetch=8),
    )

  def test_augmentation_follows_the_pair(self, source):
    """Neither the batch size nor the place in a batch changes an image."""

    def images_of(start, count, **kwargs):
      batches = take(source, start, count, **kwargs)
      ids = np.concatenate([b.pair_id for b in batches])
      images = np.concatenate([b.image for b in batches])
      return dict(zip(ids.tolist(), images, strict=True))

    some, others = images_of(0, 1), images_of(0, 8, batch_size=250)
    both = sorted(some.keys() & others.keys())
    assert len(both) == 1000
    assert all((some[i] == others[i]).all() for i in both)
    steps = source.sizes.num_pairs // 1000
    later = images_of(steps, steps)  # the second epoch
    both = sorted(some.keys() & later.keys())
    assert np.mean([(some[i] != later[i]).any() for i in both]) > 0.9

  def test_processes_share_the_global_batch(self, source):
    (whole,) = take(source, 9, 1)
    parts = [
      take(source, 9, 1, process_index=i, process_count=2)[0] for i in range(2)
    ]
    for i, part in enumerate(parts):
      half = slice(i * len(part.pair_id), (i + 1) * len(part.pair_id))
      np.testing.assert_array_equal(part.pair_id, whole.pair_id[half])
      np.testing.assert_array_equal(part.image, whole.image[half])

  def test_ids_belong_to_the_images_of(self, source, train):
    (batch,) = take(source, 5, 1, augment=False)
    np.testing.assert_array_equal(batch.image, train.image[batch.pair_id])
    np.testing.assert_array_equal(batch.text_id, train.text_id[batch.pair_id])

  @pytest.mark.parametrize("batch_size", [0, 10**6])
  def test_impossible_batch_size(self, source, batch_size):
    with pytest.raises(ValueError, match="batch_size must be in"):
      take(source, 0, 1, batch_size=batch_size)

  def test_processes_must_divide(self, source):
    with pytest.raises(ValueError, match="must divide the batch size"):
      take(source, 0, 1, process_count=3)

  def test_ids_out_of_range_stop_the_stream(self, source):
    small = source._replace(sizes=Sizes(43_000, 43_000, 10))
    with pytest.raises(ValueError, match=r"text_id must be in \[0, 10\)"):
      take(small, 0, 1)
    ids = np.arange(4)
    labels = Batch(None, None, ids, label=ids + 2**32)
    with pytest.raises(ValueError, match="label must fit in int32, found 4294"):
      loader.check_ids(labels, Sizes(4, 4, 4))


class TestShares:
  """Three sets of 40,000, 3,000 and 172 pairs."""

  @pytest.fixture
  def mixed(self, source):
    sizes, weights = (40_000, 3_000, 172), (5.0, 3.0, 2.0)
    shares = map(Share, "abc", sizes, weights)
    return source._replace(shares=tuple(shares))

  def test_every_batch_has_the_shares(self, mixed):
    for batch in take(mixed, 0, 30, batch_size=10):
      which = np.digitize(batch.pair_id, [40_000, 43_000])
      assert np.bincount(which).tolist() == [5, 3, 2]
    (batch,) = take(mixed, 0, 1, batch_size=101)
    which = np.digitize(batch.pair_id, [40_000, 43_000])
    assert np.bincount(which).tolist() == [51, 30, 20]

  def test_parts_of_a_batch_have_the_shares(self, mixed):
    (batch,) = take(mixed, 0, 1, batch_size=100)
    for i in range(0, 100, 10):
      which = np.digitize(batch.pair_id[i : i + 10], [40_000, 43_000])
      assert np.abs(np.bincount(which) - [5, 3, 2]).max() <= 1

  @pytest.mark.parametrize("counts", [(128, 128), (192, 64), (128, 64, 64)])
  @pytest.mark.parametrize("pieces", [2, 4, 8])
  def test_microbatches_have_the_shares(self, counts, pieces):
    """As well as in a random order, whose deviation is less than the root."""
    places = loader.evenly(counts)
    assert sorted(places) == list(range(256))
    which = np.repeat(range(len(counts)), counts)[places]
    share = np.array(counts) / pieces
    for i in range(pieces):
      found = np.bincount(which[i::pieces], minlength=len(counts))
      assert np.all(np.abs(found - share) < 3 * np.sqrt(share))

  def test_every_set_has_its_own_epochs(self, mixed):
    """Of the 172 pairs, 160 are visited in 8 steps, and then others."""
    steps = 172 // 20
    ids = [x.pair_id for x in take(mixed, 0, 3 * steps, batch_size=100)]
    ids = np.concatenate([x[x >= 43_000] for x in ids]).reshape(3, steps * 20)
    for epoch in ids:
      assert len(set(epoch.tolist())) == steps * 20
    assert not np.array_equal(ids[0], ids[1])
    assert set(ids[0].tolist()) != set(ids[1].tolist())  # another tail

  def test_position_is_one_integer(self, mixed):
    whole = take(mixed, 0, 25, batch_size=100)
    chex.assert_trees_all_equal(
      whole[17:], take(mixed, 17, 8, batch_size=100, num_threads=4)
    )

  def test_processes_share_the_global_batch(self, mixed):
    (whole,) = take(mixed, 9, 1, batch_size=100)
    parts = [
      take(mixed, 9, 1, batch_size=100, process_index=i, process_count=2)[0]
      for i in range(2)
    ]
    for name in ("pair_id", "image"):
      both = np.concatenate([getattr(part, name) for part in parts])
      np.testing.assert_array_equal(both, getattr(whole, name))

  def test_a_pair_looks_different_in_each_epoch_of_its_set(self, mixed):
    images = {}
    for batch in take(mixed, 0, 3 * (172 // 20), batch_size=100):
      for i, image in zip(batch.pair_id.tolist(), batch.image, strict=True):
        images.setdefault(i, set()).add(image.tobytes())
    seen = [len(x) for i, x in images.items() if i >= 43_000]
    assert np.mean(seen) > 2.5

  @pytest.mark.parametrize(
    "batch_size, message",
    [(2, "take 0 of the 172 pairs of c for"), (999, "take 200 of the 172 pai")],
  )
  def test_impossible_shares(self, mixed, batch_size, message):
    with pytest.raises(ValueError, match=message):
      take(mixed, 0, 1, batch_size=batch_size)

  def test_great_weights(self):
    shares = [Share(name, 9, 2**1023) for name in "ab"]
    assert loader.shares_of_batch(shares, 4) == [2, 2]

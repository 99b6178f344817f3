"""Glyphs, sources, tokenizer, augmentation and the stream of batches."""

import pathlib
import shutil

import numpy as np
import pytest

from nuclr_jax import datasets
from nuclr_jax.data import (
  digits,
  glyphs,
  pipeline,
  sources,
  tokenizer,
  transforms,
)
from nuclr_jax.types import Sizes


@pytest.fixture(scope="module")
def folder(data_dir):
  return glyphs.prepare(data_dir, size=16)


@pytest.fixture(scope="module")
def train(folder):
  return sources.read_records(folder, "train")


@pytest.fixture(scope="module")
def words(train):
  return tokenizer.build(train.captions, length=12)


@pytest.fixture(scope="module")
def source(train, words):
  move = transforms.augment(shift=2.0, scale=0.1)
  return sources.in_memory(train, words.encode(train.captions), move)


class TestGlyphs:
  def test_nothing_is_written_beside_them(self, folder, data_dir):
    before = sorted(folder.iterdir())
    datasets.glyphs(data_dir=data_dir, size=16)
    assert sorted(folder.iterdir()) == before

  def test_sizes(self, folder, train):
    assert 40_000 < len(train.image) < 47_000
    assert 5_500 < len(train.captions) < 6_200
    held_out = [sources.read_records(folder, s) for s in ("validation", "test")]
    assert [len(x.captions) for x in held_out] == [500, 1000]

  def test_no_character_is_in_two_splits(self, folder):
    captions = [
      set(sources.read_records(folder, split).captions)
      for split in ("train", "validation", "test")
    ]
    assert not captions[0] & captions[1]
    assert not (captions[0] | captions[1]) & captions[2]

  def test_pictures_have_ink_and_their_own_caption(self, train):
    assert train.image.any(axis=(1, 2, 3)).all()
    # A character of all fonts has one text id and many pictures.
    count = np.bincount(train.text_id)
    assert count.min() >= 1 and count.max() == len(glyphs.FONTS)
    fonts = train.image[train.text_id == count.argmax()]
    assert len(np.unique(fonts.reshape(len(fonts), -1), axis=0)) > 8

  def test_splits_do_not_depend_on_blank_characters(self):
    whole = glyphs.split_characters(range(5000), range(5000))
    fewer = glyphs.split_characters(range(5000), range(4990))
    assert len(set(whole["test"]) - set(fewer["test"])) <= 10

  def test_prepared_once(self, folder, data_dir):
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert glyphs.prepare(data_dir, size=16) == folder
    assert before == {p: p.stat().st_mtime_ns for p in folder.iterdir()}

  def test_size_too_small(self, tmp_path):
    with pytest.raises(ValueError, match="at least 8 pixels"):
      glyphs.prepare(tmp_path, size=4)


class TestDamage:
  @pytest.fixture
  def copy(self, folder, tmp_path):
    target = tmp_path / folder.parent.name / folder.name
    shutil.copytree(folder, target)
    return target

  def file(self, copy, split="validation") -> pathlib.Path:
    (path,) = copy.glob(f"*-{split}.array_record*")
    return path

  def assert_names(self, copy, path):
    with pytest.raises(ValueError, match="damaged") as error:
      sources.read_records(copy, "validation")
    assert str(path) in str(error.value)
    assert "Delete the folder" in str(error.value)
    assert "other data sets need nuclr ingest" in str(error.value)

  def test_flipped_bytes(self, copy):
    path = self.file(copy)
    data = bytearray(path.read_bytes())
    middle = len(data) // 4
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    self.assert_names(copy, path)

  def test_truncated(self, copy):
    path = self.file(copy)
    path.write_bytes(path.read_bytes()[:70_000])
    self.assert_names(copy, path)

  def test_empty(self, copy):
    path = self.file(copy)
    path.write_bytes(b"")
    self.assert_names(copy, path)

  def test_missing(self, copy):
    path = self.file(copy)
    path.unlink()
    self.assert_names(copy, path)

  def test_another_split_in_its_place(self, copy):
    path = self.file(copy)
    path.write_bytes(self.file(copy, "test").read_bytes())
    self.assert_names(copy, path)

  def test_no_description(self, data_dir, tmp_path):
    copied_data_dir = tmp_path / "data"
    shutil.copytree(data_dir, copied_data_dir)
    folder = glyphs.prepare(copied_data_dir, size=16)
    (folder / "dataset_info.json").unlink()
    with pytest.raises(ValueError, match="dataset_info.json"):
      glyphs.prepare(copied_data_dir, size=16)


def test_hidden_repetitions_change_only_the_text_ids(train, words, source):
  records = sources.hide_repetitions(train)
  hidden = sources.in_memory(records, words.encode(records.captions))
  n = len(train.image)
  assert hidden.sizes == Sizes(n, n, n)
  ids = np.flatnonzero(train.text_id == np.bincount(train.text_id).argmax())[:3]
  ours, theirs = hidden.fetch(ids), source.fetch(ids)
  np.testing.assert_array_equal(ours.text_id, ids)
  assert len(set(theirs.text_id)) == 1
  for name in ("image", "text", "pair_id"):
    np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
  assert hidden.captions(ours.text_id) == source.captions(theirs.text_id)


class TestTokenizer:
  CAPTIONS = ("LATIN SMALL LETTER A", "Dots-124", "LATIN CAPITAL LETTER A")

  def test_same_captions_same_vocabulary(self):
    built = [tokenizer.build(self.CAPTIONS, length=8) for _ in range(3)]
    assert built[0] == built[1] == built[2]

  def test_words_are_one_token_and_unseen_ones_are_spelled(self):
    words = tokenizer.build(self.CAPTIONS, length=8)
    ids = words.encode(["letter dots latin", "latte", "\u4e00"])
    assert ids.dtype == np.int32 and ids.shape == (3, 8)
    assert np.count_nonzero(ids, axis=1).tolist() == [3, 5, 1]
    assert ids[2, 0] == 1  # unknown
    assert ids.max() < words.vocab_size

  def test_no_captions(self):
    with pytest.raises(ValueError, match="needs captions"):
      tokenizer.build([], length=8)


def test_digits_look_like_glyphs():
  images, labels = digits.load(32)
  assert images.shape == (1797, 32, 32, 1) and images.dtype == np.uint8
  np.testing.assert_array_equal(np.unique(labels), np.arange(10))
  assert images.max() > 200 and (images == 0).mean() > 0.5
  assert len(digits.PROMPTS) == 10


class TestTransforms:
  def test_whole_pixel_moves_are_exact(self):
    image = np.zeros((2, 8, 8, 1), np.uint8)
    image[:, 3, 4] = 200
    random = np.zeros((2, transforms.NUM_RANDOM))
    random[:, :4] = [[1.0, 0.5, 0.5, 0.5], [0.5, 0.0, 0.5, 0.5]]
    moved = transforms.augment(shift=2, scale=0.5)(image, random)
    assert moved[0, 5, 4, 0] == 200 and moved[0].sum() == 200  # two down
    assert moved[1, 3, 2, 0] == 200 and moved[1].sum() == 200  # two left

  def test_scale_keeps_the_centre(self):
    image = np.zeros((1, 9, 9, 1), np.uint8)
    image[0, 2:7, 2:7] = 100
    random = np.full((1, transforms.NUM_RANDOM), 0.5)
    random[0, 2:4] = 1.0
    grown = transforms.augment(shift=0, scale=0.3)(image, random)
    assert (grown[0, :, :, 0] == grown[0, ::-1, ::-1, 0]).all()
    assert grown.sum() > image.sum()

  def test_negative(self):
    with pytest.raises(ValueError, match="at least 0"):
      transforms.augment(shift=-1, scale=0)


class TestPipeline:
  def take(self, source, start, count, **kwargs):
    options = dict(batch_size=1000, seed=3) | kwargs
    with pipeline.batches(source, start_step=start, **options) as stream:
      return [next(stream) for _ in range(count)]

  def assert_equal(self, left, right):
    for a, b in zip(left, right, strict=True):
      for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)

  def test_every_id_at_most_once_per_epoch_and_another_tail(self, source):
    n = source.sizes.num_pairs
    steps = n // 1000
    ids = [b.pair_id for b in self.take(source, 0, 3 * steps, augment=False)]
    epochs = [
      np.concatenate(ids[i * steps : (i + 1) * steps]) for i in range(3)
    ]
    tails = [frozenset(range(n)) - set(epoch.tolist()) for epoch in epochs]
    assert [len(tail) for tail in tails] == [n % 1000] * 3
    assert len(set(tails)) == 3
    assert not np.array_equal(epochs[0], epochs[1])

  def test_same_seed_same_batches(self, source):
    first = self.take(source, 0, 3)
    self.assert_equal(first, self.take(source, 0, 3))
    other = self.take(source, 0, 3, seed=4)
    assert not np.array_equal(first[0].pair_id, other[0].pair_id)

  def test_position_is_one_integer(self, source):
    steps = source.sizes.num_pairs // 1000
    whole = self.take(source, 0, steps + 5)
    self.assert_equal(whole[steps - 2 :], self.take(source, steps - 2, 7))

  def test_threads_change_nothing(self, source):
    self.assert_equal(
      self.take(source, 0, 4),
      self.take(source, 0, 4, num_threads=4, prefetch=8),
    )

  def test_augmentation_follows_the_pair(self, source):
    """Neither the batch size nor the place in a batch changes a picture."""

    def pictures(start, count, **kwargs):
      batches = self.take(source, start, count, **kwargs)
      ids = np.concatenate([b.pair_id for b in batches])
      images = np.concatenate([b.image for b in batches])
      return dict(zip(ids.tolist(), images, strict=True))

    some, others = pictures(0, 1), pictures(0, 8, batch_size=250)
    both = sorted(some.keys() & others.keys())
    assert len(both) == 1000
    assert all((some[i] == others[i]).all() for i in both)
    steps = source.sizes.num_pairs // 1000
    later = pictures(steps, steps)  # the second epoch
    both = sorted(some.keys() & later.keys())
    assert np.mean([(some[i] != later[i]).any() for i in both]) > 0.9

  def test_processes_share_the_global_batch(self, source):
    (whole,) = self.take(source, 9, 1)
    parts = [
      self.take(source, 9, 1, process_index=i, process_count=2)[0]
      for i in range(2)
    ]
    for i, part in enumerate(parts):
      half = slice(i * len(part.pair_id), (i + 1) * len(part.pair_id))
      np.testing.assert_array_equal(part.pair_id, whole.pair_id[half])
      np.testing.assert_array_equal(part.image, whole.image[half])

  def test_ids_belong_to_the_pictures(self, source, train):
    (batch,) = self.take(source, 5, 1, augment=False)
    np.testing.assert_array_equal(batch.image, train.image[batch.pair_id])
    np.testing.assert_array_equal(batch.text_id, train.text_id[batch.pair_id])

  @pytest.mark.parametrize("batch_size", [0, 10**6])
  def test_impossible_batch_size(self, source, batch_size):
    with pytest.raises(ValueError, match="batch_size must be in"):
      self.take(source, 0, 1, batch_size=batch_size)

  def test_processes_must_divide(self, source):
    with pytest.raises(ValueError, match="must divide the batch size"):
      self.take(source, 0, 1, process_count=3)

  def test_ids_out_of_range_stop_the_stream(self, source):
    small = source._replace(sizes=Sizes(43_000, 43_000, 10))
    with pytest.raises(ValueError, match=r"text_id must be in \[0, 10\)"):
      self.take(small, 0, 1)

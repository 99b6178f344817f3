"""Glyphs and digits: rendering, splits, damaged files, repeated captions."""

import pathlib
import shutil

import numpy as np
import pytest
import sklearn.datasets

from nuclr_jax.lab.data import glyphs
from nuclr_jax.lab.data.records import hide_repetitions, read_records
from nuclr_jax.lab.data.source import in_memory
from nuclr_jax.lab.data.tokenizer import build_tokenizer
from nuclr_jax.types import Sizes


@pytest.fixture(scope="module")
def folder(data_dir):
  return glyphs.prepare_glyphs(data_dir, size=16)


@pytest.fixture(scope="module")
def train(folder):
  return read_records(folder, "train")


@pytest.fixture(scope="module")
def words(train):
  return build_tokenizer(train.captions, length=12)


class TestGlyphs:
  def test_nothing_is_written_beside_them(self, folder, data_dir):
    before = sorted(folder.iterdir())
    glyphs.glyphs(data_dir=data_dir, size=16)
    assert sorted(folder.iterdir()) == before

  def test_sizes(self, folder, train):
    assert 40_000 < len(train.image) < 47_000
    assert 5_500 < len(train.captions) < 6_200
    held_out = [read_records(folder, s) for s in ("validation", "test")]
    assert [len(x.captions) for x in held_out] == [500, 1000]

  def test_no_character_is_in_two_splits(self, folder):
    captions = [
      set(read_records(folder, split).captions)
      for split in ("train", "validation", "test")
    ]
    assert not captions[0] & captions[1]
    assert not (captions[0] | captions[1]) & captions[2]

  def test_images_have_ink_and_their_own_caption(self, train):
    assert train.image.any(axis=(1, 2, 3)).all()
    # A character of all fonts has one text id and many images.
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
    assert glyphs.prepare_glyphs(data_dir, size=16) == folder
    assert before == {p: p.stat().st_mtime_ns for p in folder.iterdir()}

  def test_size_too_small(self, tmp_path):
    with pytest.raises(ValueError, match="at least 8 pixels"):
      glyphs.prepare_glyphs(tmp_path, size=4)


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
      read_records(copy, "validation")
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
    folder = glyphs.prepare_glyphs(copied_data_dir, size=16)
    (folder / "dataset_info.json").unlink()
    with pytest.raises(ValueError, match="dataset_info.json"):
      glyphs.prepare_glyphs(copied_data_dir, size=16)


def test_hidden_repetitions_change_only_the_text_ids(train, words):
  source = in_memory(train, words.encode(train.captions))
  records = hide_repetitions(train)
  hidden = in_memory(records, words.encode(records.captions))
  n = len(train.image)
  assert hidden.sizes == Sizes(n, n, n)
  ids = np.flatnonzero(train.text_id == np.bincount(train.text_id).argmax())[:3]
  ours, theirs = hidden.fetch(ids), source.fetch(ids)
  np.testing.assert_array_equal(ours.text_id, ids)
  assert len(set(theirs.text_id)) == 1
  for name in ("image", "text", "pair_id"):
    np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
  assert hidden.captions(ours.text_id) == source.captions(theirs.text_id)


def test_digits_look_like_glyphs():
  images, labels = glyphs.digits_like_glyphs(32)
  assert images.shape == (1797, 32, 32, 1) and images.dtype == np.uint8
  np.testing.assert_array_equal(np.unique(labels), np.arange(10))
  assert images.max() > 200 and (images == 0).mean() > 0.5
  assert len(glyphs.DIGIT_PROMPTS) == 10


def test_digits_are_those_of_scikit_learn():
  """They are read from its file, without importing it."""
  images, labels = glyphs.enlarged_digits(8)
  expected = sklearn.datasets.load_digits()
  pixels = (expected.images * (255 / 16)).astype(np.uint8)
  np.testing.assert_array_equal(images[..., 0], pixels)
  np.testing.assert_array_equal(labels, expected.target)

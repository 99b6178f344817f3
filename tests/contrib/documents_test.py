"""Documents: files, records, splits, pairs of sentences."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from nuclr_jax.contrib import document_sentences as documents

WORDS = ("sea", "wind", "tree", "iron", "milk", "song")


def sentences_of(topic, count):
  """Different sentences that share one word."""
  return [f"The {topic} is number {i}." for i in range(count)]


def write_documents(path):
  """A document of twenty sentences about each word."""
  path.mkdir()
  for word in WORDS:
    lines = sentences_of(word, 20)
    (path / f"{word}.txt").write_text("\n".join([*lines, "", lines[0]]))
    (path / f"._{word}.txt").write_text("Mac OS X.\nThis is hidden.\n")
  return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return write_documents(tmp_path_factory.mktemp("data") / "words")


class Reviews(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Texts and labels in the form of imdb_reviews."""

  VERSION = tfds.core.Version("1.0.0")
  name = "reviews"

  def _info(self):
    features = {
      "text": tfds.features.Text(),
      "label": tfds.features.ClassLabel(names=["neg", "pos"]),
    }
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict(features),
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    return {
      name: self._rows(name) for name in ("train", "test", "unsupervised")
    }

  def _rows(self, split):
    for i in range(24):
      topic = WORDS[i % 2]
      text = " ".join(sentences_of(topic, 3)[i % 3 :]) + f"<br />Review {i}."
      if i == 23:
        text = "One sentence."
      yield i, {"text": text, "label": -1 if split[0] == "u" else i % 2}

  def _generate_examples(self):
    raise NotImplementedError


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
  place = tmp_path_factory.mktemp("prepared")
  Reviews(data_dir=place, file_format="array_record").download_and_prepare()
  return place


def test_every_document_is_in_all_splits(folder):
  texts = documents.read_documents(str(folder))
  assert texts.classes == sorted(WORDS) and len(texts.text) == 20 * 6
  splits = documents.split_documents(texts)
  for name, count in (("train", 14), ("validation", 2), ("test", 4)):
    assert np.bincount(splits[name].label).tolist() == [count] * 6
    for line, c in zip(splits[name].text, splits[name].label, strict=True):
      assert texts.classes[c] in line
  together = sum((x.text for x in splits.values()), [])
  assert sorted(together) == sorted(texts.text)  # each sentence once


def test_pairs_are_sentences_of_one_document(folder):
  data = documents.documents(train=str(folder), length=8, block_size=3)
  assert data.num_classes == 6 and data.block_size == 3
  random = np.random.default_rng(0).random((12, 32))
  batch = data.train.fetch(np.arange(12), random)
  assert batch.image.shape == batch.text.shape == (12, 8)
  blocks = batch.label.reshape(4, 3)
  assert (blocks == blocks[:, :1]).all()
  topic = {
    c: data.tokenizer.encode([w])[0, 1] for c, w in enumerate(sorted(WORDS))
  }
  for side in (batch.image, batch.text):
    assert all(
      topic[c] in row for c, row in zip(batch.label, side, strict=True)
    )
  assert (batch.image != batch.text).any()


def test_part_of_the_training_sentences(folder):
  data = documents.documents(train=str(folder), per_class=5)
  assert data.train.sizes.num_pairs == 30
  scores = data.held_out["test"].others["words"]
  assert len(scores.train.label) == 30 and len(scores.test.label) == 24


class TestRecords:
  def test_sentences_of_records(self, reviews, caplog):
    texts = documents.read_documents("reviews:unsupervised", data_dir=reviews)
    assert "1 of 24 documents have fewer than two" in caplog.text
    assert len(texts.classes) == 23
    first = [x for x, c in zip(texts.text, texts.label, strict=True) if c == 0]
    assert first == [*sentences_of("sea", 3), "Review 0."]

  def test_labels_are_needed_to_classify(self, reviews):
    found = documents.read_labelled_texts("reviews:test", data_dir=reviews)
    assert found.label.tolist() == [0, 1] * 12
    assert list(found.classes) == ["neg", "pos"]
    with pytest.raises(ValueError, match=r"texts without a label \(-1\)"):
      documents.read_labelled_texts("reviews:unsupervised", data_dir=reviews)


@pytest.mark.parametrize(
  "change, message",
  [
    (dict(train=None), "config.data.train is missing; name a folder"),
    (dict(classify=("a:train",)), "classify must name the texts to train on"),
    (dict(train="nowhere"), "neither a folder nor a data set with a split"),
    (dict(train="nowhere:train"), "nowhere"),
  ],
)
def test_wrong_places(change, message, folder, tmp_path):
  arguments = dict(train=str(folder), data_dir=tmp_path) | change
  with pytest.raises(ValueError, match=message):
    documents.documents(**arguments)


def test_documents_that_are_too_short(tmp_path):
  for name in ("a", "b", "c"):
    (tmp_path / f"{name}.txt").write_text("One.\nTwo.\nThree.\n")
  texts = documents.read_documents(str(tmp_path))
  assert np.bincount(texts.label).tolist() == [3, 3, 3]
  with pytest.raises(ValueError, match=r"3 of 3 documents have fewer than 10"):
    documents.documents(train=str(tmp_path))
  (tmp_path / "empty").mkdir()
  with pytest.raises(ValueError, match="has 0 documents of two sentences"):
    documents.read_documents(str(tmp_path / "empty"))

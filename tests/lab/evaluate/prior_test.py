"""Priors of texts: in scores after training, and as zeta held fixed."""

import csv
import json
import logging
import os

import numpy as np
import pytest

from nuclr_jax import Sides, popularity
from nuclr_jax.lab.data.source import (
  Batch,
  Data,
  HeldOut,
  ImageTextSet,
  LabelledSet,
  Source,
)
from nuclr_jax.lab.evaluate import (
  Embed,
  add_prior,
  doubt_prior,
  make_prior,
  run_evaluators,
)
from nuclr_jax.lab.evaluate.prior import counts_by_text
from nuclr_jax.types import Sizes

CAPTIONS = ["a dog", "a cat", "a dog"]  # of three text ids
TEXT_ID = np.array([0, 0, 1, 2, 2, 2])
TAU = 0.5


def source():
  n = len(TEXT_ID)
  return Source(
    Sizes(n, n, 3),
    fetch=lambda ids, random=None: Batch(None, None, ids),
    ids=lambda ids: Sides(ids, TEXT_ID[ids]),
    captions=lambda ids: [CAPTIONS[i] for i in ids],
    fingerprint="",
  )


def held_out():
  """Two texts that one image cannot tell apart, a third that is asked for."""
  images = np.zeros((3, 4, 4, 1))
  images[:, 0, 0, 0] = range(3)
  captioned = ImageTextSet(
    images, np.arange(3), ["a cat", "a dog", "a cow"], np.arange(3)
  )
  classes = LabelledSet(images, np.array([0, 1, 1]), ["a cat", "a dog"])
  return HeldOut({"": captioned}, {"pets": lambda: classes})


VECTORS = {"a cat": 0, "a dog": 1, "a cow": 2}
IMAGES = np.array([[0.97, 0.2, 0.1], [0.71, 0.7, 0.05], [0.05, -0.3, 0.95]])


def embed():
  def text(captions):
    words = [c.removeprefix("a photo of ").rstrip(".") for c in captions]
    return np.eye(3)[[VECTORS[w.replace("a a", "a")] for w in words]]

  return Embed(lambda x: IMAGES[x[:, 0, 0, 0].astype(int)], text)


def test_spellings_of_a_text_are_counted_together():
  """A shared text id has the captions of its first pair only."""
  captions = ["A dog.", "a cat", "a dog!"]  # the last has an id of its own
  train = source()._replace(captions=lambda ids: [captions[i] for i in ids])
  prior = make_prior("counts", train)
  asked = ["a dog", "A dog.", "a cat", "a cow"]
  np.testing.assert_allclose(np.exp(prior(asked)), [5.5, 5.5, 1.5, 0.5])
  assert counts_by_text(train).tolist() == [5, 1, 5]


def score(prior, split="test"):
  data = Data(source(), None, (4, 4, 1), {split: held_out()})
  suites = add_prior({}, data, make_prior(prior, source()), temperature=TAU)
  return run_evaluators(suites[split], embed(), split)


def expected(log_p):
  """How often the best score is right, by hand."""
  ranked = IMAGES + TAU * np.asarray(log_p)
  return np.mean(np.argmax(ranked, 1) == np.arange(3))


def test_counts_of_captions():
  """Of all text ids that have the caption; none is half a pair."""
  scores = score("counts")
  log_p = np.log(np.array([1, 5, 0]) + 0.5)
  found = scores["test/prior/image_to_text/recall@1"]
  assert found == expected(log_p) != expected([0, 0, 0])
  # No prior of images: as it was without.
  best = np.argmax(IMAGES, 0) == np.arange(3)
  assert scores["test/prior/text_to_image/recall@1"] == best.mean()
  # Image 0 is a cat, images 1 and 2 are dogs.
  pets = (IMAGES + TAU * log_p)[:, :2].argmax(1) == [0, 1, 1]
  assert scores["test/prior/zero_shot_pets/top1"] == pets.mean()


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_counts_of_a_file(kind, tmp_path):
  counts = {"a cat": 1.0, "a dog": 2.5, "a cow": 3.0}
  path = tmp_path / f"asked.{kind}"
  if kind == "json":
    path.write_text(json.dumps(counts))
  else:
    path.write_text("".join(f'"{k}",{x}\n' for k, x in counts.items()))
  found = score(path)["test/prior/image_to_text/recall@1"]
  assert found == expected(np.log(list(counts.values())))


@pytest.mark.parametrize(
  ("name", "text", "message"),
  [
    ("x.json", "[1]", "not a table of texts and counts"),
    ("x.json", '{"a": "b"}', "not a table of texts and counts"),
    ("x.json", "{}", "it has no texts"),
    ("x.csv", "a dog,0\n", "the count of 'a dog' is 0; each text needs"),
    ("x.csv", "a dog,nan\n", "the count of 'a dog' is nan"),
    ("x.csv", "a dog,1\na dog,2\n", "'a dog' occurs twice"),
    ("x.json", '{"a dog": 1, "a dog": 2}', "'a dog' occurs twice"),
    ("x.json", '[["a dog", 1]]', "not an object"),
    ("x.json", '{"a dog": 1' + 400 * "0" + "}", "not a table .* too large"),
    ("x.csv", "a dog\n", "line 1 has 1 columns, not 2"),
    ("x.csv", "a dog,1\n\na cat,x\n", "the count in line 3 is 'x'"),
    ("x.csv", "a dog,1\n", "lacks 2 of 3 texts, such as 'a cat'; give each"),
  ],
)
def test_bad_files(name, text, message, tmp_path):
  path = tmp_path / name
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    score(path)


def test_a_spreadsheet_with_a_mark_and_blank_lines(tmp_path):
  path = tmp_path / "asked.csv"
  path.write_text("\ufeffa cat,1\n\na dog,2\n,\n", encoding="utf-8")
  found = make_prior(path)(["a cat", "a dog"])
  np.testing.assert_allclose(found, np.log([1, 2]))


def test_counts_that_know_few_texts(caplog):
  """A third of the texts is not among the captions."""
  score("counts")
  assert "67 % of 3 texts are training captions" in caplog.text
  assert "such as 'a cow'" in caplog.text


def test_a_field_that_is_too_long(tmp_path):
  path = tmp_path / "x.csv"
  path.write_text("a" * 2000 + ",1\n")
  usual = csv.field_size_limit(1000)  # of the process; ingest raises it
  try:
    with pytest.raises(ValueError, match="not a table .* limit"):
      make_prior(path)
  finally:
    csv.field_size_limit(usual)


def test_counts_need_pairs():
  with pytest.raises(ValueError, match="'counts' needs the training pairs"):
    make_prior("counts")


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(
    ValueError, match="not a table of texts and counts .*No such"
  ):
    make_prior(tmp_path / "none.csv", source())


def test_sets_without_a_known_text_are_left_out(tmp_path, caplog):
  path = tmp_path / "x.csv"
  path.write_text("a whale,3\n")
  with caplog.at_level(logging.WARNING):
    assert not score(path)
  assert "none of the 3 texts of retrieval, such as 'a cat'" in caplog.text
  assert "none of the 2 texts of zero_shot_pets" in caplog.text


def test_doubts(caplog):
  """Where similarities hold log p already, wholly or in part."""
  distinct = source()._replace(sizes=Sizes(6, 6, 6))
  zeta = Sides(np.zeros(8), np.array([0, 0.3, 0.6, 0.3, 0.0, 0.6, 9.0, 9.0]))
  zeros = Sides(*np.zeros((2, 8)))
  doubt_prior(distinct, None, temperature=TAU)
  doubt_prior(distinct, zeros, temperature=TAU)
  assert not caplog.text
  doubt_prior(distinct, zeta, temperature=TAU)
  assert "a spread of 0.49 temperatures" in caplog.text
  assert "share" not in caplog.text
  doubt_prior(source(), None, temperature=TAU)
  assert "6 training pairs share 3 texts" in caplog.text


def test_zeta_of_counts():
  zeta = popularity.zeta_of_counts(source().ids(np.arange(6)), temperature=TAU)
  log_p = np.log([2, 1, 3])
  mean = np.average(log_p, weights=[2, 1, 3])
  np.testing.assert_allclose(zeta.text, TAU * (log_p - mean))
  np.testing.assert_array_equal(zeta.image, 0)
  same = Sides(np.arange(6), np.arange(6)[::-1])
  with pytest.raises(ValueError, match="occur equally often"):
    popularity.zeta_of_counts(same, temperature=TAU)
  with pytest.raises(ValueError, match="temperature must be"):
    popularity.zeta_of_counts(source().ids(np.arange(6)), temperature=-TAU)


def test_zeta_of_counts_of_captions():
  """Equal captions have two ids, which have the same zeta."""
  counts = counts_by_text(source())
  np.testing.assert_array_equal(counts, [5, 1, 5])
  ids = source().ids(np.arange(6))
  zeta = popularity.zeta_of_counts(
    ids, Sides(np.ones(6), counts), temperature=TAU
  )
  log_p = np.log(counts)
  expected = TAU * (log_p - np.average(log_p, weights=[2, 1, 3]))
  np.testing.assert_allclose(zeta.text, expected)


def test_files_that_never_end(tmp_path):
  """A pipe, a device, JSON within JSON, and a file with a hole."""
  os.mkfifo(tmp_path / "pipe.json")
  (tmp_path / "deep.json").write_text('{"a":' * 100_000)
  with (tmp_path / "hole.csv").open("wb") as file:
    file.truncate(2**40)
  for path, message in {
    tmp_path / "pipe.json": "not a regular file",
    "/dev/zero": "not a regular file",
    tmp_path / "deep.json": "nested too deep",
    tmp_path / "hole.csv": "1,099,511,627,776 bytes, and may have",
  }.items():
    with pytest.raises(ValueError, match=f"not a table of texts .*{message}"):
      make_prior(path)

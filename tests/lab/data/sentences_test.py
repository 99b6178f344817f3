"""Sentences: files, two views by dropout, rated pairs, a config."""

import jax
import numpy as np
import pytest
from scipy import stats

from configs import sentences as recipe
from nuclr_jax import Batch
from nuclr_jax.lab import models
from nuclr_jax.lab.data import sentences
from nuclr_jax.lab.evaluate import evaluators, sts
from nuclr_jax.lab.models import pretrained
from nuclr_jax.lab.train import build

NAMES = [
  f"{script} {size} LETTER {letter}"
  for script in ("LATIN", "GREEK", "CYRILLIC", "COPTIC")
  for size in ("SMALL", "CAPITAL")
  for letter in ("A", "BETA", "GAMMA", "DELTA", "EPSILON", "ZETA")
]


def write_sentences(path):
  """Names of letters, and pairs of them rated by the words they share."""
  (path / "train.txt").write_text("\n".join([*NAMES, "", NAMES[0]]))
  rng, lines = np.random.default_rng(0), []
  for first, second in rng.choice(NAMES, (60, 2)):
    score = len(set(first.split()) & set(second.split()))
    lines.append(f"{score}\t{first}\t{second}\n")
  (path / "rated.tsv").write_text("".join(lines))
  return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return write_sentences(tmp_path_factory.mktemp("sentences"))


class TestFiles:
  def test_sentences_are_different(self, folder):
    assert sentences.read_sentences(folder / "train.txt") == NAMES

  def test_line_separators_within_sentences(self, tmp_path):
    (tmp_path / "a.txt").write_text("a\u2028b\r\nc\n", encoding="utf-8")
    assert sentences.read_sentences(tmp_path / "a.txt") == ["a\u2028b", "c"]

  @pytest.mark.parametrize("data", [b"one\n\none\n", b"", b"\xff\xfe\n\n"])
  def test_no_sentences(self, data, tmp_path):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(ValueError, match="has [01] different|cannot be read"):
      sentences.read_sentences(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="b.txt does not exist"):
      sentences.read_sentences(tmp_path / "b.txt")

  @pytest.mark.parametrize(
    "line", ["high\ta\tb", "1\ta", "nan\ta\tb", "1\ta\tb\tc", "1\ta\t "]
  )
  def test_wrong_ratings_are_named(self, line, tmp_path):
    (tmp_path / "a.tsv").write_text(f"1\tx\ty\n\n{line}\n")
    with pytest.raises(ValueError, match="a.tsv, line 3: a score, a sentence"):
      sentences.read_rated_pairs(tmp_path / "a.tsv")

  def test_ratings(self, tmp_path):
    (tmp_path / "a.tsv").write_text("4.5\tx y\tz\r\n0\ta\tb")
    found = sentences.read_rated_pairs(tmp_path / "a.tsv")
    assert found.first == ["x y", "a"] and found.second == ["z", "b"]
    assert found.score.tolist() == [4.5, 0.0]
    (tmp_path / "b.tsv").write_text("1\ta\tb\n")
    with pytest.raises(ValueError, match="at least 2 are needed"):
      sentences.read_rated_pairs(tmp_path / "b.tsv")


def test_pairs_are_a_sentence_twice():
  tokens = np.arange(12, dtype=np.int32).reshape(4, 3)
  source = sentences.twice(["a", "b", "c", "d"], tokens, "mine")
  batch = source.fetch(np.array([2, 0]), np.zeros((2, 32)))
  np.testing.assert_array_equal(batch.image, tokens[[2, 0]])
  np.testing.assert_array_equal(batch.image, batch.text)
  assert batch.pair_id.tolist() == [2, 0]
  assert source.captions(np.array([3])) == ["d"]
  other = sentences.twice(["a", "b", "c", "e"], tokens, "mine")
  assert source.fingerprint != other.fingerprint
  assert (source.keys().pair == other.keys().pair).sum() == 3


class TestRankCorrelation:
  def test_against_ranks(self):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 30, 5))
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    score = rng.integers(0, 5, 30).astype(float)  # with ties
    ranks = [stats.rankdata(z) for z in ((x * y).sum(axis=1), score)]
    expected = np.corrcoef(*ranks)[0, 1]
    found = sts.rank_correlation(x, y, score)
    assert found == pytest.approx(expected, abs=1e-12)

  def test_constants(self):
    x = np.eye(3)
    assert np.isnan(sts.rank_correlation(x, x, np.arange(3.0)))
    assert np.isnan(sts.rank_correlation(x, np.roll(x, 1, 0), np.zeros(3)))

  def test_evaluator(self, folder):
    rated = sentences.read_rated_pairs(folder / "rated.tsv")
    words = sorted({w for name in NAMES for w in name.split()})

    def text(captions):
      bags = np.array([[w in x.split() for w in words] for x in captions])
      return bags / np.linalg.norm(bags, axis=1, keepdims=True)

    found = sts.sts_evaluator(rated, "rated")(evaluators.Embed(None, text))
    assert found["rated/spearman"] == pytest.approx(1.0)


def make_config(folder, **changes):
  config = recipe.get_config("small")
  config.update_from_flattened_dict(
    {
      "data.train": str(folder / "train.txt"),
      "data.test": (str(folder / "rated.tsv"),),
      "data.length": 8,
      "model.encoder.width": 32,
      "model.dim": 16,
      "optimizer.learning_rate.value": 3e-3,
      "batch_size": 16,
      "num_epochs": 15.0,
      "eval_every": 0,
      "num_devices": 1,
    }
    | changes
  )
  return config


def test_views_that_would_be_equal(folder):
  config = make_config(folder, **{"model.encoder.dropout": 0.0})
  with pytest.raises(ValueError, match="no dropout, so that both views"):
    build.build(config)
  config = make_config(folder, **{"optimizer.freeze": ("model/encoder/.*",)})
  with pytest.raises(ValueError, match="freeze holds the whole encoder"):
    build.build(config)


def test_files_of_one_name(folder, tmp_path):
  path = tmp_path / "rated.tsv"
  path.write_text((folder / "rated.tsv").read_text())
  config = make_config(
    folder, **{"data.test": (str(folder / "rated.tsv"), str(path))}
  )
  with pytest.raises(ValueError, match="need different names"):
    build.build(config)


def test_config_names():
  for text, name in (("", "clip"), ("nuclr,bert", "nuclr"), ("small", "clip")):
    assert recipe.get_config(text).objective.name == name
  with pytest.raises(ValueError, match="argument must be one of"):
    recipe.get_config("gpt")


def test_pretrained_encoder(tmp_path):
  """Weights of a published layout replace the encoder's, nothing else."""
  spec = dict(name="distilbert", width=8, layers=1, heads=2, max_length=8)
  options = dict(image_shape=(4,), vocab_size=9, length=4, encoder=spec, dim=3)
  tower = models.towers(
    image_shape=(8, 8, 3),
    vocab_size=9,
    length=4,
    image=dict(name="resnet50", stages=(1,), width=2),
    text=spec,
  )
  other, _ = jax.jit(tower.init)(jax.random.key(5))
  tensors = pretrained.to_layout(other, {}, "hf_distilbert", sides=("text",))
  np.savez(tmp_path / "weights.npz", **tensors)
  model = models.views(**options, pretrained=tmp_path / "weights.npz")
  params, state = jax.jit(model.init)(jax.random.key(0))
  loaded, _ = model.load(params, state)
  jax.tree.map(np.testing.assert_array_equal, loaded["encoder"], other["text"])
  jax.tree.map(
    np.testing.assert_array_equal, loaded["projection"], params["projection"]
  )
  batch = Batch(*np.ones((2, 2, 4), np.int32), np.arange(2))
  one, two = (model.apply(p, state, batch)[0].image for p in (params, loaded))
  assert np.abs(one - two).max() > 1e-3

"""Scores of latent classes, as evaluators give them."""

import itertools

import numpy as np
import pytest
import sklearn.datasets

from nuclr_jax.contrib import latent_scores
from nuclr_jax.lab.data.source import LabelledSet
from nuclr_jax.lab.evaluate import evaluators, retrieval
from nuclr_jax.types import Sides


@pytest.fixture(scope="module")
def digits():
  """Training and test digits; images [8, 8, 1]."""
  found = sklearn.datasets.load_digits()
  order = np.random.default_rng(0).permutation(len(found.target))
  images, label = found.images[order, ..., None], found.target[order]
  return tuple(
    LabelledSet(images[part], label[part])
    for part in (slice(0, 1000), slice(1000, 1700))
  )


def embed(scale=0.05):
  """The pixels as outputs."""
  image = lambda x: scale * np.asarray(x).reshape(len(x), -1)
  return evaluators.Embed(None, None, outputs=Sides(image, None))


def test_classifiers(digits):
  evaluate = latent_scores.classifiers_evaluator(*digits, "digits")
  scores = {
    k.removeprefix("classes_digits/"): v for k, v in evaluate(embed()).items()
  }
  kinds, names = ("mu", "mu_5", "trained"), ("avg_2", "avg_10", "top_1")
  assert set(scores) == {f"{kind}/{name}" for kind in kinds for name in names}
  # The task of all classes is that of ten ways.
  for kind in kinds:
    assert scores[f"{kind}/avg_10"] == pytest.approx(scores[f"{kind}/top_1"])
    assert scores[f"{kind}/avg_2"] > scores[f"{kind}/avg_10"]
  assert scores["trained/top_1"] > 0.93  # scikit-learn's has 0.95 to 0.97
  assert scores["mu/top_1"] > 0.8 and 0.5 < scores["mu_5/top_1"] < 0.9
  # The mean classifier by a loop over all pairs of classes.
  (x, label, *_), (y, test_label, *_) = digits
  x, y = (0.05 * part.reshape(len(part), -1) for part in (x, y))
  w = np.stack([x[label == c].mean(axis=0) for c in range(10)])
  right = []
  for a in range(10):
    for b in set(range(10)) - {a}:
      right.append(np.mean(y[test_label == a] @ (w[a] - w[b]) > 0))
  assert scores["mu/avg_2"] == pytest.approx(np.mean(right), abs=1e-6)


def test_losses_and_bounds(digits):
  evaluate = latent_scores.losses_evaluator(
    digits[0], "digits", num_negatives=(1, 40), max_rows=300
  )
  found = {
    k.removeprefix("classes_digits/"): v for k, v in evaluate(embed()).items()
  }
  assert found["mean_classifier"] <= found["bound"]
  assert found["mean_classifier"] <= found["bound_40"]
  rest = 1 - found["collision"]
  assert found["unsupervised_1"] == pytest.approx(
    found["collision"] * found["same"] + rest * found["other"]
  )
  assert found["collision"] == pytest.approx(0.1, abs=2e-3)
  assert 0 < found["min_norm"] < found["max_norm"]
  assert found["deviation"] > 0
  # Theorems 4.1 and 4.5 of Saunshi et al., in natural logarithms.
  odds = found["collision"] / rest
  for name, expected in (
    ("bound_of_pairs", found["other"] + odds * (found["same"] - np.log(2))),
    ("bound_by_deviation", found["other"] + odds * 2**0.5 * found["deviation"]),
  ):
    assert found["pairs"] <= found[name] == pytest.approx(expected)
  assert found["pairs"] < found["mean_classifier"]  # fewer classes
  assert evaluate(embed()) == evaluate(embed())  # the same rows


def test_what_has_no_number_is_left_out(digits, caplog):
  """Fewer draws than classes have no bound; huge features take too long."""
  evaluate = latent_scores.losses_evaluator(
    digits[0], "digits", num_negatives=(1, 5), max_rows=60
  )
  found = evaluate(embed())
  assert "classes_digits/unsupervised_5" in found
  assert "classes_digits/bound_5" not in found
  assert all(np.isfinite(list(found.values())))
  image = lambda x: 1e3 * embed().outputs.image(x)
  large = evaluate(embed()._replace(outputs=Sides(image, None)))
  assert "classes_digits/unsupervised_1" in large
  assert "classes_digits/unsupervised_5" not in large
  assert "L_un of 5 negatives is left out" in caplog.text


def test_every_class_keeps_its_share():
  label = np.repeat([0, 1, 5], [600, 300, 1])
  rows = latent_scores._share_of_each_class(label, 90)
  assert np.bincount(label[rows]).tolist() == [60, 30, 0, 0, 0, 1]
  np.testing.assert_array_equal(
    latent_scores._share_of_each_class(label, 2000), np.arange(901)
  )


def test_recall_of_others_of_the_class(digits):
  _, data = digits
  data = LabelledSet(data.image[:150], data.label[:150].copy())
  data.label[7] = 10  # alone in its class: left out
  outputs = embed().outputs.image(data.image)
  before = outputs.copy()
  given = embed()._replace(
    outputs=Sides(lambda rows: outputs[: len(rows)], None)
  )
  latent_scores.same_class_evaluator(data, "digits")(given)
  np.testing.assert_array_equal(outputs, before)  # what it got is not its own
  found = latent_scores.same_class_evaluator(data, "digits")(embed())
  x = data.image.reshape(150, -1).astype(float)
  x /= np.linalg.norm(x, axis=1, keepdims=True)
  keep = np.arange(150) != 7
  x, label = x[keep], data.label[keep]
  near = np.argsort(-(x @ x.T - 2 * np.eye(149)), axis=1)
  for k in (1, 2, 4, 8):
    right = (label[near[:, :k]] == label[:, None]).any(axis=1)
    expected = np.mean(right)
    assert found[f"classes_digits/recall@{k}"] == pytest.approx(expected)


def test_a_class_of_one_row():
  with pytest.raises(ValueError, match=r"two rows or more.*\[3\]"):
    retrieval.same_class_recall(np.eye(3), np.array([1, 1, 3]))


def test_variation(digits):
  _, data = digits
  found = latent_scores.variation_evaluator(data, "digits", max_rows=40)(
    embed()
  )
  again = latent_scores.variation_evaluator(data, "digits", max_rows=40)(
    embed(7.0)
  )
  assert found == pytest.approx(again, rel=1e-5)  # no unit
  zero = latent_scores.variation_evaluator(data, "digits", max_rows=40)(
    embed(0.0)
  )
  assert set(zero.values()) == {0.0}
  rows = np.random.default_rng(0).permutation(len(data.label))[:40]
  x = data.image[rows].reshape(40, -1).astype(float)
  x /= np.linalg.norm(x, axis=1).mean()
  label = data.label[rows]
  chain = [x[i] - x[i + 1] for i in range(39) if label[i] != label[i + 1]]
  star = [x[0] - x[i] for i in range(1, 40) if label[i] != label[0]]
  for name, columns in (("chain", chain), ("star", star)):
    sizes = [
      np.linalg.norm(a - b) for a, b in itertools.combinations(columns, 2)
    ]
    expected = pytest.approx(np.mean(sizes), rel=1e-5)
    assert found[f"classes_digits/variation_{name}"] == expected

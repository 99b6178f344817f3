"""Near-duplicates and label noise, planted and found."""

import inspect

import make_pairs
import numpy as np
import pytest
from scipy import stats

from nuclr_jax import popularity
from nuclr_jax.lab.evaluate import suspects
from nuclr_jax.lab.report import cells, near_duplicates, neighbours
from nuclr_jax.lab.report.suspects import preferred
from nuclr_jax.popularity import problem
from nuclr_jax.types import Pairs, Sides


def test_planted_near_duplicates_are_found(monkeypatch):
  monkeypatch.setattr(cells, "SIMILARITIES", 7 * 40)
  x = make_pairs.unit_rows(0, 40, 16)
  x[[3, 20, 31]] = x[3]
  x[12] = x[5] + 0.02 * x[6]
  x[12] /= np.linalg.norm(x[12])
  found = near_duplicates.clusters(x, np.arange(40), threshold=0.95)
  assert [list(members) for members in found] == [[3, 20, 31], [5, 12]]


def test_links_are_followed_through_and_partners_are_no_link():
  angles = np.array([0.0, 0.1, 0.2, 0.3, 2.0, 2.05])
  x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  chain = near_duplicates.clusters(x, np.arange(6), threshold=np.cos(0.12))
  assert [list(members) for members in chain] == [[0, 1, 2, 3], [4, 5]]
  partner = np.array([0, 1, 2, 3, 4, 4])  # the last two have one text
  apart = near_duplicates.clusters(x, partner, threshold=np.cos(0.12))
  assert [list(members) for members in apart] == [[0, 1, 2, 3]]


def test_match_probabilities_are_those_of_the_definition():
  n, tau = 30, 0.2
  image, text = (make_pairs.unit_rows(i, n, 6) for i in (0, 1))
  text_id = np.arange(n) % 12
  text = text[text_id]
  found = popularity.solve(
    image, text, temperature=tau, text_id=text_id, tolerance=1e-6
  )
  pairs = Pairs(image, text, np.arange(n), None, text_id)
  own = suspects.log_match_probability(found, pairs, temperature=tau)
  zeta = Sides(found.zeta.image, found.zeta.text[text_id])
  negative = np.not_equal.outer(text_id, text_id)
  sim = image @ text.T
  for side, logits in (
    ("image", (sim - zeta.text) / tau),
    ("text", (sim.T - zeta.image) / tau),
  ):
    both = np.where(negative, np.exp(logits), 0)
    mine = np.exp(np.diag(logits))
    expected = np.log(mine / (mine + both.sum(axis=1)))
    np.testing.assert_allclose(getattr(own, side), expected, atol=1e-4)


def test_swapped_captions_have_the_smallest_match_probabilities():
  n = 200
  image = make_pairs.unit_rows(0, n, 16)
  text = image + 0.1 * make_pairs.unit_rows(1, n, 16)
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  text[[10, 77]] = text[[77, 10]]
  found = popularity.solve(image, text, temperature=0.1)
  pairs = Pairs(image, text, np.arange(n))
  own = suspects.log_match_probability(found, pairs, temperature=0.1)
  for side in own:
    assert set(np.argsort(side)[:2]) == {10, 77}
  best = preferred(image[[10, 77]], text, found.zeta.text)
  np.testing.assert_array_equal(best, [77, 10])


def test_zeta_of_unseen_is_equation_nine(x64):
  """A copy of a solved text attracts what the text itself does."""
  n, tau = 40, 0.2
  image, text = (make_pairs.unit_rows(i, n, 6) for i in (0, 1))
  found = popularity.solve(image, text, temperature=tau, tolerance=1e-10)
  again = popularity.zeta_of_unseen(
    text, image, found.log_denominator.image, temperature=tau
  )
  np.testing.assert_allclose(again, found.zeta.text, atol=1e-9)


def test_zeta_of_unseen_checks_its_arrays():
  x, nan = np.eye(3), np.full((1, 3), np.nan)
  call = inspect.unwrap(popularity.zeta_of_unseen)  # not the types' checker
  for arrays, message in (
    ((x, x, np.zeros(1)), r"must be 3 numbers, got array\(\[-0"),
    ((x, x, [0, np.nan, 0]), r"must be 3 numbers, got array\(.*nan"),
    ((nan, x, np.zeros(3)), "norms are unseen nan and anchors 1"),
    ((x, np.r_[x, nan], np.zeros(4)), "norms are unseen 1 and anchors nan"),
  ):
    with pytest.raises(ValueError, match=message):
      call(*arrays, temperature=0.5)


def labelled_rows(seed=0, rows=60, classes=4, dim=5):
  rng = np.random.default_rng(seed)
  label = rng.integers(classes, size=rows)
  x = rng.normal(size=(classes, dim))[label] + rng.normal(size=(rows, dim))
  return x, label


def log_posterior(x, label, new, *, num_classes, shrinkage):
  """By Bayes' rule with the densities of normal distributions, in loops."""
  dim = x.shape[1]
  within = np.zeros((dim, dim))
  for row, c in zip(x, label, strict=True):
    apart = row - x[label == c].mean(axis=0)
    within += np.outer(apart, apart) / len(x)
  covariance = (1 - shrinkage) * within
  covariance += shrinkage * np.trace(within) / dim * np.eye(dim)
  joint = np.full((len(new), num_classes), -np.inf)
  for c in set(label):
    normal = stats.multivariate_normal(x[label == c].mean(axis=0), covariance)
    joint[:, c] = np.log(np.mean(label == c)) + normal.logpdf(new)
  return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)


def test_the_classifier_is_bayes_rule_for_normal_classes(monkeypatch):
  monkeypatch.setattr(suspects, "BLOCK", 35)  # seven rows
  x, label = labelled_rows()
  label[label == 2] = 3  # a class without rows
  found = suspects.fit_classifier(x, label, num_classes=5, shrinkage=0.3)
  new = make_pairs.unit_rows(1, 9, 5)
  expected = log_posterior(x, label, new, num_classes=5, shrinkage=0.3)
  np.testing.assert_allclose(found.log_probabilities(new), expected)
  assert np.isneginf(expected[:, [2, 4]]).all()


def test_self_confidence_is_out_of_sample(monkeypatch):
  monkeypatch.setattr(suspects, "BLOCK", 35)
  x, label = labelled_rows()
  image = np.arange(60) // 2  # each image twice
  x = x[image]
  found = suspects.log_self_confidence(x, label, image)
  fold = (np.random.default_rng(0).permutation(30) % 5)[image]
  for i in range(60):
    known = fold != fold[i]
    (expected,) = log_posterior(
      x[known], label[known], x[i : i + 1], num_classes=4, shrinkage=0.95
    )
    assert found[i] == pytest.approx(expected[label[i]])


def test_far_wrong_labels_keep_an_order():
  """Probabilities below the smallest float64 are not all 0."""
  label = np.arange(4000) % 2
  x = make_pairs.unit_rows(0, 4000, 3) + 1e3 * np.eye(3)[label]
  label[:2] = 1, 0
  x[0] *= 2
  found = suspects.log_self_confidence(x, label)
  assert np.argsort(found)[:2].tolist() == [0, 1] and found[0] < -800


def test_a_class_in_one_fold_has_no_probability():
  x, label = labelled_rows()
  label[7] = 4
  found = suspects.log_self_confidence(x, label)
  assert np.isneginf(found[7]) and np.isfinite(np.delete(found, 7)).all()


def test_classes_of_equal_images():
  label = np.arange(40) % 4
  found = suspects.log_self_confidence(np.eye(4)[label], label)
  assert np.isfinite(found).all()


def test_one_image_cannot_be_cross_validated():
  with pytest.raises(ValueError, match="needs at least two images, got 1"):
    suspects.log_self_confidence(np.eye(2), np.arange(2), np.zeros(2, int))


def test_what_can_be_learned_from():
  rng = np.random.default_rng(0)
  label, image = rng.integers(9, size=80), rng.integers(70, size=80)
  pairs = set(zip(label, image, strict=True))
  expected = [
    sum(c == label[i] for c, _ in pairs) >= suspects.MIN_IMAGES
    and sum(x == image[i] for _, x in pairs) == 1
    for i in range(80)
  ]
  assert 0 < np.mean(expected) < 1
  found = suspects.learnable_share(label, image)
  assert found == pytest.approx(np.mean(expected))


def test_distances_of_neighbours_are_computed_in_blocks(monkeypatch):
  x, y = make_pairs.unit_rows(0, 40, 6), make_pairs.unit_rows(1, 40, 6)
  found = neighbours.nearest(x, 3)
  distance = suspects.neighbours_distance(found, y)
  monkeypatch.setattr(suspects, "BLOCK", 7 * 6 * 3)
  np.testing.assert_allclose(suspects.neighbours_distance(found, y), distance)


def test_sums_of_many_rows_are_taken_in_blocks(monkeypatch, caplog):
  """The last block overlaps the one before it; each says how far it is."""
  n, tau = 70, 0.2
  image, text = (make_pairs.unit_rows(i, n, 6) for i in (0, 1))
  arguments = dict(temperature=tau, text_id=np.arange(n) % 50)
  text = text[arguments["text_id"]]
  whole = popularity.solve(image, text, **arguments)
  monkeypatch.setattr(problem, "MULTIPLE", 8)
  monkeypatch.setattr(problem, "BLOCK", 16 * n)
  monkeypatch.setattr(problem.progress, "PERIOD", 0)
  with caplog.at_level("INFO", "nuclr_jax"):
    blocks = popularity.solve(image, text, **arguments)
  for one, other in zip(whole.zeta, blocks.zeta, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)
  lines = [record.getMessage() for record in caplog.records]
  assert any("16 of 72 rows summed over" in line for line in lines)
  assert all("ETA" in line for line in lines if "summed" in line)

"""Classifiers of frozen features, against scikit-learn and plain loops.

Wherever an accuracy is 1 here, the labels are another implementation's
answers: all of them agree.
"""

import functools

import jax
import numpy as np
import pytest
import sklearn.datasets
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from nuclr_jax import sharding
from nuclr_jax.lab.data.source import LabelledSet
from nuclr_jax.lab.evaluate import evaluators, probe
from nuclr_jax.lab.models import Model
from nuclr_jax.types import Pairs, Sides

L2 = 1e-3


@pytest.fixture(scope="module")
def digits():
  """Training and test features and labels; not every class equally often."""
  found = sklearn.datasets.load_digits()
  order = np.random.default_rng(0).permutation(len(found.data))
  x, label = found.data[order].astype(np.float32), found.target[order]
  kept = np.flatnonzero((label > 2) | (np.arange(len(label)) % 3 == 0))[:900]
  x, label = x[kept], label[kept]
  return x[:603], label[:603], x[603:], label[603:]


@pytest.fixture(params=[1, 8])
def devices(request):
  with jax.set_mesh(sharding.make_mesh(request.param)):
    yield request.param


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def per_class(found, label):
  return np.mean([np.mean(found[label == c] == c) for c in np.unique(label)])


def test_a_class_that_nobody_learned_is_never_right(devices):
  rng = np.random.default_rng(3)
  label = np.repeat([0, 2, 3], 10)
  x = np.eye(4)[label] + 0.01 * rng.normal(size=(30, 4))
  for classify in (
    probe.mean_classifier,
    functools.partial(probe.nearest_neighbours, k=3),
    functools.partial(probe.linear_probe, l2=(1e-3,)),
  ):
    train = x[label < 3], label[label < 3]  # neither 1 nor 3
    assert classify(*train, x, label)["top1"] == pytest.approx(2 / 3)


class TestMeanClassifier:
  def test_nearest_mean(self, digits, devices):
    train, train_label, test, test_label = digits
    means = [unit(train)[train_label == c].mean(axis=0) for c in range(10)]
    expected = np.argmax(unit(test) @ unit(np.stack(means)).T, axis=1)
    run = lambda label: probe.mean_classifier(train, train_label, test, label)
    assert run(expected)["top1"] == 1.0
    scores = run(test_label)
    assert scores["top1"] == np.mean(expected == test_label)
    assert scores["mean_per_class"] == pytest.approx(
      per_class(expected, test_label)
    )
    assert 0.7 < scores["top1"] < 0.95


class TestNeighbours:
  @pytest.mark.parametrize(
    ("k", "temperature"), [(1, 0.07), (20, 0.07), (200, 0.02)]
  )
  def test_votes(self, digits, devices, k, temperature):
    train, train_label, test, test_label = digits
    expected = []
    for x in unit(test):
      sim, votes = unit(train) @ x, np.zeros(10)
      for i in np.argsort(-sim)[:k]:
        votes[train_label[i]] += np.exp(sim[i] / temperature)
      expected.append(np.argmax(votes))
    theirs = KNeighborsClassifier(
      k,
      metric="cosine",
      algorithm="brute",
      weights=lambda d: np.exp((1 - d) / temperature),
    ).fit(train, train_label)
    np.testing.assert_array_equal(theirs.predict(test), expected)
    options = dict(k=k, temperature=temperature)
    run = lambda label: probe.nearest_neighbours(
      train, train_label, test, label, **options
    )
    assert run(np.array(expected))["top1"] == 1.0
    assert run(test_label)["top1"] == np.mean(expected == test_label)

  def test_the_temperature_decides(self):
    """One near neighbour against three farther ones of another class."""
    angles = np.array([0.1, 0.3, 0.31, 0.32])
    train = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    label, test = np.array([0, 1, 1, 1]), np.array([[1.0, 0.0]])
    run = lambda temperature: probe.nearest_neighbours(
      train, label, test, np.array([0]), k=4, temperature=temperature
    )["top1"]
    assert run(0.01) == 1.0 and run(1.0) == 0.0

  @pytest.mark.parametrize("wrong", [{"k": 0}, {"k": 4}, {"temperature": 0.0}])
  def test_numbers_out_of_range(self, wrong):
    x, label = np.eye(3), np.arange(3)
    with pytest.raises(ValueError, match=r"k must be in \[1, 3\]"):
      probe.nearest_neighbours(x, label, x, label, **{"k": 1} | wrong)


class TestLinear:
  def loss(self, layer, x, label, l2):
    """Mean cross-entropy and penalty, in float64."""
    logits = np.float64(x) @ layer[0] + layer[1]
    logits -= logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits).sum(axis=1))
    errors = total - logits[np.arange(len(x)), label]
    return errors.mean() + l2 / 2 * np.sum(np.float64(layer[0]) ** 2)

  @pytest.mark.parametrize("l2", [1e-2, L2])
  def test_same_optimum_as_scikit_learn(self, digits, devices, l2):
    """603 rows do not divide by 8 devices: five are added without weight."""
    train, label, *_ = digits
    x = (train - train.mean(axis=0)) / (train.std(axis=0) + 1e-6)
    ours = probe._fit(x, label, l2, classes=10, num_steps=200)
    model = LogisticRegression(C=1 / (len(x) * l2), tol=1e-9, max_iter=5000)
    model.fit(np.float64(x), label)
    theirs = model.coef_.T, model.intercept_
    losses = [self.loss(layer, x, label, l2) for layer in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4 * losses[1])
    np.testing.assert_allclose(ours[0], theirs[0], atol=0.01)
    # The same for all classes may be added to the biases.
    centred = [b - b.mean() for b in (ours[1], theirs[1])]
    np.testing.assert_allclose(*centred, atol=0.03)

  def test_same_answers_as_scikit_learn(self, digits):
    train, train_label, test, test_label = digits
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    model = LogisticRegression(C=1 / (len(train) * L2), tol=1e-6, max_iter=999)
    model.fit((train - mean) / deviation, train_label)
    expected = model.predict((test - mean) / deviation)
    run = lambda label: probe.linear_probe(
      train, train_label, test, label, l2=(L2,)
    )
    assert run(expected)["top1"] > 0.995
    scores = run(test_label)
    assert abs(scores["top1"] - np.mean(expected == test_label)) < 0.005
    assert scores["log10_l2"] == pytest.approx(-3)

  @pytest.mark.parametrize("l2", [(1e-3, 1e3), (1e3, 1e-3)])
  def test_the_penalty_is_chosen(self, digits, l2):
    train, train_label, test, test_label = digits
    scores = probe.linear_probe(
      train, train_label, test, test_label, l2=l2, num_steps=20
    )
    assert scores["log10_l2"] == pytest.approx(-3) and scores["top1"] > 0.9

  def test_the_test_rows_choose_nothing(self, digits):
    train, train_label, test, test_label = digits
    options = dict(l2=(1e-3, 1e3), num_steps=20)
    found = {
      probe.linear_probe(train, train_label, x, label, **options)["log10_l2"]
      for x, label in ((test, test_label), (-test, test_label[::-1]))
    }
    assert len(found) == 1

  def test_scales_do_not_matter(self, digits):
    train, train_label, test, test_label = digits
    scale = np.logspace(-2, 2, 64, dtype=np.float32)[None]
    found = [
      probe.linear_probe(
        train * s + 3 * s, train_label, test * s + 3 * s, test_label, l2=(L2,)
      )["top1"]
      for s in (np.ones_like(scale), scale)
    ]
    assert abs(found[0] - found[1]) < 0.007


class TestErrors:
  @pytest.mark.parametrize(
    ("change", "message"),
    [
      (lambda x, y: (x[:, 0], y), "train must be .rows, dim."),
      (lambda x, y: (x, y[:-1]), "with a label for each row, got .4, 3. and 3"),
      (lambda x, y: (x[:0], y[:0]), "train must be"),
      (lambda x, y: (x / 0.0, y), "features of train are not finite"),
      (lambda x, y: (x, y - 1), "labels of train must be at least 0: -1"),
      (lambda x, y: (x[:, :2], y), "one width, got 2 and 3"),
    ],
  )
  @pytest.mark.filterwarnings("ignore::RuntimeWarning")
  @pytest.mark.parametrize(
    "classify",
    [probe.mean_classifier, probe.nearest_neighbours, probe.linear_probe],
  )
  def test_features(self, classify, change, message):
    x, label = np.ones((4, 3)), np.array([0, 1, 2, 0])
    unchecked = getattr(classify, "__wrapped__", classify)
    with pytest.raises(ValueError, match=message):
      unchecked(*change(x, label), x, label)


class TestEvaluator:
  """Probes of a model whose embeddings are useless."""

  def scores(self, model):
    mesh = sharding.make_mesh(1)
    rng = np.random.default_rng(0)
    label = np.arange(80) % 4
    image = np.eye(4)[label] + 0.1 * rng.normal(size=(80, 4))
    image = np.float32(image)
    data = LabelledSet(image, label)
    with jax.set_mesh(mesh):
      embed = evaluators.make_embedder(model, None, mesh)(1.0, ())
      return probe.probe_evaluator(data, data, "it")(embed)

  def apply(self, params, state, batch, *, key, train):
    ones = jax.numpy.ones((len(batch.image), 2))
    return Pairs(ones, None, None), state

  def test_features_come_before_the_projection(self, monkeypatch):
    quick = functools.partial(probe.linear_probe, l2=(L2,), num_steps=20)
    monkeypatch.setattr(probe, "linear_probe", quick)

    def features(params, state, batch):
      return Sides(params * batch.image, None)

    model = Model(lambda key: (1.0, ()), self.apply, features=features)
    scores = self.scores(model)
    kinds = ("mean", "neighbours", "linear")
    assert {x.split("/")[1] for x in scores} == set(kinds)
    for kind in kinds:
      assert scores[f"probe_it/{kind}/top1"] == 1.0
      assert scores[f"probe_it/{kind}/mean_per_class"] == 1.0
    assert scores["probe_it/linear/log10_l2"] == pytest.approx(-3)

  def test_without_features_embeddings_are_probed(self, monkeypatch):
    monkeypatch.setattr(probe, "linear_probe", lambda *_: {})
    scores = self.scores(Model(lambda key: (1.0, ()), self.apply))
    assert scores["probe_it/mean/top1"] < 0.5

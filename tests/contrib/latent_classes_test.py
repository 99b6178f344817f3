"""Latent classes: loops over all draws, closed forms, and the bounds."""

from fractions import Fraction
import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax.contrib import latent_classes
from nuclr_jax.contrib.latent_classes import bounds, losses
from nuclr_jax.lab.evaluate.ranking import class_means

WITH_ONE_AT_ZERO = ("hinge", "logistic")


def plain(margins, loss):
  """The losses again, in NumPy."""
  if loss == "hinge":
    return max(0.0, 1.0 + max(-v for v in margins))
  found = math.log1p(sum(math.exp(-v) for v in margins))
  return found / math.log(2) if loss == "logistic" else found


def some(seed, sizes=(2, 3, 1), dim=3, scale=1.0):
  """Features, labels and class probabilities, none of them alike."""
  rng = np.random.default_rng(seed)
  label = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
  x = scale * (rng.normal(size=(len(label), dim)) + 0.5)
  return x, label, rng.dirichlet(np.full(len(sizes), 3.0))


def draw(label, rho):
  """Probability of each row to be a negative."""
  return rho[label] / np.bincount(label)[label]


def loop(x, label, rho, loss, count):
  """L_un, and its parts by whether a single negative is of the same class."""
  w, total = draw(label, rho), {True: 0.0, False: 0.0}
  weight = dict(total)
  for i, j in itertools.product(range(len(x)), repeat=2):
    if label[i] != label[j]:
      continue
    p = w[i] / np.sum(label == label[i])
    for chosen in itertools.product(range(len(x)), repeat=count):
      q = p * np.prod(w[list(chosen)])
      margins = [x[i] @ (x[j] - x[m]) for m in chosen]
      same = all(label[m] == label[i] for m in chosen)
      total[same] += q * plain(margins, loss)
      weight[same] += q
  return total, weight


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("loss", latent_classes.LOSSES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_unsupervised_loss_is_the_sum_over_all_draws(scale, loss, count):
  x, label, rho = some(3, scale=scale)
  total, _ = loop(x, label, rho, loss, count)
  found = latent_classes.unsupervised_loss(
    x, label, loss=loss, num_negatives=count, probability=rho
  )
  np.testing.assert_allclose(found, sum(total.values()), rtol=1e-11)


@pytest.mark.parametrize("loss", latent_classes.LOSSES)
@pytest.mark.parametrize("count", [1, 2])
def test_expectations_with_any_weights(count, loss):
  rng = np.random.default_rng(4)
  sim = rng.normal(size=(3, 4))
  positive, negative = rng.dirichlet(np.full(4, 0.5), size=(2, 3))
  found = losses.expected(
    sim, positive, negative, loss=loss, num_negatives=count
  )
  for s, p, q, value in zip(sim, positive, negative, found, strict=True):
    total = sum(
      p[j] * np.prod(q[list(m)]) * plain(s[j] - s[list(m)], loss)
      for j in range(4)
      for m in itertools.product(range(4), repeat=count)
    )
    np.testing.assert_allclose(value, total, rtol=1e-11)


@pytest.mark.parametrize("loss", latent_classes.LOSSES)
def test_split_loss_is_exact(loss):
  x, label, rho = some(5)
  total, weight = loop(x, label, rho, loss, 1)
  found = latent_classes.split_loss(x, label, loss=loss, probability=rho)
  np.testing.assert_allclose(found.collision, weight[True], rtol=1e-12)
  np.testing.assert_allclose(
    found[:3],
    [sum(total.values()), total[True] / weight[True]]
    + [total[False] / weight[False]],
    rtol=1e-11,
  )
  alone = latent_classes.split_loss(x, np.zeros(6, int), loss=loss)
  assert alone.total == alone.same and math.isnan(alone.other)


def test_many_negatives_against_a_simulation():
  x, label, rho = some(9, sizes=(4, 6, 5))
  rng, w = np.random.default_rng(0), draw(label, rho)
  i = rng.choice(len(x), 200_000, p=w / w.sum())
  j = np.take_along_axis(  # a positive for each anchor
    np.stack([np.resize(np.flatnonzero(label == c), 60) for c in range(3)])[
      label[i]
    ],
    rng.integers(0, 60, (len(i), 1)),
    axis=1,
  )[:, 0]
  m = rng.choice(len(x), (len(i), 40), p=w / w.sum())
  sim = x @ x.T
  v = sim[i, j][:, None] - sim[i[:, None], m]
  each = np.log1p(np.exp(-v).sum(axis=1))
  found = latent_classes.unsupervised_loss(
    x, label, loss="cross_entropy", num_negatives=40, probability=rho
  )
  assert abs(found - each.mean()) < 5 * each.std() / math.sqrt(len(each))


class TestBlocks:
  def test_blocks_of_one_are_rows(self):
    x, label, rho = some(1)
    for loss in latent_classes.LOSSES:
      options = dict(loss=loss, probability=rho)
      assert latent_classes.block_loss(
        x, label, block_size=1, **options
      ) == pytest.approx(
        latent_classes.unsupervised_loss(x, label, **options), rel=1e-12
      )

  def test_all_blocks_of_two(self):
    x, label, rho = some(2)
    w, total = draw(label, rho), 0.0
    rows = [np.flatnonzero(label == c) for c in range(3)]
    pairs = [list(itertools.product(r, repeat=2)) for r in rows]
    for i in range(len(x)):
      for a, b in pairs[label[i]]:
        for c in range(3):
          for d, e in pairs[c]:
            margin = x[i] @ (x[a] + x[b] - x[d] - x[e]) / 2
            p = w[i] / len(pairs[label[i]]) * rho[c] / len(pairs[c])
            total += p * plain([margin], "logistic")
    found = latent_classes.block_loss(x, label, block_size=2, probability=rho)
    np.testing.assert_allclose(found, total, rtol=1e-11)

  def test_drawn_blocks_are_close(self):
    x, label, rho = some(4, sizes=(4, 4))
    exact = latent_classes.block_loss(x, label, block_size=3)
    drawn = [
      latent_classes.block_loss(
        x, label, jax.random.key(i), block_size=3, num_blocks=200
      )
      for i in range(8)
    ]
    error = np.std(drawn, ddof=1) / math.sqrt(8)
    assert abs(np.mean(drawn) - exact) < 5 * error + 1e-3 * exact

  def test_too_many_blocks(self):
    x, label, _ = some(4, sizes=(40, 4))
    with pytest.raises(ValueError, match=r"40\^5 blocks; give a key"):
      latent_classes.block_loss(x, label, block_size=5)


@pytest.mark.parametrize("loss", latent_classes.LOSSES)
@pytest.mark.parametrize("ways", [2, 3, 5])
def test_averages_over_all_tasks(loss, ways):
  rng = np.random.default_rng(ways)
  label = rng.permutation(np.repeat(np.arange(5), (3, 1, 2, 4, 2)))
  scores = np.round(2 * rng.normal(size=(12, 5)), 1)  # with ties
  expected = {"loss": [], "accuracy": []}
  for task in itertools.combinations(range(5), ways):
    for c in task:
      for row in np.flatnonzero(label == c):
        v = [scores[row, c] - scores[row, d] for d in task if d != c]
        weight = 1 / np.sum(label == c)
        expected["loss"].append((weight, plain(v, loss)))
        expected["accuracy"].append((weight, float(min(v) > 0)))
  mean = {
    k: np.average([x for _, x in v], weights=[w for w, _ in v])
    for k, v in expected.items()
  }
  found = latent_classes.average_loss(scores, label, ways=ways, loss=loss)
  np.testing.assert_allclose(found, mean["loss"], rtol=1e-11)
  found = latent_classes.average_accuracy(scores, label, ways=ways)
  np.testing.assert_allclose(found, mean["accuracy"], rtol=1e-12)
  if ways == 5:
    whole = latent_classes.task_loss(
      scores, label, loss=loss, probability=np.full(5, 0.2)
    )
    np.testing.assert_allclose(whole, mean["loss"], rtol=1e-11)
    top = latent_classes.top_accuracy(scores, label, top=1)
    np.testing.assert_allclose(top, mean["accuracy"], rtol=1e-12)


def test_averages_over_many_classes():
  """Of 100 classes the average over 10-way tasks, against drawn tasks."""
  rng = np.random.default_rng(0)
  label, scores = np.arange(100), rng.normal(size=(100, 100))
  scores[label, label] += 2
  losses_, accuracies = [], []
  for _ in range(3000):
    task = rng.choice(100, 10, replace=False)
    part = scores[np.ix_(task, task)]
    v = np.diag(part)[:, None] - part
    losses_.append(np.mean(np.log2(np.exp(-v).sum(axis=1))))
    accuracies.append(np.mean(np.argmax(part, axis=1) == np.arange(10)))
  for found, drawn in (
    (latent_classes.average_loss(scores, label, ways=10), losses_),
    (latent_classes.average_accuracy(scores, label, ways=10), accuracies),
  ):
    assert abs(found - np.mean(drawn)) < 5 * np.std(drawn) / math.sqrt(3000)


def test_top_accuracy_counts_ties_as_errors():
  scores = np.array([[1.0, 1.0, 0.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
  label = np.array([0, 1, 2])
  for top, expected in ((1, 1 / 3), (2, 1.0), (3, 1.0)):
    found = latent_classes.top_accuracy(scores, label, top=top)
    assert found == pytest.approx(expected)


def test_class_means_and_few_of_each():
  x, label, _ = some(0, sizes=(5, 7, 2))
  means = class_means(x, label)
  for c in range(3):
    np.testing.assert_allclose(means[c], x[label == c].mean(axis=0))
  assert not class_means(x, label, 5)[3:].any()
  chosen = latent_classes.few_of_each(label, 5, seed=1)
  assert len(set(chosen)) == 12
  assert np.bincount(label[chosen]).tolist() == [5, 5, 2]
  again = latent_classes.few_of_each(label, 5, seed=2)
  assert sorted(chosen) != sorted(again)


def test_deviation():
  x, label, rho = some(8, sizes=(4, 5, 6))
  parts = []
  for c in range(3):
    rows = x[label == c]
    largest = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[-1]
    parts.append(math.sqrt(largest) * np.linalg.norm(rows, axis=1).mean())
  expected = np.sum(rho**2 * parts) / np.sum(rho**2)
  found = latent_classes.deviation(x, label, probability=rho)
  assert found == pytest.approx(expected, rel=1e-12)


class TestCoverage:
  @staticmethod
  def by_exclusion(rho, n):
    total = 0.0
    for k in range(len(rho)):
      for left_out in itertools.combinations(rho, k):
        total += (-1) ** k * max(1 - sum(left_out), 0) ** n
    return total

  @pytest.mark.parametrize("n", [3, 4, 10, 60])
  def test_inclusion_and_exclusion(self, n):
    for seed in range(5):
      rho = np.random.default_rng(seed).dirichlet(np.ones(3 + seed % 3))
      found = latent_classes.coverage(rho, n)
      assert found == pytest.approx(self.by_exclusion(rho, n), abs=1e-12)

  def test_enumeration(self):
    rho, n = np.array([0.5, 0.3, 0.2]), 5
    total = sum(
      np.prod(rho[list(draws)])
      for draws in itertools.product(range(3), repeat=n)
      if len(set(draws)) == 3
    )
    assert latent_classes.coverage(rho, n) == pytest.approx(total, rel=1e-12)

  @pytest.mark.parametrize("classes, n", [(60, 300), (64, 90), (37, 250)])
  def test_many_classes(self, classes, n):
    """Inclusion and exclusion cancel; fractions do not mind."""
    exact = sum(
      (-1) ** k * math.comb(classes, k) * Fraction(classes - k, classes) ** n
      for k in range(classes)
    )
    found = latent_classes.coverage(np.full(classes, 1 / classes), n)
    assert found == pytest.approx(float(exact), rel=1e-9)

  def test_too_few_and_too_many_draws(self):
    assert latent_classes.coverage(np.full(4, 0.25), 3) == 0
    assert bounds.by_coverage(1.0, np.full(4, 0.25), 3) == math.inf
    with pytest.raises(ValueError, match="num_draws must be at most"):
      latent_classes.coverage(np.full(4, 0.25), 10**6)


@st.composite
def problems(draw, uniform=False):
  """Random encoders on random finite class distributions."""
  sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=5)))
  scale = draw(st.sampled_from([0.05, 0.5, 1.0, 3.0]))
  x, label, rho = some(draw(st.integers(0, 10**6)), sizes, 3, scale)
  return x, label, np.full(len(sizes), 1 / len(sizes)) if uniform else rho


def mean_scores(x, label):
  return x @ class_means(x, label).T


class TestBounds:
  @settings(max_examples=25, deadline=None)
  @given(problems(), st.sampled_from(WITH_ONE_AT_ZERO))
  def test_pairs(self, problem, loss):
    """Saunshi et al., Lemma 4.3 and Proposition 6.2, blocks of two."""
    x, label, rho = problem
    options = dict(loss=loss, probability=rho)
    rows = latent_classes.unsupervised_loss(x, label, **options)
    blocks = latent_classes.block_loss(x, label, block_size=2, **options)
    pairs = latent_classes.average_loss(
      mean_scores(x, label), label, ways=2, **options
    )
    by_blocks, by_rows = (bounds.of_pairs(v, rho) for v in (blocks, rows))
    assert pairs <= by_blocks + 1e-9 <= by_rows + 2e-9

  @settings(max_examples=25, deadline=None)
  @given(problems(), st.integers(1, 12))
  def test_all_classes(self, problem, count):
    """Merad et al., Lemmas 1 and 2."""
    x, label, rho = problem
    options = dict(loss="cross_entropy", probability=rho)
    task = latent_classes.task_loss(mean_scores(x, label), label, **options)
    one, many = (
      latent_classes.unsupervised_loss(x, label, num_negatives=n, **options)
      for n in (1, count)
    )
    assert task <= bounds.of_all_classes(one, rho) + 1e-9
    assert task <= bounds.by_coverage(many, rho, count) + 1e-9

  @settings(max_examples=25, deadline=None)
  @given(problems(uniform=True), st.integers(1, 6), st.integers(0, 9))
  def test_average_task(self, problem, count, which):
    """Merad et al., Proposition 1; classes are equally probable."""
    x, label, rho = problem
    ways = 2 + which % (len(rho) - 1)
    found = latent_classes.average_loss(
      mean_scores(x, label), label, ways=ways, loss="cross_entropy"
    )
    one = latent_classes.unsupervised_loss(
      x,
      label,
      loss="cross_entropy",
      num_negatives=count,
      probability=rho,
    )
    assert found <= bounds.of_average_task(one, len(rho), count, ways) + 1e-9

  def test_the_bound_on_pairs_is_attained(self):
    """Where every class is one point."""
    x, rho = np.random.default_rng(0).normal(size=(4, 3)), np.full(4, 0.25)
    label = np.arange(4)
    loss = latent_classes.unsupervised_loss(x, label)
    pairs = latent_classes.average_loss(
      mean_scores(x, label), label, ways=2, probability=rho
    )
    assert pairs == pytest.approx(bounds.of_pairs(loss, rho), rel=1e-10)

  @settings(max_examples=25, deadline=None)
  @given(st.integers(0, 10**6), st.floats(0.1, 3.0))
  def test_smoothness(self, seed, largest):
    """Merad et al., Lemma 3: the Hessian of one triplet's loss."""
    z = np.random.default_rng(seed).normal(size=(3, 4))
    z *= largest / np.linalg.norm(z, axis=1).max()

    def loss(z):
      a, b, c = z.reshape(3, 4)
      return jax.nn.softplus(a @ (c - b))

    with jax.enable_x64(True):
      hessian = jax.hessian(loss)(jnp.asarray(z.ravel()))
    norm = np.linalg.norm(hessian, 2)
    assert norm <= bounds.smoothness(largest)
    assert norm <= 2**0.5 + 1.5 * largest**2 + 1e-9  # docs/papers/bounds.md
    assert bounds.norms(z)[1] == pytest.approx(largest)


class TestCounterExamples:
  """Where contrastive learning prefers the encoder that maps all to 0."""

  @pytest.mark.parametrize("classes, r", [(3, 2.0), (5, 6.0)])
  @pytest.mark.parametrize("count", [1, 4, 30])
  def test_two_points_on_an_axis_for_each_class(self, classes, r, count):
    """Saunshi et al., Appendix C, example 1."""
    x = np.kron(np.eye(classes), np.array([[1.5 * r], [0.5 * r]]))
    label = np.repeat(np.arange(classes), 2)
    loss = latent_classes.unsupervised_loss(
      x, label, loss="hinge", num_negatives=count
    )
    # J of the negatives are of the anchor's class, by a binomial law; the
    # larger point is among them with probability 1 - 2^-J.
    none = (1 - 1 / classes) ** count
    smaller = (1 - 1 / (2 * classes)) ** count - none  # some, none the larger
    larger = 1 - none - smaller
    expected = larger / 2 + ((1 + r**2) * larger + smaller) / 2
    assert loss == pytest.approx(expected, rel=1e-10)
    zero = latent_classes.unsupervised_loss(
      0 * x, label, loss="hinge", num_negatives=count
    )
    assert zero == pytest.approx(1)
    scores = mean_scores(x, label)
    assert latent_classes.task_loss(scores, label, loss="hinge") == 0
    if count == 30:
      assert loss > zero  # so the useless encoder wins


def test_errors():
  x, label, rho = some(0)
  for change, message in (
    (dict(label=label + 1), "labels must be 0, 1, ... with rows of every"),
    (dict(loss="square"), "loss must be one of"),
    (dict(num_negatives=0), "num_negatives must be a whole number of at"),
    (dict(probability=rho[:2] / rho[:2].sum()), "3 classes .* 2 probab"),
    (dict(probability=np.array([0.5, 0.6, -0.1])), "positive with sum 1"),
    (dict(features=x * np.nan), "features are not finite"),
  ):
    with pytest.raises(ValueError, match=message):
      latent_classes.unsupervised_loss(
        **(dict(features=x, label=label) | change)
      )
  for change, message in (
    (dict(ways=1), r"ways must be in \[2, 3\], got 1"),
    (dict(ways=4), r"ways must be in \[2, 3\], got 4"),
    (
      dict(scores=np.ones((6, 1)), label=np.zeros(6, int), ways=2),
      "two classes or more are needed",
    ),
    (dict(ways=3, probability=rho), "two ways only"),
    (dict(ways=2, scores=np.ones((6, 2))), r"\[6, 3\], got \[6, 2\]"),
  ):
    with pytest.raises(ValueError, match=message):
      latent_classes.average_loss(
        **(dict(scores=mean_scores(x, label), label=label) | change)
      )
  for call, message in (
    (lambda: latent_classes.collision(rho, 0), "num_negatives must be"),
    (lambda: bounds.of_average_task(1.0, 2, 1, 3), "3 of 2 classes"),
  ):
    with pytest.raises(ValueError, match=message):
      call()
  with pytest.raises(ValueError, match="not finite"):
    one = np.ones((1, 2))
    losses.expected(one * np.inf, one, one, loss="logistic")

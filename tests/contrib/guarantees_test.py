"""The theorems of Saunshi et al., both sides again in NumPy by plain loops."""

import inspect
import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from nuclr_jax.contrib import latent_classes
from nuclr_jax.contrib.latent_classes import guarantees
from nuclr_jax.contrib.latent_classes.classes import labelled
from nuclr_jax.lab.evaluate.ranking import class_means

LOSSES = latent_classes.LOSSES
SLACK = 1e-9


def plain(margins, loss):
  """The loss of a list of margins."""
  if loss == "hinge":
    return max(0.0, 1.0 + max(-v for v in margins))
  value = float(np.logaddexp.reduce([0.0, *(-v for v in margins)]))
  return value / math.log(2) if loss == "logistic" else value


class Problem:
  """A random encoder on finite classes; its quantities by definition."""

  def __init__(self, seed, scale=1.0, sizes=(2, 3, 1), uniform=False):
    rng = np.random.default_rng(seed)
    self.label = np.repeat(np.arange(len(sizes)), sizes)
    self.x = scale * (rng.normal(size=(len(self.label), 2)) + 0.5)
    self.rho = rng.dirichlet(np.full(len(sizes), 2.0)) + 0.02
    if uniform:
      self.rho = np.ones(len(sizes))
    self.rho /= self.rho.sum()
    self.rows = [self.x[self.label == c] for c in range(len(sizes))]
    self.mean = [rows.mean(axis=0) for rows in self.rows]

  def tuples(self, k):
    """Classes of an anchor and k negatives, with their probabilities."""
    for classes in itertools.product(range(len(self.rho)), repeat=k + 1):
      yield classes[0], classes[1:], math.prod(self.rho[list(classes)])

  def expected(self, anchor, negatives, loss):
    """The mean contrastive loss, given the classes."""
    own = self.rows[anchor]
    parts = itertools.product(own, own, *(self.rows[c] for c in negatives))
    return np.mean(
      [plain([x @ (y - z) for z in others], loss) for x, y, *others in parts]
    )

  def unsupervised(self, k, loss):
    return sum(
      p * self.expected(c, rest, loss) for c, rest, p in self.tuples(k)
    )

  def other(self, k, loss):
    """L_un^!=, and the probability that it conditions on."""
    total = weight = 0.0
    for c, rest, p in self.tuples(k):
      if kept := [d for d in rest if d != c]:
        total += p * self.expected(c, kept, loss)
        weight += p
    return total / weight, weight

  def same(self, loss):
    p = self.rho**2 / np.sum(self.rho**2)
    return sum(p[c] * self.expected(c, [c], loss) for c in range(len(p)))

  def task(self, classes, loss, scale=1.0):
    """L_sup^mu of a task, with equally probable classes."""
    parts = []
    for c in classes:
      margins = (
        [x @ (self.mean[c] - self.mean[d]) / scale for d in classes if d != c]
        for x in self.rows[c]
      )
      parts.append(np.mean([plain(v, loss) for v in margins]))
    return np.mean(parts)

  def pairs(self, loss, scale=1.0):
    total = weight = 0.0
    for c, (d,), p in self.tuples(1):
      if c != d:
        total += p * self.task((c, d), loss, scale)
        weight += p
    return total / weight

  def drawn(self, k, loss):
    """The left side of Theorem B.1."""
    shares = {}
    for c, rest, p in self.tuples(k):
      if c not in rest:
        task = tuple(sorted({c, *rest}))
        shares.setdefault(task, dict.fromkeys(task, 0.0))[c] += p
    total = sum(sum(x.values()) for x in shares.values())
    return sum(
      min(x.values()) / total * len(task) * self.task(task, loss)
      for task, x in shares.items()
    )

  def deviation(self):
    p = self.rho**2 / np.sum(self.rho**2)
    return sum(
      q
      * math.sqrt(
        np.linalg.eigvalsh(np.cov(rows.T, bias=True).reshape(2, 2))[-1]
      )
      * np.mean([math.hypot(*x) for x in rows])
      for q, rows in zip(p, self.rows, strict=True)
    )

  @property
  def scores(self):
    return self.x @ np.stack(self.mean).T


problems = st.builds(
  Problem,
  st.integers(0, 10**6),
  st.sampled_from([0.05, 0.5, 1.0, 3.0, 10.0]),
  st.sampled_from([(2, 3, 1), (4, 4), (1, 1, 2, 2), (1, 1, 1)]),
  st.booleans(),
)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_losses_are_the_sums_over_all_draws(k, loss):
  problem = Problem(k, sizes=(2, 1, 2))
  options = dict(num_negatives=k, loss=loss, probability=problem.rho)
  other, weight = problem.other(k, loss)
  found = latent_classes.other_loss(problem.x, problem.label, **options)
  assert found == pytest.approx(other, rel=1e-10)
  assert 1 - latent_classes.collision(problem.rho, k) == pytest.approx(weight)
  found = latent_classes.drawn_task_loss(
    problem.scores, problem.label, **options
  )
  assert found == pytest.approx(problem.drawn(k, loss), rel=1e-10)
  apart = sum(p for c, rest, p in problem.tuples(k) if c not in rest)
  found = latent_classes.any_collision(problem.rho, k)
  assert found == pytest.approx(1 - apart)


def test_one_negative_is_the_simple_case():
  problem = Problem(5)
  options = dict(loss="logistic", probability=problem.rho)
  split = latent_classes.split_loss(problem.x, problem.label, **options)
  found = latent_classes.other_loss(problem.x, problem.label, **options)
  assert found == pytest.approx(split.other, rel=1e-12)
  pairs = latent_classes.average_loss(
    problem.scores, problem.label, ways=2, **options
  )
  found = latent_classes.drawn_task_loss(
    problem.scores, problem.label, num_negatives=1, **options
  )
  assert found == pytest.approx(pairs, rel=1e-12)


class TestPairs:
  @settings(max_examples=40, deadline=None)
  @given(problems, st.sampled_from(LOSSES))
  def test_theorem_4_1_holds(self, problem, loss):
    bound = guarantees.of_minimizer(
      problem.unsupervised(1, loss), problem.rho, loss=loss
    )
    assert problem.pairs(loss) <= bound + SLACK

  @settings(max_examples=40, deadline=None)
  @given(problems, st.sampled_from(LOSSES), st.booleans())
  def test_theorem_4_5_holds(self, problem, loss, sharp):
    bound = guarantees.by_deviation(
      problem.other(1, loss)[0],
      problem.deviation(),
      problem.rho,
      loss=loss,
      sharp=sharp,
    )
    assert problem.pairs(loss) <= bound + SLACK

  @pytest.mark.parametrize("loss", LOSSES)
  def test_both_are_attained_by_classes_of_one_point(self, loss):
    problem = Problem(3, sizes=(1, 1, 1))
    pairs = pytest.approx(problem.pairs(loss), rel=1e-12)
    unsupervised, (other, _) = (
      problem.unsupervised(1, loss),
      problem.other(1, loss),
    )
    rho = problem.rho
    assert guarantees.of_minimizer(unsupervised, rho, loss=loss) == pairs
    assert guarantees.by_deviation(other, 0.0, rho, loss=loss) == pairs

  def test_a_larger_factor_of_tau_fails(self):
    """Subtracting more than tau makes Theorem 4.1 wrong at once."""
    problem = Problem(3, sizes=(1, 1, 1))
    tau = np.sum(problem.rho**2)
    wrong = (problem.unsupervised(1, "hinge") - 1.01 * tau) / (1 - tau)
    assert problem.pairs("hinge") > wrong


class TestCollisionConstant:
  """Lemma 4.4: L_un^= - l(0) <= c' s(f)."""

  @settings(max_examples=60, deadline=None)
  @given(problems, st.sampled_from(LOSSES))
  def test_it_holds(self, problem, loss):
    excess = problem.same(loss) - plain([0.0], loss)
    for sharp in (False, True):
      constant = guarantees.collision_constant(loss, sharp=sharp)
      assert excess <= constant * problem.deviation() + SLACK

  @pytest.mark.parametrize("loss", LOSSES)
  def test_uniform_laws_approach_the_sharp_one(self, loss):
    x = 1e4 * np.linspace(-1, 1, 401)[:, None]
    label = np.zeros(len(x), int)
    split = latent_classes.split_loss(x, label, loss=loss)
    excess = split.same - plain([0.0], loss)
    ratio = excess / latent_classes.deviation(x, label)
    constant = guarantees.collision_constant(loss, sharp=True)
    assert 0.99 * constant < ratio <= constant  # so that none below 0.99 holds
    assert constant < 0.5 * guarantees.collision_constant(loss)

  def test_a_smaller_constant_makes_theorem_4_5_fail(self):
    """Where the other losses vanish, the term of s(f) is all that is left."""
    r = 40.0
    x = np.array([[1.0, r], [1.0, -r], [-1.0, r], [-1.0, -r]])
    label, rho = np.array([0, 0, 1, 1]), np.full(2, 0.5)
    loss = latent_classes.unsupervised_loss(x, label, loss="hinge")
    other = latent_classes.split_loss(x, label, loss="hinge").other
    s = latent_classes.deviation(x, label)
    bound = guarantees.by_deviation(other, s, rho, loss="hinge", sharp=True)
    # Theorem 4.5 is Theorem 4.1 with L_un^= replaced by its bound.
    assert guarantees.of_minimizer(loss, rho, loss="hinge") <= bound
    wrong = other + 0.8 * (bound - other)
    assert guarantees.of_minimizer(loss, rho, loss="hinge") > wrong


class TestManyNegatives:
  @settings(max_examples=30, deadline=None)
  @given(
    st.builds(
      Problem,
      st.integers(0, 10**6),
      st.sampled_from([0.3, 1.0, 4.0]),
      st.sampled_from([(2, 1, 2), (1, 1, 1, 1), (2, 2)]),
      st.booleans(),
    ),
    st.integers(1, 3),
    st.sampled_from(LOSSES),
    st.booleans(),
  )
  def test_theorem_6_1_holds(self, problem, k, loss, sharp):
    bound = guarantees.by_deviation_of_many(
      problem.other(k, loss)[0],
      problem.deviation(),
      problem.rho,
      num_negatives=k,
      loss=loss,
      sharp=sharp,
    )
    assert problem.drawn(k, loss) <= bound + SLACK

  def test_without_the_factor_of_the_other_loss_it_fails(self):
    """f = 0: fewer negatives are left in L_un^!= than a task has classes."""
    x, label, rho = np.zeros((10, 1)), np.arange(10), np.full(10, 0.1)
    kind = dict(num_negatives=2, loss="logistic")
    drawn = latent_classes.drawn_task_loss(np.zeros((10, 10)), label, **kind)
    # The negatives are of two classes or of one.
    assert drawn == pytest.approx(8 / 9 * math.log2(3) + 1 / 9)
    other = latent_classes.other_loss(x, label, **kind)
    assert other == pytest.approx((0.81 * math.log2(3) + 0.18) / 0.99)
    bound = guarantees.by_deviation_of_many(other, 0.0, rho, **kind)
    assert other < drawn <= bound == pytest.approx(0.99 / 0.81 * other)

  def test_too_many_tasks(self):
    with pytest.raises(ValueError, match="30 classes and 8 .* use fewer"):
      latent_classes.drawn_task_loss(np.eye(30), np.arange(30), num_negatives=8)


class TestMargin:
  @settings(max_examples=40, deadline=None)
  @given(problems, st.sampled_from([0.001, 0.1, 1.0]))
  def test_lemma_5_1_and_the_corollary_hold(self, problem, epsilon):
    radius = np.linalg.norm(problem.x, axis=1).max()
    sigma = guarantees.subgaussian(problem.x, problem.label)
    gamma = guarantees.margin(radius, sigma, epsilon)
    with_margin = problem.pairs("hinge", gamma)
    other, _ = problem.other(1, "hinge")
    assert other <= guarantees.by_margin(with_margin, gamma, epsilon) + SLACK
    bound = guarantees.competitive(
      with_margin, gamma, epsilon, problem.deviation(), problem.rho, sharp=True
    )
    assert problem.pairs("hinge") <= bound + SLACK

  def test_without_the_spread_it_fails(self):
    """gamma = 1 would say that noise within classes costs nothing."""
    x = np.array([[1.0, 3.0], [1.0, -3.0], [-1.0, 3.0], [-1.0, -3.0]])
    label = np.array([0, 0, 1, 1])
    scores = x @ class_means(x, label).T
    pairs = latent_classes.average_loss(scores, label, ways=2, loss="hinge")
    other = latent_classes.split_loss(x, label, loss="hinge").other
    assert other > guarantees.by_margin(pairs, 1.0, 0.5)
    radius, sigma = 10**0.5, guarantees.subgaussian(x, label)
    assert sigma == 3.0
    gamma = guarantees.margin(radius, sigma, 0.5)
    with_margin = latent_classes.average_loss(
      scores / gamma, label, ways=2, loss="hinge"
    )
    assert other <= guarantees.by_margin(with_margin, gamma, 0.5)

  @settings(max_examples=40, deadline=None)
  @given(problems, st.floats(-4.0, 4.0), st.floats(0.0, 6.3))
  def test_sigma_bounds_the_moments(self, problem, strength, angle):
    """The definition, in a direction u and for one lambda."""
    sigma = guarantees.subgaussian(problem.x, problem.label)
    u = np.array([math.cos(angle), math.sin(angle)])
    for rows in problem.rows:
      z = (rows - rows.mean(axis=0)) @ u
      log_moment = np.logaddexp.reduce(strength * z) - math.log(len(z))
      assert log_moment <= strength**2 * sigma**2 / 2 + SLACK

  def test_margins_out_of_range(self):
    assert guarantees.margin(0.5, 0.0, 0.1) == 1.0
    for values in ((-1.0, 1.0, 0.1), (1.0, -1.0, 0.1), (1.0, 1.0, 3.0)):
      with pytest.raises(ValueError, match=r"epsilon in \(0, 3\)"):
        guarantees.margin(*values)


class TestGeneralization:
  def test_average_of_two_encoders(self):
    """E max(a, -a) is a random walk's mean distance, by enumeration."""
    walk = np.mean([abs(sum(s)) for s in itertools.product((-1, 1), repeat=8)])
    values = np.stack([np.ones(8), -np.ones(8)])
    found = guarantees.rademacher_average(values, num_draws=20_000)
    assert found == pytest.approx(walk, rel=0.03)

  @pytest.mark.parametrize("loss", LOSSES)
  def test_theorem_4_1_for_encoders_chosen_by_a_sample(self, loss):
    """The minimizer's mean classifier, against the bound from every encoder."""
    first = Problem(0, sizes=(3, 3, 3), scale=0.4)
    encoders = [
      Problem(seed, sizes=(3, 3, 3), scale=0.4).x for seed in range(6)
    ]
    rho, label, rng = first.rho, first.label, np.random.default_rng(0)
    kind = dict(loss=loss, probability=rho)
    exact = [
      latent_classes.unsupervised_loss(x, label, **kind) for x in encoders
    ]
    means = [class_means(x, label) for x in encoders]
    pairs = [
      latent_classes.average_loss(x @ w.T, label, ways=2, **kind)
      for x, w in zip(encoders, means, strict=True)
    ]
    radius = max(np.linalg.norm(x, axis=1).max() for x in encoders)
    for num_samples in (30, 3_000):
      anchor, negative = rng.choice(3, (2, num_samples), p=rho)
      a, b, c = 3 * np.stack([anchor, anchor, negative]) + rng.integers(
        0, 3, (3, num_samples)
      )
      sample = [x[np.concatenate([a, b, c])].ravel() for x in encoders]
      of_sample = [
        np.mean(
          [plain([v], loss) for v in np.sum(x[a] * (x[b] - x[c]), axis=1)]
        )
        for x in encoders
      ]
      chosen = int(np.argmin(of_sample))
      slack = guarantees.generalization(
        guarantees.rademacher_average(np.stack(sample)),
        radius,
        num_samples,
        loss=loss,
      )
      assert exact[chosen] <= min(exact) + slack  # Lemma 4.2
      bound = guarantees.of_minimizer(
        min(exact), rho, loss=loss, generalization=slack
      )
      assert pairs[chosen] <= bound
    assert slack < 3  # not so large that anything is below it

  def test_it_vanishes_as_samples_grow(self):
    kind = dict(radius=1.0, num_negatives=4)
    few, many = (
      guarantees.generalization(math.sqrt(m), num_samples=m, **kind)
      for m in (100, 10_000)
    )
    assert many == pytest.approx(few / 10)

  def test_values_out_of_range(self):
    for change in (dict(failure=0.0), dict(radius=-1.0), dict(rademacher=-1.0)):
      values = dict(rademacher=1.0, radius=1.0, num_samples=9) | change
      with pytest.raises(ValueError, match="failure must be in"):
        guarantees.generalization(**values)


def test_errors():
  with pytest.raises(ValueError, match="two classes or more"):
    guarantees.of_minimizer(1.0, np.ones(1))
  with pytest.raises(ValueError, match="two classes or more"):
    latent_classes.other_loss(np.eye(2), np.zeros(2, int))
  with pytest.raises(ValueError, match="loss must be one of"):
    guarantees.collision_constant("square")


@pytest.mark.parametrize(
  "call",
  [
    guarantees.subgaussian,
    latent_classes.deviation,
    lambda x, label: latent_classes.block_loss(x, label, block_size=2),
  ],
)
def test_features_are_finite(call):
  x, label = np.eye(6)[:, :3], np.array([0, 0, 1, 1, 2, 2])
  assert np.isfinite(call(x, label))
  wrong = np.where(np.arange(6)[:, None] == 4, np.nan, x)
  with pytest.raises(ValueError, match="must be finite; row 4 is not .1 such"):
    call(wrong, label)


def test_features_have_a_label_each():
  call = inspect.unwrap(labelled)  # not the types' checker
  assert call(np.eye(3), [0, 0, 1])[1].tolist() == [0, 0, 1]
  with pytest.raises(ValueError, match=r"got \[3, 3\] and \[2\]"):
    call(np.eye(3), [0, 1])

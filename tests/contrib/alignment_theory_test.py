"""The theorems of difference alignment (Chen et al.), where they hold or fail.

All is float64 NumPy on small problems; the page of docs/papers says what each
theorem assumes.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from nuclr_jax import Pairs, contrib, objectives

NORMS = {
  "l2": lambda v: np.linalg.norm(v, axis=-1),
  "l1": lambda v: np.abs(v).sum(axis=-1),
}


def ctv(columns, size):
  """The cross-total-variation of the rows of an array, eq. (4)."""
  return sum(size(a - b) for a, b in itertools.combinations(columns, 2))


@pytest.mark.parametrize("size", NORMS.values(), ids=NORMS)
class TestTheorem1:
  """It is a norm if and only if G is: true of seminorms, false of norms."""

  @pytest.mark.parametrize("seed", range(5))
  def test_seminorm(self, size, seed):
    rng = np.random.default_rng(seed)
    p, q = rng.normal(size=(2, 6, 3))
    for factor in (2.5, -2.5):  # the proof writes mu in place of |mu|
      found = ctv(factor * p, size)
      assert found == pytest.approx(abs(factor) * ctv(p, size), rel=1e-12)
    assert ctv(p + q, size) <= ctv(p, size) + ctv(q, size) + 1e-12

  def test_it_vanishes_where_all_columns_are_equal(self, size):
    assert ctv(np.ones((6, 3)), size) == 0

  @pytest.mark.parametrize("seed", range(5))
  def test_a_norm_once_the_mean_is_removed(self, size, seed):
    """Between H / 2 and H - 1 times the sum of the columns' sizes."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(7, 3))
    columns -= columns.mean(axis=0)
    total = size(columns).sum()
    assert 7 / 2 * total <= ctv(columns, size) <= 6 * total

  def test_only_if(self, size):
    """G is the ctv of one column beside zeros, but for a factor."""
    v = np.random.default_rng(0).normal(size=3)
    columns = np.concatenate([v[None], np.zeros((5, 3))])
    assert ctv(columns, size) == pytest.approx(5 * size(v), rel=1e-12)


def test_without_homogeneity_of_g_the_ctv_has_none():
  square = lambda v: (v**2).sum(axis=-1)
  p = np.random.default_rng(0).normal(size=(6, 3))
  assert ctv(2 * p, square) == pytest.approx(4 * ctv(p, square))


class TestEquivalence:
  """Eq. (11): the mean over batches as a multiple of the sum over all pairs.

  There is no such multiple. The sum takes each difference in the order of the
  samples' numbers, so another numbering changes it; the mean does not.
  """

  x = np.random.default_rng(0).normal(size=(6, 2)) * np.arange(1, 7)[:, None]
  batch = 5

  @staticmethod
  def all_pairs(x):
    """The right side without its factor: all differences x_i - x_j, i < j."""
    columns = [a - b for a, b in itertools.combinations(x, 2)]
    return ctv(columns, NORMS["l2"])

  def mean_of_batches(self, x):
    """The left side, eq. (6), over all batches in all orders."""
    chains = itertools.permutations(x, self.batch)
    return np.mean([ctv(np.diff(c, axis=0), NORMS["l2"]) for c in chains])

  def test_another_numbering(self):
    other = self.x[[0, 3, 1, 5, 2, 4]]
    first, second = map(self.mean_of_batches, (self.x, other))
    assert first == pytest.approx(second, rel=1e-12)
    first, second = map(self.all_pairs, (self.x, other))
    assert abs(first / second - 1) > 0.01

  def test_what_the_mean_is(self):
    """Two kinds of second-order differences, by how often a chain has them."""
    size, columns = NORMS["l2"], self.batch - 1
    orders = lambda count: itertools.permutations(self.x, count)
    touching = np.mean([size(a - 2 * b + c) for a, b, c in orders(3)])
    apart = np.mean([size(a - b - c + d) for a, b, c, d in orders(4)])
    share = 2 / columns  # columns - 1 of all pairs of columns touch
    pairs = math.comb(columns, 2)
    expected = pairs * (share * touching + (1 - share) * apart)
    assert self.mean_of_batches(self.x) == pytest.approx(expected, rel=1e-12)


def contrastive(distance, other, gamma=0.2):
  """Eq. (1) of an anchor: -log of the share of its positive."""
  return np.logaddexp.reduce(
    np.concatenate([np.zeros(1), (distance - other) / gamma])
  )


class TestTrivialSolution:
  """Appendix B.2: no collapse for small lambda; it says nothing of 0.5."""

  @staticmethod
  def ntxent(x, temperature=0.2):
    pairs = Pairs(x, x, np.arange(len(x)))
    host = objectives.ntxent(temperature=temperature)
    return float(host.apply(*host.init(), pairs)[0])

  @staticmethod
  def variation(x):
    return ctv(-np.diff(x, axis=0), NORMS["l2"]) / math.comb(len(x) - 1, 2)

  def test_the_value_of_a_collapse(self, x64):
    """It bounds the variation of a minimum by log(2 B - 1) / lambda."""
    same = np.ones((16, 1)) @ np.eye(1, 4)
    assert self.ntxent(same) == pytest.approx(math.log(31), rel=1e-12)
    assert self.variation(same) == 0
    x = np.random.default_rng(0).normal(size=(16, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert self.ntxent(x) > 0  # so that lambda v < log(2 B - 1) at a minimum

  @pytest.mark.parametrize(("weight", "collapses"), [(0.5, False), (8, True)])
  def test_lambda_0_of_a_simplex(self, weight, collapses, x64):
    """Collapse is better from the quotient of both gains on."""
    x = np.eye(16)
    gain = math.log(31) - self.ntxent(x)
    assert 0.5 < gain / self.variation(x) < 8
    better = weight * self.variation(x) > gain
    assert better == collapses

  def test_as_a_sum_it_collapses_at_the_published_weight(self, x64):
    x = np.eye(16)
    as_sum = 0.5 * math.comb(15, 2) * self.variation(x)
    assert as_sum > math.log(31) - self.ntxent(x)


class TestTheorem2:
  """Distances of two pairs differ by O(1 / sqrt(N)): false.

  The bound falls with N for a constant L that does not depend on the data; the
  difference of two distances does not. Here samples are 0, 4 or 8, a third
  each, embeddings are a x with a in [0, 1], and batches are three draws.
  """

  x = np.array([0.0, 4.0, 8.0])
  weight, delta = 0.01, 0.1

  def best(self):
    """The minimizer a of both terms, which is the same for every N."""
    batches = np.array(list(itertools.product(self.x, repeat=3)))
    values = []
    for a in np.linspace(0, 1, 41):
      others = np.abs(a * (batches[:, :1] - batches[:, 1:]))
      losses = [contrastive(0.0, row) for row in others]
      columns = np.diff(a * batches, axis=1)
      variation = np.abs(columns[:, 0] - columns[:, 1])
      values.append(np.mean(losses) + self.weight * np.mean(variation))
    return np.linspace(0, 1, 41)[np.argmin(values)]

  def share_of_failures(self, constant, n):
    """How many draws of two pairs exceed the bound of eq. (9)."""
    a = self.best()
    assert a > 0  # else both sides are 0
    draws = np.array(list(itertools.product(self.x, repeat=4)))
    first, second = np.abs(draws[:, ::2] - draws[:, 1::2]).T
    slope = constant * math.log(3) / self.weight  # L_emp of a = 0 over lambda
    furthest = 8 * a
    rate = math.sqrt(math.log(2 / self.delta) / (2 * n))
    bound = slope * (first + second) * furthest * rate
    return np.mean(a * np.abs(first - second) > bound)

  @pytest.mark.parametrize("constant", [1.0, 100.0])
  def test_the_bound_falls_below_what_it_bounds(self, constant):
    assert self.share_of_failures(constant, 60) == 0
    found = self.share_of_failures(constant, 10**8 * constant**2)
    assert found > 0.5 > self.delta


class TestTheorem3:
  """|L - E L| is small: true with the range of a loss, not with its log."""

  @pytest.mark.parametrize("constant", [2 * math.sqrt(2), 1_000.0])
  def test_the_step_of_eq_31_fails(self, constant):
    """The range of a loss grows with distances, and does not fall with n."""
    for n, furthest in ((1, 100 * constant), (round(100 * constant), 1.0)):
      worst = contrastive(furthest, np.zeros(n))
      best = contrastive(0.0, np.full(n, furthest))
      falling = math.log(math.e**2 / n + 1)  # omega(n)
      assert worst - best > constant * falling * math.log1p(furthest)

  @pytest.mark.parametrize("seed", range(3))
  def test_the_range_of_a_loss(self, seed):
    """No two losses differ by more than 2 max d / gamma."""
    rng, gamma = np.random.default_rng(seed), 0.2
    d = rng.uniform(0, 2, size=(200, 9))
    losses = [contrastive(row[0], row[1:], gamma) for row in d]
    assert np.ptp(losses) <= 2 * d.max() / gamma
    extremes = [contrastive(2.0, np.zeros(8)), contrastive(0.0, np.full(8, 2))]
    assert np.subtract(*extremes) <= 2 * 2 / gamma

  def test_a_bound_that_holds(self):
    """For embeddings chosen before the samples: 2 max d / gamma as range."""
    rng, delta, gamma, n = np.random.default_rng(0), 0.1, 0.2, 50
    x = rng.uniform(-1, 1, size=(10_000, 9, 2))  # anchors and negatives
    d = np.linalg.norm(x[:, :1] - x[:, 1:], axis=-1)
    losses = np.array([contrastive(0.1, row, gamma) for row in d])
    bound = 2 * math.sqrt(8) / gamma * math.sqrt(math.log(2 / delta) / 2 / n)
    means = losses.reshape(-1, n).mean(axis=1)
    assert np.mean(np.abs(means - losses.mean()) > bound) <= delta

  @pytest.mark.parametrize("p", [0.1, 0.5])
  @pytest.mark.parametrize("mu", [0.05, 0.2])
  def test_lemma_1(self, p, mu):
    """McDiarmid's inequality, of the mean of n coins, exactly."""
    for n in (10, 100):
      hits = np.arange(n + 1)
      far = np.abs(hits / n - p) > mu
      exact = stats.binom.pmf(hits[far], n, p).sum()
      assert exact <= 2 * math.exp(-2 * n * mu**2)


class TestTheorem4:
  """SGD reaches a small gradient: true of its square, with a smooth loss."""

  steps = 50

  def descend(self, scale):
    """The smallest gradient norm, its square, and what the theorem bounds.

    The loss is scale * mean log cosh(x_i - c_i), one i at a time.
    """
    rng, dim, runs = np.random.default_rng(0), 4, 400
    centre = rng.normal(size=(8, dim))
    smooth = scale  # of log cosh, whose second derivative is at most 1
    largest = scale * math.sqrt(dim)  # of the gradient of one term

    def loss(x):
      return scale * np.log(np.cosh(x[..., None, :] - centre)).sum(-1).mean(-1)

    def gradient(x):
      return scale * np.tanh(x[..., None, :] - centre).mean(-2)

    x = np.full((runs, dim), 2.0)
    # At most the true gap, so that the bound is not too large.
    gap = loss(x)[0] - min(loss(c) for c in rng.normal(size=(4_000, dim)))
    rate = math.sqrt(2 * gap / (smooth * largest**2 * self.steps))
    norms = []
    for _ in range(self.steps):
      norms.append(np.linalg.norm(gradient(x), axis=1))
      one = centre[rng.integers(0, 8, runs)]
      x = x - rate * scale * np.tanh(x - one)
    bound = math.sqrt(2 * smooth * gap / self.steps) * largest
    norms = np.array(norms)
    return norms.mean(1).min(), (norms**2).mean(1).min(), bound

  @pytest.mark.parametrize("scale", [1.0, 1e-4])
  def test_the_squared_norm_is_bounded(self, scale):
    _, square, bound = self.descend(scale)
    assert square <= bound

  def test_the_norm_is_not(self):
    """It is linear in the loss, the bound is quadratic."""
    norm, _, bound = self.descend(1e-4)
    assert norm > bound

  def test_the_term_has_no_lipschitz_gradient(self, x64):
    """It jumps where columns meet, so that the theorem's S does not exist."""
    term = contrib.difference_alignment()

    def value(x):
      return term.apply(*term.init(), Pairs(x, x, np.arange(4)))[0]

    steps = np.outer(np.arange(4.0), [1.0, 0.0])  # all columns are equal
    move = np.zeros((4, 2))
    move[0, 1] = 1.0
    gaps = [
      np.linalg.norm(
        np.subtract(
          *(jax.grad(value)(jnp.asarray(steps + s * move)) for s in (e, -e))
        )
      )
      for e in (1e-2, 1e-6)
    ]
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=1e-3)
    assert gaps[1] > 0.5

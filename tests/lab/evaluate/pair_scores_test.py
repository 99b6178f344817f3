"""Scores of pairs against loops in float64, and the limits that they share."""

import functools

import make_pairs
import numpy as np
import pytest

from nuclr_jax import popularity
from nuclr_jax.lab.data.shards import InMemory
from nuclr_jax.lab.evaluate import choose, pair_scores, suspects
from nuclr_jax.lab.evaluate.block_confidence import (
  log_self_confidence_of_blocks,
)

N, TAU = 60, 0.1


@pytest.fixture(scope="module")
def sides():
  """Pairs, some of which fit badly, in half precision and of any norm."""
  x = make_pairs.unit_rows(0, N, 8)
  y = x + 0.6 * make_pairs.unit_rows(1, N, 8)
  y[:5] = y[[1, 2, 3, 4, 0]]
  return [InMemory((3 * z).astype(np.float16)) for z in (x, y)]


@pytest.fixture(scope="module")
def similarities(sides):
  """The matrix E, in float64."""
  x, y = (z.array.astype(float) for z in sides)
  x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
  return x @ y.T


@pytest.fixture(scope="module")
def balanced(sides):
  return pair_scores.balance(*sides, temperature=TAU, tolerance=1e-5)


def published(e, batches, tau):
  """negCLIPLoss by its formula, term by term."""
  score = np.full(len(e), np.nan)
  for batch in batches:
    for i in batch:
      rows = sum(np.exp(e[i, j] / tau) for j in batch)
      columns = sum(np.exp(e[j, i] / tau) for j in batch)
      score[i] = e[i, i] - tau / 2 * (np.log(rows) + np.log(columns))
  return score


def negcliploss(sides, size, seed=(0,)):
  return pair_scores.negcliploss(
    *sides, temperature=TAU, batch_size=size, seed=seed
  )


def test_similarity_is_the_cosine(sides, similarities):
  found = pair_scores.similarity(*sides)
  np.testing.assert_allclose(found, np.diag(similarities), atol=1e-6)


@pytest.mark.parametrize("size", [16, N])
def test_negcliploss_is_its_published_formula(sides, similarities, size):
  order = np.random.default_rng((3,)).permutation(N)
  batches = np.array_split(order, -(-N // size))
  assert {len(x) for x in batches} == ({15} if size == 16 else {N})
  expected = published(similarities, batches, TAU)
  found = negcliploss(sides, size, (3,))
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_uneven_batches_are_padded_by_nothing(sides, similarities):
  some = [x.subset(np.arange(N - 1)) for x in sides]
  order = np.random.default_rng((0,)).permutation(N - 1)
  batches = np.array_split(order, 4)
  assert {len(x) for x in batches} == {14, 15}
  expected = published(similarities[:-1, :-1], batches, TAU)
  np.testing.assert_allclose(negcliploss(some, 15), expected, atol=1e-6)


def test_negcliploss_converges_to_all_pairs_without_zeta(sides, similarities):
  """Up to tau log(n / |B|), which sums over fewer pairs lack."""
  limit = published(similarities, [np.arange(N)], TAU)
  errors = []
  for size in (6, 15, 30, N):
    found = np.mean([negcliploss(sides, size, (i,)) for i in range(20)], axis=0)
    errors.append(np.abs(found - TAU * np.log(N / size) - limit).mean())
  assert errors == sorted(errors, reverse=True)
  assert errors[-1] < 1e-6 < errors[0] / 10


def test_with_exact_popularities_negcliploss_is_the_exact_weight(
  sides, similarities, balanced
):
  """Both sums are 1 then, and tau log w_ii is what is left."""
  weights = np.exp(
    similarities / TAU
    - balanced.potential[None, :]
    - balanced.log_denominator[:, None]
  )
  np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-5)
  np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
  expected = published(TAU * np.log(weights), [np.arange(N)], TAU)
  log_weight = pair_scores.log_weight_of_positive(
    balanced, *sides, temperature=TAU
  )
  np.testing.assert_allclose(TAU * log_weight, expected, atol=1e-5)


def test_blocks_give_what_the_whole_gives(sides, balanced, monkeypatch):
  expected = popularity.solve(
    *(x.unit(slice(None)) for x in sides), temperature=TAU, tolerance=1e-5
  )
  zeta = TAU * balanced.potential
  np.testing.assert_allclose(zeta, expected.zeta.text, atol=1e-4)
  monkeypatch.setattr(pair_scores, "ROWS", 32)
  monkeypatch.setattr(pair_scores, "COLUMNS", 24)
  monkeypatch.setattr(pair_scores, "READ", 7)
  found = pair_scores.balance(*sides, temperature=TAU, tolerance=1e-5)
  np.testing.assert_allclose(found.potential, balanced.potential, atol=1e-4)


def test_an_iteration_continues_with_the_same_bits(sides):
  states = []

  def keep(state):
    past = type(state.past)(list(state.past.points), list(state.past.steps))
    states.append(state._replace(past=past))

  whole = pair_scores.balance(*sides, temperature=TAU, keep=keep)
  rest = pair_scores.balance(*sides, temperature=TAU, begin=states[3])
  np.testing.assert_array_equal(rest.potential, whole.potential)
  assert rest.iterations == whole.iterations > 4


def test_a_sample_extends_to_all_pairs(sides, balanced):
  """Of all pairs as the sample, to the same weights; of half, to close ones."""
  exact = pair_scores.log_weight_of_positive(balanced, *sides, temperature=TAU)
  found = pair_scores.log_weight_of_positive(
    balanced, *sides, temperature=TAU, sample=np.arange(N)
  )
  np.testing.assert_allclose(found, exact, atol=2e-5)
  sample = np.arange(0, N, 2)
  part = pair_scores.balance(
    *(x.subset(sample) for x in sides), temperature=TAU, num_pairs=N
  )
  found = pair_scores.log_weight_of_positive(
    part, *sides, temperature=TAU, sample=sample
  )
  assert np.corrcoef(found, exact)[0, 1] > 0.95


def p_norm(image, target, p):
  """NormSim by its formula, term by term."""
  x, z = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (image, target))
  if p == np.inf:
    return np.array([max(abs(u @ v) for v in z) for u in x])
  return np.array([sum(abs(u @ v) ** p for v in z) ** (1 / p) for u in x])


@pytest.mark.parametrize("p", [2, np.inf])
@pytest.mark.parametrize("count", [3, 37])
def test_normsim_is_a_norm_of_cosines(sides, p, count, monkeypatch):
  """In blocks, too; the nearest image may be one of the opposite direction."""
  target = make_pairs.unit_rows(2, count, 8)
  image = sides[0].array.astype(float)
  target[0] = -image[4]
  expected = p_norm(image, target, p)
  if p == np.inf:
    assert expected[4] == pytest.approx(1)
  target = InMemory((5 * target).astype(np.float16))
  found = pair_scores.normsim(sides[0], target, norm=p)
  np.testing.assert_allclose(found, expected, atol=2e-3)  # half precision
  expected = p_norm(image, target.array.astype(float), p)
  np.testing.assert_allclose(found, expected, atol=2e-6)
  for name, size in (("ROWS", 32), ("COLUMNS", 16), ("READ", 7)):
    monkeypatch.setattr(pair_scores, name, size)
  found = pair_scores.normsim(sides[0], target, norm=p)
  np.testing.assert_allclose(found, expected, atol=2e-6)


def test_normsim_of_images_almost_orthogonal_to_the_target():
  """The sum of squares is 1e-10 of its greatest value, and not lost."""
  target = np.eye(8)[np.arange(1000) % 3]
  image = np.eye(8)[3:6] + 1e-5 * np.eye(8)[:3]
  for p in (2, np.inf):
    found = pair_scores.normsim(InMemory(image), InMemory(target), norm=p)
    np.testing.assert_allclose(found, p_norm(image, target, p), rtol=1e-4)


@pytest.mark.parametrize("p", [2, np.inf])
def test_normsim_refuses_rows_without_a_direction(sides, p):
  target = make_pairs.unit_rows(2, 9, 8)
  for value, what in ((0, "zero"), (np.nan, "not finite")):
    target[7] = value
    with pytest.raises(ValueError, match=f"^row 7 is {what}; embed it again"):
      pair_scores.normsim(sides[0], InMemory(target), norm=p)


def test_normsim_knows_two_norms(sides):
  with pytest.raises(ValueError, match="norm must be 2 or infinity, got 1"):
    pair_scores.normsim(*sides, norm=1)


def test_a_temperature_that_rounding_hides_is_refused(sides):
  with pytest.raises(ValueError, match="rounding hides the weights"):
    pair_scores.balance(*sides, temperature=1e-7)


def test_swapped_texts_have_the_lowest_scores(sides, balanced):
  exact = pair_scores.log_weight_of_positive(balanced, *sides, temperature=TAU)
  for score in (exact, negcliploss(sides, 30), pair_scores.similarity(*sides)):
    assert set(np.argsort(score)[:5]) == set(range(5))


def test_self_confidence_in_blocks_is_that_of_the_whole(monkeypatch):
  rng = np.random.default_rng(0)
  label, image = np.arange(80) % 3, np.arange(80) // 2
  x = np.eye(4)[label] + 0.3 * rng.normal(size=(80, 4))
  x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
  expected = suspects.log_self_confidence(x, label, image)
  monkeypatch.setattr("nuclr_jax.lab.evaluate.block_confidence.READ", 9)
  found = log_self_confidence_of_blocks(InMemory(x), label, image)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_shares_count_all_pairs_and_equal_scores_keep_the_first():
  a, b = np.zeros(100), np.arange(100.0)
  kept, choices = choose.choose([a, b], keep=[0.5, 0.29])
  assert np.flatnonzero(kept).tolist() == list(range(21, 50))
  assert [x.threshold for x in choices] == [0, 21]
  assert [x.among.sum() for x in choices] == [100, 50]
  assert [x.kept.sum() for x in choices] == [50, 29]
  both = choose.choose([a, b], keep=[0.5, 0.6], intersect=True)
  assert np.flatnonzero(both.kept).tolist() == list(range(40, 50))
  assert [x.threshold for x in both.choices] == [0, 40]
  among = b % 2 == 1
  kept, _ = choose.choose([b], threshold=[90], among=among)
  assert np.flatnonzero(kept).tolist() == [91, 93, 95, 97, 99]
  with pytest.raises(ValueError, match="no pair of 100 is kept; lower"):
    choose.choose([b], threshold=[100])


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_float64_beyond_the_range_of_float32(factor):
  image, text = np.random.default_rng(0).normal(size=(2, 24, 8))
  plain, scaled = (
    [InMemory(image * x), InMemory(text * x)] for x in (1.0, factor)
  )
  for score in (
    functools.partial(pair_scores.negcliploss, temperature=0.1, batch_size=24),
    lambda *sides: pair_scores.balance(*sides, temperature=0.3).potential,
    functools.partial(pair_scores.normsim, norm=np.inf),
    functools.partial(pair_scores.normsim, norm=2),
  ):
    np.testing.assert_allclose(score(*scaled), score(*plain), atol=1e-5)

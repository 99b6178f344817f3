"""What the data say about zeta, and what they leave open.

The joint objective does not change under E_ij -> E_ij + a_j, zeta_j -> zeta_j +
a_j, so encoders that can shift their similarities leave only E - zeta
determined (docs/what_zeta_is.md).
"""

import functools

import chex
import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax import Pairs, Sides, objectives, popularity
from nuclr_jax.objectives import denominator, zeta_rules
from nuclr_jax.types import each

B, N, D, TAU = 12, 40, 5, 0.3
RNG = np.random.default_rng(0)
SHIFT = Sides(*RNG.normal(size=(2, N)))  # of images and texts as contrast
ZETA = Sides(*RNG.normal(size=(2, N)))
RULES = {  # both scale with the anchor's own shift, as u does
  "without": denominator.running_max(weight=0.0),
  "by zeta": denominator.by_zeta(),
}


def shifted(pairs, shift):
  """Adds shift.text of the text and shift.image of the image to E."""
  ones = jnp.ones(len(pairs.pair_id))
  rows = each(lambda x: x[pairs.pair_id], shift)
  image = jnp.c_[pairs.image, ones, rows.image]
  text = jnp.c_[pairs.text, rows.text, ones]
  return pairs._replace(image=image, text=text)


def with_zeta(state, zeta):
  image, text = state.sample.image, state.sample.text
  return state._replace(
    sample=state.sample._replace(
      image=image._replace(zeta=zeta.image), text=text._replace(zeta=zeta.text)
    )
  )


@functools.cache
def compiled(positive):
  """The joint objective and its gradient, and the steps of zeta."""
  objective = objectives.nuclr_variant(
    num_pairs=N,
    temperature=TAU,
    gamma=0.7,
    zeta=zeta_rules.batch(rate=0.1, init=ZETA),
    positive=positive,
  )

  def joint(vectors, pairs, shift, zeta):
    params, state = objective.init()
    image, text = vectors
    batch = shifted(pairs._replace(image=image, text=text), shift)
    value, (new, _) = objective.apply(params, with_zeta(state, zeta), batch)
    means = each(lambda x: jnp.mean(x[pairs.pair_id]), zeta)
    moved = each(
      lambda rows, x: (rows.zeta - x)[pairs.pair_id],
      Sides(new.sample.image, new.sample.text),
      zeta,
    )
    return value + means.image + means.text, moved

  return jax.jit(jax.value_and_grad(joint, has_aux=True))


def step(positive, shift, moved):
  """The value, the steps of zeta and the gradient; E and zeta are shifted."""
  pairs = make_pairs.make_pairs(0, batch=B, dim=D, num_pairs=N)
  zeta = each(jnp.add, ZETA, moved)
  return compiled(positive)((pairs.image, pairs.text), pairs, shift, zeta)


NOTHING = each(np.zeros_like, SHIFT)


@pytest.mark.parametrize("rule", RULES)
def test_a_shift_of_similarities_and_zeta_changes_nothing(rule, x64):
  """Neither the value, nor the gradient of the encoders, nor zeta's step."""
  expected = step(RULES[rule], NOTHING, NOTHING)
  found = step(RULES[rule], SHIFT, SHIFT)
  chex.assert_trees_all_close(found, expected, rtol=1e-12, atol=1e-12)
  # A shift of the similarities alone does change them: the test can fail.
  (value, _), _ = step(RULES[rule], SHIFT, NOTHING)
  assert abs(value - expected[0][0]) > 0.1


def test_the_constant_positive_term_does_change(x64):
  """The paper's epsilon does not follow the shift; it is small beside u."""
  rule = denominator.running_max()
  before, after = (step(rule, x, x)[0][0] for x in (NOTHING, SHIFT))
  assert 1e-8 < abs(before - after) < 1e-4


def test_exact_zeta_follows_the_shift(x64):
  pairs = make_pairs.make_pairs(0, batch=N, dim=D, num_pairs=N)
  pairs = pairs._replace(pair_id=jnp.arange(N))

  def zeta(shift):
    x = shifted(pairs, shift)
    return popularity.solve(
      x.image, x.text, temperature=TAU, tolerance=1e-12
    ).zeta

  centred = each(lambda x: x - x.mean(), SHIFT)
  before, after = zeta(NOTHING), zeta(SHIFT)
  moved = each(np.subtract, after, before)
  chex.assert_trees_all_close(moved, centred, atol=1e-9)


# How often an item of each row occurs with one of each column.
COUNTS = np.array([[6, 1, 1], [1, 3, 0], [0, 2, 2], [4, 0, 1]]) + 1
JOINT = COUNTS / COUNTS.sum()
P_IMAGE, P_TEXT = JOINT.sum(1), JOINT.sum(0)
PMI = np.log(JOINT / np.outer(P_IMAGE, P_TEXT))


@functools.cache
def of_data():
  """NUCLR's loss on data with these counts and its gradient in the table.

  Every pair is in the batch, and no repetition is known, so that the sums over
  the batch are those over the data, with each item as often as it occurs.
  """
  rows, columns = (
    np.repeat(x.ravel(), COUNTS.ravel()) for x in np.indices((4, 3))
  )
  n = len(rows)
  objective = objectives.nuclr_variant(
    num_pairs=n,
    temperature=TAU,
    gamma=1.0,
    zeta=zeta_rules.fixed(),
    positive=denominator.by_zeta(),
  )

  def joint(table, zeta):
    pairs = Pairs(table[rows], jnp.eye(3)[columns], jnp.arange(n))
    params, state = objective.init()
    state = with_zeta(state, Sides(zeta.image[rows], zeta.text[columns]))
    value, _ = objective.apply(params, state, pairs)
    means = zeta.image @ P_IMAGE + zeta.text @ P_TEXT
    return value + means - 2 * TAU * np.log(n)

  return jax.jit(jax.value_and_grad(joint))


ZETAS = {
  "0": Sides(np.zeros(4), np.zeros(3)),
  "tau log p": Sides(TAU * np.log(P_IMAGE), TAU * np.log(P_TEXT)),
  "anything": Sides(RNG.normal(size=4), RNG.normal(size=3)),
}


@pytest.mark.parametrize("zeta", ZETAS.values(), ids=ZETAS)
def test_the_optimum_on_a_table(zeta, x64):
  """E - zeta = tau log p(x, y) / p(x) p(y), whatever zeta is.

  With zeta = tau log p, E is tau log p(x, y): log p(y | x) up to a constant for
  each image. The value is -2 tau times the mutual information.
  """
  table = TAU * PMI + zeta.image[:, None] + zeta.text
  value, gradient = of_data()(table, zeta)
  np.testing.assert_allclose(gradient, 0, atol=1e-12)
  np.testing.assert_allclose(value, -2 * TAU * np.sum(JOINT * PMI), rtol=1e-12)
  # Elsewhere the gradient is not 0: the test can fail.
  _, elsewhere = of_data()(table + zeta.text + np.arange(3), zeta)
  assert np.abs(elsewhere).max() > 1e-3


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_what_unit_vectors_absorb():
  """Anchors on a hyperplane and a spare dimension: all; centred ones: none."""
  images, texts = unit(RNG.normal(size=(50, 3))), unit(RNG.normal(size=(8, 3)))
  shift = RNG.uniform(-0.1, 0.1, size=8)
  # A common component m of all images, and one that only texts have.
  f = np.c_[0.8 * images, np.full(50, 0.6), np.zeros(50)]
  g = np.c_[0.5 * texts, np.zeros(8), np.full(8, 0.75**0.5)]
  common = shift / 0.6
  new = np.c_[g[:, :3], common, np.sqrt(0.75 - common**2)]
  np.testing.assert_allclose(np.linalg.norm(new, axis=1), 1)
  np.testing.assert_allclose(f @ new.T, f @ g.T + shift, atol=1e-12)
  # If f and -f occur equally often, the best move is none at all.
  centred = np.r_[images, -images]
  best, residual, *_ = np.linalg.lstsq(centred, np.ones(100), rcond=None)
  np.testing.assert_allclose(best, 0, atol=1e-12)
  np.testing.assert_allclose(residual, 100)


@pytest.mark.parametrize("dim", [2, 8, 32])
def test_what_a_cone_absorbs(dim):
  """Between the extremes: more of a shift, the narrower the cone and wider f.

  With mean m and covariance C of the images, the best v leaves
  min_v mean (1 - f^T v)^2 = 1 / (1 + m^T C^-1 m) of a text's shift.
  """
  rng = np.random.default_rng(dim)
  x, middle = rng.normal(size=(4000, dim)), np.eye(dim)[0] * dim**0.5
  left = []
  for cone in (0.0, 0.5, 1.0, 2.0):
    f = unit(x + cone * middle)
    m, c = f.mean(0), np.cov(f.T, bias=True)
    v, *_ = np.linalg.lstsq(f, np.ones(len(f)), rcond=None)
    left.append(np.mean((1 - f @ v) ** 2))
    expected = 1 / (1 + m @ np.linalg.solve(c, m))
    np.testing.assert_allclose(left[-1], expected, rtol=1e-9)
  assert left[0] > 0.95 and left == sorted(left, reverse=True)
  # What a cone of 45 degrees leaves falls with the width, as 1 / dim.
  assert 0.3 < dim * left[2] < 0.6

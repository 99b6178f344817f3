"""The two passes over all pairs, against NumPy and finite differences."""

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax import Sides, pairwise

B = 12


@pytest.fixture
def setting(x64):
  """Pairs with shared texts; a temperature, bias and weight for every row."""
  rng = np.random.default_rng(0)
  sides = lambda low, high: Sides(
    *(jnp.asarray(rng.uniform(low, high, B)) for _ in range(2))
  )
  return dict(
    pairs=make_pairs.make_pairs(0, batch=B, num_texts=7),
    temperature=sides(0.1, 0.5),
    bias=sides(-0.1, 0.1),
    row=sides(-3, 0),
    contrast=sides(-3, 0),
  )


def logits(setting, image, text, temperature):
  """[anchor, contrast] of both sides, and the mask, in NumPy."""
  ids = setting["pairs"].pair_id, setting["pairs"].text_id
  negative = np.logical_and(
    *(np.not_equal.outer(x, x) for x in map(np.asarray, ids))
  )
  sim, bias = np.asarray(image) @ np.asarray(text).T, setting["bias"]
  own = np.diag(sim)[:, None]
  of_image = (sim - own - np.asarray(bias.text)) / temperature.image[:, None]
  of_text = (sim.T - own - np.asarray(bias.image)) / temperature.text[:, None]
  return of_image, of_text, negative


def test_log_sum_exp(setting):
  pairs, tau = setting["pairs"], setting["temperature"]
  found = pairwise.log_sum_exp(pairs, temperature=tau, bias=setting["bias"])
  *both, negative = logits(setting, pairs.image, pairs.text, tau)
  for x, side in zip(both, found, strict=True):
    expected = np.log(np.sum(np.exp(x) * negative, axis=1))
    np.testing.assert_allclose(side, expected, rtol=1e-12)


def weighted(setting, image, text, temperature):
  return pairwise.weighted(
    setting["pairs"]._replace(image=image, text=text),
    temperature=temperature,
    bias=setting["bias"],
    row_log_weight=setting["row"],
    contrast_log_weight=setting["contrast"],
  )


def test_weighted_values(setting):
  pairs, tau = setting["pairs"], setting["temperature"]
  out = weighted(setting, pairs.image, pairs.text, tau)
  *both, negative = logits(setting, pairs.image, pairs.text, tau)
  total = 0
  for x, side, other in zip(
    both, ("image", "text"), ("text", "image"), strict=True
  ):
    w = (
      np.exp(x + np.asarray(getattr(setting["row"], side))[:, None]) * negative
    )
    k = np.asarray(getattr(setting["contrast"], side))[:, None]
    total += w.sum()
    np.testing.assert_allclose(
      getattr(out.mean_logit, side), (w * x).sum(1), rtol=1e-11
    )
    np.testing.assert_allclose(
      getattr(out.contrast_sums, other),
      (np.exp(x + k) * negative).sum(0),
      rtol=1e-11,
    )
  np.testing.assert_allclose(out.surrogate, total, rtol=1e-12)


def test_weighted_gradient_against_finite_differences(setting):
  pairs = setting["pairs"]
  inputs = (pairs.image, pairs.text, setting["temperature"])

  def surrogate(inputs):
    return weighted(setting, *inputs).surrogate

  gradient = jax.grad(surrogate)(inputs)
  rng, h = np.random.default_rng(1), 1e-6
  for _ in range(5):
    direction = jax.tree.map(
      lambda x: jnp.asarray(rng.normal(size=x.shape)), inputs
    )
    ahead = jax.tree.map(lambda x, d: x + h * d, inputs, direction)
    behind = jax.tree.map(lambda x, d: x - h * d, inputs, direction)
    expected = (surrogate(ahead) - surrogate(behind)) / (2 * h)
    found = sum(
      jnp.sum(g * d)
      for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_only_the_surrogate_carries_a_gradient(setting):
  pairs = setting["pairs"]

  def others(image):
    out = weighted(setting, image, pairs.text, setting["temperature"])
    lse = pairwise.log_sum_exp(pairs._replace(image=image), temperature=0.1)
    return sum(map(jnp.sum, jax.tree.leaves((out[1:], lse))))

  np.testing.assert_array_equal(jax.grad(others)(pairs.image), 0)


def test_large_exponents_neither_overflow_nor_vanish(setting):
  """exp(2000) times exp(-2000) is 1 when the weight is in the exponent."""
  eye = jnp.asarray([[1.0, 0.0], [-1.0, 0.0]])
  pairs = setting["pairs"]._replace(
    image=eye, text=-eye, pair_id=jnp.arange(2), text_id=None
  )
  weight = jnp.full(2, -2000.0)
  out = pairwise.weighted(
    pairs, temperature=1e-3, row_log_weight=Sides(weight, weight)
  )
  np.testing.assert_allclose(out.surrogate, 4.0, rtol=1e-9)


def test_products_are_true_float32():
  """On a CPU the numbers would not show it."""
  pairs = make_pairs.make_pairs(0, dtype=jnp.float32)
  weights = Sides(jnp.zeros(16), jnp.zeros(16))

  def loss(pairs):
    out = pairwise.weighted(pairs, temperature=0.1, row_log_weight=weights)
    return out.surrogate

  step = jax.jit(jax.grad(loss, allow_int=True))
  products = [
    line
    for line in step.lower(pairs).as_text().splitlines()
    if "dot_general" in line
  ]
  assert len(products) >= 3  # similarities and two gradients
  assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)

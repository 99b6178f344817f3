"""The two passes over all pairs, against NumPy and finite differences."""

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax import Pairs, Sides, pairwise, sharding

B = 12
TILES = [1, 5, None]  # None: all at once


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
    factor=sides(0.1, 2),
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


@pytest.mark.parametrize("tile", TILES)
def test_log_sum_exp(tile, setting):
  pairs, tau = setting["pairs"], setting["temperature"]
  found = pairwise.log_sum_exp(
    pairwise.logits(pairs, temperature=tau, bias=setting["bias"], tile=tile)
  )
  *both, negative = logits(setting, pairs.image, pairs.text, tau)
  for x, side in zip(both, found, strict=True):
    expected = np.log(np.sum(np.exp(x) * negative, axis=1))
    np.testing.assert_allclose(side, expected, rtol=1e-12)


def weighted(setting, image, text, temperature, tile=None):
  return pairwise.weighted(
    pairwise.logits(
      setting["pairs"]._replace(image=image, text=text),
      temperature=temperature,
      bias=setting["bias"],
      tile=tile,
    ),
    row_log_weight=setting["row"],
    contrast_factor=setting["factor"],
  )


@pytest.mark.parametrize("tile", TILES)
def test_weighted_values(tile, setting):
  pairs, tau = setting["pairs"], setting["temperature"]
  out = weighted(setting, pairs.image, pairs.text, tau, tile)
  *both, negative = logits(setting, pairs.image, pairs.text, tau)
  total = 0
  for x, side, other in zip(
    both, ("image", "text"), ("text", "image"), strict=True
  ):
    w = (
      np.exp(x + np.asarray(getattr(setting["row"], side))[:, None]) * negative
    )
    factor = np.asarray(getattr(setting["factor"], side))[:, None]
    total += w.sum()
    np.testing.assert_allclose(
      getattr(out.mean_logit, side), (w * x).sum(1), rtol=1e-11
    )
    np.testing.assert_allclose(
      getattr(out.contrast_sums, other),
      (factor * w).sum(0),
      rtol=1e-11,
    )
  np.testing.assert_allclose(out.surrogate, total, rtol=1e-12)


def assert_is_gradient(f, inputs):
  """Compares with central differences in five random directions."""
  f, gradient = jax.jit(f), jax.jit(jax.grad(f))(inputs)
  rng, h = np.random.default_rng(1), 1e-6
  for _ in range(5):
    direction = jax.tree.map(
      lambda x: jnp.asarray(rng.normal(size=x.shape)), inputs
    )
    ahead = jax.tree.map(lambda x, d: x + h * d, inputs, direction)
    behind = jax.tree.map(lambda x, d: x - h * d, inputs, direction)
    expected = (f(ahead) - f(behind)) / (2 * h)
    found = sum(
      jnp.sum(g * d)
      for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("tile", TILES)
def test_weighted_gradient(tile, setting):
  pairs = setting["pairs"]
  inputs = (pairs.image, pairs.text, setting["temperature"])
  assert_is_gradient(lambda x: weighted(setting, *x, tile).surrogate, inputs)


def total(inputs, pairs, tile):
  """sum_over_negatives with two parameters."""
  image, text, a, b = inputs
  return pairwise.sum_over_negatives(
    pairs._replace(image=image, text=text),
    lambda sim, a, b: jnp.tanh(a * sim + b),
    a,
    b,
    tile=tile,
  )


@pytest.mark.parametrize("tile", TILES)
def test_sum_over_negatives(tile, setting):
  pairs = setting["pairs"]
  inputs = (pairs.image, pairs.text, jnp.float64(1.5), jnp.float64(-0.5))
  *_, negative = logits(setting, pairs.image, pairs.text, setting["bias"])
  sim = np.asarray(pairs.image) @ np.asarray(pairs.text).T
  np.testing.assert_allclose(
    total(inputs, pairs, tile),
    np.sum(np.tanh(1.5 * sim - 0.5) * negative),
    rtol=1e-12,
  )
  assert_is_gradient(lambda x: total(x, pairs, tile), inputs)
  np.testing.assert_array_equal(
    pairwise.num_negatives(pairs), negative.sum(axis=1)
  )


def test_the_gradient_of_sum_over_negatives_has_one(setting):
  """Unlike that of `weighted` it is a true gradient."""
  pairs = setting["pairs"]
  inputs = (pairs.image, pairs.text, jnp.float64(1.5), jnp.float64(-0.5))

  def square(inputs):
    gradient = jax.grad(total)(inputs, pairs, 5)
    return sum(jnp.sum(x**2) for x in gradient)

  assert_is_gradient(square, inputs)


def everything(pairs, temperature, tile):
  """All results of the module and all gradients."""
  bias = Sides(0.1 * pairs.image[:, 0], 0.1 * pairs.text[:, 1])

  def f(inputs):
    image, text, tau = inputs
    batch = pairs._replace(image=image, text=text)
    logits = pairwise.logits(batch, temperature=tau, bias=bias, tile=tile)
    lse = pairwise.log_sum_exp(logits)
    out = pairwise.weighted(
      logits,
      row_log_weight=jax.tree.map(jnp.negative, lse),
      contrast_factor=jax.tree.map(jnp.exp, lse),
    )
    squares = pairwise.sum_over_negatives(batch, jnp.square, tile=tile)
    return out.surrogate + squares, (lse, out)

  return jax.value_and_grad(f, has_aux=True)(
    (pairs.image, pairs.text, temperature)
  )


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-6), ("float64", 1e-12)])
def test_tiles_and_devices_change_nothing(dtype, rtol):
  """24 rows: 5 divides neither them nor the 3 or 24 of a device."""
  with jax.enable_x64(dtype == "float64"):
    pairs = make_pairs.make_pairs(0, batch=24, num_texts=40, dtype=dtype)
    temperature = Sides(*(0.1 + x[:, 0] ** 2 for x in pairs[:2]))
    expected = jax.jit(everything, static_argnums=2)(pairs, temperature, 24)
    scale = jax.tree.map(lambda x: rtol * jnp.max(jnp.abs(x)), expected)
    for count in (1, 8):
      with jax.set_mesh(sharding.make_mesh(count)):
        step = jax.jit(everything, static_argnums=2)
        found = step(pairs, temperature, 5)
      jax.tree.map(
        lambda x, y, atol: np.testing.assert_allclose(x, y, rtol, atol),
        *jax.device_get((found, expected, scale)),
      )


def test_memory_is_that_of_tiles():
  """Of B = 4,096: matrices of all pairs would take 67 MB each."""
  vectors = jax.ShapeDtypeStruct((4096, 64), jnp.float32)
  ids = jax.ShapeDtypeStruct((4096,), jnp.int32)
  temperature = jax.ShapeDtypeStruct((4096,), jnp.float32)
  step = jax.jit(everything, static_argnums=2).lower(
    Pairs(vectors, vectors, ids), Sides(temperature, temperature), 512
  )
  temporary = step.compile().memory_analysis().temp_size_in_bytes
  assert temporary < 4 * 4096**2 / 2


def test_only_the_surrogate_carries_a_gradient(setting):
  pairs = setting["pairs"]

  def others(image):
    out = weighted(setting, image, pairs.text, setting["temperature"])
    batch = pairs._replace(image=image)
    lse = pairwise.log_sum_exp(pairwise.logits(batch, temperature=0.1))
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
    pairwise.logits(pairs, temperature=1e-3),
    row_log_weight=Sides(weight, weight),
  )
  np.testing.assert_allclose(out.surrogate, 4.0, rtol=1e-9)


def test_products_are_true_float32():
  """On a CPU the numbers would not show it."""
  pairs = make_pairs.make_pairs(0, dtype=jnp.float32)
  weights = Sides(jnp.zeros(16), jnp.zeros(16))

  def loss(pairs):
    logits = pairwise.logits(pairs, temperature=0.1)
    return pairwise.weighted(logits, row_log_weight=weights).surrogate

  step = jax.jit(jax.grad(loss, allow_int=True))
  products = [
    line
    for line in step.lower(pairs).as_text().splitlines()
    if "dot_general" in line
  ]
  assert len(products) >= 3  # similarities and two gradients
  assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.parametrize("norm", [0.0, 1e-9, 1.0, 1e18, 1e20, np.inf])
def test_norms_of_all_sizes(norm):
  """Too large a row must not pass for a row of zeros; nor its gradient."""
  x = jnp.array([0.6, 0.8]) * jnp.array([norm, norm])
  found, pull = jax.vjp(pairwise.unit_norm, jnp.stack([x, jnp.ones(2)]))
  (gradient,) = pull(jnp.ones((2, 2)))
  if norm > 2e19:
    assert np.isnan(found[0]).all() and np.isnan(gradient[0]).all()
  else:
    expected = np.array([0.6, 0.8]) * min(norm / 1e-12, 1.0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    assert np.isfinite(gradient).all()
  np.testing.assert_allclose(found[1], 0.5**0.5, rtol=1e-6)

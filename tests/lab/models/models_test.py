"""Towers behind `Model(init, apply)`."""

import functools

from flax import nnx
import jax
import jax.numpy as jnp
from make_weights import numbers
import numpy as np
import pytest

from nuclr_jax import Batch, pairwise
from nuclr_jax.lab import models


def make(**kwargs):
  return models.small(
    image_shape=(16, 16, 1), vocab_size=30, length=6, **kwargs
  )


@functools.cache
def filled(**kwargs):
  """A model, params and state of numbers, and how it evaluates."""
  model = make(**kwargs)
  evaluate = functools.partial(model.apply, key=None, train=False)
  return model, *numbers(model.init), jax.jit(evaluate)


def batch(size=4):
  rng = np.random.default_rng(0)
  return Batch(
    image=rng.integers(0, 255, (size, 16, 16, 1)).astype(np.uint8),
    text=rng.integers(1, 30, (size, 6)).astype(np.int32),
    pair_id=np.arange(size),
  )


def old_text_tower(params, tokens, heads):
  """The text tower of `small` as it was with attention blocks of its own.

  Pre-norm blocks without bias in the queries, keys and values, an MLP of twice
  the width with the tanh form of GELU, LayerNorms with eps 1e-6.
  """

  def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * p["scale"] + p["bias"]

  def gelu(x):
    return x / 2 * (1 + jnp.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))

  def dense(x, p):
    return x @ p["kernel"] + p["bias"]

  mask = tokens != 0
  x = params["tokens"]["embedding"][tokens] + params["positions"]
  for p in params["blocks"].values():
    rows, length, width = x.shape
    qkv = norm(x, p["norm1"]) @ p["qkv"]["kernel"]
    q, k, v = jnp.moveaxis(qkv.reshape(rows, length, 3, heads, -1), 2, 0)
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width / heads) ** 0.5
    logits = jnp.where(mask[:, None, None], logits, -1e30)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    attended = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
    x = x + dense(attended, p["out"])
    x = x + dense(gelu(dense(norm(x, p["norm2"]), p["up"])), p["down"])
  total = (x * mask[..., None]).sum(1)
  return norm(total / jnp.maximum(mask.sum(1), 1)[:, None], params["norm"])


def to_old_names(params):
  """The attention's matrices were arrays of the block itself."""
  blocks = {
    i: {key: x for key, x in block.items() if key != "attention"}
    | block["attention"]
    for i, block in params["blocks"].items()
  }
  return params | {"blocks": blocks}


def test_the_text_tower_is_the_function_that_it_was():
  """Features and gradients, against float64."""
  heads = 4
  tower = models.ENCODERS["transformer"](
    vocab_size=20, length=7, width=32, num_layers=2, heads=heads
  )
  shapes, _ = jax.eval_shape(tower.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape), shapes)
  # Small embeddings, so that eps is seen.
  small = {key: params[key] for key in ("tokens", "positions")}
  params |= jax.tree.map(lambda x: 0.04 * x, small)
  tokens = rng.integers(1, 20, (6, 7))
  tokens[1, 3:] = tokens[2, 1:] = tokens[3] = 0  # the last has no token at all
  direction = rng.normal(size=(6, 32))

  def old(params):
    features = old_text_tower(to_old_names(params), tokens, heads)
    return (features * direction).sum(), features

  def new(params):
    features, _ = tower.apply(params, {}, jnp.asarray(tokens))
    return jnp.sum(features * direction.astype(np.float32)), features

  def compute(f, dtype):
    arrays = jax.tree.map(lambda x: jnp.asarray(x, dtype), params)
    (_, features), gradient = jax.jit(jax.value_and_grad(f, has_aux=True))(
      arrays
    )
    assert features.dtype == dtype
    return jax.device_get((features, gradient))

  with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
    expected = compute(old, "float64")
  computed = compute(new, "float32")
  features = expected[0]
  np.testing.assert_allclose(computed[0], features, atol=2e-6)
  for (path, x), y in zip(
    jax.tree.leaves_with_path(expected[1]),
    jax.tree.leaves(computed[1]),
    strict=True,
  ):
    error = np.abs(x - y).max() / np.abs(x).max()
    assert error < 5e-6, (jax.tree_util.keystr(path), error)


def test_the_text_tower_starts_from_the_numbers_that_it_did():
  """Those of Flax's layers, made one after the other."""
  key, width = jax.random.key(3), 16
  tower = models.ENCODERS["transformer"](
    vocab_size=9, length=4, width=width, num_layers=2
  )
  params, _ = jax.jit(tower.init)(key)
  rngs = nnx.Rngs(key)
  embed = nnx.Embed(
    9, width, embedding_init=nnx.initializers.normal(0.02), rngs=rngs
  )
  np.testing.assert_allclose(
    params["tokens"]["embedding"], embed.embedding[...], rtol=1e-5
  )
  rngs.params()  # positions
  for block in params["blocks"].values():
    nnx.LayerNorm(width, rngs=rngs)
    qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
    out = nnx.Linear(width, width, rngs=rngs)
    nnx.LayerNorm(width, rngs=rngs)
    up = nnx.Linear(width, 2 * width, rngs=rngs)
    down = nnx.Linear(2 * width, width, rngs=rngs)
    attention = block["attention"]
    pairs = [(attention["qkv"], qkv), (attention["out"], out)]
    for x, layer in (*pairs, (block["up"], up), (block["down"], down)):
      np.testing.assert_allclose(x["kernel"], layer.kernel[...], rtol=1e-5)


def test_embeddings_are_unit_norm_and_ids_pass_through():
  _, params, state, evaluate = filled(dim=24)
  pairs, _ = evaluate(params, state, batch())
  for side in (pairs.image, pairs.text):
    assert side.shape == (4, 24) and side.dtype == jnp.float32
    np.testing.assert_allclose(np.linalg.norm(side, axis=1), 1, rtol=1e-5)
  np.testing.assert_array_equal(pairs.pair_id, np.arange(4))


def test_raw_embeddings_point_where_unit_ones_do():
  """`normalize=False`, for VICReg; evaluation scales them to unit norm."""
  _, params, state, evaluate = filled()
  unit, _ = evaluate(params, state, batch())
  raw, _ = jax.jit(make(normalize=False).apply)(params, state, batch())
  assert np.abs(np.linalg.norm(raw.image, axis=1) - 1).max() > 0.01
  np.testing.assert_allclose(pairwise.unit_norm(raw.text), unit.text, rtol=1e-5)


def test_the_zero_vector_stays_finite():
  assert not np.any(np.isnan(pairwise.unit_norm(jnp.zeros((2, 3)))))


def test_one_side_alone():
  _, params, state, evaluate = filled()
  both, _ = evaluate(params, state, batch())
  only, _ = evaluate(params, state, batch()._replace(text=None))
  assert only.text is None
  np.testing.assert_allclose(only.image, both.image, rtol=1e-5, atol=1e-6)


def test_batch_statistics_move_in_training_only():
  model, params, state, evaluate = filled()
  _, rested = evaluate(params, state, batch())
  train = jax.jit(functools.partial(model.apply, train=True))
  _, moved = train(params, state, batch(), key=jax.random.key(1))
  for a, b in zip(*map(jax.tree.leaves, (state, rested)), strict=True):
    np.testing.assert_array_equal(a, b)
  means = (
    state["image"]["layers"][1]["mean"],
    moved["image"]["layers"][1]["mean"],
  )
  assert np.abs(means[0] - means[1]).max() > 1e-3


def test_modules_draw_what_they_draw_from_nnx():
  def build(rngs):
    first, second = (nnx.Linear(3, 3, rngs=rngs) for _ in range(2))
    return nnx.Sequential(first, second, nnx.Linear(3, 2, rngs=rngs.fork()))

  key = jax.random.key(5)
  params, _ = jax.jit(models.from_nnx(build, 2).init)(key)
  expected = nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))
  jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_dropout_is_a_function_of_the_key():
  model, params, state, _ = filled(dropout=0.5)
  train = jax.jit(functools.partial(model.apply, train=True))

  def embed(key):
    pairs, _ = train(params, state, batch(), key=jax.random.key(key))
    return np.asarray(pairs.text)

  np.testing.assert_array_equal(embed(1), embed(1))
  assert np.abs(embed(1) - embed(2)).max() > 1e-3


def test_padding_tokens_change_nothing():
  _, params, state, evaluate = filled()
  text = batch().text.copy()
  text[:, 3:] = 0

  def on_padding(row):
    tokens = params["text"]["tokens"]["embedding"].copy()
    tokens[0] = row
    changed = params["text"] | {"tokens": {"embedding": tokens}}
    inputs = Batch(None, text, None)
    return evaluate(params | {"text": changed}, state, inputs)[0].text

  np.testing.assert_array_equal(on_padding(0.0), on_padding(5.0))


def test_a_checkpoint_of_another_model_is_refused():
  model, other = make(), make(text_width=64)
  params, state = numbers(other.init)
  with pytest.raises(ValueError, match="do not belong to this module"):
    jax.eval_shape(model.apply, params, state, batch())


def test_renamed_parameters_are_refused():
  tower = models.from_nnx(lambda rngs: nnx.Linear(2, 2, rngs=rngs), 2)
  params, state = numbers(tower.init)
  params = {"bias": params["bias"], "weight": params["kernel"]}
  with pytest.raises(ValueError, match="weight"):
    tower.apply(params, state, jnp.ones((1, 2)))


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(text_heads=3), "text_heads must be at least 1 and divide"),
    (dict(text_heads=0), "text_heads must be at least 1 and divide"),
    (dict(image_stages=((32, 1, 8),)), "strides' product must divide"),
    (dict(image_stages=((0, 0, 0),)), "image_stages must be at least 1"),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    make(**arguments)

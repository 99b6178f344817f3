"""Towers behind `Model(init, apply)`."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax import Batch, models


def make(**kwargs):
  return models.small(
    image_shape=(16, 16, 1), vocab_size=30, length=6, **kwargs
  )


def batch(size=4):
  rng = np.random.default_rng(0)
  return Batch(
    image=rng.integers(0, 255, (size, 16, 16, 1)).astype(np.uint8),
    text=rng.integers(1, 30, (size, 6)).astype(np.int32),
    pair_id=np.arange(size),
  )


def test_embeddings_are_unit_norm_and_ids_pass_through():
  model = make(dim=24)
  params, state = model.init(jax.random.key(0))
  pairs, _ = model.apply(params, state, batch(), key=None, train=False)
  for side in (pairs.image, pairs.text):
    assert side.shape == (4, 24) and side.dtype == jnp.float32
    np.testing.assert_allclose(jnp.linalg.norm(side, axis=1), 1, rtol=1e-5)
  np.testing.assert_array_equal(pairs.pair_id, np.arange(4))


def test_raw_embeddings_point_where_unit_ones_do():
  """`normalize=False`, for VICReg; evaluation scales them to unit norm."""
  params, state = make().init(jax.random.key(0))
  unit, raw = (
    make(normalize=x).apply(params, state, batch(), key=None, train=False)[0]
    for x in (True, False)
  )
  assert np.abs(np.linalg.norm(raw.image, axis=1) - 1).max() > 0.01
  np.testing.assert_allclose(models.unit_norm(raw.text), unit.text, rtol=1e-5)


def test_the_zero_vector_stays_finite():
  assert not np.any(np.isnan(models.unit_norm(jnp.zeros((2, 3)))))


def test_one_side_alone():
  model = make()
  params, state = model.init(jax.random.key(0))
  both, _ = model.apply(params, state, batch(), key=None, train=False)
  only, _ = model.apply(
    params, state, batch()._replace(text=None), key=None, train=False
  )
  assert only.text is None
  np.testing.assert_allclose(only.image, both.image, rtol=1e-5, atol=1e-6)


def test_batch_statistics_move_in_training_only():
  model = make()
  params, state = model.init(jax.random.key(0))
  _, same = model.apply(params, state, batch(), key=None, train=False)
  _, moved = model.apply(
    params, state, batch(), key=jax.random.key(1), train=True
  )
  for a, b in zip(*map(jax.tree.leaves, (state, same)), strict=True):
    np.testing.assert_array_equal(a, b)
  means = (
    state["image"]["layers"][1]["mean"],
    moved["image"]["layers"][1]["mean"],
  )
  assert np.abs(means[0] - means[1]).max() > 1e-3


def test_dropout_is_a_function_of_the_key():
  model = make(dropout=0.5)
  params, state = model.init(jax.random.key(0))

  def embed(key):
    pairs, _ = model.apply(
      params, state, batch(), key=jax.random.key(key), train=True
    )
    return np.asarray(pairs.text)

  np.testing.assert_array_equal(embed(1), embed(1))
  assert np.abs(embed(1) - embed(2)).max() > 1e-3


def test_padding_tokens_change_nothing():
  model = make()
  params, state = model.init(jax.random.key(0))

  def embed(params):
    text = batch().text.copy()
    text[:, 3:] = 0
    pairs, _ = model.apply(
      params, state, Batch(None, text, None), key=None, train=False
    )
    return pairs.text

  def on_padding(row):
    tokens = params["text"]["tokens"]["embedding"]
    text = params["text"] | {"tokens": {"embedding": tokens.at[0].set(row)}}
    return embed(params | {"text": text})

  np.testing.assert_array_equal(on_padding(0.0), on_padding(5.0))


def test_a_checkpoint_of_another_model_is_refused():
  model, other = make(), make(text_width=64)
  params, state = other.init(jax.random.key(0))
  with pytest.raises(ValueError, match="do not belong to this module"):
    model.apply(params, state, batch(), key=None, train=False)


def test_renamed_parameters_are_refused():
  tower = models.from_nnx(lambda rngs: nnx.Linear(2, 2, rngs=rngs), 2)
  params, state = tower.init(jax.random.key(0))
  params = {"bias": params["bias"], "weight": params["kernel"]}
  with pytest.raises(ValueError, match="weight"):
    tower.apply(params, state, jnp.ones((1, 2)))


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(text_heads=3), "text_heads must be at least 1 and divide"),
    (dict(text_heads=0), "text_heads must be at least 1 and divide"),
    (dict(image_stages=((32, 1, 8),)), "strides' product must divide"),
  ],
)
def test_bad_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    make(**arguments)

"""Encoders that see a batch in pieces."""

import functools
import re

from flax import nnx
import jax
from make_weights import numbers
import numpy as np
import optax
import pytest

from nuclr_jax import Batch, objectives, sharding
from nuclr_jax.lab import models
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.microbatch import microbatched
from nuclr_jax.lab.train.settings import resolve
from nuclr_jax.lab.train.step import init_state, make_train_step, shardings

B = 16


class Net(nnx.Module):
  """Three layers, wide in the middle; rows do not see each other."""

  def __init__(self, inputs, *, rngs):
    self.first = nnx.Linear(inputs, 512, rngs=rngs)
    self.second = nnx.Linear(512, 512, rngs=rngs)

  def __call__(self, x):
    x = nnx.gelu(
      self.first(x.reshape(len(x), -1).astype(self.first.kernel.dtype))
    )
    return nnx.gelu(self.second(x))


def towers():
  tower = models.from_nnx(lambda rngs: Net(6, rngs=rngs), 512)
  return models.dual_encoder(tower, tower, dim=8)


def batch(size=B, key=0):
  rng = np.random.default_rng(key)
  return Batch(
    image=rng.normal(size=(size, 6)).astype(np.float32),
    text=rng.integers(1, 30, (size, 6)).astype(np.int32),
    pair_id=rng.permutation(max(size, 64))[:size] % 64,
    text_id=rng.integers(0, 40, size),
  )


def parts(count):
  objective = objectives.nuclr(num_pairs=64, num_texts=40, temperature=0.1)
  model = microbatched(towers(), count)
  return model, objective, optax.sgd(0.1)


@functools.cache
def compiled(count, devices, size=B):
  """The train step with `count` pieces, and a first state."""
  pieces, key = parts(count), jax.random.key(0)
  mesh = sharding.make_mesh(devices)
  state = init_state(*pieces, key)
  layout = shardings(mesh, state)
  step = jax.jit(
    make_train_step(*pieces, key),
    in_shardings=(layout, jax.NamedSharding(mesh, sharding.ROWS)),
    out_shardings=(layout, jax.NamedSharding(mesh, sharding.REPLICATED)),
  )
  with jax.set_mesh(mesh):
    lowered = step.lower(state, jax.eval_shape(lambda: batch(size)))
    return lowered.compile(), state


@pytest.mark.parametrize("devices, count", [(1, 4), (8, 2)])
def test_steps_equal_those_of_the_whole_batch(devices, count):
  results = []
  for pieces in (1, count):
    mesh = sharding.make_mesh(devices)
    step, state = compiled(pieces, devices)
    for key in range(3):
      with jax.set_mesh(mesh):
        state, metrics = step(
          *jax.device_put((state, batch(key=key)), step.input_shardings[0])
        )
    results.append(jax.device_get((state, metrics)))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
    *results,
  )
  assert results[1][0].objective.shared.count == 3  # once per batch


def test_memory_is_that_of_a_piece():
  """Activations of 4,096 rows are 8 MB a layer."""
  memory = [
    compiled(count, 1, size=4096)[0].memory_analysis().temp_size_in_bytes
    for count in (1, 16)
  ]
  assert memory[1] < memory[0] / 3


def test_no_row_moves_between_devices():
  """The pieces add no exchange of rows to those of the loss."""
  exchanges = [
    re.findall(r"= (.*?) (?:all-to-all|collective-permute)", x[0].as_text())
    for x in (compiled(n, 8) for n in (1, 2))
  ]
  assert exchanges[0] and sorted(exchanges[0]) == sorted(exchanges[1])


def test_batch_statistics_are_of_pieces_and_move_once():
  model = models.small(image_shape=(16, 16, 1), vocab_size=30, length=6)
  params, state = jax.jit(model.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  inputs = Batch(
    image=rng.integers(0, 255, (B, 16, 16, 1)).astype(np.uint8),
    text=rng.integers(1, 30, (B, 6)).astype(np.int32),
    pair_id=np.arange(B),
  )

  def apply(model):
    return jax.jit(
      lambda x: model.apply(params, state, x, key=jax.random.key(1), train=True)
    )

  pairs, moved = apply(microbatched(model, 4))(inputs)
  np.testing.assert_array_equal(pairs.pair_id, np.arange(B))
  one = apply(model)
  pieces = [jax.tree.map(lambda x: x[i::4], inputs) for i in range(4)]  # noqa: B023
  alone = [one(piece) for piece in pieces]
  for i, (piece, _) in enumerate(alone):
    np.testing.assert_allclose(pairs.image[i::4], piece.image, atol=1e-5)
  jax.tree.map(
    lambda x, *each: np.testing.assert_allclose(
      x, np.mean(each, axis=0), rtol=1e-4, atol=1e-6
    ),
    moved,
    *(x for _, x in alone),
  )


def test_pieces_drop_different_numbers():
  model = models.small(
    image_shape=(16, 16, 1), vocab_size=30, length=6, dropout=0.5
  )
  params, state = numbers(model.init)
  same = Batch(
    image=np.ones((B, 16, 16, 1), np.uint8),
    text=np.ones((B, 6), np.int32),
    pair_id=np.arange(B),
  )
  apply = functools.partial(microbatched(model, 2).apply, train=True)
  pairs, _ = jax.jit(apply)(params, state, same, key=jax.random.key(1))
  pieces = np.concatenate([pairs.image, pairs.text], axis=1)
  assert np.abs(pieces[0::2] - pieces[1::2]).max() > 0.01


def test_evaluation_is_not_cut():
  model = microbatched(towers(), 4)
  params, state = numbers(model.init)
  pairs, _ = model.apply(params, state, batch(7), key=None, train=False)
  assert pairs.image.shape == (7, 8)


def test_the_config_key(tiny, few_pairs):
  parts = build.build(tiny(num_microbatches=4), data=few_pairs)
  key = jax.random.key(0)
  variables = jax.eval_shape(parts.model.init, key)
  step = functools.partial(parts.model.apply, key=key, train=True)
  pairs, _ = jax.eval_shape(step, *variables, few_pairs.train.fetch([0] * 8))
  assert pairs.image.shape[0] == 8
  with pytest.raises(ValueError, match="must divide the 6 rows"):
    jax.eval_shape(step, *variables, few_pairs.train.fetch([0] * 6))


@pytest.mark.parametrize("count", [0, -1, True])
def test_a_count_must_be_a_positive_integer(count):
  with pytest.raises(ValueError, match="num_microbatches must be a whole"):
    microbatched(towers(), count)


def test_a_count_must_divide_the_rows():
  model = microbatched(towers(), 3)
  params, state = numbers(model.init)
  with pytest.raises(ValueError, match="must divide the 16 rows .* got 3"):
    model.apply(params, state, batch(), key=None, train=True)


def test_the_whole_batch_must_divide(tiny):
  config = tiny(batch_size=60, num_microbatches=8)
  with pytest.raises(ValueError, match="num_microbatches, got 60, 1 and 8"):
    build.mesh_of(resolve(config))

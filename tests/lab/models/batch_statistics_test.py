"""Batch statistics at given weights, of models and in runs."""

import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nuclr_jax import Batch, sharding
from nuclr_jax.lab import models
from nuclr_jax.lab.models import batch_statistics
from nuclr_jax.lab.train import build, recalibrate, resume
from nuclr_jax.lab.train.microbatch import microbatched

pytestmark = pytest.mark.usefixtures("no_diagnostics")

SHAPE = (8, 8, 1)
SMALL = functools.partial(
  models.small,
  image_shape=SHAPE,
  vocab_size=9,
  length=4,
  image_stages=((2, 1, 6), (2, 1, 5)),
  text_layers=0,
)


def batch(size=16, seed=0, views=False):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, (2, size, *SHAPE)).astype(np.uint8)
  tokens = rng.integers(1, 9, (size, 4))
  return Batch(images[0], images[1] if views else tokens, np.arange(size))


def started(model):
  """The model, its first params and its first state."""
  return model, *model.init(jax.random.key(0))


def statistics(model, *arguments):
  """`batch_statistics` as one program."""
  return jax.jit(functools.partial(batch_statistics, model))(*arguments)


def views(encoder, **options):
  options |= dict(image_shape=SHAPE, vocab_size=0, length=0)
  return models.views(encoder=encoder, dim=3, **options)


class Counter(nnx.Module):
  """Has a counter, an average that moves slowly, and one that never does."""

  def __init__(self):
    self.steps = nnx.BatchStat(jnp.zeros((), jnp.int32))
    self.average = nnx.BatchStat(jnp.full(3, 7.0))
    self.constant = nnx.BatchStat(jnp.full(3, 5.0))
    self.training = True  # set by the module's train() and eval()

  def set_attributes(self, **_):
    return self

  def __call__(self, x):
    self.steps.set_value(self.steps[...] + 1)
    mean = jnp.mean(x, 0)
    self.average.set_value(0.75 * self.average[...] + 0.25 * mean)
    return x + self.constant[...][None]


CASES = dict(
  small=(SMALL(), batch()),
  pieces=(microbatched(SMALL(), 4), batch()),
  views=(views({"name": "convnet"}), batch(views=True)),
  vgg=(
    views({"name": "vgg16", "stages": ((1, 4), (1, 6))}),
    batch(views=True),
  ),
)


@pytest.mark.parametrize("name", CASES)
def test_running_averages_converge_to_them(name):
  """Those of a single batch, after as many steps as forget the beginning."""
  model, inputs = CASES[name]
  _, params, state = started(model)
  found, momentum = statistics(model, params, state, inputs)

  @jax.jit
  def run(state):
    def step(_, state):
      return model.apply(params, state, inputs, key=None, train=True)[1]

    return jax.lax.fori_loop(0, 300, step, state)

  assert jax.tree.structure(found) == jax.tree.structure(state)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    found,
    run(state),
  )
  for m in jax.tree.leaves(momentum):
    np.testing.assert_allclose(m, 0.9, rtol=1e-6)


def test_evaluation_with_them_is_what_training_computes():
  model, params, state = started(SMALL())
  found, _ = statistics(model, params, state, batch())
  train = jax.jit(functools.partial(model.apply, key=None, train=True))
  evaluate = jax.jit(model.apply)
  expected, _ = train(params, state, batch())
  lagging, _ = evaluate(params, state, batch())
  pairs, _ = evaluate(params, found, batch())
  np.testing.assert_allclose(pairs.image, expected.image, atol=1e-5)
  assert np.abs(lagging.image - expected.image).max() > 0.01


def test_they_do_not_depend_on_the_averages():
  model, params, state = started(SMALL())
  other = jax.tree.map(lambda x: 3 * x + 1, state)
  compute = jax.jit(functools.partial(batch_statistics, model))
  found = [compute(params, x, batch())[0] for x in (state, other)]
  jax.tree.map(np.testing.assert_array_equal, *found)


def test_a_frozen_encoder_of_two_views_rests_in_training():
  both = batch(views=True)
  for frozen in ((), ("encoder",)):
    model, params, state = started(views({"name": "convnet"}, frozen=frozen))
    apply = jax.jit(model.apply, static_argnames="train")
    pairs, moved = apply(params, state, both, train=True)
    expected, _ = apply(params, state, both)
    same = jax.tree.map(np.array_equal, (pairs, moved), (expected, state))
    assert all(jax.tree.leaves(same)) == bool(frozen)


def test_what_does_not_move_stays():
  model, params, state = started(SMALL(frozen=("image",)))
  found, momentum = statistics(model, params, state, batch())
  jax.tree.map(np.testing.assert_array_equal, found, state)
  assert all(np.all(x == 1) for x in jax.tree.leaves(momentum))
  tower = models.from_nnx(lambda rngs: Counter(), 3)
  model, params, state = started(models.one_encoder(tower, dim=2))
  x = np.arange(12, dtype=np.float32).reshape(4, 3)
  found, momentum = statistics(model, params, state, Batch(x, None, None))
  assert found["steps"] == 0 and momentum["steps"] == 1
  np.testing.assert_array_equal(found["constant"], 5)
  np.testing.assert_allclose(found["average"], x.mean(0), rtol=1e-6)
  np.testing.assert_allclose(momentum["average"], 0.75, rtol=1e-6)


class FrozenStem(nnx.Module):
  """A normalization that is always fixed, then one that is not."""

  def __init__(self, *, rngs):
    self.stem = nnx.BatchNorm(3, rngs=rngs)
    self.stem.mean[...] = jnp.array([5.0, 6.0, 7.0])
    self.linear = nnx.Linear(3, 4, rngs=rngs)
    self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)

  def __call__(self, x):
    x = self.stem(x, use_running_average=True)
    return self.norm(self.linear(x))


def test_what_follows_on_a_fixed_layer():
  tower = models.from_nnx(lambda rngs: FrozenStem(rngs=rngs), 4)
  model, params, state = started(models.one_encoder(tower, dim=2))
  x = np.random.default_rng(0).normal(5, 3, (64, 3)).astype(np.float32)
  found, momentum = statistics(model, params, state, Batch(x, None, None))
  assert np.all(momentum["stem"]["mean"] == 1)
  jax.tree.map(np.testing.assert_array_equal, found["stem"], state["stem"])
  y = (x - [5, 6, 7]) @ np.asarray(params["encoder"]["linear"]["kernel"])
  np.testing.assert_allclose(found["norm"]["mean"], y.mean(0), rtol=1e-3)
  np.testing.assert_allclose(found["norm"]["var"], y.var(0), rtol=1e-3)


class Spectral(nnx.Module):
  """Its state is a vector of a power iteration, not an average."""

  def __init__(self, *, rngs):
    linear = nnx.Linear(3, 4, rngs=rngs)
    self.linear = nnx.SpectralNorm(linear, rngs=rngs)
    self.training = True  # set by the module's train() and eval()

  def set_attributes(self, **_):
    return self

  def __call__(self, x):
    return self.linear(x, update_stats=True)


def test_what_is_no_average_stays():
  tower = models.from_nnx(lambda rngs: Spectral(rngs=rngs), 4)
  model, params, state = started(models.one_encoder(tower, dim=2))
  x = Batch(np.ones((4, 3), np.float32), None, None)
  found, momentum = statistics(model, params, state, x)
  jax.tree.map(np.testing.assert_array_equal, found, state)
  assert all(np.all(m == 1) for m in jax.tree.leaves(momentum))


class Teacher(nnx.Module):
  """Its state is an average of a weight, which training may read."""

  def __init__(self, *, reads, rngs):
    self.linear = nnx.Linear(3, 4, rngs=rngs)
    self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
    self.average = nnx.BatchStat(self.linear.kernel[...])
    self.reads = reads
    self.training = True  # set by the module's train() and eval()

  def set_attributes(self, **attributes):
    self.norm.set_attributes(**attributes)
    return self

  def __call__(self, x):
    old = self.average[...]
    self.average.set_value(0.9 * old + 0.1 * self.linear.kernel[...])
    y = self.norm(self.linear(x))
    return y + x @ old if self.reads else y


def teacher(reads):
  make = functools.partial(Teacher, reads=reads)
  tower = models.from_nnx(lambda rngs: make(rngs=rngs), 4)
  model, params, state = started(models.one_encoder(tower, dim=2))
  return model, params, jax.tree.map(lambda x: x + 1, state)


def test_a_state_that_training_reads_stays():
  x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
  for reads in (False, True):
    model, params, state = teacher(reads)
    found, momentum = statistics(model, params, state, Batch(x, None, None))
    assert np.all((momentum["norm"]["mean"] == 1) == reads)
    if reads:
      jax.tree.map(np.testing.assert_array_equal, found, state)


def test_a_model_without_state_has_none():
  model, params, state = started(
    models.heads(image_shape=(3,), length=5, dim=2)
  )
  x = Batch(np.ones((4, 3), np.float32), np.ones((4, 5), np.float32), None)
  assert batch_statistics(model, params, state, x) == (state, state)


def test_eight_devices_give_the_same():
  model, params, state = started(SMALL())
  alone, _ = statistics(model, params, state, batch())
  mesh = sharding.make_mesh(8)
  with jax.set_mesh(mesh):
    rows = jax.NamedSharding(mesh, sharding.ROWS)
    inputs = jax.tree.map(lambda x: sharding.put(x, rows), batch())
    found, _ = statistics(model, params, state, inputs)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-5), found, alone
  )


@pytest.fixture(scope="module")
def parts(tiny, few_pairs):
  return build.build(tiny(), data=few_pairs)


def with_state(model, of_batch):
  """Adds arrays to a model's state: averages of what a function returns."""

  def init(key):
    params, state = model.init(key)
    return params, {"model": state, "more": jnp.array([5.0, 0.0, 5.0])}

  def apply(params, state, batch, *, key=None, train=False):
    pairs, inner = model.apply(
      params, state["model"], batch, key=key, train=train
    )
    more = state["more"]
    if train:
      more = 0.9 * more + 0.1 * of_batch(params, batch)
    return pairs, {"model": inner, "more": more}

  return model._replace(init=init, apply=apply)


def recomputed(parts, of_batch):
  parts = parts._replace(model=with_state(parts.model, of_batch))
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    state = resume.first_state(parts, mesh)._replace(step=jnp.array(7))
    found = recalibrate.of_run(parts, mesh)(state)
  return found.model_state["more"], parts


def test_an_average_of_weights_is_no_statistic(parts):
  found, _ = recomputed(
    parts, lambda params, batch: jax.tree.leaves(params)[0].ravel()[:3]
  )
  np.testing.assert_array_equal(found, [5, 0, 5])


def test_a_channel_that_few_batches_reach(parts):
  """In most batches it is 0, as before; the last of them moves nothing."""
  ids = np.random.default_rng(0).choice(6_400, (8, 64), replace=False)
  reached = (ids % 100 == 7).any(axis=1)
  assert 0 < reached.sum() < 8 and not reached[-1]

  def of_batch(params, batch):
    rare = jnp.any(batch.pair_id % 100 == 7)
    return jnp.array([0.0, 1.0, 0.0]) * rare + jnp.array(
      [jnp.mean(batch.image), 0.0, 5.0]
    )

  found, _ = recomputed(parts, of_batch)
  np.testing.assert_allclose(found[1], reached.mean(), rtol=1e-6)
  np.testing.assert_array_equal(found[2], 5)

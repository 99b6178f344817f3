"""SuperCLIP's term: against loops in float64, counts, meshes."""

import math
import re

import hlo
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from make_step import everywhere, rows
import numpy as np
import pytest

from nuclr_jax import Pairs, contrib, objectives, sharding
from nuclr_jax.contrib.objectives.token_prediction import MANY, Seen

B, LENGTH, VOCAB, WIDTH = 8, 6, 23, 5
SPECIAL = (0, 1, 22)  # padding, and what begins and ends a caption


def make(**more):
  sizes = dict(vocab_size=VOCAB, num_features=WIDTH, special_ids=SPECIAL)
  return contrib.token_prediction(**(sizes | more))


def captions(seed, batch=B):
  """Rows 1, words (some of them twice), 22, and padding."""
  rng = np.random.default_rng(seed)
  tokens = np.zeros((batch, LENGTH), np.int32)
  for row in tokens:
    words = rng.integers(2, 9, rng.integers(0, LENGTH - 1))
    row[: len(words) + 2] = [1, *words, 22]
  return tokens


def some(seed=0, batch=B, tokens=None, features=None):
  rng = np.random.default_rng(seed + 100)
  image, text = rng.normal(size=(2, batch, 4))
  x = rng.normal(2.0, 3.0, (batch, WIDTH)) if features is None else features
  tokens = captions(seed, batch) if tokens is None else tokens
  extra = {"image_features": jnp.asarray(x), "text": jnp.asarray(tokens)}
  ids = jnp.arange(batch)
  return Pairs(jnp.asarray(image), jnp.asarray(text), ids, extra=extra)


def as_float64(params):
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)


def loop(params, batches):
  """The loss and the divergence of the last batch, after all of them."""
  weight, bias = np.asarray(params["tokens"]), np.asarray(params["bias"])
  captions, documents = 0, dict.fromkeys(range(VOCAB), 0)
  for pairs in batches:
    x, tokens = (np.asarray(a) for a in pairs.extra.values())
    sets = [set(row.tolist()) - set(SPECIAL) for row in tokens]
    captions += len(sets)
    for of_row in sets:
      for token in of_row:
        documents[token] += 1
  losses, entropies = [], []
  for row, of_row in zip(x, sets, strict=True):
    row = (row - row.mean()) / math.sqrt(row.var() + 1e-5)
    logits = weight @ row + bias
    log_p = logits - math.log(sum(math.exp(a) for a in logits))
    idf = {c: math.log((captions + 1) / (documents[c] + 1)) for c in of_row}
    target = {c: idf[c] / sum(idf.values()) for c in of_row if idf[c]}
    losses.append(-sum(t * log_p[c] for c, t in target.items()))
    entropies.append(-sum(t * math.log(t) for t in target.values()))
  return np.mean(losses), np.mean(losses) - np.mean(entropies), documents


def test_loss_and_counts_against_loops(x64):
  term = make()
  params, state = term.init()
  rng = np.random.default_rng(3)
  params = as_float64(params) | {"bias": jnp.asarray(rng.normal(size=VOCAB))}
  batches = [some(seed) for seed in range(4)]
  assert any((captions(seed)[:, 2] == 0).any() for seed in range(4))  # empty
  apply = jax.jit(term.apply)
  for number, pairs in enumerate(batches, 1):
    loss, (state, metrics) = apply(params, state, pairs)
    expected, divergence, documents = loop(params, batches[:number])
    np.testing.assert_allclose(loss, expected, rtol=1e-9)
    np.testing.assert_allclose(metrics["divergence"], divergence, rtol=1e-9)
    assert state.shared.captions == B * number
    assert state.shared.with_token.tolist() == list(documents.values())


def test_gradient_against_finite_differences(x64):
  term = make()
  params, state = term.init()
  _, (state, _) = term.apply(as_float64(params), state, some(1))
  pairs = some()

  @jax.jit
  @jax.value_and_grad
  def differentiate(point):
    extra = pairs.extra | {"image_features": point[1]}
    return term.apply(point[0], state, pairs._replace(extra=extra))[0]

  point = as_float64(params), pairs.extra["image_features"]
  _, gradient = differentiate(point)
  rng = np.random.default_rng(5)
  for moved in range(3):  # b, W, and the features
    leaves, tree = jax.tree.flatten(point)
    move = [np.zeros(x.shape) for x in leaves]
    move[moved] = rng.normal(size=leaves[moved].shape)
    move = jax.tree.unflatten(tree, move)
    ends = [
      differentiate(jax.tree.map(lambda x, m, s=s: x + s * m, point, move))[0]
      for s in (1e-5, -1e-5)
    ]
    slope = sum(map(np.vdot, jax.tree.leaves(gradient), jax.tree.leaves(move)))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-7)


def test_bytes_are_tokens_of_a_vocabulary_of_256():
  """JAX compares a uint8 with 256 as with 0."""
  objective, loss = make(vocab_size=256, special_ids=()), []
  tokens = np.arange(256 - B * 4, 256).reshape(B, 4)
  for dtype in ("uint8", "int32"):
    pairs = some(tokens=tokens.astype(dtype))
    for f in (objective.apply, jax.jit(objective.apply)):
      loss.append(float(f(*objective.init(), pairs)[0]))
  np.testing.assert_allclose(loss, loss[-1], rtol=1e-6)
  assert np.isfinite(loss[0])


def test_special_tokens_and_padding_change_nothing():
  """Nor does the place of a token, or how often a caption has it."""
  term = make()
  apply = jax.jit(term.apply)
  words = np.array([[3, 4, 5], [6, 3, 7], [5, 6, 8]], np.int32)
  bare = np.pad(words, ((0, 0), (0, 3)))
  marked = np.pad(words, ((0, 0), (1, 2)))
  marked[:, 0], marked[:, 4] = 1, 22
  cut = np.pad(words[:, ::-1], ((0, 0), (1, 2)), constant_values=1)
  twice = np.concatenate([words, words], axis=1)
  x = np.random.default_rng(0).normal(size=(3, WIDTH))
  found = [
    apply(*term.init(), some(batch=3, tokens=tokens, features=x))
    for tokens in (bare, marked, cut, twice)
  ]
  for loss, (state, _) in found[1:]:
    np.testing.assert_allclose(loss, found[0][0], rtol=1e-6)
    np.testing.assert_array_equal(
      state.shared.with_token, found[0][1][0].shared.with_token
    )
  assert not found[1][1][0].shared.with_token[jnp.array(SPECIAL)].any()


def test_captions_of_special_tokens_only_have_no_loss():
  tokens = np.tile(np.array([1, 22, 0, 0, 0, 0], np.int32), (B, 1))
  term = make()

  def loss_fn(params, pairs):
    return term.apply(params, term.init()[1], pairs)[0]

  loss, gradient = jax.jit(jax.value_and_grad(loss_fn))(
    term.init()[0], some(tokens=tokens)
  )
  assert loss == 0 and all((x == 0).all() for x in jax.tree.leaves(gradient))


def test_as_published_unless_padding_counts(x64):
  """Batch means of counts in float64 give the same weights as counts.

  The released code adds the mean over a batch, of the K-hot rows, to one
  buffer and 1 to another, and takes log((m + 1 / B) / (c + 1 / B)).
  """
  means, steps = np.zeros(VOCAB), 0
  term = make(special_ids=())
  params, state = term.init()
  params = as_float64(params)
  for seed in range(3):
    pairs = some(seed)
    hot = np.zeros((B, VOCAB))
    np.put_along_axis(hot, captions(seed), 1.0, axis=1)
    means, steps = means + hot.mean(0), steps + 1
    target = hot * np.log((steps + 1 / B) / (means + 1 / B))
    target /= np.abs(target).sum(1, keepdims=True)
    x = np.asarray(pairs.extra["image_features"])
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1) + 1e-5)[:, None]
    logits = x @ np.asarray(params["tokens"]).T
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss, (state, _) = term.apply(params, state, pairs)
    np.testing.assert_allclose(loss, -(target * log_p).sum(1).mean(), rtol=1e-9)
    assert (target[:, [1, 22]] == 0).all()  # all captions have them


def test_devices_agree_and_each_has_the_logits_of_its_rows():
  vocab, batch = 4_999, 64
  term = make(vocab_size=vocab)
  pairs = jax.tree.map(
    lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x,
    some(batch=batch, tokens=np.random.default_rng(0).integers(2, 99, (64, 9))),
  )

  def step(params, state, pairs):
    def loss_fn(params, x):
      extra = pairs.extra | {"image_features": x}
      return term.apply(params, state, pairs._replace(extra=extra))

    return jax.value_and_grad(loss_fn, (0, 1), has_aux=True)(
      params, pairs.extra["image_features"]
    )

  found = []
  for count in (1, 8):
    mesh = sharding.make_mesh(count)
    whole, split = everywhere(mesh), rows(mesh)
    with jax.set_mesh(mesh):
      compiled = jax.jit(step, in_shardings=(whole, whole, split)).lower(
        *term.init(), pairs
      )
      compiled = compiled.compile()
      placed = jax.device_put((*term.init(), pairs), (whole, whole, split))
      found.append(jax.device_get(compiled(*placed)))
  crossing = hlo.count(compiled.as_text())["num_collectives"]
  assert 1 <= crossing <= 4
  shapes = set(re.findall(r"\w+\[[\d,]*4999[\d,]*\]", compiled.as_text()))
  assert f"f32[{batch // 8},{vocab}]" in shapes
  assert not any(f"[{batch},{vocab}]" in x for x in shapes)
  (one, of_one), (eight, of_eight) = found
  np.testing.assert_allclose(one[0], eight[0], rtol=1e-6)
  jax.tree.map(np.testing.assert_array_equal, one[1][0], eight[1][0])
  for a, b in zip(*map(jax.tree.leaves, (of_one, of_eight)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["explicit", "shard_map"])
def test_own_loops(kind):
  """The rows of extras are gathered or split with all others."""
  objective = objectives.add(clip=objectives.clip(), tokens=make())
  params, state = objective.init()
  pairs = jax.tree.map(
    lambda x: x if x.dtype == jnp.int32 else x.astype(jnp.float32),
    some(batch=16),
  )

  def step(pairs):
    return jax.value_and_grad(
      lambda params: objective.apply(params, state, pairs), has_aux=True
    )(params)

  expected = jax.device_get(jax.jit(step)(pairs))
  if kind == "explicit":
    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
      split = jax.device_put(pairs, NamedSharding(mesh, P("data")))
      found = jax.device_get(jax.jit(step)(split))
  else:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=P("data"), out_specs=P())
    found = jax.device_get(jax.jit(mapped)(pairs))
  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weight_0_is_the_objective_alone_bit_for_bit():
  clip = objectives.clip(learn_temperature=False)
  both = objectives.add(clip=clip, tokens=objectives.scale(make(), 0.0))
  pairs = some()

  def step(objective):
    def loss_fn(image):
      given = pairs._replace(image=image)
      return objective.apply(*objective.init(), given)[0]

    return jax.jit(jax.value_and_grad(loss_fn))(pairs.image)

  jax.tree.map(np.testing.assert_array_equal, step(both), step(clip))


def test_counts_are_halved_before_they_overflow():
  term = make()
  params, state = term.init()
  many = np.full(VOCAB, MANY - 40, np.int32)
  state = state._replace(shared=Seen(jnp.int32(MANY - 1), jnp.asarray(many)))
  _, (after, _) = jax.jit(term.apply)(params, state, some())
  assert after.shared.captions == (MANY - 1 + B) // 2
  assert after.shared.with_token[20] == (MANY - 40) // 2

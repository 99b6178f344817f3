"""Zeta by Sinkhorn's iteration over the latest pairs."""

import jax
from jax import lax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest
from scipy.special import logsumexp

from nuclr_jax import Pairs, Sides, objectives, popularity
from nuclr_jax.objectives import temperature_rules, zeta_rules
from nuclr_jax.types import each

N, B, TAU = 24, 4, 0.2
RNG = np.random.default_rng(0)
IMAGE_ID, TEXT_ID = RNG.integers(0, 20, N), RNG.integers(0, 9, N)


def embeddings(image_id=IMAGE_ID, text_id=TEXT_ID):
  image = make_pairs.unit_rows(0, N, 6)
  text = make_pairs.unit_rows(1, N, 6)
  return image[image_id], text[text_id]


def nuclr(*, dim=6, size=N, rate=0.3, center=True, **arguments):
  defaults = dict(num_pairs=N, temperature=TAU)
  rule = zeta_rules.queue(dim=dim, size=size, rate=rate, center=center)
  return objectives.nuclr(**(defaults | arguments), zeta=rule)


def batch(ids, image_id=IMAGE_ID, text_id=TEXT_ID):
  image, text = embeddings(image_id, text_id)
  ids = np.asarray(ids)
  return Pairs(
    *map(jnp.asarray, (image[ids], text[ids], ids, image_id[ids], text_id[ids]))
  )


def settled(objective, state, *ids):
  """The state after 200 rounds: in turn, so that the queue holds all pairs."""
  steps = [batch(x, *ids) for x in np.arange(N).reshape(-1, B)]
  steps = jax.tree.map(lambda *x: jnp.stack(x), *steps)

  def step(state, pairs):
    return objective.apply({}, state, pairs)[1][0], None

  def round_of(state, _):
    return lax.scan(step, state, steps)

  return jax.jit(lambda x: lax.scan(round_of, x, length=200)[0])(state)


def test_two_steps_against_loops(x64):
  """The second step's zeta, from the queue that the first one left."""
  objective = nuclr(rate=0.5, center=False)
  (params, state), apply = objective.init(), jax.jit(objective.apply)
  ids = RNG.permutation(N)[: 2 * B].reshape(2, B)
  for i in ids:
    _, (state, _) = apply(params, state, batch(i))
  image, text = embeddings()
  for side, anchor, contrast, anchor_id, contrast_id in (
    ("text", image, text, IMAGE_ID, TEXT_ID),
    ("image", text, image, TEXT_ID, IMAGE_ID),
  ):
    # First step: the queue is empty, zeta rests at 0, D is the batch's own.
    queue, now = ids
    sim = anchor @ contrast.T / TAU
    apart = np.not_equal.outer(anchor_id, anchor_id)
    apart &= np.not_equal.outer(contrast_id, contrast_id)
    rho = np.log((N - 1) / B)
    log_d = np.zeros(N)
    for i in queue:
      rest = logsumexp(np.where(apart[i, queue], sim[i, queue], -np.inf))
      rest += np.log((N - 1) / (B - 1))
      log_d[i] = np.logaddexp(sim[i, i], rest)
    moves = {}
    for j in now:
      rest = logsumexp(np.where(apart[j, queue], sim[j, queue], -np.inf)) + rho
      own = np.exp(sim[j, j] - np.logaddexp(sim[j, j], rest))
      log_w = np.where(apart[queue, j], sim[queue, j] - log_d[queue], -np.inf)
      total = own + np.exp(rho + logsumexp(log_w))
      moves.setdefault(contrast_id[j], []).append(TAU * np.log(total))
    table = np.zeros(N)
    for row, values in moves.items():
      table[row] = 0.5 * np.mean(values)
    found = getattr(state.sample, side).zeta
    np.testing.assert_allclose(found, table[: len(found)], atol=1e-12)


@pytest.mark.parametrize(
  "given",
  [(np.arange(N), np.arange(N)), (np.arange(N), TEXT_ID), (IMAGE_ID, TEXT_ID)],
  ids=["distinct", "captions shared", "both shared"],
)
def test_a_queue_of_all_pairs_finds_the_exact_zeta(given, x64):
  """The fixed point is the solution of eq. (8), if no id repeats."""
  rows = [np.unique(x, return_inverse=True)[1] for x in given]
  sizes = [row.max() + 1 for row in rows]
  objective = nuclr(
    rate=0.7,
    center=False,  # the batches are always the same
    num_images=sizes[0],
    num_texts=sizes[1],
  )
  state = settled(objective, objective.init()[1], *rows)
  image, text = embeddings(*rows)
  exact = popularity.solve(
    image,
    text,
    temperature=TAU,
    image_id=rows[0],
    text_id=rows[1],
    tolerance=1e-12,
  )
  for side, row in zip(Sides._fields, rows, strict=True):
    zeta = np.asarray(getattr(state.sample, side).zeta)[row]
    expected = getattr(exact.zeta, side)[row]
    # Exact but for the mean of logarithms, where an id has several pairs.
    several = len(row) > row.max() + 1
    tolerance = 0.05 if several else 1e-8
    np.testing.assert_allclose(zeta - zeta.mean(), expected, atol=tolerance)
    assert np.corrcoef(zeta, expected)[0, 1] > 0.98


def test_zeta_rests_at_a_rate_of_zero_and_the_queue_fills():
  objective = nuclr(rate=0.0, size=2 * B)
  (params, state), apply = objective.init(), jax.jit(objective.apply)
  for start in (0, B, 2 * B):
    ids = np.arange(start, start + B)
    _, (state, _) = apply(params, state, batch(ids))
  np.testing.assert_array_equal(state.sample.text.zeta, 0)
  memory = state.memory
  held = np.concatenate([IMAGE_ID[2 * B : 3 * B], IMAGE_ID[B : 2 * B]])
  np.testing.assert_array_equal(memory.ids.image, held)
  assert np.isfinite(memory.log_denominator.image).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_embeddings_of_less_precision_than_the_queue(dtype, x64):
  objective = objectives.nuclr(
    num_pairs=20, zeta=zeta_rules.queue(size=16, dim=8)
  )
  params, state = objective.init()
  x = jnp.asarray(make_pairs.unit_rows(0, 8, 8), dtype)
  for _ in range(2):
    pairs = Pairs(x, x[::-1], jnp.arange(8))
    loss, (state, _) = objective.apply(params, state, pairs)
  assert jnp.isfinite(loss)


def test_a_queue_that_is_no_multiple_of_the_batch():
  objective = nuclr(size=2 * B + 1)
  (params, state), apply = objective.init(), jax.jit(objective.apply)
  for start in (0, B, 2 * B):
    ids = np.arange(start, start + B)
    loss, (state, _) = apply(params, state, batch(ids))
  assert np.isfinite(loss)
  assert np.isinf(state.memory.log_denominator.image[-1])
  assert np.isfinite(state.sample.text.zeta).all()


def test_extreme_similarities_stay_finite():
  """Where the weights of an anchor underflow in float32."""
  objective = nuclr(temperature=0.001, rate=1.0)
  (params, state), apply = objective.init(), jax.jit(objective.apply)
  for start in range(0, 3 * N, B):
    ids = (start + np.arange(B)) % N
    _, (state, _) = apply(params, state, batch(ids))
  zeta = Sides(state.sample.image.zeta, state.sample.text.zeta)
  each(lambda x: np.testing.assert_array_less(np.abs(x), 3), zeta)


def test_individual_temperatures_need_no_common_one(x64):
  """The fixed point of a memory of all pairs: every sum of w_ij is 1."""
  rng = np.random.default_rng(3)
  taus = Sides(*(rng.uniform(0.1, 0.4, size=(2, N))))
  objective = objectives.nuclr(
    num_pairs=N,
    temperature=temperature_rules.individual(TAU, rate=0.0, rho=1.0),
    zeta=zeta_rules.queue(dim=6, size=N, rate=0.7, center=False),
  )
  _, state = objective.init()
  pair = state.sample.pair._replace(temperature=each(jnp.asarray, taus))
  state = state._replace(sample=state.sample._replace(pair=pair))
  distinct = np.arange(N), np.arange(N)
  state = settled(objective, state, *distinct)
  image, text = embeddings(*distinct)
  for sim, tau, zeta in (
    (image @ text.T, taus.image, state.sample.text.zeta),
    (text @ image.T, taus.text, state.sample.image.zeta),
  ):
    log_w = (sim - np.asarray(zeta)[None]) / tau[:, None]
    log_w -= logsumexp(log_w, axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(log_w).sum(axis=0), 1, atol=1e-8)


@pytest.mark.parametrize("size", [0, True])
def test_bad_sizes(size):
  with pytest.raises(ValueError, match="zeta.size must be a whole number"):
    nuclr(size=size)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(size=2), "size must be at least the batch size, .* got 2"),
    (dict(dim=7), "dim must be the width of the embeddings, 6, got 7"),
  ],
)
def test_a_queue_that_does_not_fit_the_batch(arguments, message):
  objective = nuclr(**arguments)
  with pytest.raises(ValueError, match=message):
    objective.apply(*objective.init(), batch(np.arange(B)))

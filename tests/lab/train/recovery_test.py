"""What a run estimates with frozen weights, before its first update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nuclr_jax import Sides, sharding
from nuclr_jax.lab.evaluate import evaluators
from nuclr_jax.lab.train import average, batches, loop, recovery, resume, step
from nuclr_jax.lab.train import build as experiment
from nuclr_jax.lab.train.optimizer import make_optimizer

pytestmark = pytest.mark.usefixtures("no_diagnostics")

B1, B2, CLIP, RATE, DECAY = 0.8, 0.9, 0.5, 0.1, 0.3


@pytest.fixture(scope="module")
def data():
  random = np.random.default_rng(0)
  return [tuple(random.normal(size=(2, 8, 3))) for _ in range(5)]


@pytest.fixture(scope="module")
def first():
  names = {"a": {"w": (3, 3)}, "b": {"w": (1, 3)}, "c": {"w": (1, 3)}}
  random = np.random.default_rng(1)
  draw = lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  return jax.tree.map(draw, names, is_leaf=lambda x: isinstance(x, tuple))


def clipped_gradient(params, pairs):
  """Of mean |x w + b + c - y|^2 / 2, clipped; c is frozen."""
  x, y = pairs
  w, b, c = (np.asarray(params[k]["w"], float) for k in "abc")
  error = (x @ w + b + c - y) / len(x)
  found = {"a": x.T @ error, "b": error.sum(0, keepdims=True)}
  norm = np.sqrt(sum((g**2).sum() for g in found.values()))
  assert norm > CLIP
  return {k: g * CLIP / norm for k, g in found.items()}


@pytest.fixture(scope="module")
def pieces():
  """An optimizer with everything around Adam, and its train step."""
  optimizer = make_optimizer(
    optax.linear_schedule(RATE, 0.0, 10),
    b1=B1,
    b2=B2,
    clip_norm=CLIP,
    weight_decay=DECAY,
    freeze=("c",),
    rate_factors={"b": 0.5},
    weight_average=0.5,
  )

  def train_step(state, pairs):
    def loss(params):
      x, y = pairs
      out = x @ params["a"]["w"] + params["b"]["w"] + params["c"]["w"]
      return jnp.mean(jnp.sum((out - y) ** 2, 1)) / 2

    updates, new = optimizer.update(
      jax.grad(loss)(state.params), state.opt_state, state.params
    )
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, opt_state=new), {}

  return optimizer, train_step


def test_moments_are_those_of_frozen_weights(data, first, pieces):
  optimizer, train_step = pieces
  state = step.TrainState(0, first, None, optimizer.init(first), None)
  before = state.opt_state
  observe = jax.jit(recovery.observing(train_step))
  m = {k: np.zeros(first[k]["w"].shape) for k in "ab"}
  v = {k: np.zeros(first[k]["w"].shape) for k in "ab"}
  for number, pairs in enumerate(data):
    state = observe(state, pairs, number)
    g = clipped_gradient(first, pairs)
    m = {k: B1 * m[k] + (1 - B1) * g[k] for k in g}
    v = {k: B2 * v[k] + (1 - B2) * g[k] ** 2 for k in g}
  jax.tree.map(np.testing.assert_array_equal, state.params, first)
  is_adam = lambda x: isinstance(x, optax.ScaleByAdamState)
  leaves = jax.tree.leaves(state.opt_state, is_leaf=is_adam)
  (adam,) = filter(is_adam, leaves)
  assert adam.count == len(data)
  for k in m:
    np.testing.assert_allclose(adam.mu[k]["w"], m[k], rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(adam.nu[k]["w"], v[k], rtol=2e-5, atol=1e-9)
  # Nothing else has moved: neither the schedule nor the average.
  without = lambda tree: jax.tree.map(
    lambda x: () if is_adam(x) else x, tree, is_leaf=is_adam
  )
  jax.tree.map(
    np.testing.assert_array_equal, without(state.opt_state), without(before)
  )
  assert average.averaged(state.opt_state) is not None

  # The first update corrects the bias of one more batch than those seen.
  after, _ = train_step(state, data[0])
  g, k = clipped_gradient(first, data[0]), len(data) + 1
  m = (B1 * m["a"] + (1 - B1) * g["a"]) / (1 - B1**k)
  v = (B2 * v["a"] + (1 - B2) * g["a"] ** 2) / (1 - B2**k)
  w = np.asarray(first["a"]["w"], float)
  expected = w - RATE * (m / (np.sqrt(v) + 1e-8) + DECAY * w)
  np.testing.assert_allclose(after.params["a"]["w"], expected, rtol=1e-5)


def test_an_optimizer_without_adam_is_refused(data, first):
  sgd = optax.sgd(0.1)
  state = step.TrainState(0, first, None, sgd.init(first), None)
  same = lambda state, pairs: (state, {})
  with pytest.raises(ValueError, match="moments needs an optimizer with Ad"):
    recovery.observing(same)(state, data[0], 0)


@pytest.fixture(scope="module")
def start(few_characters, tiny):
  """Makes the parts and the recovered first state of a tiny run."""

  def make(name, warm_start, devices=1, **changes):
    config = tiny(name, warm_start=warm_start, num_epochs=1.0, **changes)
    parts = experiment.build(config, data=few_characters)
    mesh = sharding.make_mesh(devices)
    with jax.set_mesh(mesh):
      first = resume.first_state(parts, mesh)
      copy = jax.tree.map(jnp.copy, first)
      return parts, mesh, first, recovery.of_run(parts, mesh, copy)

  return make


def exact_u(parts, mesh, state, zeta):
  """log u of every pair, by the definition, in float64."""
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    pairs = evaluators.embed_pairs(embed, parts.data.train)
  image, text = (np.asarray(x, float) for x in (pairs.image, pairs.text))
  tau = parts.settings.objective.arguments["temperature"]
  zeta = Sides(zeta.image[pairs.image_id], zeta.text[pairs.text_id])
  sim, same = image @ text.T, pairs.text_id[:, None] == pairs.text_id
  own = np.diag(sim)
  found = []
  for x, of_contrast in ((sim, zeta.text), (sim.T, zeta.image)):
    logits = np.where(same, -np.inf, (x - own[:, None] - of_contrast) / tau)
    found.append(np.logaddexp.reduce(logits, axis=1))
  return Sides(*found)


def log_u_of(parts, state):
  log_u = jax.device_get(state.objective.sample.pair.log_u)
  return Sides(*(x[: parts.data.train.sizes.num_pairs] for x in log_u))


@pytest.mark.parametrize(
  "words, devices",
  [("exact_u", 8), ("exact", 1)],
)
def test_u_is_the_sum_over_all_pairs(start, words, devices):
  changes = {"refresh.tolerance": 1e-4}
  parts, mesh, first, state = start("nuclr", words, devices, **changes)
  sample = jax.device_get(state.objective.sample)
  zeta = Sides(sample.image.zeta, sample.text.zeta)
  assert np.any(zeta.text) == (words == "exact")
  jax.tree.map(
    lambda found, wanted: np.testing.assert_allclose(found, wanted, atol=3e-4),
    log_u_of(parts, state),
    exact_u(parts, mesh, first, zeta),
  )
  for x, y in zip(first, state, strict=True):
    if x is not first.objective:  # no weight, no moment has moved
      jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.fixture(scope="module")
def both_starts(start):
  """With exact u, which stays, and with that of the pass (TuneCLIP)."""
  return {
    words: start("sogclr", words, **{"optimizer.clip_norm": 0.0})
    for words in ("exact,moments=3", "pass_u,moments=3")
  }


def test_a_run_starts_with_moments_at_the_exact_u(both_starts):
  parts, mesh, first, state = both_starts["exact,moments=3"]
  tau, b1 = parts.settings.objective.arguments["temperature"], 0.9
  jax.tree.map(np.testing.assert_array_equal, first.params, state.params)
  exact = exact_u(parts, mesh, first, Sides(*np.zeros((2, 1280))))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=3e-4),
    log_u_of(parts, state),
    exact,
  )
  gamma = parts.settings.objective.arguments["gamma"]
  ratio = (1_280 - 1) / (64 - 1)

  def loss(params, batch):
    """SogCLR's surrogate at these u, for all pairs of a batch."""
    pairs, _ = parts.model.apply(
      params, first.model_state, batch, key=jax.random.key(0), train=True
    )
    sim = pairs.image @ pairs.text.T
    negative = pairs.text_id[:, None] != pairs.text_id[None]
    value = 0.0
    for x, log_u in zip((sim, sim.T), exact, strict=True):
      h = (x - jnp.diag(sim)[:, None]) / tau
      phi = ratio * jnp.sum(jnp.exp(h), 1, where=negative)
      u = (1 - gamma) * jnp.exp(jnp.asarray(log_u)[batch.pair_id])
      u = u + gamma * jax.lax.stop_gradient(phi)
      value += tau * jnp.mean(phi / u)
    return value

  with jax.set_mesh(mesh):
    wanted, gradient = None, jax.jit(jax.grad(loss))
    for batch in batches.fixed_batches(parts, 3)():
      g = jax.device_get(gradient(first.params["model"], batch))
      wanted = jax.tree.map(
        lambda m, g: b1 * m + (1 - b1) * np.asarray(g, float),
        wanted or jax.tree.map(np.zeros_like, g),
        g,
      )
  is_adam = lambda x: isinstance(x, optax.ScaleByAdamState)
  adam = next(
    filter(is_adam, jax.tree.leaves(state.opt_state, is_leaf=is_adam))
  )
  assert adam.count == 3 and state.step == 0
  largest = max(np.abs(x).max() for x in jax.tree.leaves(wanted))
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(
      x, y, atol=2e-4 * largest, rtol=2e-3
    ),
    adam.mu["model"],
    wanted,
  )


def test_the_pass_may_move_u(both_starts):
  parts, _, _, state = both_starts["pass_u,moments=3"]
  visited = np.isfinite(log_u_of(parts, state).image)
  ids = [x.pair_id for x in batches.fixed_batches(parts, 3)()]
  np.testing.assert_array_equal(
    np.flatnonzero(visited), np.sort(np.concatenate(ids))
  )
  assert state.objective.shared.count == 0


def test_the_same_seed_has_the_same_bits(both_starts, start):
  parts, mesh, first, state = both_starts["exact,moments=3"]
  with jax.set_mesh(mesh):
    again = recovery.of_run(parts, mesh, jax.tree.map(jnp.copy, first))
  jax.tree.map(np.testing.assert_array_equal, state, again)


@pytest.mark.parametrize(
  "name, words, message",
  [
    ("clip", "exact", "warm_start=exact needs an objective with one temperat"),
    ("nuclr_individual", "exact_u", "warm_start=exact_u needs an objective"),
    ("nuclr_individual", "exact", "refresh needs an objective with popul"),
    ("clip", "moments=0", "number of batches of at least 1.* got 'moments=0'"),
    ("clip", "exact,moments=x", "number of batches .* got 'moments=x'"),
    ("clip", ",moments", "nothing comes before the comma"),
    ("clip", "pass_u,moments", "pass_u needs an objective that keeps u"),
    ("sogclr", "pass_u", "give pass_u,moments or pass_u,moments=200"),
  ],
)
def test_what_cannot_be_estimated_is_refused(start, name, words, message):
  with pytest.raises(ValueError, match=message):
    start(name, words)

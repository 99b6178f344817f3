"""TempNet against its official code (provenance: golden/README.md)."""

import math

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from make_step import make_step
from normalizers import BATCH, DIM, GIVEN, NUM_PAIRS, TAU, batch, near
import numpy as np
import pytest

from nuclr_jax import Sides, contrib, objectives
from nuclr_jax.contrib.objectives.tempnet import Network, temperatures
from nuclr_jax.objectives import zeta_rules
from nuclr_jax.types import each

CASE, M = "tempnet", 7
BOUNDS = float(GIVEN[f"{CASE}/tau_min"]), float(GIVEN[f"{CASE}/tau_max"])
RHO = float(GIVEN[f"{CASE}/rho"])


def rule(**arguments):
  return contrib.tempnet(
    **dict(dim=DIM, num_prototypes=M, bounds=BOUNDS, rho=1.0) | arguments
  )


def sogclr(**arguments):
  return objectives.sogclr(num_pairs=NUM_PAIRS, temperature=rule(**arguments))


def nuclr(**arguments):
  """With popularities, which are part of the positive's term, too."""
  return objectives.nuclr(
    num_pairs=NUM_PAIRS,
    gamma=1.0,
    temperature=rule(**arguments),
    zeta=zeta_rules.fixed(init=0.05),
    positive_weight=40.0,
  )


def official(prefix):
  """Parameters or gradients of both networks; PyTorch has [outputs, inputs]."""

  def side(join):
    names = "proj_weight proj_bias prototypes scaler linear_1_weight"
    x = [jnp.asarray(GIVEN[join + name]) for name in names.split()]
    offset = jnp.asarray(GIVEN[f"{join}linear_1_bias"])[0]
    return Network(x[0].T, *x[1:4], x[4][0], offset)

  return Sides(side(prefix.format("image")), side(prefix.format("text")))


def started(objective, network, count=1):
  """The first state, but with these networks after the first batch."""
  params, state = objective.init()
  learned = state.shared.temperature
  moment = learned.moment._replace(count=jnp.int32(count))
  learned = learned._replace(network=network, moment=moment)
  shared = state.shared._replace(temperature=learned)
  return params, state._replace(shared=shared)


def some_networks(seed=0):
  """Networks whose temperatures differ, unlike those of the first step."""
  learned = rule(seed=seed).init_shared()
  rng = np.random.default_rng(seed)

  def side(network):
    return jax.tree.map(lambda x: x + rng.normal(size=x.shape), network)

  return each(side, learned.network)


def with_network(state, network):
  learned = state.shared.temperature._replace(network=network)
  return state._replace(shared=state.shared._replace(temperature=learned))


def network_of(state):
  return state.shared.temperature.network


def gradient_of(old, new):
  """What the networks' Adam was given, from its first moments."""
  mu = (x.shared.temperature.moment.mu for x in (old, new))
  return jax.tree.map(lambda a, b: (b - 0.9 * a) / 0.1, *mu)


def test_three_steps_of_the_official_code(x64):
  """Temperatures, u, both losses, and the gradients of both.

  After epoch 0, a first visit takes gamma phi there, and phi here: rows that
  were not visited in epoch 0 get a tiny u instead of none.
  """
  objective = objectives.sogclr(
    num_pairs=NUM_PAIRS,
    temperature=rule(dropout=0.0, rate=0.0, rho=RHO),
    gamma=float(GIVEN[f"{CASE}/gamma"]),
  )
  networks = official(f"{CASE}/params/{{}}/")
  params, state = started(objective, networks)
  run = jax.jit(make_step(objective))
  for step in range(3):
    given = lambda name, step=step: GIVEN[f"{CASE}/{step}/{name}"]
    pairs = batch(step)
    for network, side, anchor in zip(
      networks, Sides._fields, "IT", strict=True
    ):
      x = getattr(pairs, side)
      near(temperatures(network, x, bounds=BOUNDS), given(f"tau_{anchor}"))
    (loss, (new, _)), (_, image, text) = run(params, state, pairs)
    near(loss, given("clip_loss") + given("temp_loss"))
    near(image, given("grad_image"))
    near(text, given("grad_text"))
    expected = official(f"{CASE}/{step}/grad/{{}}_")
    for a, b in zip(
      *map(jax.tree.leaves, (gradient_of(state, new), expected)), strict=True
    ):
      near(a, b)
    log_u = new.sample.pair.log_u
    for side, anchor in zip(Sides._fields, "IT", strict=True):
      log_s, found = given(f"log_s_{anchor}"), getattr(log_u, side)
      seen = np.isfinite(log_s)
      near(found[seen], log_s[seen] + math.log((NUM_PAIRS - 1) / (BATCH - 1)))
    unvisited = each(lambda x: jnp.where(x == -jnp.inf, -1e4, x), log_u)
    state = new._replace(
      sample=new.sample._replace(pair=new.sample.pair._replace(log_u=unvisited))
    )


@pytest.mark.parametrize("make", [sogclr, nuclr])
def test_the_networks_gradient_is_that_of_the_loss(make, x64):
  """By finite differences, with dropout; at gamma = 1, u depends on tau.

  The fixed zeta, the positive's term included, does not change g_i's meaning.
  """
  if make is sogclr:
    objective = objectives.sogclr(
      num_pairs=NUM_PAIRS, temperature=rule(), gamma=1.0
    )
  else:
    objective = make()
  params, state = started(objective, some_networks())
  _, (new, _) = objective.apply(params, state, batch())
  found, _ = ravel_pytree(gradient_of(state, new))
  flat, restore = ravel_pytree(network_of(state))
  apply = jax.jit(objective.apply)

  def loss(flat):
    changed = with_network(state, restore(flat))
    return float(apply(params, changed, batch())[0])

  rng = np.random.default_rng(0)
  for _ in range(4):
    direction, h = rng.normal(size=flat.shape), 1e-5
    by_difference = (
      loss(flat + h * direction) - loss(flat - h * direction)
    ) / (2 * h)
    np.testing.assert_allclose(found @ direction, by_difference, rtol=1e-6)


@pytest.mark.parametrize("name", ["sogclr", "nuclr"])
@pytest.mark.parametrize("limit", ["bounds", "slope", "softmax"])
def test_networks_that_are_constant_are_a_fixed_temperature(name, limit, x64):
  """Equal bounds; a slope of 0; or a softmax over prototypes that is flat."""
  changes = dict(
    bounds={},
    slope=dict(slope=jnp.zeros(M)),
    softmax=dict(log_temperature=jnp.float64(50.0)),
  )[limit]
  arguments = dict(bounds=(TAU, TAU)) if limit == "bounds" else {}
  tau = TAU if limit == "bounds" else sum(BOUNDS) / 2
  factory = objectives.OBJECTIVES[name]
  ours = factory(num_pairs=NUM_PAIRS, temperature=rule(rate=0.0, **arguments))
  fixed = factory(num_pairs=NUM_PAIRS, temperature=tau)
  changes |= dict(offset=jnp.zeros(()))
  networks = each(lambda x: x._replace(**changes), some_networks())
  (params, state), other = started(ours, networks), fixed.init()[1]
  steps = [jax.jit(make_step(x)) for x in (ours, fixed)]
  for step in range(3):
    (_, (state, metrics)), found = steps[0](params, state, batch(step))
    (_, (other, _)), expected = steps[1](params, other, batch(step))
    near(metrics["temperature/text"], tau)
    for a, b in zip(found[1:], expected[1:], strict=True):
      near(a, b)
    for a, b in zip(
      *map(jax.tree.leaves, (state.sample, other.sample)), strict=True
    ):
      visited = np.isfinite(b)
      np.testing.assert_array_equal(np.isfinite(a), visited)
      np.testing.assert_allclose(a[visited], b[visited], rtol=1e-9, atol=1e-12)


def test_prototypes_are_the_first_batch_of_the_other_side():
  objective = sogclr(rate=0.0)
  params, state = objective.init()
  apply = jax.jit(objective.apply)
  for step in range(2):
    _, (state, _) = apply(params, state, batch(step))
    image, text = network_of(state)
    near(image.prototypes, batch(0).text[:M], 1e-6)
    near(text.prototypes, batch(0).image[:M], 1e-6)


def test_networks_lower_their_loss():
  """Temperatures fall if weights are nearer to uniform ones than rho."""
  found = {}
  for rho in (0.05, 3.0):
    objective = sogclr(rate=0.01, rho=rho, dropout=0.2)
    apply = jax.jit(objective.apply)
    params, state = objective.init()
    for _ in range(60):
      _, (state, metrics) = apply(params, state, batch())
    found[rho] = float(metrics["temperature/image"])
  assert BOUNDS[0] < found[3.0] < 0.02 < 0.04 < found[0.05] < BOUNDS[1]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_dropout_depends_on_the_seed_the_step_and_the_pair(x64, impl):
  """And not on where the pair is in a batch, or on JAX's kind of keys."""
  pairs = batch()
  order = np.random.default_rng(0).permutation(BATCH)
  shuffled = jax.tree.map(lambda x: x[order], pairs)

  def tau(pairs, seed=0, count=1):
    of = rule(seed=seed)
    learned = of.init_shared()
    moment = learned.moment._replace(count=jnp.int32(count))
    learned = learned._replace(network=some_networks(), moment=moment)
    return of.read({}, None, learned, pairs).image

  first = tau(pairs)
  with jax.default_prng_impl(impl):
    np.testing.assert_array_equal(first, tau(pairs))
    near(tau(shuffled), first[order], 1e-14)
    for other in (tau(pairs, seed=1), tau(pairs, count=2)):
      assert np.all(np.abs(other - first) > 1e-6)


def test_dropout_keeps_a_share_and_enlarges_it(x64):
  """With z = 1 and the axes for prototypes, the greater of two is known."""
  share, of = 0.75, rule(num_prototypes=2, dropout=0.25)
  network = Network(
    kernel=jnp.zeros((DIM, DIM)),
    bias=jnp.full(DIM, 50.0),
    prototypes=jnp.eye(DIM)[:2],
    log_temperature=jnp.float64(-20.0),
    slope=jnp.array([1.0, 0.0]),
    offset=jnp.zeros(()),
  )
  learned = of.init_shared()._replace(network=Sides(network, network))

  @jax.jit
  def tau(count):
    moment = learned.moment._replace(count=count)
    return of.read({}, None, learned._replace(moment=moment), batch()).text

  found = np.concatenate([tau(jnp.int32(i)) for i in range(1, 201)])
  # Which of the two is kept: both or none, the first, the second.
  sigmoid = lambda x: 1 / (1 + math.exp(-x))
  values = 0.0, 0.5 * sigmoid(1 / share), -0.5 * sigmoid(0.0)
  times = [
    np.sum(np.isclose(found, BOUNDS[0] + np.ptp(BOUNDS) * sigmoid(x)))
    for x in values
  ]
  assert sum(times) == found.size
  one = share * (1 - share)
  np.testing.assert_allclose(
    np.array(times) / found.size, (1 - 2 * one, one, one), atol=0.03
  )


def test_a_batch_without_negatives_moves_nothing():
  """Its pairs all have the same image."""
  objective = sogclr(rate=0.1)
  params, state = objective.init()
  apply = jax.jit(objective.apply)
  same = batch()._replace(image_id=jnp.zeros(BATCH, int))
  for _ in range(2):
    _, (new, _) = apply(params, state, same)
    jax.tree.map(
      np.testing.assert_array_equal,
      new.shared.temperature,
      state.shared.temperature,
    )
    _, (state, _) = apply(params, state, batch())

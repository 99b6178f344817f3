"""Learned temperatures, one for all and individual, against NumPy loops."""

import functools
import math
import warnings

import jax
from jax import lax
import jax.numpy as jnp
import make_pairs
from make_step import make_step
import numpy as np
import pytest
import reference

from nuclr_jax import Pairs, Sides, contrib, objectives
from nuclr_jax.lab.train.hooks import one_temperature
from nuclr_jax.objectives import (
  denominator,
  temperature_rules,
  zeta_rules,
)

N, IMAGES, TEXTS, TAU = 24, 20, 7, 0.2
SIZES = dict(num_pairs=N, num_images=IMAGES, num_texts=TEXTS)


def falling(count):
  """A schedule of gamma."""
  return 0.9 - 0.1 * count


COMMON = dict(**SIZES, temperature=TAU, gamma=falling)
INDIVIDUAL = dict(rate=0.01 / TAU, momentum=0.3, bounds=(0.19, 0.25), rho=1.5)
RULE = temperature_rules.individual(TAU, **INDIVIDUAL)
NUCLR = dict(
  **SIZES,
  gamma=falling,
  zeta=zeta_rules.batch(rate=0.03 / TAU, momentum=0.3),
)
CASES = dict(
  isogclr=(
    objectives.isogclr(**COMMON, **INDIVIDUAL),
    dict(own_pair="none", rate=0.0),
  ),
  nuclr=(
    objectives.nuclr_variant(
      **NUCLR,
      temperature=RULE,
      positive=denominator.running_max(init=0.01),
    ),
    dict(own_pair="xi", rate=0.03),
  ),
  nuclr_diamond=(
    objectives.nuclr_variant(
      **NUCLR, temperature=RULE, positive=denominator.by_zeta()
    ),
    dict(own_pair="zeta", rate=0.03),
  ),
)


def batches(steps):
  """Batches with shared images and texts, and pairs that occur twice."""
  rng = np.random.default_rng(0)
  for step in range(steps):
    pair_id = rng.choice(N, 10)
    image = make_pairs.unit_rows(step, 10, 4)
    text = make_pairs.unit_rows(step + 100, 10, 4)
    yield image, text, pair_id, pair_id % IMAGES, pair_id % TEXTS


def first_state(xi=0.01):
  def side():
    return dict(u={}, u_id={}, zeta={}, m={}, xi=xi, tau={}, tau_m={})

  return dict(image=side(), text=side())


def table(values, size, missing):
  return [values.get(i, missing) for i in range(size)]


@pytest.mark.parametrize("case", CASES)
def test_individual_temperatures_equal_numpy_loops(case, x64):
  objective, settings = CASES[case]
  params, state = objective.init()
  step = jax.jit(make_step(objective))
  expected = first_state()
  hit = set()
  for count, arrays in enumerate(batches(6)):
    pairs = Pairs(*map(jnp.asarray, arrays))
    before = [expected["image"]["tau"].get(i, TAU) for i in arrays[2]]
    (loss, (state, metrics)), (_, *grads) = step(params, state, pairs)
    np.testing.assert_allclose(metrics["temperature/image"], np.mean(before))
    want, d_image, d_text, expected = reference.nuclr_step(
      *arrays,
      expected,
      n=N,
      temperature=TAU,
      gamma=falling(count),
      momentum=0.3,
      rho=1.5,
      tau_rate=0.01,
      tau_momentum=0.3,
      tau_range=(0.19, 0.25),
      **settings,
    )
    np.testing.assert_allclose(loss, want, rtol=1e-10)
    np.testing.assert_allclose(grads[0], d_image, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grads[1], d_text, rtol=1e-9, atol=1e-12)
    for side in Sides._fields:
      rows, here = state.sample.pair, expected[side]
      for name, values, missing in (
        ("temperature", here["tau"], TAU),
        ("temperature_momentum", here["tau_m"], 0.0),
      ):
        found = getattr(getattr(rows, name), side)
        np.testing.assert_allclose(
          found, table(values, N, missing), rtol=1e-9, atol=1e-13
        )
      np.testing.assert_allclose(
        np.exp(getattr(rows.log_u, side)),
        table(here["u"], N, 0.0),
        rtol=1e-10,
      )
      hit |= {x in (0.19, 0.25) for x in here["tau"].values()}
      if case != "isogclr":
        zeta = getattr(state.sample, side).zeta
        size = len(zeta)
        np.testing.assert_allclose(
          zeta, table(here["zeta"], size, 0.0), rtol=1e-9, atol=1e-13
        )
  assert hit == {True, False}  # some at an end of the range, some inside


def test_one_learned_temperature_equals_numpy_loops(x64):
  """The gradient of tau, through its factor and through u, over five steps."""
  objective = objectives.sogclr(
    **SIZES,
    gamma=falling,
    temperature=temperature_rules.learned(TAU, rho=1.5),
  )
  params, state = objective.init()
  expected, tau = first_state(), TAU
  step = jax.jit(make_step(objective))
  for count, arrays in enumerate(batches(5)):
    pairs = Pairs(*map(jnp.asarray, arrays))
    (loss, (state, metrics)), (d_params, *grads) = step(params, state, pairs)
    for side in expected.values():
      side["tau"] = {}  # one temperature for all
    want, d_image, d_text, expected = reference.nuclr_step(
      *arrays, expected, n=N, temperature=tau, gamma=falling(count),
      momentum=0.0, rate=0.0, rho=1.5, own_pair="none",
    )  # fmt: skip
    np.testing.assert_allclose(metrics["temperature"], tau)
    np.testing.assert_allclose(loss, want, rtol=1e-10)
    np.testing.assert_allclose(grads[0], d_image, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grads[1], d_text, rtol=1e-9, atol=1e-12)
    by_tau = sum(side["tau_gradient"] for side in expected.values())
    np.testing.assert_allclose(d_params["log_scale"], -tau * by_tau, rtol=1e-9)
    log_scale = params["log_scale"] - 2.0 * d_params["log_scale"]
    params, tau = {"log_scale": log_scale}, float(jnp.exp(-log_scale))
  assert abs(tau - TAU) > 0.01


@pytest.mark.parametrize("rho, falls", [(0.5, False), (4.0, True)])
def test_the_learned_temperature_finds_the_divergence_rho(rho, falls, x64):
  """At the optimum KL(w, uniform) = rho; LibAUC's temperature only falls."""
  pairs = make_pairs.make_pairs(0, batch=100, num_pairs=100)
  objective = objectives.sogclr(
    num_pairs=100,
    temperature=temperature_rules.learned(0.2, rho=rho),
    gamma=1.0,
  )
  params, state = objective.init()

  def step(_, learned):
    params, state = learned
    gradient, (state, _) = jax.grad(objective.apply, has_aux=True)(
      params, state, pairs
    )
    return jax.tree.map(lambda p, g: p - g, params, gradient), state

  run = jax.jit(lambda x: lax.fori_loop(0, 300, step, x))
  params, _ = run((params, state))
  tau = float(jnp.exp(-params["log_scale"]))
  assert (tau < 0.2) == falls
  sim = np.asarray(pairs.image @ pairs.text.T)
  divergences = []
  for s in (sim, sim.T):
    logits = s / tau
    np.fill_diagonal(logits, -np.inf)
    w = np.exp(logits - logits.max(axis=1, keepdims=True))
    w /= w.sum(axis=1, keepdims=True)
    divergences.append(np.log(99) + np.sum(w * np.log(w + 1e-300), axis=1))
  np.testing.assert_allclose(np.mean(divergences), rho, rtol=1e-6)


@pytest.mark.parametrize("name", ["clip", "ntxent", "cyclip", "sogclr"])
def test_a_learned_temperature_at_its_bound_can_come_back(name):
  """1 / temperature stops at 100; the gradient there leads back only."""
  learned = dict(temperature=0.05, learn_temperature=True)
  if name == "sogclr":
    rule = temperature_rules.learned(0.05, rho=1.0)
    learned = dict(num_pairs=64, temperature=rule)
  objective = objectives.OBJECTIVES[name](**learned)
  _, state = objective.init()
  image = jnp.asarray(make_pairs.unit_rows(0, 8, 4), jnp.float32)

  differentiate = jax.jit(jax.grad(objective.apply, has_aux=True))

  def gradient(log_scale, pairs):
    params = objective.init()[0]
    tree = jax.tree.structure(params)
    leaves = [jnp.float32(log_scale)] * tree.num_leaves
    g, _ = differentiate(jax.tree.unflatten(tree, leaves), state, pairs)
    return float(sum(jax.tree.leaves(g)))

  ids = jnp.arange(8)
  wrong = Pairs(image, image[::-1], ids)  # wants a high temperature
  assert gradient(math.log(1e4), wrong) > 0
  assert gradient(math.log(100), wrong) > 0
  if name == "sogclr":
    return  # its temperature rises there for any embeddings
  right = Pairs(image, image, ids)  # wants a low one
  if name == "ntxent":
    right = Pairs(jnp.eye(8), jnp.eye(8), ids)
  assert gradient(math.log(50), right) < 0
  assert gradient(math.log(1e4), right) == 0


def test_a_lower_first_temperature_is_the_bound():
  objective = objectives.clip(temperature=0.001)
  pairs = make_pairs.make_pairs(0)
  _, (_, metrics) = objective.apply(*objective.init(), pairs)
  np.testing.assert_allclose(metrics["temperature"], 0.001, rtol=1e-5)


class TestTheOneTemperature:
  """What diagnostics, popularities and hubs are asked at."""

  def of(self, objective, learned=None):
    params, state = objective.init()
    if learned is not None:
      params = jax.tree.map(lambda x: jnp.full_like(x, learned), params)
    readout = objective.readout(params, state)
    return one_temperature(readout, "popularity")

  def test_it_is_the_given_one_or_the_default(self):
    assert self.of(objectives.clip(temperature=0.3)) == pytest.approx(0.3)
    assert self.of(objectives.nuclr(num_pairs=8)) == pytest.approx(0.05)

  @pytest.mark.parametrize(
    "objective",
    [
      objectives.clip(temperature=0.07),
      objectives.cyclip(temperature=0.07),
      objectives.sogclr(
        num_pairs=8, temperature=temperature_rules.learned(0.07, rho=1.0)
      ),
      objectives.add(
        nuclr=objectives.stateless(lambda params, pairs: (0.0, {})),
        clip=objectives.scale(objectives.clip(temperature=0.07), 2.0),
      ),
    ],
    ids=["clip", "cyclip", "sogclr", "sum"],
  )
  def test_a_learned_one_is_bounded_as_in_training(self, objective):
    found = self.of(objective, math.log(20))
    np.testing.assert_allclose(found, 1 / 20, rtol=1e-6)
    found = self.of(objective, math.log(1e4))
    np.testing.assert_allclose(found, 0.01, rtol=1e-6)

  def test_siglip_has_no_bound(self):
    objective = objectives.siglip()
    params = objective.init()[0] | {"log_scale": jnp.float32(math.log(1e3))}
    tau = objective.readout(params, objectives.State()).temperature
    np.testing.assert_allclose(tau, 1e-3, rtol=1e-6)

  @pytest.mark.parametrize(
    "objective",
    [
      objectives.isogclr(num_pairs=8, rho=1.0),
      objectives.nuclr(
        num_pairs=8, temperature=temperature_rules.individual(rho=1.0)
      ),
      contrib.swav(dim=4),
      contrib.vicreg(),
    ],
    ids=["isogclr", "nuclr", "swav", "vicreg"],
  )
  def test_there_is_none(self, objective):
    with pytest.raises(ValueError, match="needs one temperature, which this"):
      self.of(objective)

  def test_two_terms_that_have_one_are_an_error(self):
    objective = objectives.add(
      clip=objectives.clip(), nuclr=objectives.nuclr(num_pairs=8)
    )
    with pytest.raises(ValueError, match="clip and nuclr both have a temperat"):
      self.of(objective)


def test_a_learned_temperature_of_nuclr_equals_numpy_loops(x64):
  """Through its factor, through u and through epsilon = k exp(-xi / tau)."""
  objective = objectives.nuclr_variant(
    **SIZES,
    gamma=falling,
    temperature=temperature_rules.learned(TAU, rho=1.5),
    zeta=zeta_rules.fixed(init=0.05),
    positive=denominator.running_max(weight=40.0),
  )
  params, state = objective.init()
  step = jax.jit(make_step(objective))
  fixed = objectives.nuclr_variant(
    **SIZES,
    gamma=falling,
    temperature=TAU,
    zeta=zeta_rules.fixed(init=0.05),
    positive=denominator.running_max(weight=40.0),
  )
  for arrays in batches(3):
    pairs = Pairs(*map(jnp.asarray, arrays))
    (_, (new, _)), (d_params, *grads) = step(params, state, pairs)
    (_, (other, _)), (_, *expected) = step_of(fixed)({}, state, pairs)
    for found, want in zip(grads, expected, strict=True):
      np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-14)
    by_tau = sum(tau_gradients(arrays, new, 0.05, 40.0))
    np.testing.assert_allclose(d_params["log_scale"], -TAU * by_tau, rtol=1e-9)
    state = new


@functools.cache
def step_of(objective):
  return jax.jit(make_step(objective))


def tau_gradients(arrays, state, zeta, weight):
  """Mean over anchors of log D + rho - log n - the mean of the logits."""
  image, text, pair_id, image_id, text_id = arrays
  scale = (N - 1) / (len(pair_id) - 1)
  for side, x, y in (("image", image, text), ("text", text, image)):
    log_u = np.asarray(getattr(state.sample.pair.log_u, side))[pair_id]
    total = 0.0
    for i in range(len(pair_id)):
      own = -zeta / TAU
      d = weight * np.exp(own) + np.exp(log_u[i])
      mean = weight * np.exp(own) / d * own
      lonely = True
      for j in range(len(pair_id)):
        if image_id[i] != image_id[j] and text_id[i] != text_id[j]:
          logit = (x[i] @ y[j] - x[i] @ y[i] - zeta) / TAU
          mean += scale * np.exp(logit) / d * logit
          lonely = False
      assert not lonely
      total += np.log(d) + 1.5 - np.log(N) - mean
    yield total / len(pair_id)


def test_rho_above_the_largest_divergence_warns():
  for make in (
    lambda rho: objectives.isogclr(num_pairs=101, rho=rho),
    lambda rho: objectives.sogclr(
      num_pairs=101, temperature=temperature_rules.learned(rho=rho)
    ),
  ):
    with pytest.warns(UserWarning, match="rho is 5, but .* is 4.61"):
      make(5.0)
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      make(4.5)


def test_frozen_temperatures_rest():
  objective = objectives.isogclr(
    num_pairs=64,
    temperature=0.1,
    rho=1.0,
    rate=lambda count: jnp.where(count < 1, 0.0, 0.1),
  )
  (params, state), apply = objective.init(), jax.jit(objective.apply)
  pairs = make_pairs.make_pairs(0)
  _, (state, _) = apply(params, state, pairs)
  assert not np.any(state.sample.pair.temperature_momentum.image)
  np.testing.assert_allclose(state.sample.pair.temperature.text, 0.1)
  _, (state, _) = apply(params, state, pairs)
  moved = np.flatnonzero(state.sample.pair.temperature_momentum.image)
  np.testing.assert_array_equal(moved, np.sort(pairs.pair_id))


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(bounds=(0.1, 0.05)), "temperature.bounds must be"),
    (dict(temperature=0.9), "temperature.bounds must be .* temperature 0.9"),
    (
      dict(temperature=temperature_rules.learned(rho=1.0)),
      "another rule, such as contrib:tempnet, choose sogclr.*got learned",
    ),
    (dict(momentum=1.0), "^momentum must be in"),
    (dict(rate=-1.0), "^rate must"),
    (dict(rate=1.5), r"^rate must be in \[0, 1\]"),
    (dict(rho=math.nan), "rho must be a finite number"),
  ],
)
def test_bad_arguments_say_what_is_allowed(arguments, message):
  with pytest.raises(ValueError, match=message):
    objectives.isogclr(**dict(num_pairs=8) | arguments)


@pytest.mark.parametrize("name", ["sogclr", "nuclr_variant"])
def test_individual_temperatures_need_a_u_per_pair(name):
  with pytest.raises(ValueError, match="anchor_average must be 'pair'"):
    objectives.OBJECTIVES[name](
      num_pairs=8,
      temperature=temperature_rules.individual(rho=1.0),
      anchor_average="id",
    )

"""Objectives without state: closed forms, NumPy and finite differences."""

import functools
import inspect
import math

import chex
import jax
import jax.numpy as jnp
import make_pairs
from make_step import make_step
import numpy as np
import optax
import pytest

from nuclr_jax import Pairs, contrib, objectives, pairwise
from nuclr_jax.objectives import (
  State,
  denominator,
  temperature_rules,
  zeta_rules,
)

B, D, TAU = 12, 5, 0.3


def batch(key=0, **kwargs):
  return make_pairs.make_pairs(key, batch=B, dim=D, **kwargs)


def value(objective, pairs):
  return objective.apply(*objective.init(), pairs)[0]


def negatives(pairs):
  ids = [np.asarray(x) for x in pairs.ids]
  return np.logical_and(*(x[:, None] != x[None] for x in ids))


# Every objective at gamma = 1 on a fresh state, where its value is a function
# that its gradient must belong to.
SIZES = dict(num_pairs=64, num_texts=5)
ALL = dict(
  clip=objectives.clip(temperature=TAU),
  ntxent=objectives.ntxent(temperature=TAU, learn_temperature=True),
  siglip=objectives.siglip(init_scale=3.0, init_bias=-1.0),
  debiased=objectives.debiased(temperature=TAU, tau_plus=0.05),
  debiased_at_its_floor=objectives.debiased(temperature=TAU, tau_plus=0.9),
  hard_negatives=objectives.debiased(
    temperature=TAU, tau_plus=0.05, hardness=0.7
  ),
  cyclip=objectives.cyclip(temperature=TAU),
  spectral=objectives.spectral(),
  vicreg=contrib.vicreg(),
  sogclr=objectives.sogclr(**SIZES, temperature=TAU, gamma=1.0),
  fastclip_v3=objectives.sogclr(
    **SIZES, temperature=temperature_rules.learned(TAU), gamma=1.0
  ),
  isogclr=objectives.isogclr(**SIZES, temperature=TAU, gamma=1.0),
  nuclr=objectives.nuclr(
    **SIZES, temperature=TAU, gamma=1.0, zeta=zeta_rules.fixed(init=0.1)
  ),
  nuclr_learned=objectives.nuclr(
    **SIZES,
    temperature=temperature_rules.learned(TAU),
    gamma=1.0,
    zeta=zeta_rules.fixed(init=0.1),
    positive_weight=30.0,
  ),
  nuclr_individual=objectives.nuclr_variant(
    **SIZES,
    temperature=temperature_rules.individual(TAU, rate=0.0),
    gamma=1.0,
    zeta=zeta_rules.fixed(init=0.1),
    positive=denominator.by_zeta(),
  ),
)


@pytest.mark.parametrize("name", ALL)
def test_gradient_against_finite_differences(name, x64):
  """In embeddings (off the sphere too) and in learned parameters."""
  objective, pairs = ALL[name], batch(num_texts=5)
  params, state = objective.init()

  @jax.jit
  @jax.value_and_grad
  def loss(inputs):
    params, image, text = inputs
    return objective.apply(
      params, state, pairs._replace(image=image, text=text)
    )[0]

  inputs = (params, pairs.image, pairs.text)
  _, gradient = loss(inputs)
  leaves, tree = jax.tree.flatten(inputs)
  rng = np.random.default_rng(0)
  for i in range(len(leaves)):  # one leaf at a time, a random direction
    direction = [jnp.zeros_like(x) for x in leaves]
    direction[i] = jnp.asarray(rng.normal(size=leaves[i].shape))
    direction = jax.tree.unflatten(tree, direction)
    ahead, behind = (
      loss(jax.tree.map(lambda x, d, h=h: x + h * d, inputs, direction))[0]
      for h in (1e-5, -1e-5)
    )
    expected = (ahead - behind) / 2e-5
    products = jax.tree.map(lambda g, d: jnp.sum(g * d), gradient, direction)
    found = sum(jax.tree.leaves(products))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


COLD = dict(temperature=0.001)
COLD_STATE = COLD | dict(num_pairs=4)
EXTREME = dict(
  clip=objectives.clip(**COLD, learn_temperature=False),
  clip_learned=objectives.clip(**COLD),
  ntxent=objectives.ntxent(**COLD),
  siglip=objectives.siglip(init_scale=1000.0),
  debiased=objectives.debiased(**COLD),
  hard_negatives=objectives.debiased(**COLD, hardness=2.0),
  cyclip=objectives.cyclip(**COLD, learn_temperature=False),
  spectral=objectives.spectral(),
  vicreg=contrib.vicreg(),
  sogclr=objectives.sogclr(**COLD_STATE),
  fastclip_v3=objectives.sogclr(
    num_pairs=4, temperature=temperature_rules.learned(0.001, rho=0.5)
  ),
  isogclr=objectives.isogclr(**COLD_STATE, rho=0.5, bounds=(0.001, 0.1)),
  nuclr=objectives.nuclr(**COLD_STATE),
  nuclr_diamond=objectives.nuclr_variant(
    **COLD_STATE, positive=denominator.by_zeta()
  ),
  nuclr_without_positive=objectives.nuclr(**COLD_STATE, positive_weight=0.0),
  nuclr_individual=objectives.nuclr(
    num_pairs=4,
    temperature=temperature_rules.individual(
      0.001, bounds=(0.001, 0.1), rate=1.0, rho=0.5
    ),
  ),
)


@functools.cache
def compiled(objective):
  return jax.jit(make_step(objective))


def opposite(sign, ids):
  """Two pairs whose similarities are +-1."""
  image, ids = jnp.array([[1.0, 0.0], [-1.0, 0.0]]), jnp.array(ids)
  return Pairs(image, sign * image, ids, text_id=ids)


@pytest.mark.parametrize("name", EXTREME)
def test_finite_at_extreme_similarities(name):
  """Similarities of +-1 at temperature 0.001: exponents of +-2000."""
  step = compiled(EXTREME[name])
  for sign in (-1, 1):
    params, state = EXTREME[name].init()
    for ids in ([0, 1], [1, 0], [2, 3]):
      (loss, (state, _)), grads = step(params, state, opposite(sign, ids))
      chex.assert_tree_all_finite((loss, grads))
    if name in ("sogclr", "nuclr"):
      log_u = np.asarray(state.sample.pair.log_u.image)
      np.testing.assert_allclose(
        log_u[2:], -2 * sign / 0.001 + math.log(3), rtol=1e-4
      )


@pytest.mark.parametrize("name", EXTREME)
def test_a_batch_without_negatives_changes_nothing(name):
  """Two pairs with one text have none, so their loss is NaN; nor has one."""
  params, state = EXTREME[name].init()
  step, pairs = compiled(EXTREME[name]), opposite(-1, [0, 1])
  lonely = pairs._replace(text_id=jnp.zeros(2, int))
  (loss, (new, _)), grads = step(params, state, lonely)
  chex.assert_tree_all_finite((grads, new.shared))
  chex.assert_trees_all_equal(new.sample, state.sample)
  assert np.isfinite(loss) == (name == "vicreg")
  if name in ("clip_learned", "ntxent", "sogclr", "nuclr"):
    assert not np.any(grads[1])
  if name != "vicreg":
    with pytest.raises(ValueError, match="one pair has no negatives"):
      step(params, state, jax.tree.map(lambda x: x[:1], pairs))


@pytest.mark.parametrize("name", ["clip", "vicreg", "nuclr"])
def test_scale_scales_the_gradient(name, x64):
  objective, pairs = ALL[name], batch(num_texts=5)
  params, state = objective.init()
  (a, _), grads = jax.jit(make_step(objective))(params, state, pairs)
  scaled = objectives.scale(objective, -3.0)
  (b, _), scaled_grads = jax.jit(make_step(scaled))(params, state, pairs)
  chex.assert_trees_all_close(
    (b, scaled_grads), jax.tree.map(lambda x: -3 * x, (a, grads)), rtol=1e-9
  )


@pytest.mark.parametrize("name", ["clip", "debiased", "sogclr", "nuclr"])
def test_differentiating_twice_is_refused(name):
  """The weights of the gradient are constants: it would be wrong."""
  objective, pairs = ALL[name], batch()
  params, state = objective.init()

  def loss(image):
    return objective.apply(params, state, pairs._replace(image=image))[0]

  twice = jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2))
  with pytest.raises(NotImplementedError, match="no derivative"):
    jax.eval_shape(twice, pairs.image)


@pytest.mark.parametrize("name", objectives.OBJECTIVES)
@pytest.mark.parametrize(
  "change",
  [
    dict(pair_id=jnp.arange(1)),
    dict(pair_id=jnp.arange(B)[:, None]),
    dict(text_id=jnp.zeros(B)),
    dict(text=jnp.ones((1, D))),
    dict(image=jnp.ones((B, D), int)),
    dict(image=jnp.ones(B), text=jnp.ones(B)),
  ],
  ids=lambda x: "_".join(x),
)
def test_batches_that_do_not_fit_are_refused(name, change):
  factory = objectives.OBJECTIVES[name]
  has_state = "num_pairs" in inspect.signature(factory).parameters
  objective = factory(num_pairs=64) if has_state else factory()
  wrong = Pairs(*batch())._replace(label=jnp.zeros(B, int))._replace(**change)
  with pytest.raises(ValueError, match=r"integers of shape .*; got image"):
    jax.eval_shape(lambda: objective.apply(*objective.init(), wrong))


@pytest.mark.parametrize("name", objectives.OBJECTIVES)
def test_an_objective_without_state_reads_without_it(name):
  """Whoever wants to know what `clip` does need not know of tables."""
  factory = objectives.OBJECTIVES[name]
  source = inspect.getsource(inspect.getmodule(inspect.unwrap(factory)))
  has_state = "num_pairs" in inspect.signature(factory).parameters
  assert ("sample_state" in source) == has_state


def test_clip_of_identical_embeddings_is_log_batch():
  same = batch()._replace(image=jnp.ones((B, 4)) / 2, text=jnp.ones((B, 4)) / 2)
  np.testing.assert_allclose(
    value(objectives.clip(), same), np.log(B), rtol=1e-6
  )


def test_scale_of_clip_stops_at_100():
  objective, pairs = objectives.clip(), batch()
  losses = [
    objective.apply({"log_scale": jnp.log(scale)}, State(), pairs)[0]
    for scale in (100.0, 1e4)
  ]
  np.testing.assert_allclose(*losses, rtol=1e-5)


def test_ntxent_equals_optax(x64):
  """Each view of a thing is the other one's positive."""
  pairs = batch()
  views = jnp.concatenate([pairs.image, pairs.text])
  expected = jax.jit(optax.ntxent)(views, jnp.tile(pairs.pair_id, 2), TAU)
  found = value(objectives.ntxent(temperature=TAU), pairs)
  np.testing.assert_allclose(found, jnp.mean(expected), rtol=1e-12)


@pytest.mark.parametrize("num_texts", [None, 5])
@pytest.mark.parametrize("hardness", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("tau_plus", [0.0, 0.05, 0.9])
def test_debiased_equals_numpy(num_texts, tau_plus, hardness, x64):
  pairs = batch(num_texts=num_texts)
  sim, mask = np.asarray(pairs.image @ pairs.text.T), negatives(pairs)
  losses = []
  for s in (sim, sim.T):
    for i in range(B):
      n = mask[i].sum()
      p, e = math.exp(s[i, i] / TAU), np.exp(s[i] / TAU)[mask[i]]
      total = (e**hardness * e).sum() / (e**hardness).mean()
      g = (total - tau_plus * n * p) / (1 - tau_plus)
      g = max(g, n * math.exp(-1 / TAU))
      losses.append(-math.log(p / (p + g)))
  objective = objectives.debiased(
    temperature=TAU, tau_plus=tau_plus, hardness=hardness
  )
  np.testing.assert_allclose(
    value(objective, pairs), np.mean(losses), rtol=1e-12
  )


def by_retrieval_libraries(pairs, strength, more=lambda weights: 1.0):
  """sentence-transformers' loss with hardness_mode="in_batch_negatives".

  The positive's term is multiplied by what `more` makes of the weights.
  """
  sim, total = pairs.image @ pairs.text.T, 0.0
  for s in (sim, sim.T):
    weights = jax.lax.stop_gradient(jnp.exp(strength * s))
    terms = weights * jnp.exp(s / TAU) * (1 - jnp.eye(B))
    own = jnp.exp(jnp.diag(s) / TAU) * more(weights)
    total += jnp.mean(jnp.log1p(jnp.sum(terms, axis=1) / own)) / 2
  return total


def test_hardness_in_the_units_of_retrieval_libraries(x64):
  """Theirs has no mean of weights, which is like another positive's weight."""
  strength, pairs = 9.0, batch()
  away = 1 - jnp.eye(B)

  def mean_of_negatives(weights):
    return jnp.sum(weights * away, axis=1) / (B - 1)

  expected = by_retrieval_libraries(pairs, strength, mean_of_negatives)
  ours = objectives.debiased(
    temperature=TAU, tau_plus=0.0, hardness=strength * TAU
  )
  np.testing.assert_allclose(value(ours, pairs), expected, rtol=1e-12)


def test_hardness_of_retrieval_libraries_is_a_lower_temperature(x64):
  """Their weights have no gradient; up to 1 / (2 TAU), where sim_ii = 1."""
  strength, pairs = 9.0, batch()
  pairs = pairs._replace(text=pairs.image)
  ours = objectives.sogclr(
    num_pairs=64,
    temperature=TAU / (1 + strength * TAU),
    gamma=1.0,
    positive_weight=math.exp(-strength) * 63 / (B - 1),
  )

  def gradient(loss_of):
    def loss_fn(sides):
      return loss_of(pairs._replace(image=sides[0], text=sides[1]))

    return jax.jit(jax.grad(loss_fn))((pairs.image, pairs.text))

  found = gradient(lambda x: ours.apply(*ours.init(), x)[0])
  expected = gradient(lambda x: by_retrieval_libraries(x, strength))
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a / (2 * TAU), b, rtol=1e-9, atol=1e-12)


def test_debiased_between_zero_and_its_floor(x64):
  """The correction leaves something, but less than the floor."""
  image = make_pairs.unit_rows(0, B, D)
  pairs = batch()._replace(image=jnp.asarray(image), text=jnp.asarray(-image))
  pairs = pairs._replace(text=pairs.text.at[0].set(pairs.image[0]))
  sim, n = -image @ image.T, B - 1
  sim[:, 0] *= -1
  total = np.exp(sim[0] / TAU)[1:].sum()
  p, floor = math.exp(1 / TAU), n * math.exp(-1 / TAU)
  tau_plus = (total - 0.1 * floor) / (n * p)  # g is near 0.1 floors
  assert 0 < (total - tau_plus * n * p) / (1 - tau_plus) < floor
  objective = objectives.debiased(temperature=TAU, tau_plus=tau_plus)
  expected = 0.0
  for s in (sim, sim.T):
    for i in range(B):
      p = math.exp(s[i, i] / TAU)
      g = (np.exp(s[i] / TAU).sum() - p - tau_plus * n * p) / (1 - tau_plus)
      expected += math.log1p(max(g, floor) / p) / (2 * B)
  np.testing.assert_allclose(value(objective, pairs), expected, rtol=1e-12)


def test_debiased_does_not_overflow_in_float32():
  """The published code does, above similarity 0.887 at temperature 0.01."""
  close = np.eye(D)[0] + 0.05 * make_pairs.unit_rows(0, B, D)
  close = jnp.asarray(close / np.linalg.norm(close, axis=1, keepdims=True))
  pairs = batch()._replace(image=close, text=close[::-1])
  assert jnp.min(pairs.image @ pairs.text.T) > 0.95
  objective = objectives.debiased(temperature=0.01, tau_plus=0.001)
  found = value(objective, pairs)
  with jax.enable_x64(True):
    sides = [np.asarray(x, np.float64) for x in (pairs.image, pairs.text)]
    exact = pairs._replace(image=jnp.array(sides[0]), text=jnp.array(sides[1]))
    expected = value(objective, exact)
  np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_spectral_counts_beyond_int32(monkeypatch):
  """As of 65,536 pairs, whose negatives are 2^32 - 2^16."""
  pairs = batch()
  many = jnp.full(B, 2**30, jnp.int32)
  monkeypatch.setattr(pairwise, "num_negatives", lambda pairs: many)
  expected = -2 * np.mean(np.sum(pairs.image * pairs.text, axis=1))
  found = value(objectives.spectral(), pairs)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("num_texts", [None, 5])
def test_siglip_and_spectral_equal_numpy(num_texts, x64):
  pairs = batch(num_texts=num_texts)
  sim, mask = np.asarray(pairs.image @ pairs.text.T), negatives(pairs)
  logits = 3.0 * sim - 1.0
  positives = np.log1p(np.exp(-np.diag(logits))).sum()
  expected = (positives + np.log1p(np.exp(logits))[mask].sum()) / B
  objective = objectives.siglip(init_scale=3.0, init_bias=-1.0)
  np.testing.assert_allclose(value(objective, pairs), expected, rtol=1e-12)
  expected = np.mean(sim[mask] ** 2) - 2 * np.mean(np.diag(sim))
  np.testing.assert_allclose(
    value(objectives.spectral(), pairs), expected, rtol=1e-12
  )


def test_cyclic_consistency_equals_the_matrices(x64):
  pairs = batch()
  i, t = np.asarray(pairs.image), np.asarray(pairs.text)
  for weights, matrix in (
    ((1.0, 0.0), i @ i.T - t @ t.T),
    ((0.0, 1.0), i @ t.T - t @ i.T),
  ):
    names = ("in_modal", "cross_modal")
    objective = objectives.cyclic_consistency(
      **dict(zip(names, weights, strict=True))
    )
    np.testing.assert_allclose(
      value(objective, pairs), np.sum(matrix**2) / B, rtol=1e-12
    )


def test_cyclic_consistency_is_exact_near_agreement():
  """In float32, where the two sides nearly agree; it never forms [B, B]."""
  image = make_pairs.unit_rows(0, 512, 8)
  text = image + 1e-4 * make_pairs.unit_rows(1, 512, 8)
  pairs = Pairs(
    jnp.asarray(image, jnp.float32),
    jnp.asarray(text, jnp.float32),
    jnp.arange(512),
  )
  i, t = (np.asarray(x, np.float64) for x in (pairs.image, pairs.text))
  expected = np.sum((i @ i.T - t @ t.T) ** 2) + np.sum((i @ t.T - t @ i.T) ** 2)
  objective = objectives.cyclic_consistency(in_modal=1.0, cross_modal=1.0)
  np.testing.assert_allclose(value(objective, pairs), expected / 512, rtol=1e-4)
  lowered = jax.jit(objective.apply).lower({}, State(), pairs)
  assert "512x512" not in lowered.as_text()


def test_add_sums_and_scale_multiplies():
  pairs = batch()
  clip, spectral = objectives.clip(), objectives.spectral()
  both = objectives.add(a=clip, b=objectives.scale(spectral, -0.5))
  params, state = both.init()
  assert set(params) == {"a", "b"}
  loss, (_, metrics) = both.apply(params, state, pairs)
  expected = value(clip, pairs) - 0.5 * value(spectral, pairs)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  np.testing.assert_allclose(metrics["a/loss"], value(clip, pairs))


def test_terms_keep_their_own_state():
  """Two NUCLR terms of other temperatures, as if each were alone."""
  pairs = batch()
  terms = {
    name: objectives.nuclr(num_pairs=64, temperature=tau)
    for name, tau in (("warm", 0.5), ("cold", 0.1))
  }
  both = objectives.add(**terms)
  _, (state, _) = both.apply(*both.init(), pairs)
  for name, term in terms.items():
    _, (alone, _) = term.apply(*term.init(), pairs)
    chex.assert_trees_all_equal(state.sample.pair[name], alone.sample.pair)
    chex.assert_trees_all_equal(state.sample.text[name], alone.sample.text)
    chex.assert_trees_all_equal(state.shared[name], alone.shared)


def test_stateless_lifts_a_loss():
  objective = objectives.stateless(
    lambda params, pairs: (jnp.sum(pairs.image), {"one": 1.0})
  )
  params, state = objective.init()
  loss, (new, metrics) = objective.apply(params, state, batch())
  np.testing.assert_allclose(loss, np.sum(batch().image), rtol=1e-5)
  assert (params, new, metrics) == ({}, State(), {"one": 1.0})


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: objectives.debiased(tau_plus=1.0), r"tau_plus must be in \[0, 1"),
    (lambda: objectives.debiased(hardness=-1.0), "hardness must be"),
    (lambda: objectives.siglip(init_scale=0.0), "init_scale must be a number"),
    (lambda: objectives.siglip(init_bias=math.inf), "init_bias must be a fin"),
    (lambda: objectives.cyclip(in_modal=-1.0), "in_modal must be a number of"),
    (lambda: contrib.vicreg(variance=-1.0), "variance must be a number of"),
    (lambda: objectives.ntxent(temperature=0.0), "temperature must be a numb"),
    (
      lambda: objectives.clip(temperature=objectives.temperature_rules.fixed()),
      "temperature must be .*; sogclr and nuclr take rules, too.* got fixed",
    ),
    (lambda: objectives.add(), "add needs at least one term"),
    (  # past the types that are checked in tests
      lambda: inspect.unwrap(objectives.add)(a=objectives.clip),
      "a must be an Objective",
    ),
    (
      lambda: objectives.scale(objectives.clip(), math.nan),
      "weight must be a finite number",
    ),
  ],
)
def test_bad_arguments_say_what_is_allowed(make, message):
  with pytest.raises(ValueError, match=message):
    make()

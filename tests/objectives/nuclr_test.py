"""NUCLR and SogCLR against oracles, limits and hostile input."""

import functools
import inspect
import math
import pydoc

import chex
import jax
import jax.numpy as jnp
import make_pairs
from make_step import first_state, make_step
import numpy as np
import optax
import pytest
import reference

from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.objectives import (
  denominator,
  temperature_rules,
  zeta_rules,
)
from nuclr_jax.types import Popularities


@functools.cache
def compiled(objective):
  return jax.jit(make_step(objective))


def value_and_grad(objective, params, state, pairs):
  result, (_, image, text) = compiled(objective)(params, state, pairs)
  return result, Sides(image, text)


def apply(objective, params, state, pairs):
  return value_and_grad(objective, params, state, pairs)[0]


def falling(count):
  """A schedule of gamma."""
  return 0.9 - 0.1 * count


# Of the rule of zeta, of the objective, and of the loops.
SETTINGS = dict(
  default=({}, {}, dict(center=True)),
  paper=(
    dict(estimator="paper", center=True),
    {},
    dict(estimator="paper", center=True),
  ),
  official=(
    dict(estimator="official"),
    {},
    dict(estimator="official", center=False),
  ),
  diamond=({}, dict(positive=denominator.by_zeta()), dict(own_pair="zeta")),
  weighted=(
    {},
    dict(positive=denominator.running_max(weight=3.0, init=0.01)),
    dict(own_weight=3.0),
  ),
  by_id=({}, dict(anchor_average="id"), dict(anchor_average="id")),
)


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_numpy_loops_with_shared_and_repeated_ids(name, x64):
  """Shared captions and images, pairs twice in a batch, a falling gamma.

  In the last batch the first row has no negative.
  """
  n, tau, num_images, num_texts = 24, 0.2, 20, 7
  of_zeta, of_objective, of_loops = SETTINGS[name]
  defaults = dict(positive=denominator.running_max(init=0.01))
  objective = objectives.nuclr_variant(
    num_pairs=n,
    num_images=num_images,
    num_texts=num_texts,
    temperature=tau,
    gamma=falling,
    zeta=zeta_rules.batch(rate=0.03 / tau, momentum=0.3, **of_zeta),
    **defaults | of_objective,
  )
  params, state = objective.init()
  update = jax.jit(make_step(objective))
  xi = 0.0 if name == "diamond" else 0.01
  side = lambda: dict(u={}, u_id={}, zeta={}, m={}, xi=xi)
  expected = dict(image=side(), text=side())
  rng = np.random.default_rng(0)
  for step in range(5):
    pair_id = rng.choice(n, 10)  # with repetition
    image_id, text_id = pair_id % num_images, pair_id % num_texts
    if step == 4:
      image_id = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4, 5])
      text_id = np.array([0, 1, 2, 3, 4, 0, 0, 0, 0, 0])
    image = make_pairs.unit_rows(step, 10, 4)
    text = make_pairs.unit_rows(step + 100, 10, 4)
    pairs = Pairs(*map(jnp.asarray, (image, text, pair_id, image_id, text_id)))
    (loss, (state, metrics)), (_, *grads) = update(params, state, pairs)
    want, d_image, d_text, expected = reference.nuclr_step(
      image, text, pair_id, image_id, text_id, expected,
      n=n, temperature=tau, gamma=falling(step), rate=0.03, momentum=0.3,
      **of_loops,
    )  # fmt: skip
    np.testing.assert_allclose(loss, want, rtol=1e-10)
    np.testing.assert_allclose(grads[0], d_image, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grads[1], d_text, rtol=1e-9, atol=1e-12)
    u = expected["text"]["u"]
    log_u = [math.log(u[i]) for i in pair_id if i in u]
    np.testing.assert_allclose(metrics["log_u/text"], np.mean(log_u))
    zeta = [expected["image"]["zeta"].get(i, 0.0) for i in image_id]
    np.testing.assert_allclose(metrics["zeta/image_std"], np.std(zeta))
    np.testing.assert_allclose(metrics["xi/image"], expected["image"]["xi"])
  assert_state_equals(state, expected, by_id=name == "by_id")


def assert_state_equals(state, expected, *, by_id):
  def table(rows, size, missing):
    return [rows.get(i, missing) for i in range(size)]

  for side in ("image", "text"):
    log_u = np.exp(np.asarray(getattr(state.sample.pair.log_u, side)))
    np.testing.assert_allclose(
      log_u, table(expected[side]["u"], len(log_u), 0.0), rtol=1e-10
    )
    rows = getattr(state.sample, side)
    size = len(rows.zeta)
    for name, key in (("zeta", "zeta"), ("momentum", "m")):
      np.testing.assert_allclose(
        getattr(rows, name),
        table(expected[side][key], size, 0.0),
        rtol=1e-9,
        atol=1e-13,
      )
    np.testing.assert_allclose(
      getattr(state.shared.xi, side), expected[side]["xi"]
    )
    if by_id:
      np.testing.assert_allclose(
        np.exp(rows.log_u), table(expected[side]["u_id"], size, 0.0), rtol=1e-10
      )


@functools.cache
def exact_solution(n, tau):
  """Pairs, zeta of their texts by Sinkhorn scaling, own weights and log u."""
  image = make_pairs.unit_rows(1, n, 8)
  text = make_pairs.unit_rows(2, n, 8) * 0.7 + image * 0.5
  text /= np.linalg.norm(text, axis=1, keepdims=True)
  sim = image @ text.T
  kernel = np.exp(sim / tau)
  v = np.ones(n)
  for _ in range(100):
    r = 1 / (kernel @ v)
    v = 1 / (kernel.T @ r)
  weights = r[:, None] * kernel * v
  assert abs(weights.sum(axis=1) - 1).max() < 1e-9
  zeta = -tau * np.log(v)
  logits = (sim - np.diag(sim)[:, None] - zeta) / tau
  np.fill_diagonal(logits, -np.inf)
  return image, text, zeta, np.diag(weights), np.log(np.exp(logits).sum(axis=1))


@pytest.mark.parametrize("estimator", ["unbiased", "paper", "official"])
def test_expected_zeta_gradient_at_the_exact_solution(estimator, x64):
  """Each estimator has the mean that the theory says, given j in the batch."""
  n, batch, tau, num_batches = 2000, 50, 0.2, 2000
  image, text, zeta, own, log_u = exact_solution(n, tau)
  objective = objectives.nuclr(
    num_pairs=n,
    temperature=tau,
    gamma=lambda count: 0.0,  # which keeps u, which is exact
    zeta=zeta_rules.batch(
      estimator=estimator, center=False, rate=1.0, momentum=0.1
    ),
  )
  params, state = objective.init()
  sample = state.sample
  state = state._replace(
    sample=sample._replace(
      pair=sample.pair._replace(log_u=Sides(jnp.asarray(log_u), jnp.zeros(n))),
      text=sample.text._replace(zeta=jnp.asarray(zeta)),
    )
  )
  image, text = jnp.asarray(image), jnp.asarray(text)

  def gradient(ids):
    pairs = Pairs(image[ids], text[ids], ids)
    _, (moved, _) = apply(objective, params, state, pairs)
    return moved.sample.text.momentum[ids]  # the first touch sets m = g

  rng = np.random.default_rng(3)
  ids = np.stack(
    [rng.choice(n, batch, replace=False) for _ in range(num_batches)]
  )
  run = jax.jit(lambda x: jax.lax.map(gradient, x, batch_size=50))
  g = np.asarray(run(jnp.asarray(ids)))
  count = np.bincount(ids.ravel(), minlength=n)
  mean = np.bincount(ids.ravel(), g.ravel(), minlength=n) / count
  square = np.bincount(ids.ravel(), g.ravel() ** 2, minlength=n) / count
  error = np.sqrt((square - mean**2) / (count - 1))

  expected = dict(
    unbiased=np.zeros(n),
    paper=np.full(n, 1 - n / batch),
    official=1 - n / batch * (own + (1 - own) * (batch - 1) / (n - 1)),
  )[estimator]
  z = (mean - expected) / error
  assert abs(z.mean()) < 5 / math.sqrt(n)  # the rows are nearly independent
  assert 0.9 < z.std() < 1.1
  assert abs(z).max() < 6
  # The other estimators' expectations are far away: the test can fail.
  assert n / batch * (1 - own.mean()) > 20 * error.mean()


@pytest.mark.parametrize("average, weight", [("pair", 7.0), ("id", 0.0)])
def test_without_zeta_it_is_sogclr(average, weight):
  common = dict(
    num_pairs=64,
    num_texts=20,
    temperature=0.1,
    gamma=falling,
    anchor_average=average,
  )
  plain = objectives.sogclr(**common, positive_weight=weight)
  limit = objectives.nuclr_variant(
    **common,
    zeta=zeta_rules.fixed(),
    positive=denominator.running_max(weight=weight),
  )
  states = [plain.init()[1], limit.init()[1]]
  for step in range(3):
    pairs = make_pairs.make_pairs(step, num_texts=20)
    (a, (states[0], _)), grad_a = value_and_grad(plain, {}, states[0], pairs)
    (b, (states[1], _)), grad_b = value_and_grad(limit, {}, states[1], pairs)
    chex.assert_trees_all_close((a, grad_a), (b, grad_b), rtol=1e-5, atol=1e-7)
  plain, limit = (state.sample for state in states)
  if average == "pair":
    chex.assert_trees_all_close(plain.pair, limit.pair, rtol=1e-6)
  else:
    chex.assert_trees_all_close(plain.text.log_u, limit.text.log_u, rtol=1e-6)


def test_zeta_and_xi_start_where_asked():
  for init, xi_init, xi in ((-0.05, None, 0.05), (0.1, 0.3, 0.3)):
    objective = objectives.nuclr_variant(
      num_pairs=8,
      num_texts=3,
      zeta=zeta_rules.batch(init=init),
      positive=denominator.running_max(init=xi_init),
    )
    _, state = objective.init()
    np.testing.assert_allclose(state.sample.image.zeta, [init] * 8)
    np.testing.assert_allclose(state.sample.text.zeta, [init] * 3)
    np.testing.assert_allclose(state.shared.xi, xi)


@pytest.mark.parametrize("name", ["sogclr", "nuclr"])
def test_a_positive_weight_gives_the_gradient_of_clip(name, x64):
  """gamma = 1, k = (n - 1) / (B - 1), on a batch of few of the pairs."""
  n, batch, tau = 1000, 16, 0.3
  pairs = make_pairs.make_pairs(0, batch=batch, num_pairs=n, num_texts=5)
  rule = dict(zeta=zeta_rules.fixed()) if name == "nuclr" else {}
  weight = (n - 1) / (batch - 1)
  objective = objectives.OBJECTIVES[name](
    num_pairs=n, temperature=tau, gamma=1.0, positive_weight=weight, **rule
  )
  clip = objectives.clip(temperature=tau, learn_temperature=False)
  (loss, _), grads = value_and_grad(objective, *objective.init(), pairs)
  (infonce, _), expected = value_and_grad(clip, *clip.init(), pairs)
  chex.assert_trees_all_close(
    grads, jax.tree.map(lambda x: 2 * tau * x, expected), rtol=1e-10
  )
  expected = 2 * tau * (infonce + math.log(weight))
  np.testing.assert_allclose(loss, expected, rtol=1e-12)


def test_a_positive_weight_in_the_gradient_of_temperatures(x64):
  """Of SogCLR: like NUCLR's, but for the number of terms."""
  n, weight, rho = 64, 7.0, 0.5
  pairs = make_pairs.make_pairs(0, num_pairs=n)

  def learned(rho):
    return temperature_rules.individual(0.2, rate=0.1, rho=rho)

  plain = objectives.sogclr(
    num_pairs=n, temperature=learned(rho), positive_weight=weight
  )
  limit = objectives.nuclr(
    num_pairs=n,
    temperature=learned(rho - math.log((n - 1 + weight) / n)),
    positive_weight=weight,
    zeta=zeta_rules.fixed(),
  )
  first, second = (value_and_grad(x, *x.init(), pairs) for x in (plain, limit))
  chex.assert_trees_all_close(first[1], second[1], rtol=1e-12)
  states = [x[0][1][0].sample.pair for x in (first, second)]
  chex.assert_trees_all_close(*states, rtol=1e-12)
  assert not np.allclose(states[0].temperature.image[pairs.pair_id], 0.2)


@pytest.mark.parametrize("num_texts", [None, 5])
def test_whole_batch_limit_has_the_gradient_of_clip(num_texts, x64):
  """num_pairs = B, gamma = 1, epsilon = 1: 2 temperature times InfoNCE."""
  pairs = make_pairs.make_pairs(0, batch=16, num_pairs=16, num_texts=num_texts)
  objective = objectives.nuclr_variant(
    num_pairs=16,
    num_texts=num_texts,
    temperature=0.3,
    gamma=1.0,
    zeta=zeta_rules.fixed(),
    positive=denominator.by_zeta(),
  )
  clip = objectives.clip(temperature=0.3, learn_temperature=False)
  (loss, _), grads = value_and_grad(objective, *objective.init(), pairs)
  (infonce, _), expected = value_and_grad(clip, *clip.init(), pairs)
  chex.assert_trees_all_close(
    grads, jax.tree.map(lambda x: 2 * 0.3 * x, expected), rtol=1e-10
  )
  np.testing.assert_allclose(loss, 2 * 0.3 * infonce, rtol=1e-12)


@pytest.mark.parametrize("name", ["sogclr", "nuclr_variant"])
@pytest.mark.parametrize("average", ["pair", "id"])
def test_rows_without_negatives_change_nothing(name, average):
  objective = objectives.OBJECTIVES[name](
    num_pairs=8, num_texts=2, temperature=0.1, anchor_average=average
  )
  params, state = objective.init()
  pairs = make_pairs.make_pairs(0, batch=4, num_pairs=8)
  same = pairs._replace(image_id=pairs.pair_id, text_id=jnp.ones(4, int))
  (loss, (new, metrics)), grads = value_and_grad(objective, params, state, same)
  assert jnp.isnan(loss)  # a whole batch of them is a mistake
  chex.assert_trees_all_equal(grads, jax.tree.map(jnp.zeros_like, grads))
  chex.assert_trees_all_equal(new.sample, state.sample)
  chex.assert_tree_all_finite(metrics)
  # One row with, three without: the one alone moves nothing but its own u.
  ids = jnp.array([0, 1, 1, 1])
  mixed = pairs._replace(image_id=ids, text_id=ids % 2, pair_id=jnp.arange(4))
  _, (visited, _) = apply(objective, params, new, mixed)
  (_, (again, _)), _ = value_and_grad(objective, params, visited, same)
  chex.assert_trees_all_equal(again.sample, visited.sample)


def test_equal_captions_move_one_row_by_the_mean_of_their_gradients():
  """Order in the batch does not matter, and a row is written once."""
  objective = objectives.nuclr(num_pairs=64, num_texts=5, temperature=0.2)
  params, state = objective.init()
  pairs = make_pairs.make_pairs(0, num_texts=5)
  order = np.random.default_rng(0).permutation(16)
  shuffled = Pairs(*(x if x is None else x[order] for x in pairs))
  results = []
  for batch in (pairs, shuffled):
    _, (new, _) = apply(objective, params, state, batch)
    results.append(new)
  chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-8)
  assert np.all(np.asarray(results[0].sample.text.momentum) != 0)


def test_frozen_zeta_rests_and_then_starts_with_its_first_gradient():
  objective = objectives.nuclr(
    num_pairs=64,
    temperature=0.2,
    zeta=zeta_rules.batch(
      rate=lambda count: jnp.where(count < 2, 0.0, 0.05), momentum=0.1
    ),
  )
  params, state = objective.init()
  pairs = make_pairs.make_pairs(0)
  for _ in range(2):
    _, (state, _) = apply(objective, params, state, pairs)
    assert not np.any(state.sample.text.zeta)
    assert not np.any(state.sample.text.momentum)
  _, (state, _) = apply(objective, params, state, pairs)
  rows = state.sample.text
  np.testing.assert_allclose(rows.zeta, -0.01 * rows.momentum, rtol=1e-6)
  assert np.count_nonzero(rows.zeta) == 16


NUCLR = objectives.nuclr(num_pairs=64, temperature=0.1)


@pytest.mark.parametrize("bad", [-1, 64, 1000])
@pytest.mark.parametrize("field", ["pair_id", "text_id"])
def test_ids_out_of_range_give_nan_and_never_write(field, bad):
  params, state = NUCLR.init()
  pairs = make_pairs.make_pairs(0)
  ids = pairs.pair_id.at[3].set(bad)
  wrong = pairs._replace(text_id=pairs.pair_id)._replace(**{field: ids})
  loss, (new, _) = apply(NUCLR, params, state, wrong)
  assert math.isnan(loss)
  untouched = np.setdiff1d(np.arange(64), np.asarray(pairs.pair_id))
  for table in jax.tree.leaves(new.sample):
    first = jnp.float32(-jnp.inf) if np.isinf(table[untouched]).any() else 0
    np.testing.assert_array_equal(table[untouched], first)


def test_scalars_of_numpy_and_jax_are_numbers():
  objective = objectives.nuclr(
    num_pairs=np.int64(8),
    temperature=np.float32(0.1),
    gamma=jnp.asarray(0.5),
    zeta=zeta_rules.batch(
      rate=Sides(np.float32(0.1), np.asarray(0.1)), init=np.float64(0.1)
    ),
    positive_weight=np.float32(1.0),
  )
  pairs = make_pairs.make_pairs(0, batch=4, num_pairs=8)
  loss, _ = apply(objective, *objective.init(), pairs)
  assert math.isfinite(loss)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(num_pairs=1), "num_pairs must be a whole number of at least 2"),
    (dict(temperature=0.0), "temperature must be a number greater than 0"),
    (dict(gamma=0.0), r"gamma must be in \(0, 1\]"),
    (dict(gamma=1.5), r"gamma must be in \(0, 1\].*1.5"),
    (dict(anchor_average="text"), "anchor_average must be one of"),
    (dict(num_texts=100), "num_texts must be at most num_pairs = 8, got 100"),
    (dict(temperature=True), "temperature must be a number"),
    (dict(temperature="learned"), r"or a rule such as .*learned\(\) .it div"),
    (dict(num_pairs=True), "num_pairs must be a whole number"),
    (dict(num_pairs=np.array([8])), "num_pairs must be a whole number"),
    (dict(temperature=10**400), "temperature must be a number"),
    *(
      (
        dict(gamma=schedule),
        "gamma must be a function of the step count that returns one number; "
        f"at step 0, {error}: ",
      )
      for schedule, error in (
        (lambda count: jnp.array([0.1, 0.2]), "TypeError"),
        (lambda count: None, "TypeError"),
        (lambda count: "x", "ValueError"),
        (lambda count, more: 0.5, "TypeError"),
        (lambda count: 1 / 0, "ZeroDivisionError"),
      )
    ),
    (dict(gamma=lambda count: 1.5), r"gamma at step 0 must be in \(0, 1\]"),
    (dict(zeta="queue"), r"zeta must be a rule such as .*, got 'queue'"),
    (dict(zeta=denominator.by_zeta()), "zeta must be .*, got by_zeta"),
    (dict(positive=1.0), r"positive must be a rule such as .*, got 1.0"),
    (
      dict(zeta=zeta_rules.fixed(init=Sides(np.zeros(7), 0.0))),
      r"one number for each of 8 ids .* got \[7\]",
    ),
  ],
)
def test_bad_arguments_say_what_is_allowed(arguments, message):
  with pytest.raises(ValueError, match=message):
    make = objectives.nuclr_variant
    if not arguments.keys() & {"gamma", "temperature", "num_pairs"}:
      make = inspect.unwrap(make)  # past the types that are checked in tests
    make(**(dict(num_pairs=8) | arguments)).init()


def test_a_schedule_that_leaves_its_range_is_warned_of(caplog):
  def make(gamma):
    caplog.clear()
    objectives.sogclr(num_pairs=8, gamma=gamma)
    return caplog.text

  assert "gamma at step 64 must be in (0, 1]" in make(lambda t: 0.5 + t / 100)
  assert "got 1.14" in caplog.text and "a longer run needs" in caplog.text
  assert "gamma at step 1 " in make(lambda t: jnp.where(t < 1, 0.5, -0.5))
  assert "got nan" in make(lambda t: jnp.where(t < 5, 0.5, jnp.nan))
  assert not make(lambda t: jnp.minimum(t / 100, 1 + 1e-7))
  assert not make(optax.cosine_decay_schedule(0.9, 100))


@pytest.mark.parametrize("beyond, end", [(1 + 2e-7, 1.0), (-1e-7, 0.0)])
def test_a_gamma_that_rounding_puts_beyond_its_range(beyond, end):
  """The logarithm of a negative number would make all rows NaN, for good."""
  found = []
  for last in (beyond, end):
    gamma = lambda t, last=last: jnp.where(t == 0, 0.5, last)
    objective = objectives.sogclr(num_pairs=64, gamma=gamma)
    params, state = objective.init()
    for seed in range(3):
      pairs = make_pairs.make_pairs(seed)._replace(pair_id=jnp.arange(16))
      loss, (state, _) = objective.apply(params, state, pairs)
    found.append((loss, state))
  chex.assert_trees_all_equal(*found)
  assert np.isfinite(loss)


def test_first_values_of_zeta_are_copied():
  """So that they outlive a step to which the state is donated."""
  first = jnp.arange(8.0)
  queue = functools.partial(zeta_rules.queue, dim=4)
  rules = (zeta_rules.batch, zeta_rules.fixed, queue)
  for rule in rules:
    for init in (Sides(first, first), Sides(first, 0.0)):
      objective = objectives.nuclr(
        num_pairs=8, temperature=0.1, zeta=rule(init=init)
      )
      _, state = objective.init()
      step = jax.jit(lambda x: jax.tree.map(jnp.negative, x), donate_argnums=0)
      new = step(state)
      np.testing.assert_array_equal(new.sample.image.zeta, -np.arange(8))
  np.testing.assert_array_equal(first, np.arange(8))


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: zeta_rules.batch(estimator="exact"), "estimator must be one of"),
    (lambda: zeta_rules.batch(rate=-1.0), r"zeta.rate must be in \[0, 2\]"),
    (lambda: zeta_rules.batch(rate=math.inf), "zeta.rate must be in"),
    (lambda: zeta_rules.queue(dim=8, rate=3.0), r"rate must be in \[0, 1\]"),
    (lambda: zeta_rules.queue(dim=0), "dim must be a whole number of at least"),
    (lambda: zeta_rules.batch(momentum=1.0), r"momentum must be in \[0, 1\)"),
    (lambda: zeta_rules.batch(init=math.nan), "zeta.init must be finite"),
    (lambda: denominator.running_max(init=-0.1), "init must be a number of"),
    (lambda: denominator.running_max(init=math.nan), "init must be"),
    (lambda: denominator.by_zeta(weight=-1.0), "positive.weight must be"),
    (
      lambda: denominator.released(steps_per_epoch=9, init=-1.0),
      "positive.init must be",
    ),
    (
      lambda: denominator.released(steps_per_epoch=0),
      "steps_per_epoch must be a whole number of at least 1",
    ),
  ],
)
def test_bad_arguments_of_rules(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize(
  "init, message",
  [
    *(
      (x, "zeta.init must be finite: a number, or a NumPy or JAX array")
      for x in (1e300, -(10**400), "3", [1.0] * 8, {}, 1j, None, True)
    ),
    (np.float64(1e300), "zeta.init must be finite"),
    (jnp.float32(np.inf), "zeta.init must be finite"),
    (Sides(0.0, "3"), "zeta.init.text must be finite"),
    (np.full(8, 1e300), "zeta.init must be finite in float32, got 8 value"),
    (
      Sides(np.array([0.0, np.nan]), 0.0),
      "zeta.init.image must be .* 1 value.s. .* the first in row 1",
    ),
    (np.full(8, "3"), "zeta.init must be real numbers, got dtype <U1"),
    (np.ones(8, complex), "zeta.init must be real numbers, got .*complex"),
  ],
)
def test_first_values_of_zeta_are_finite(init, message):
  for rule in (zeta_rules.fixed, zeta_rules.batch):
    with pytest.raises(ValueError, match=message):
      inspect.unwrap(rule)(init=init)


def test_a_memory_has_no_more_rows_than_there_are_pairs():
  def state_of(size):
    rule = zeta_rules.queue(dim=4, size=size)
    return objectives.nuclr(num_pairs=8, zeta=rule).init()[1]

  assert state_of(6).memory.pair_id.shape == (6,)
  assert state_of(2**31 - 1).memory.pair_id.shape == (8,)


def test_unknown_and_missing_arguments_are_named():
  with pytest.raises(TypeError, match="unexpected.* 'temperatur'"):
    objectives.nuclr(num_pairs=8, temperatur=1)
  with pytest.raises(TypeError, match="missing .* 'num_pairs'"):
    objectives.nuclr()
  with pytest.raises(TypeError, match="missing .* 'dim'"):
    zeta_rules.queue()
  with pytest.raises(TypeError, match="missing .* 'steps_per_epoch'"):
    denominator.released()
  with pytest.raises(ValueError, match="positive_weight must be"):
    objectives.nuclr(num_pairs=8, positive_weight=-1.0)


@pytest.mark.parametrize(
  "made, shown",
  [
    (zeta_rules.fixed(), "fixed(init=0.0)"),
    (
      zeta_rules.queue(dim=8, size=64, rate=0.3),
      "queue(dim=8, size=64, rate=0.3, momentum=0.0, center=True, init=0.0)",
    ),
    (denominator.running_max(), "running_max(weight=1.0, init=None)"),
    (denominator.by_zeta(weight=2.0), "by_zeta(weight=2.0)"),
    (temperature_rules.fixed(0.1), "fixed(temperature=0.1)"),
    (temperature_rules.learned(rho=7), "learned(temperature=0.07, rho=7)"),
    (objectives.siglip(), "siglip(init_scale=10.0, init_bias=-10.0)"),
    (objectives.spectral(), "spectral()"),
    (
      objectives.nuclr(num_pairs=8, zeta=zeta_rules.queue(dim=8)),
      "nuclr(num_pairs=8, num_images=None, num_texts=None, temperature=0.05, "
      "gamma=0.8, zeta=queue(dim=8, size=4096, rate=0.3, momentum=0.0, "
      "center=True, init=0.0), positive_weight=1.0)",
    ),
    (
      objectives.scale(objectives.add(x=objectives.spectral()), 2.0),
      "scale(objective=add(x=spectral()), weight=2.0)",
    ),
  ],
)
def test_what_a_factory_makes_prints_as_the_call(made, shown):
  assert repr(made) == shown


def test_a_traced_temperature_is_refused():
  def loss(temperature):
    return inspect.unwrap(objectives.nuclr)(
      num_pairs=8, temperature=temperature
    )

  for make in (jax.jit(loss), jax.grad(loss)):
    with pytest.raises(ValueError, match="temperature must .* JAX traces; .*l"):
      make(0.1)


def test_a_rule_prints_in_one_line_whatever_its_arguments():
  def falling(count):
    return 0.1 / (1 + count)

  rule = zeta_rules.batch(rate=falling, init=Sides(np.zeros(1_000), 0.0))
  shown = repr(rule)
  assert "rate=falling, " in shown and "center=None" in shown
  assert len(shown) < 160 and "\n" not in shown


CELL = "<cell at 0x"  # that Python 3.14 leaves in each NamedTuple
FACTORIES = objectives.OBJECTIVES | {
  f"{kind}: {name}": rule
  for kind, rules in objectives.RULES.items()
  for name, rule in rules.items()
}


@pytest.mark.parametrize("name", FACTORIES)
def test_help_names_the_arguments_and_their_ranges(name):
  text = pydoc.plain(pydoc.render_doc(FACTORIES[name]))
  signature = text.splitlines()[2]
  assert " at 0x" not in text.replace(CELL, "") and "**" not in signature
  if "init: " not in signature:  # of zeta, which may be an array
    assert "jaxlib" not in signature and "numpy" not in signature
  if name in ("nuclr", "sogclr"):
    assert "num_pairs: " in text and "num_texts: " in text
    assert "a number greater than 0" in text and "in (0, 1]" in text
  factory = FACTORIES[name]
  named = set(inspect.signature(factory).parameters)
  assert set(factory.__annotations__) >= named


def test_the_released_xi_over_epochs(x64):
  """Signed, over all rows, at the end of an epoch only, and it can fall."""
  n, tau, per_epoch, init = 12, 0.2, 3, 0.02
  objective = objectives.nuclr_variant(
    num_pairs=n,
    temperature=tau,
    gamma=0.8,
    zeta=zeta_rules.batch(
      estimator="official", rate=0.5, momentum=0.1, init=-0.05
    ),
    positive=denominator.released(steps_per_epoch=per_epoch, init=init),
  )
  params, state = first_state(objective)  # padded, as in training
  update = jax.jit(make_step(objective))
  zeta = {i: -0.05 for i in range(n)}
  side = lambda: dict(u={}, u_id={}, zeta=dict(zeta), m={}, xi=init)
  expected, seen = dict(image=side(), text=side()), []
  for step in range(4 * per_epoch):
    ids = np.random.default_rng(step).permutation(n)[:4]
    image = make_pairs.unit_rows(step % 2, 4, 3)
    text = make_pairs.unit_rows(step + 100, 4, 3)
    if step >= 2 * per_epoch:  # the most popular texts are so no more
      order = sorted(range(n), key=expected["text"]["zeta"].get)
      ids = np.array([*order[-3:], order[0]])
      image = np.tile(image[:1], (4, 1))
      text = np.concatenate([-image[:3], image[:1]])
    pairs = Pairs(*map(jnp.asarray, (image, text, ids)))
    (loss, (state, _)), (_, *grads) = update(params, state, pairs)
    before = {name: expected[name]["xi"] for name in expected}
    want, d_image, d_text, expected = reference.nuclr_step(
      image, text, ids, ids, ids, expected, n=n, temperature=tau, gamma=0.8,
      rate=0.5 * tau, momentum=0.1, center=False, estimator="official",
    )  # fmt: skip
    for name, values in expected.items():
      values["xi"] = before[name]
      if (step + 1) % per_epoch == 0:
        values["xi"] = max(*values["zeta"].values(), init)
      seen.append(values["xi"])
      found = float(getattr(state.shared.xi, name))
      np.testing.assert_allclose(found, values["xi"], rtol=1e-9)
    np.testing.assert_allclose(loss, want, rtol=1e-9)
    np.testing.assert_allclose(grads[0], d_image, rtol=1e-8, atol=1e-12)
  steps = np.diff(seen[1::2])  # of the texts
  assert (steps > 0).any() and (steps < 0).any()  # it rises, and it falls
  assert min(seen) == init


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_popularities_from_outside_are_finite(wrong):
  """An infinite one would make xi infinite, and epsilon 0, for good."""
  objective = objectives.nuclr(num_pairs=4)
  _, state = objective.init()
  zeta = Sides(np.array([0.1, wrong]), np.zeros(2))
  with pytest.raises(ValueError, match="each zeta must be finite"):
    objective.assign(state, Popularities(Sides(*[np.arange(2)] * 2), zeta))


@pytest.mark.parametrize("zeta", ["batch", "queue"])
def test_a_state_of_float32_stays_so_beside_embeddings_of_float64(zeta, x64):
  rules = {
    "batch": zeta_rules.batch(),
    "queue": zeta_rules.queue(dim=8, size=16),
  }
  objective = objectives.nuclr(num_pairs=64, zeta=rules[zeta])
  params, state = objective.init()
  old = jax.tree.map(
    lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, state
  )
  pairs = make_pairs.make_pairs(0)
  pairs = pairs._replace(image=pairs.image.astype(float))
  _, (new, _) = jax.eval_shape(objective.apply, params, old, pairs)
  assert [x.dtype for x in jax.tree.leaves(new)] == [
    x.dtype for x in jax.tree.leaves(old)
  ]


def test_assigned_popularities_and_what_depends_on_them():
  """Zeta, log u and xi are written; momentum and memory are forgotten."""
  objective = objectives.nuclr(
    num_pairs=64,
    num_texts=20,
    temperature=0.2,
    zeta=zeta_rules.queue(dim=8, size=32, momentum=0.3),
  )
  params, state = objective.init()
  batch = make_pairs.make_pairs(0, num_texts=20)
  for _ in range(2):
    _, (state, _) = apply(objective, params, state, batch)
  assert np.any(state.sample.text.momentum != 0)
  zeta = Sides(np.linspace(-1, 2, 64), np.full(3, -4.0))
  popularities = Popularities(
    ids=Sides(np.arange(64), np.array([1, 5, 9])),
    zeta=zeta,
    pair_id=np.array([7, 8]),
    log_u=Sides(np.array([1.0, 2.0]), np.array([3.0, 4.0])),
  )
  new = objective.assign(state, popularities)
  on_host = objective.assign(jax.device_get(state), popularities)
  chex.assert_trees_all_equal(new, on_host)
  np.testing.assert_allclose(new.sample.image.zeta, zeta.image, rtol=1e-6)
  written = np.isin(np.arange(20), [1, 5, 9])
  np.testing.assert_array_equal(new.sample.text.zeta[written], -4.0)
  for rows, old in zip(new.sample.text, state.sample.text, strict=True):
    if rows is not None:
      np.testing.assert_array_equal(rows[~written], old[~written])
  np.testing.assert_array_equal(new.sample.text.momentum[written], 0)
  assert new.sample.pair.log_u.text[8] == 4.0
  np.testing.assert_allclose(new.shared.xi, (2.0, 4.0))
  assert np.all(np.isinf(new.memory.log_denominator.image))
  readout = objective.readout(params, new)
  assert float(readout.temperature) == pytest.approx(0.2)
  assert readout.zeta.text is new.sample.text.zeta

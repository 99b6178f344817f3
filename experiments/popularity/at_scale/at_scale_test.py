"""The scores of the study of small memories, against autodiff and limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import Place
from experiments.popularity.at_scale import data, measure, plan, steps
from experiments.popularity.at_scale.ways import WAYS
from nuclr_jax import Pairs, Sides, objectives, popularity
from nuclr_jax.lab.train import diagnostics
from nuclr_jax.objectives import Readout, zeta_rules
from nuclr_jax.types import Sizes, each

TAU, NUM_PAIRS = 0.1, 64
ANCHORS = np.array([0, 5, 33])


@pytest.fixture(scope="module")
def final():
  return data.generate(num_pairs=NUM_PAIRS, dim=8, seed=0)


@pytest.fixture(scope="module")
def terms(final):
  zeta = TAU * np.random.default_rng(0).normal(size=NUM_PAIRS)
  sim = np.float64(final.image[ANCHORS]) @ np.float64(final.text).T
  return measure.weigh(sim, zeta, TAU, ANCHORS), zeta


def test_embeddings(final):
  for x in (*final, *data.early(final, seed=0)):
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-6)
  own = np.sum(final.image * final.text, axis=1)
  assert np.mean(own) > np.mean(final.image @ final.text.T) + 0.2
  first = data.early(final, seed=0)
  assert np.mean(first.image @ first.text.T) > 0.5  # a cone


def test_the_gradient_is_that_of_the_objective(final, terms, x64):
  """tau log sum_j exp((sim_ij - sim_ii - zeta_j) / tau), by autodiff."""
  weighed, zeta = terms

  def loss(image, i):
    sim = jnp.float64(final.text) @ image
    return TAU * jax.nn.logsumexp((sim - sim[i] - zeta) / TAU)

  expected = jax.vmap(jax.grad(loss))(
    jnp.float64(final.image[ANCHORS]), ANCHORS
  )
  found, _ = measure.gradient_of(np.float64(final.text), weighed, ANCHORS)
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def by_hand(vectors, ids, zeta, log_u, xi, gamma=1.0):
  """The gradient of one step, in loops: no code of the library."""
  n, batch = len(vectors[0]), len(ids)
  unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
  found = [np.zeros_like(x) for x in vectors]
  for a, b in ((0, 1), (1, 0)):  # anchors, contrast
    for i in ids:
      x = unit[a]
      others = [j for j in ids if j != i]
      terms = {
        j: np.exp((x[i] @ (unit[b][j] - unit[b][i]) - zeta[b][j]) / TAU)
        for j in others
      }
      phi = (n - 1) / (batch - 1) * sum(terms.values())
      u = (1 - gamma) * np.exp(log_u[a][i]) + gamma * phi
      weight = (n - 1) / (batch - 1) / (np.exp(-xi[b] / TAU) + u) / batch
      for j in others:
        w = weight * terms[j]
        found[a][i] += w * (unit[b][j] - unit[b][i])
        found[b][j] += w * x[i]
        found[b][i] -= w * x[i]
  # Through x / |x|.
  for g, x, u in zip(found, vectors, unit, strict=True):
    g -= np.sum(g * u, axis=1, keepdims=True) * u
    g /= np.linalg.norm(x, axis=1, keepdims=True)
  return found


@pytest.fixture
def given(final):
  """Vectors of other lengths, zeta, log u and xi, by side."""
  rng = np.random.default_rng(3)
  vectors = [x * rng.uniform(0.5, 2, (NUM_PAIRS, 1)) for x in final]
  zeta, log_u = (
    TAU * rng.normal(size=(2, NUM_PAIRS)),
    rng.normal(size=(2, NUM_PAIRS)),
  )
  return vectors, zeta, log_u, np.array([0.15, 0.25])


def test_a_step_is_the_one_that_the_library_takes(given, x64):
  vectors, zeta, log_u, xi = given
  objective = objectives.nuclr(
    num_pairs=NUM_PAIRS,
    temperature=TAU,
    gamma=0.7,
    zeta=zeta_rules.fixed(init=Sides(*zeta)),
  )
  params, state = objective.init()
  pair = state.sample.pair._replace(log_u=Sides(*map(jnp.asarray, log_u)))
  state = state._replace(
    sample=state.sample._replace(pair=pair),
    shared=state.shared._replace(xi=Sides(*map(jnp.asarray, xi))),
  )
  ids = np.random.default_rng(4).permutation(NUM_PAIRS)[:20].reshape(2, 10)
  found = steps.mean_gradient(
    objective, params, state, Sides(*map(jnp.asarray, vectors)), ids
  )
  expected = [by_hand(vectors, x, zeta, log_u, xi, 0.7) for x in ids]
  expected = np.mean(expected, axis=0)
  np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("with_positive", [True, False])
def test_the_reference_is_one_batch_of_all_pairs(given, with_positive, x64):
  vectors, zeta, log_u, xi = given
  xi = xi if with_positive else np.full(2, np.inf)
  unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
  found = steps.of_all_pairs(
    Sides(*map(jnp.asarray, unit)), TAU, Sides(*zeta), Sides(*xi)
  )
  everything = np.arange(NUM_PAIRS)
  expected = by_hand(unit, everything, zeta, log_u, xi)
  np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


def test_steps_with_averages_that_are_right_are_unbiased(final):
  """As gamma -> 0 nothing of a batch's estimate is in its denominator."""
  rng = np.random.default_rng(0)
  zeta = Sides(*np.float32(TAU * rng.normal(size=(2, NUM_PAIRS))))
  xi = each(lambda x: np.abs(x).max(), zeta)
  vectors = Sides(*map(jnp.asarray, final))
  target = steps.of_all_pairs(vectors, TAU, zeta, xi)

  def error(gamma, more=0.0):
    objective = objectives.nuclr(
      num_pairs=NUM_PAIRS,
      temperature=TAU,
      gamma=gamma,
      zeta=zeta_rules.fixed(init=zeta),
    )
    params, state = objective.init()
    state = steps.with_exact_u(objective, params, state, vectors)
    pair = state.sample.pair
    pair = pair._replace(log_u=each(lambda x: x + more, pair.log_u))
    state = state._replace(sample=state.sample._replace(pair=pair))
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(steps, "NUM_EPOCHS", 200)
      row = steps.scores(
        objective, params, state, final, target, batch_size=8, seed=0
      )
    return row["step"]["image"], row["angle"]["image"]

  assert max(error(1e-6)) < 0.06
  assert error(0.8)[0] > 0.1  # the estimate is in the denominator too
  # A much larger denominator: no length, but the direction of equal weights.
  length, angle = error(1e-6, more=5.0)
  assert length > 0.9 and angle < 0.5


def test_two_noises_without_a_bias():
  rng = np.random.default_rng(0)
  noise = rng.normal(size=(2, 10_000))
  target = np.ones(10_000)
  assert steps.relative(*noise, target) < 0.15
  biased = steps.relative(*(noise + 0.5), target)
  assert biased == pytest.approx(0.5, abs=0.08)
  across = np.tile([1.0, -1.0], 5_000)
  tilted = steps.sine(*(noise + 3 * target + 4 * across), target)
  assert tilted == pytest.approx(0.8, abs=0.02)
  assert steps.sine(*(noise + 3 * target), target) < 0.1


@pytest.mark.parametrize("way", ["ζ exact", "queue 25 %", "sample 25 %"])
def test_a_run(way, tmp_path):
  run = plan.make_run(
    plan.DRIFTING, way, 0, tau=0.1, num_pairs=256, num_epochs=2, dim=8
  )
  row = measure.measure(run, Place(tmp_path / "run", tmp_path / "shared"))
  assert set(row["gradient"]) == {"image", "text"}
  for side in ("image", "text"):
    if way == "ζ exact":
      assert row["gradient"][side] < 1e-3
      assert row["r2"][side] > 1 - 1e-6
    else:
      assert 0 < row["gradient"][side] < 2
  if WAYS[way].rule:
    assert row["bytes"]["sample"] == 16 * 256  # zeta and u of both sides


def run_of_steps(way, tmp_path):
  run = plan.make_step_run(
    plan.STEPS,
    way,
    0,
    tau=0.1,
    batch_size=16,
    num_pairs=256,
    num_epochs=2,
    dim=8,
  )
  return measure.measure(run, Place(tmp_path / "run", tmp_path / "shared"))


def test_a_run_whose_steps_are_scored(tmp_path):
  rows = {
    way: run_of_steps(way, tmp_path)
    for way in ("ζ exact", "ζ exact, u exact", "SogCLR", "queue 25 %")
  }
  for way, row in rows.items():
    assert ("whole" in row) == (way != "ζ exact, u exact")
    for side in ("image", "text"):
      assert 0 < row["angle"][side] <= row["step"][side] * 1.05 < 1, way
  for side in ("image", "text"):
    whole = {k: x["whole"][side] for k, x in rows.items() if "whole" in x}
    assert whole["ζ exact"] < 1e-5
    assert whole["queue 25 %"] < whole["SogCLR"]


def test_costs(tmp_path):
  def count(way):
    run = plan.make_run(plan.COSTS, way, 0, tau=0.1, num_pairs=256, trace=True)
    return measure.measure(run, Place(tmp_path, tmp_path))

  none, sogclr, queue = map(count, ("ζ = 0", "SogCLR", "queue 25 %"))
  product = 2 * 16**2 * plan.DIM
  assert none["flops"] == sogclr["flops"] == 3 * product
  # One product more for each side, of the batch and the memory.
  assert queue["flops"] == none["flops"] + 2 * product * 64 / 16
  assert none["bytes"]["sample"] == 2 * sogclr["bytes"]["sample"] == 16 * 256
  assert queue["bytes"]["memory"] == 64 * (8 * plan.DIM + 28)


def measure_gains(n, *, batch_size):
  """What measures the gain of zeta of pairs out of `n`."""
  return jax.jit(
    functools.partial(
      diagnostics.measure, sizes=Sizes(n, n, n), batch_size=batch_size
    )
  )


def gains(run, pairs, zeta, tau):
  """The gain of zeta of texts, and the two ends of its interval."""
  read = Readout(temperature=jnp.float32(tau), zeta=each(jnp.asarray, zeta))
  found = run(pairs, read)
  names = "zeta_gain", "zeta_gain_low", "zeta_gain_high"
  return tuple(float(found[f"{name}/text"]) for name in names)


def test_a_sample_tells_good_popularities_from_bad():
  """The gain of a third of generated pairs is that of all of them."""
  n, tau = 2304, 0.04
  image, text = data.generate(num_pairs=n, dim=32, seed=0)
  exact = popularity.solve(image, text, temperature=tau).zeta
  ids = np.random.default_rng(0).permutation(n)
  run = measure_gains(n, batch_size=256)
  found = []
  for factor in (1.0, 0.7, 0.3, -1.0):
    zeta = each(lambda x, f=factor: f * x, exact)
    of_all, of_part = (
      gains(run, Pairs(image[rows], text[rows], jnp.asarray(rows)), zeta, tau)
      for rows in (ids, ids[:768])
    )
    whole, low, high = of_all
    assert low == pytest.approx(whole, rel=1e-3)
    assert high == pytest.approx(whole, rel=1e-3)
    part, low, high = of_part
    assert part == pytest.approx(whole, abs=0.15 * max(1, abs(whole)))
    assert low < whole < high + 1e-3
    found.append((whole, part))
  assert found[0][0] > 0.99 and found[-1][0] < -1
  assert high < 0  # the alarm of the last, which is worse than none
  for column in zip(*found, strict=True):
    assert list(column) == sorted(column, reverse=True)


def test_gain_of_a_small_queue_is_what_the_gradient_gains():
  """A tenth of the pairs judges the zeta of a memory of 0.6 % of them."""
  n, tau, batch = 3072, 0.04, 16
  final = data.generate(num_pairs=n, dim=32, seed=0)
  exact = popularity.solve(*final, temperature=tau, tolerance=1e-3).zeta
  ids = np.random.default_rng(0).permutation(n)[:320]
  values = dict(num_pairs=n, dim=32, temperature=tau, drift=False)
  values |= dict(batch_size=batch, num_epochs=6)

  def follow(way):
    *_, state = measure.follow(values | {"way": way}, final, exact, seed=0)
    return measure.zeta_of(state, n)

  def error(zeta):
    row = measure.scores(final, values, zeta, None, exact, seed=0)
    return row["gradient"]["text"]

  small = follow("queue 0.6 %")
  zetas = {
    "exact": Sides(*exact),
    "quarter": follow("queue 25 %"),
    "small": small,
    "none": each(np.zeros_like, small),
    "of another pair": each(lambda x: np.roll(x, 1), small),
  }
  run = measure_gains(n, batch_size=batch)
  pairs = Pairs(final.image[ids], final.text[ids], jnp.asarray(ids))
  none, found = error(zetas["none"]), {}
  for name, zeta in zetas.items():
    found[name], *_ = gains(run, pairs, zeta, tau)
    gain = 1 - error(zeta) / none
    # Below 0, only the sign counts.
    assert found[name] < -0.2 or found[name] == pytest.approx(gain, abs=0.25)
    assert gain > -0.1 or found[name] < -0.2, name
  assert list(found.values()) == sorted(found.values(), reverse=True), found
  assert found["small"] > 0.3 and found["of another pair"] < -0.2, found
  assert len(set(found.values())) == len(found)

"""Diagnostics of a run against loops; what they warn of; the pace."""

import functools
import logging
import math
import re

import jax
import jax.numpy as jnp
import make_pairs
import numpy as np
import pytest

from nuclr_jax import Pairs, objectives, popularity, sharding
from nuclr_jax.lab import progress
from nuclr_jax.lab.report import health
from nuclr_jax.lab.train import diagnostics, records
from nuclr_jax.lab.train.diagnostics import Scale
from nuclr_jax.objectives import Readout, zeta_rules
from nuclr_jax.pairwise import unit_norm
from nuclr_jax.types import Sides, Sizes, each

N, BATCH, TAU = 64, 8, 0.2
SIZES = Sizes(N, N, 12)
ONLY_TAU = Readout(temperature=TAU)


def some(num_batches=3):
  """Pairs that share captions, and a state with zeta and a u of most."""
  rng = np.random.default_rng(0)
  pairs = make_pairs.make_pairs(
    3, batch=num_batches * BATCH, num_pairs=N, num_texts=12
  )
  zeta = Sides(*(0.1 * rng.normal(size=n) for n in SIZES.ids))
  objective = objectives.nuclr(
    num_pairs=N,
    num_texts=12,
    temperature=TAU,
    zeta=zeta_rules.fixed(init=zeta),
  )
  _, state = objective.init()
  log_u = Sides(*rng.normal(size=(2, N)))
  log_u.image[: N // 2] = -np.inf
  of_pairs = state.sample.pair._replace(log_u=Sides(*map(jnp.asarray, log_u)))
  return pairs, state._replace(sample=state.sample._replace(pair=of_pairs))


def readout(state):
  """What NUCLR's readout is of this state."""
  sample = state.sample
  return Readout(
    temperature=jnp.asarray(TAU),
    log_u=sample.pair.log_u,
    zeta=Sides(sample.image.zeta, sample.text.zeta),
  )


def measure(pairs, readout, sizes=SIZES):
  run = functools.partial(diagnostics.measure, sizes=sizes, batch_size=BATCH)
  found = jax.jit(run)(pairs, readout)
  return {name: float(x) for name, x in found.items()}


def loops(pairs, state):
  """The numbers again, pair by pair."""
  rows, found = range(len(pairs.pair_id)), {}
  scale = (N - 1) / (len(rows) - 1)
  vectors = {"image": np.asarray(pairs.image), "text": np.asarray(pairs.text)}
  ids = dict(zip(Sides._fields, map(np.asarray, pairs.ids), strict=True))
  negative = lambda i, j: all(ids[s][i] != ids[s][j] for s in ids)
  found["alignment"] = np.mean(
    [vectors["image"][i] @ vectors["text"][i] for i in rows]
  )
  for side, other in (("image", "text"), ("text", "image")):
    x, y = vectors[side], vectors[other]
    found[f"mean_cosine/{side}"] = np.mean(
      [x[i] @ x[j] for i in rows for j in rows if i != j]
    )
    values = np.linalg.eigvalsh(np.cov(x.T))
    found[f"dimensions/{side}"] = values.sum() ** 2 / (values**2).sum()
    zeta = np.asarray(getattr(state.sample, other).zeta)[np.asarray(ids[other])]

    def exp_logit(i, j, zeta, x=x, y=y):
      return np.exp((x[i] @ y[j] - x[i] @ y[i] - zeta[j]) / TAU)

    effective, drift = [], []
    for i in rows:
      first = i // BATCH * BATCH
      e = [
        exp_logit(i, j, zeta)
        for j in range(first, first + BATCH)
        if negative(i, j)
      ]
      effective.append(np.sum(e) ** 2 / np.sum(np.square(e)))
      log_u = float(getattr(state.sample.pair.log_u, side)[pairs.pair_id[i]])
      phi = scale * sum(exp_logit(i, j, zeta) for j in rows if negative(i, j))
      if np.isfinite(log_u):
        drift.append(log_u - np.log(phi))
    found[f"effective_negatives/{side}"] = np.mean(effective)
    found[f"u_drift/{side}"] = np.mean(drift)
    found[f"temperature/{side}"] = TAU
    estimates = []
    for z in (zeta, 0 * zeta):

      def squares(some, z=z, exp_logit=exp_logit, other=other):
        """The squares from some of the pairs, free of the anchors' noise."""
        scale, k = (N - 1) / (len(some) - 1), diagnostics.GROUPS
        own, sums = {}, {}
        total = {
          i: np.exp(-z[i] / TAU)
          + scale * sum(exp_logit(i, j, z) for j in some if negative(i, j))
          for i in some
        }
        for j in some:
          own[j] = np.exp(-z[j] / TAU) / total[j]
          sums[j] = np.zeros(k)
          for place, i in enumerate(some):
            if negative(i, j):
              sums[j][place % k] += scale * exp_logit(i, j, z) / total[i]
        square = {}
        for j in some:
          same = [x for x in some if ids[other][x] == ids[other][j]]
          mean = np.mean([sums[x] for x in same], axis=0)
          off = 1 - np.mean([own[x] for x in same]) - mean.sum()
          noise = k * np.sum((mean - mean.mean()) ** 2) / (k - 1)
          square[j] = off**2 - (1 - 1 / scale) * noise
        return np.array([square[j] for j in sorted(square)])

      whole, halves = squares(rows), np.zeros(len(rows))
      halves[::2], halves[1::2] = squares(rows[::2]), squares(rows[1::2])
      unseen = 1 - len(rows) / N
      estimates.append((whole, whole + unseen * (whole - halves)))
    (a0, a), (b0, b) = estimates
    ratio, m = a.mean() / b.mean(), len(rows)

    def error(x, unseen=unseen, other=other, m=m):
      totals = {}
      for j in rows:
        block = int(ids[other][j]) % diagnostics.BLOCKS
        totals[block] = totals.get(block, 0) + x[j] / m
      return 1.96 * np.sqrt(unseen * sum(v**2 for v in totals.values()))

    def noise(x, x0, error=error):
      return error(x - x.mean()) + abs(x.mean() - x0.mean())

    off = error(a - ratio * b) / b.mean() + abs(ratio - a0.mean() / b0.mean())
    gain = lambda ratio: 1 - np.sqrt(max(ratio, 0))
    if b.mean() < noise(b, b0):
      gain = lambda ratio: np.nan
    found |= {
      f"zeta_residual/{other}": np.sqrt(a.mean() if a.mean() > 0 else np.nan),
      f"zeta_noise/{other}": np.sqrt(noise(a, a0)),
      f"zeta_gain/{other}": gain(ratio),
      f"zeta_gain_low/{other}": gain(ratio + off),
      f"zeta_gain_high/{other}": gain(ratio - off),
    }
  return found


@pytest.mark.parametrize(
  ("num_devices", "num_batches"), [(1, 3), (8, 6), (1, 8)]
)
def test_measure_against_loops(num_devices, num_batches, x64):
  pairs, state = some(num_batches)
  with jax.set_mesh(sharding.make_mesh(num_devices)):
    found = measure(pairs, readout(state))
  expected = loops(pairs, state)
  assert set(found) == set(expected)
  for name, value in expected.items():
    assert found[name] == pytest.approx(value, rel=1e-9, nan_ok=True), name
  # Of 64 pairs, 24 do not tell how far zeta = 0 is off, and 64 do.
  assert np.isnan(found["zeta_gain/text"]) == (num_batches == 3)


def test_state_is_compared_with_relative_similarities(x64):
  """Alignment and collapse stay those of the model's own embeddings."""
  pairs, state = some()
  rows = (make_pairs.unit_rows(key, len(pairs.pair_id), 5) for key in (7, 8))
  reference = Sides(*map(jnp.asarray, rows))
  found = diagnostics.measure(
    pairs, readout(state), sizes=SIZES, batch_size=BATCH, reference=reference
  )
  plain = loops(pairs, state)
  expected = loops(objectives.relative_to(pairs, reference), state)
  own = ("alignment", "mean_cosine", "dimensions")
  expected |= {k: x for k, x in plain.items() if k.startswith(own)}
  for name, value in expected.items():
    assert found[name] == pytest.approx(value, rel=1e-9, nan_ok=True), name


measure_jitted = jax.jit(
  diagnostics.measure, static_argnames=("sizes", "batch_size")
)


def gains(pairs, zeta, tau, sizes, batch_size):
  """The gain of zeta of texts, and the two ends of its interval."""
  read = Readout(temperature=jnp.float32(tau), zeta=each(jnp.asarray, zeta))
  found = measure_jitted(pairs, read, sizes=sizes, batch_size=batch_size)
  names = "zeta_gain", "zeta_gain_low", "zeta_gain_high"
  return tuple(float(found[f"{name}/text"]) for name in names)


def test_a_gain_below_the_noise_is_not_a_gain_of_one():
  """Of 32 clusters of 32 pairs, a sample has to see several of each."""
  n, tau, rng = 1024, 0.05, np.random.default_rng(0)
  centre = np.repeat(rng.normal(size=(n // 32, 16)), 32, axis=0)
  image, text = (
    unit_norm(jnp.float32(centre + 0.4 * rng.normal(size=centre.shape)))
    for _ in range(2)
  )
  exact = popularity.solve(image, text, temperature=tau, tolerance=1e-2).zeta
  ids = np.random.default_rng(1).permutation(n)
  half = each(lambda x: x / 2, exact)

  def gain(count):
    rows = ids[:count]
    pairs = Pairs(image[rows], text[rows], jnp.asarray(rows))
    return gains(pairs, half, tau, Sizes(n, n, n), 64)

  whole, *_ = gain(n)
  assert whole == pytest.approx(0.5, abs=0.05)
  assert np.isnan(gain(128)).all()
  found, low, high = gain(256)
  assert low < whole < high and abs(found - whole) < 0.25


def test_what_is_below_the_noise_is_told(tmp_path):
  found = {
    "zeta_noise/text": 0.3,
    "zeta_gain/text": math.nan,
    "dimensions": 9.0,
  }
  kept = diagnostics.without_noise(found)
  assert kept == {"zeta_noise/text": 0.3, "dimensions": 9.0}
  row = {f"diagnostics/{name}": x for name, x in kept.items()} | {"step": 7}
  told = "how good zeta of texts is cannot be told from the sample"
  assert told in health.section([row], [], tmp_path, Scale(64))
  row |= {"diagnostics/zeta_gain_low/text": 0.4}
  page = health.section([row], [], tmp_path, Scale(64))
  assert told not in page and "its gain is at least 0.40" in page
  row |= {"diagnostics/zeta_gain/text": 0.5}
  page = health.section([row], [], tmp_path, Scale(64))
  assert "warn of nothing" in page
  # What is not a number for another reason still ends a run.
  wrong = {"zeta_noise/text": math.nan}
  assert diagnostics.without_noise(wrong).keys() == wrong.keys()


def test_exact_popularities_have_no_residual(x64):
  pairs = make_pairs.make_pairs(5, batch=32, num_pairs=32)
  pairs = pairs._replace(pair_id=jnp.arange(32))
  solved = popularity.solve(
    pairs.image, pairs.text, temperature=TAU, tolerance=1e-9
  )
  objective = objectives.nuclr(
    num_pairs=32, temperature=TAU, zeta=zeta_rules.fixed(init=solved.zeta)
  )
  state = objective.init()[1]
  log_u = Sides(*map(jnp.asarray, solved.log_u))
  sample = state.sample._replace(pair=state.sample.pair._replace(log_u=log_u))
  state = state._replace(sample=sample)
  found = measure(pairs, readout(state), sizes=Sizes(32, 32, 32))
  for side in Sides._fields:
    assert found[f"zeta_residual/{side}"] < 1e-8
    assert found[f"zeta_gain/{side}"] > 0.999
    # The sample is the data set, and u is exact as well.
    assert abs(found[f"u_drift/{side}"]) < 1e-8
  messages = diagnostics.find_alarms(found, Scale(8))
  assert not [x for x in messages if "zeta" in x]


def test_without_temperature_or_state():
  pairs, _ = some()
  names = {x.split("/")[0] for x in measure(pairs, Readout())}
  assert names == {"alignment", "mean_cosine", "dimensions"}
  names |= {"temperature", "effective_negatives"}
  assert {x.split("/")[0] for x in measure(pairs, ONLY_TAU)} == names


def test_collapse_is_finite():
  x = jnp.ones((16, 4))
  found = measure(Pairs(x, x, jnp.arange(16)), ONLY_TAU)
  assert all(np.isfinite(list(found.values())))
  assert found["mean_cosine/image"] == pytest.approx(1)
  assert found["dimensions/text"] == 0
  assert found["effective_negatives/text"] == pytest.approx(7)


@pytest.mark.parametrize(
  ("name", "fine", "wrong", "text"),
  [
    ("mean_cosine", 0.5, 0.95, "nearly all the same .mean cosine 0.95"),
    ("dimensions", 12.0, 1.2, "1.2 dimensions"),
    ("effective_negatives", 9.0, 1.1, "see 1.1 negatives"),
    ("effective_negatives", 9.0, 62.0, "alike .62.0"),
    ("temperature", 0.07, 0.001, "is 0.001, outside"),
    ("temperature", 0.07, 3.0, "is 3, outside"),
    ("u_drift", 1.3, -2.5, "-2.5 nats"),
    ("zeta_gain_high", 0.1, -0.5, "worse than none .its gain is at most -0.50"),
  ],
)
def test_alarms(name, fine, wrong, text):
  def find(value):
    metrics = {"loss": 1.0, f"diagnostics/{name}/text": value}
    return diagnostics.find_alarms(metrics, Scale(64))

  assert find(fine) == []
  (message,) = find(wrong)
  assert "texts" in message
  assert re.search(text, message)


def test_two_labels_are_no_collapse():
  """Around two points, embeddings have one dimension, and may be unbalanced."""
  found = {"mean_cosine/text": 0.92, "dimensions/text": 1.0}
  assert len(diagnostics.find_alarms(found, Scale(64))) == 2
  assert diagnostics.find_alarms(found, Scale(64, num_points=2)) == []
  assert len(diagnostics.find_alarms(found, Scale(64, num_points=4))) == 2
  (message,) = diagnostics.find_alarms({"dimensions/text": 0.0}, Scale(64, 2))
  assert "collapse" in message


def test_pace(monkeypatch, caplog):
  now = [0.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  clock = progress.start_clock(num_steps=100, batch_size=8)

  def spend(part, seconds):
    with clock.during(part):
      now[0] += seconds

  spend("data", 50.0)  # before the first line: compilation is not counted
  assert clock.show(10, 2.0) == {}
  spend("data", 2.0)
  spend("evaluation", 5.0)
  now[0] += 3.0  # steps
  with caplog.at_level(logging.INFO, "nuclr_jax"):
    found = clock.show(20, 1.0)
  assert found == pytest.approx(
    {
      "pairs_per_second": 16.0,  # 10 steps in 5 s
      "share/data": 0.2,
      "share/evaluation": 0.5,
      "share/saving": 0.0,
      "share/step": 0.3,
    }
  )
  *_, line = caplog.messages
  assert "step 20/100 (20 %)  loss 1.0000  2.0 steps/s  16 pairs/s" in line
  assert "(20 % data, 50 % evaluation)  ETA 1:20" in line


def test_a_recorder_continues_where_it_was(tmp_path):
  for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):
    with records.open_recorder(tmp_path, start_step=start) as recorder:
      for step in steps:
        recorder.write(step, {"a": step + 10.0 * start})
        recorder.write_times(step, {"pairs_per_second": 5.0})
  found = records.read_history(tmp_path)
  assert [x["a"] for x in found] == [1.0, 2.0, 23.0, 24.0]
  times = records.read_history(tmp_path, records.TIMES)
  assert [x["step"] for x in times] == [1, 2, 3, 4]

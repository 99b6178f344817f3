"""The study of experiments/icons: what it runs, and how it is counted."""

import doctest
import types

import jax
import jax.numpy as jnp
import make_icons
import make_pairs
import numpy as np
import optax
import pytest
import scipy.stats

from experiments.harness import Place, Results, command, runner, training
from experiments.harness.rows import FILE, index, read
from experiments.icons import __main__ as main
from experiments.icons import (
  arms,
  exact_u,
  figures,
  frozen,
  judged,
  measure,
  plan,
  planted,
  reference,
  scores,
  stated,
  tables,
  zeta,
)
from nuclr_jax import Pairs, Sides, popularity
from nuclr_jax.lab.data import embeddings
from nuclr_jax.lab.evaluate import recall_by_origin
from nuclr_jax.lab.evaluate.evaluators import Embed
from nuclr_jax.lab.evaluate.retrieval import retrieval_evaluator
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.settings import resolve
from nuclr_jax.objectives import Readout, nuclr, sogclr
from nuclr_jax.pairwise import unit_norm
from nuclr_jax.sample_state import zeta_rules
from nuclr_jax.types import Sizes

OPTIONS = command.parse_arguments(main.STUDY, [])
SMOKE = command.parse_arguments(main.STUDY, ["--smoke"])
SCALE = plan.Scale()


def row(recall):
  return {plan.CRITERION: recall}


def done(options, recall=lambda run: 0.1):
  """Plays the whole study; returns its rows."""
  rows = {}
  while left := [x for x in plan.plan(options, rows) if x.key not in rows]:
    rows |= {run.key: row(recall(run)) for run in left}
  return rows


def test_the_first_runs_are_the_trials_of_the_learning_rate():
  runs = plan.plan(OPTIONS, {})
  assert {run.part for run in runs} == {plan.RATE} and len(runs) == 9
  assert {run.seed for run in runs} == {100}


def test_all_arms_are_tuned_alike_and_compared_on_other_seeds():
  best = {"clip": 0.05, "fastclip_v3": 4.0}

  def recall(run):
    words = dict(run.values)
    value = words.get(arms.TAU, words.get(arms.RHO))
    right = value == best.get(words["arm"], 0.08)
    return 0.3 + 0.1 * right + 0.01 * (words["rate"] == 2e-3)

  rows = done(OPTIONS, recall)
  assert plan.best_rate(SCALE, rows) == 2e-3
  for name, arm in arms.ARMS.items():
    assert len(plan.trials(SCALE, name, rows)) == 4
    assert len(plan.finals(SCALE, name, rows)) == 2
    if arm.tuned == arms.TAU:
      assert plan.tuned(SCALE, name, rows) == best.get(name, 0.08)
  compared = plan.comparison(SCALE, rows)
  assert set(compared) == set(arms.ARMS)
  for group in compared.values():
    assert [run.seed for run in group] == list(range(5))
  for run in plan.plan(OPTIONS, rows):
    assert dict(run.values)["test"] == (run.seed < 100)


def test_the_rates_of_a_batch_size_are_wider_while_the_best_is_at_an_end():
  best = {16: 0.125, 64: 1.0, 256: 4.0, 512: 100.0, 1024: 0.0}

  def recall(run):
    words, factor = dict(run.values), best.get(dict(run.values)["batch"], 1.0)
    root = (words["batch"] / 128) ** 0.5
    rate = words["rate"] / (2e-3 * root)
    return -abs(np.log(rate / factor)) if factor else -rate

  rows, expected = (
    done(OPTIONS, recall),
    {
      16: (0.125, 0.25, 0.5, 1.0, 2.0),
      64: (0.5, 1.0, 2.0),
      256: (0.5, 1.0, 2.0, 4.0, 8.0),
      512: (0.5, 1.0, 2.0, 4.0, 8.0),
      1024: (0.125, 0.25, 0.5, 1.0, 2.0),
    },
  )
  for size, factors in expected.items():
    found = plan.batch_trials(SCALE, "clip", size, rows)
    assert tuple(found) == factors
    runs = plan.at_batch(SCALE, size, rows)["clip"]
    won = np.clip(best[size], 1 / 8, 8) * 2e-3 * (size / 128) ** 0.5
    assert dict(runs[0].values)["rate"] == pytest.approx(won, rel=0.01)


def test_the_table_is_at_a_few_sizes_and_unmarked():
  rows = done(OPTIONS)
  for size in (16, 64, 128, 256, 512, 1024):
    of_size = set(plan.at_batch(SCALE, size, rows))
    assert of_size >= set(plan.BATCH_ARMS)
    assert ("scent" in of_size) == (size in (64, 128, 512))
  seeds = {
    name: [run.seed for run in runs]
    for name, runs in plan.comparison(SCALE, rows, plan.UNMARKED).items()
  }
  assert set(seeds) == {*SCALE.first, *plan.TABLE}
  assert seeds["clip"] == [0, 1, 2, 3, 4] and seeds["neuclip"] == [0, 1, 2]
  at = [
    i
    for i, run in enumerate(plan.plan(OPTIONS, rows))
    for words in [dict(run.values)]
    if words["arm"] in plan.TABLE
    if words["batch"] != 128
    or not (words["marked"] or words["arm"] in SCALE.first)
  ]
  # Three seeds at two sizes and unmarked; two arms are of the first ones, too.
  assert len(at) == 9 * len(plan.TABLE) - 2 * 3
  assert at == list(range(len(rows) - len(at), len(rows)))


def test_the_full_size_has_the_settings_of_half_of_it():
  rows = done(OPTIONS)
  full, half = (plan.comparison(SCALE, rows, x) for x in (plan.FULL, plan.MAIN))
  assert tuple(full) == plan.FULL_ARMS
  for name, runs in full.items():
    assert all(run.key in rows for run in runs)
    for ours, theirs in zip(runs, half[name], strict=True):
      assert ours.seed == theirs.seed
      assert dict(ours.values) == dict(theirs.values) | {"size": "full"}


def test_the_rest_of_the_table_has_the_rate_of_four_arms():
  rows = done(OPTIONS)
  for size in (64, 512):
    groups = plan.at_batch(SCALE, size, rows)
    factor = plan.shared_factor(SCALE, size, rows)
    rate = plan.rate_at(SCALE, size, rows, factor)
    for name in plan.TABLE:
      words = [dict(run.values) for run in groups[name]]
      assert [run.seed for run in groups[name]] == [0, 1, 2]
      assert {(x["rate"], x["batch"]) for x in words} == {(rate, size)}
      assert all(run.key in rows for run in groups[name])
    planned = (dict(run.values) for run in plan.plan(OPTIONS, rows))
    tried = {
      x["rate"] for x in planned if x["arm"] == "siglip" and x["batch"] == size
    }
    assert tried == {rate}
  assert not set(plan.TABLE) & set(plan.at_batch(SCALE, 256, rows))


def test_large_batches_in_pieces_of_the_small_ones():
  rows = done(OPTIONS)
  pieces = plan.in_pieces(SCALE, rows)
  assert tuple(pieces) == plan.AVERAGED_ARMS
  whole = plan.at_batch(SCALE, 512, rows)
  for name, runs in pieces.items():
    for run, theirs in zip(runs, whole[name], strict=True):
      words = dict(run.values)
      assert words.pop("pieces") == 8 and words == dict(theirs.values)
      assert run.key != theirs.key
      config, of_whole = map(measure.make_config, (run, theirs))
      assert config.num_microbatches == 8 and of_whole.num_microbatches == 1
      config.num_microbatches = 1
      assert config == of_whole


def test_steps_have_the_mean_gradient_of_some_batches():
  """At the learning rate of as many pairs, in as many epochs."""
  rows = done(OPTIONS)
  trials = plan.batch_trials(SCALE, "clip", 64, rows, 8)
  at_512 = plan.batch_trials(SCALE, "clip", 512, rows)
  for (one,), (other,) in zip(trials.values(), at_512.values(), strict=False):
    words, theirs = dict(one.values), dict(other.values)
    assert words["rate"] == theirs["rate"] and theirs["batch"] == 512
    assert (words["batch"], words["averaged"]) == (64, 8)
  config = measure.make_config(trials[1.0][0])
  config.optimizer.learning_rate.value = 1.0  # sizes of updates tell the rate
  sizes = Sizes(128_000, 128_000, 50_000)
  settings = resolve(config)
  parts = types.SimpleNamespace(
    settings=settings,
    data=types.SimpleNamespace(train=types.SimpleNamespace(sizes=sizes)),
  )
  ours = measure.averaged(parts, 8)
  plain = settings.optimizer(num_steps=1_000, steps_per_epoch=250)
  random = np.random.default_rng(0)
  params = {"w": jnp.asarray(random.normal(size=(3, 2)), jnp.float32)}
  state, reference = ours.init(params), plain.init(params)
  for _ in range(3):
    gradients = jnp.asarray(random.normal(size=(8, 3, 2)), jnp.float32)
    for i, gradient in enumerate(gradients):
      update, state = ours.update({"w": gradient}, state, params)
      assert i == 7 or not update["w"].any()
    mean = {"w": gradients.mean(0)}
    expected, reference = plain.update(mean, reference, params)
    np.testing.assert_allclose(update["w"], expected["w"], rtol=1e-4)
    params = optax.apply_updates(params, expected)
  assert np.abs(update["w"]).max() > 0


def test_the_plan_ends_and_has_each_run_once():
  rows = done(OPTIONS)
  keys = [run.key for run in plan.plan(OPTIONS, rows)]
  assert len(keys) == len(set(keys)) == len(rows)
  assert abs(len(keys) - runner.size(main.STUDY, OPTIONS, {})) < 20
  assert 10 < len(done(SMOKE)) < 40


def test_every_arm_builds_an_objective():
  for name, arm in arms.ARMS.items():
    for value in arms.GRIDS[arm.tuned]:
      run = plan.make_run(SCALE, plan.MAIN, name, 0, value=value, rate=2e-3)
      config = measure.make_config(run)
      assert config.batch_size == 128 and config.num_epochs == 4.0
      sizes = dict(num_pairs=128_000, num_images=128_000, num_texts=50_000)
      build.make_objective(
        resolve(config),
        **sizes,
        dim=128,
        num_features=384,
        vocab_size=5_000,
        special_ids=(0,),
        num_steps=4_000,
        steps_per_epoch=1_000,
      )


@pytest.mark.parametrize(
  "name, arm, tau",
  [
    ("decoupled", "sogclr_batch", 0.05),
    ("decoupled_cyclic", "sogclr_batch_cyclic", 0.08),
  ],
)
def test_recommended_configs_are_what_was_measured(name, arm, tau):
  run = plan.make_run(SCALE, plan.MAIN, arm, 0, value=tau, rate=2e-3)
  ours, theirs = training.get_config("icons")(name), measure.make_config(run)
  for key in ("objective", "terms", "model", "batch_size"):
    assert ours[key] == theirs[key]
  rows = index(read(main.STUDY.home / FILE))
  assert plan.tuned(SCALE, arm, rows) == tau


def played(options):
  """Plays the study with scores of four sets of three families."""
  rows = {}
  while left := [x for x in plan.plan(options, rows) if x.key not in rows]:
    for run in left:
      random = np.random.default_rng(len(rows))
      sets = {
        x: [f"family {min(i, 2)}", 10 + i, *random.uniform(size=4).tolist()]
        for i, x in enumerate("abcd")
      }
      found = {"settings": dict(run.values)}
      found |= {"seconds": 9.0, "pairs_per_second": 9}
      for split in ("validation", "test"):
        for part in tables.PARTS_OF_QUERIES:
          for top in (1, 10):
            found[f"{split}/{part}/mean_recall@{top}"] = random.uniform()
      curve = {"step": [1, 2], "loss": [2.0, 1.0]}
      both = {"validation": sets, "test": sets}
      rows[run.key] = found | {"curve": curve, "sets": both}
  return rows


def test_intervals_are_over_families_and_seeds():
  rows = played(OPTIONS)
  groups = plan.comparison(SCALE, rows)
  ours, theirs = groups["sogclr"], groups["clip"]
  mean, low, high = tables.difference(ours, theirs, rows, "test", 10)
  families = ("family 0", "family 1", "family 2")
  gain, queries = np.zeros((5, 3)), np.zeros(3)
  for s, (x, y) in enumerate(zip(ours, theirs, strict=True)):
    a, b = (rows[run.key]["sets"]["test"] for run in (x, y))
    for name in "abcd":
      f = families.index(a[name][0])
      queries[f] += a[name][1] / 5
      r10 = np.mean(a[name][4:]) - np.mean(b[name][4:])
      gain[s, f] += 100 * a[name][1] * r10
  assert mean == pytest.approx(gain.sum() / 5 / queries.sum())
  each = gain.sum(1) / queries.sum()
  seeds = sum((x - mean) ** 2 for x in each) / 4 / 5
  left = [
    np.delete(gain, f, 1).sum() / 5 / np.delete(queries, f).sum()
    for f in range(3)
  ]
  designers = 2 / 3 * sum((x - np.mean(left)) ** 2 for x in left)
  both = seeds + designers
  degrees = both**2 / (seeds**2 / 4 + designers**2 / 2)
  half = scipy.stats.t(degrees).isf(0.025) * both**0.5
  assert (low, high) == pytest.approx((mean - half, mean + half))
  same = tables.difference(theirs, theirs, rows, "test", 1)
  assert same == (0.0, 0.0, 0.0)
  assert tables.difference(ours, theirs[:1], rows, "test", 1) is None


def test_numbers_in_the_text_are_paired_by_seed():
  rows = played(OPTIONS)
  groups = plan.comparison(SCALE, rows)
  looks = plan.comparison(SCALE, rows, plan.LOOKS)
  for i, runs in enumerate(looks.values()):
    for run in runs:
      key, score = "natural/mean_recall@1", 0.1 * i + 0.01 * run.seed
      found = {key: score, f"prior/{key}": score**2}
      rows[run.key]["look"] = {"retrieval": found}
  for run in plan.comparison(SCALE, rows, plan.PLANTED)["sogclr"]:
    rows[run.key]["suspects"] = {
      "match probability": {"precision": 0.01 * run.seed},
      "neighbours: both": {"precision": (0.1 * run.seed) ** 2},
    }
  results = Results(rows=rows, planned=len(rows))
  found = stated.numbers(OPTIONS, results)

  def interval(differences, factor=100, digits=2):
    x = factor * np.array(differences)
    mean, error = x.mean(), x.std(ddof=1) / len(x) ** 0.5
    half = {3: 4.302653, 5: 2.776445}[len(x)] * error  # Student's t
    star = " *" if abs(mean) > half else ""
    low, high = (f"{y:+.{digits}f}" for y in (mean - half, mean + half))
    return f"{mean:+.{digits}f} [{low}, {high}]{star}"

  seen = [
    rows[x.key]["test/seen/mean_recall@1"]
    - rows[y.key]["test/seen/mean_recall@1"]
    for x, y in zip(groups["sogclr"], groups["clip"], strict=True)
  ]
  name = "arms: SogCLR − CLIP: test R@1, seen, seeds alone"
  assert found[name] == interval(seen)
  i = list(looks).index("sogclr")
  gains = [0.1 * i + 0.01 * x - (0.01 * x) ** 2 for x in range(3)]
  name = "zeta: SogCLR: E − CLIP, E + τ log p: natural R@1, seeds alone"
  assert found[name] == interval(gains)
  gains = [0.01 * x**2 - 0.01 * x for x in range(3)]
  both = "planted: SogCLR: neighbours: both − match probability"
  name = f"{both}: precision at 5 %, seeds alone"
  assert found[name] == interval(gains, factor=1, digits=4)
  assert found[f"{both}: area, ROC, seeds alone"] == tables.MISSING
  of_arms = [
    [
      100 * rows[run.key]["validation/natural/mean_recall@1"]
      for (run,) in plan.trials(SCALE, x, rows).values()
    ]
    for x in SCALE.first
  ]
  best = [max(x) for x in of_arms]
  assert found["tuning: R@1: arms: range, tuned"] == f"{np.ptp(best):.2f}"
  range_of_tau = f"{np.mean([np.ptp(x) for x in of_arms]):.2f}"
  assert found["tuning: R@1: τ: range in an arm"] == range_of_tau


def test_tables_need_no_rows():
  rows = played(OPTIONS)
  some = dict(list(rows.items())[: len(rows) // 3])
  for found in ({}, some, rows):
    results = Results(rows=found, planned=len(rows))
    made = tables.tables(OPTIONS, results)
    assert all(made.values()) and "nan" not in "".join(made.values())
    assert made["arms"].count("\n") == 1 + len(tables.begun(found))
    for label in (arm.label for arm in arms.ARMS.values()):
      begun = f"\n| {label} |" in made["arms"]
      assert begun != (not found or f" {label}" in made["status"])
    assert ("| – |" in made["arms"]) == (found is some)
    for figure in figures.figures(OPTIONS, results).values():
      figure.canvas.draw()
    stated.numbers(OPTIONS, results)
  rows = played(SMOKE)
  tables.tables(SMOKE, Results(rows=rows, planned=len(rows)))


def test_exact_u_sums_over_all_pairs():
  random = np.random.default_rng(0)
  text_id = random.integers(0, 9, 40)
  image = make_pairs.unit_rows(0, 40, 6)
  text = make_pairs.unit_rows(1, 9, 6)[text_id]
  pairs = Pairs(image, text, np.arange(40)[::-1], np.arange(40), text_id)
  found = exact_u.exact_u(pairs, 0.2)
  logits = (image @ text.T - np.sum(image * text, 1)[:, None]) / 0.2
  theirs = (text @ image.T - np.sum(image * text, 1)[:, None]) / 0.2
  is_negative = text_id[:, None] != text_id
  for log_u, x in zip(found.log_u, (logits, theirs), strict=True):
    expected = np.log(np.sum(np.exp(x) * is_negative, 1))
    np.testing.assert_allclose(log_u, expected, rtol=1e-5)
  assert not any(x.any() for x in found.zeta)
  np.testing.assert_array_equal(found.pair_id, pairs.pair_id)


def test_sogclr_with_the_weight_of_nuclr_is_nuclr_without_zeta():
  """So the study has no arm of its own for it."""
  random = np.random.default_rng(0)
  image, text = unit_norm(jnp.array(random.normal(size=(2, 8, 4)), float))
  found = []
  for objective in (
    sogclr(num_pairs=20, temperature=0.1, positive_weight=1.0),
    nuclr(num_pairs=20, temperature=0.1, zeta=zeta_rules.fixed()),
  ):
    params, state = objective.init()

    def loss(image, text, params=params, state=state, apply=objective.apply):
      return apply(params, state, Pairs(image, text, jnp.arange(8)))[0]

    found.append(jax.jit(jax.grad(loss, (0, 1)))(image, text))
  for x, y in zip(*found, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def place(icons):
  return Place(icons / "run", icons / "shared", str(icons))


@pytest.fixture
def drawn(monkeypatch, no_diagnostics):
  """Makes every config name the drawn stand-in, with one stage of layers."""
  make_config = measure.make_config

  def of_drawn(run):
    config = make_config(run)
    config.data.update(version=make_icons.VERSION, size=16)
    if "image" in config.model:
      config.model.image.stages = ((4, 1, 16),)
    else:
      config.model.image_stages = ((4, 1, 16),)
    return config

  monkeypatch.setattr(measure, "make_config", of_drawn)


@pytest.mark.parametrize(
  "name, part",
  [
    ("clip", plan.TUNING),
    ("nuclr_counts", plan.UNMARKED),
    ("nuclr_exact_u", plan.TUNING),
  ],
)
def test_a_run_has_scores_of_every_set_and_of_test_only_if_compared(
  place, drawn, name, part, tmp_path
):
  run = plan.make_run(plan.SMOKE, part, name, 0, value=0.08, rate=2e-3)
  made = measure.measure(run, place._replace(folder=tmp_path))
  splits = ("validation", "test") if part == plan.UNMARKED else ("validation",)
  assert set(made["sets"]) == set(splits)
  assert any(x.startswith("test/") for x in made) == (len(splits) == 2)
  for split in splits:
    sets = np.array([x[1:] for x in made["sets"][split].values()], float)
    natural = (sets[:, :1] * sets[:, 1:]).sum(0) / sets[:, 0].sum()
    for name, found in zip(scores.OF_SETS, natural, strict=True):
      assert made[f"{split}/natural/{name}"] == pytest.approx(found, abs=1e-5)
  assert len(made["curve"]["loss"]) == len(made["curve"]["step"]) > 1
  assert "pairs/s" in measure.describe(made)
  again = measure.measure(run, place._replace(folder=tmp_path))
  assert "pairs_per_second" not in again  # nothing was left to be timed
  assert measure.describe(again).endswith("resumed")


def measured(place, tmp_path, part, name):
  run = plan.make_run(plan.SMOKE, part, name, 0, value=0.08, rate=2e-3)
  return measure.measure(run, place._replace(folder=tmp_path))


@pytest.mark.parametrize("name", ["clip", "nuclr_queue"])
def test_a_trained_model_is_looked_at(place, drawn, tmp_path, name):
  found = measured(place, tmp_path, plan.LOOKS, name)["look"]
  assert found["solve"]["residual"] < 1e-3
  assert ("agreement" in found) == (name == "nuclr_queue")
  for side in Sides._fields:
    errors = found["gradient"][side]
    assert ("stored" in errors) == (name == "nuclr_queue")
    assert set(errors["noise"]) == {"16"}
  for part in ("natural", "balanced"):
    for way in tables.CORRECTIONS.values():
      assert 0 <= found["retrieval"][f"{way}{part}/mean_recall@10"] <= 1


def test_wrong_names_are_planted_and_ranked(place, drawn, tmp_path):
  found = measured(place, tmp_path, plan.PLANTED, "clip")["suspects"]
  assert set(found) == set(planted.SCORES)
  run = plan.make_run(plan.SMOKE, plan.MAIN, "clip", 0, value=0.1, rate=1e-3)
  config, everything = measure.make_config(run), np.arange(48)
  source = measure.load_data(config, dict(run.values), place).train
  other, wrong = planted.plant(source, 0.25, seed=3)
  assert wrong.sum() == 12 and other.fingerprint != source.fingerprint
  before, after = source.fetch(everything), other.fetch(everything)
  np.testing.assert_array_equal(after.image, before.image)
  np.testing.assert_array_equal(after.text_id != before.text_id, wrong)
  np.testing.assert_array_equal(after.text_id, other.ids(everything).text)
  names = other.captions(after.text_id)
  np.testing.assert_array_equal(
    after.text,
    measure.training.load_data(config, place.data_dir).tokenizer.encode(names),
  )


def test_a_frozen_encoder_takes_features(place, drawn, tmp_path, monkeypatch):
  config = measure.make_config(
    plan.make_run(plan.SMOKE, plan.MAIN, "clip", 0, value=0.1, rate=1e-3)
  )
  with pytest.raises(ValueError, match="icons_minilm is missing"):
    measured(place, tmp_path, plan.FROZEN, "clip")
  data = measure.training.load_data(config, place.data_dir)
  names = frozen.names_of(data)
  assert len(names) == len(set(names))
  random = np.random.default_rng(0).normal(size=(len(names), 6))
  random = random.astype(np.float32)
  none = np.zeros(len(names), int)
  lookup = embeddings.Lookup(
    [embeddings.Cached(random[:0], random, none, names, tmp_path)]
  )
  monkeypatch.setattr(frozen, "open_features", lambda _: lookup)
  found = measured(place, tmp_path, plan.FROZEN, "clip")
  assert 0 <= found[plan.CRITERION] <= 1
  batch = frozen.with_features(data, lookup).train.fetch(np.array([3]))
  (name,) = data.train.captions(batch.text_id)
  np.testing.assert_array_equal(batch.text[0], random[names.index(name)])


def test_drrho_is_relative_to_a_model_of_the_same_pairs(place, drawn, tmp_path):
  with pytest.raises(ValueError, match="experiments.icons.reference writes it"):
    measured(place, tmp_path / "first", plan.MAIN, "drrho")
  run = plan.make_run(plan.SMOKE, plan.TUNING, "clip", 0, value=0.1, rate=1e-3)
  reference.write(run, place.data_dir)
  found = measured(place, tmp_path / "second", plan.MAIN, "drrho")
  assert 0 <= found[plan.CRITERION] <= 1
  with pytest.raises(ValueError, match="is there already"):
    reference.write(run, place.data_dir)


class TestGradients:
  @pytest.fixture
  def pairs(self):
    random = np.random.default_rng(0)
    image, text = random.normal(size=(2, 40, 6))
    image, text = (
      x / np.linalg.norm(x, axis=1, keepdims=True) for x in (image, text)
    )
    text_id = np.arange(40)
    text_id[5], text[5] = 4, text[4]
    return Pairs(image, text, np.arange(40), np.arange(40), text_id)

  def of(self, pairs, readout, tau=0.2):
    exact = popularity.solve(
      *(pairs.image, pairs.text),
      temperature=tau,
      text_id=pairs.text_id,
      tolerance=1e-5,
    )
    if readout == "exact":
      # `solve` numbers rows of the ids that occur; tables have all ids.
      table = [np.zeros(40, np.float32), np.zeros(40, np.float32)]
      for rows, ids, x in zip(table, exact.ids, exact.zeta, strict=True):
        rows[ids] = x + 0.3  # a constant changes nothing
      shift = 0.3 / tau
      readout = Readout(
        zeta=Sides(*table), log_u=Sides(*(x - shift for x in exact.log_u))
      )
    return zeta.gradients(pairs, exact, readout, tau, seed=0), exact

  def test_they_are_right_with_exact_zeta_and_u(self, pairs):
    found, _ = self.of(pairs, "exact")
    for errors in found.values():
      # What is left is the positive's own term, which the stored ones lack.
      assert errors["zeta"] == pytest.approx(errors["stored"], abs=1e-4)
      assert errors["stored"] < 0.1 and errors["log u"] < 1e-4
      assert errors["noise"]["16"] > errors["stored"]

  def test_those_of_batches(self, pairs):
    found, exact = self.of(pairs, Readout())
    tau, n = 0.2, 40
    sim = pairs.image @ pairs.text.T
    negative = ~(
      (pairs.text_id[:, None] == pairs.text_id) | np.eye(n, dtype=bool)
    )
    z = exact.zeta.text[np.searchsorted(exact.ids.text, pairs.text_id)]

    def gradient(z, rows, own):
      gap = sim[:, rows] - np.diag(sim)[:, None] - z[rows]
      terms = np.where(negative[:, rows], np.exp(gap / tau), 0)
      w = terms / (terms.sum(axis=1) + own)[:, None]
      return w @ pairs.text[rows] - w.sum(axis=1)[:, None] * pairs.text

    target = gradient(z, np.arange(n), np.exp(-z / tau))
    random, steps = np.random.default_rng(7), []
    for _ in range(4_000):
      rows = random.choice(n, 15, replace=False)
      steps.append(gradient(np.zeros(n), rows, 1.0))
    steps = np.array(steps)
    norm = np.linalg.norm(target)
    error = np.linalg.norm(steps.mean(0) - target) / norm
    noise = np.sqrt(steps.var(0).sum()) / norm
    assert found["image"]["batch"]["16"] == pytest.approx(error, rel=0.05)
    assert found["image"]["noise"]["16"] == pytest.approx(noise, rel=0.05)


def test_scores_are_those_of_the_library(place, drawn):
  run = plan.make_run(plan.SMOKE, plan.MAIN, "clip", 0, value=0.1, rate=1e-3)
  config = measure.make_config(run)
  data = measure.load_data(config, dict(run.values), place).sets["test"]
  random = np.random.default_rng(0)
  image = random.normal(size=(len(data.image), 4))
  text = random.normal(size=(len(data.captions), 4))
  embed = Embed(lambda _: image, lambda _: text)
  family = dict.fromkeys(data.origin, "one")
  whole, by_set = scores.scores_of(embed, data, family)
  expected = retrieval_evaluator(data)(embed)
  assert {"natural", "balanced"} <= {x.split("/")[0] for x in whole}
  for name, x in whole.items():
    assert x == pytest.approx(expected[name], abs=1e-6)
  expected = recall_by_origin(embed, data)
  for name, (_, count, *recalls) in by_set.items():
    assert count == sum(x == name for x in data.origin)
    for key, x in zip(scores.OF_SETS, recalls, strict=True):
      assert x == pytest.approx(expected[name][key], abs=1e-6)


def test_half_of_the_pairs_are_numbered_anew(place, drawn):
  run = plan.make_run(plan.SMOKE, plan.MAIN, "clip", 0, value=0.1, rate=1e-3)
  config, words = measure.make_config(run), dict(run.values)
  whole = measure.training.load_data(config, place.data_dir).train
  half = measure.load_data(config, words, place).train
  sizes, ids = half.sizes, half.ids(np.arange(half.sizes.num_pairs))
  assert sizes.num_pairs == 48 and ids.text.max() + 1 == sizes.num_texts
  batch = half.fetch(np.array([5, 3]))
  chosen = np.random.default_rng(plan.KEY).permutation(whole.sizes.num_pairs)
  np.testing.assert_array_equal(batch.image, whole.fetch(chosen[[5, 3]]).image)
  captions = whole.captions(whole.ids(chosen[[5, 3]]).text)
  assert half.captions(batch.text_id) == captions
  full = measure.load_data(config, words | {"size": "full"}, place).train
  assert full.sizes == whole.sizes and measure.subset(whole, None) is whole
  smaller = measure.subset(whole, 10).fetch(np.arange(10))
  np.testing.assert_array_equal(smaller.image, half.fetch(np.arange(10)).image)


def test_examples():
  for module in (arms, judged, planted, tables, zeta):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed

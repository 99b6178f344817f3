"""The study of experiments/bimodal: what it runs, and how it is counted."""

import doctest

import pytest

from experiments.bimodal import __main__ as main
from experiments.bimodal import algorithms, measure, plan, summary, tables
from experiments.bimodal.algorithms import ALGORITHMS, KEYS
from experiments.harness import command, runner
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.settings import resolve

OPTIONS = command.parse_arguments(main.STUDY, [])
OF_THE_RUN = dict(
  num_pairs=43_173, dim=128, num_steps=2_700, steps_per_epoch=337
)
SCALE = plan.Scale()


def row(recall):
  return {plan.CRITERION: recall}


def test_everyone_has_the_same_number_of_trials():
  for name in ALGORITHMS:
    runs = plan.trials(SCALE, name)
    assert len({run.key for run in runs}) == plan.TRIALS
    assert {run.seed for run in runs} == {SCALE.tuning_seeds[0]}


def test_the_best_finalist_on_validation_wins_and_is_used_on_other_seeds():
  trials = plan.trials(SCALE, "clip")
  rows = {run.key: row(0.1 + 0.01 * i) for i, run in enumerate(trials)}
  rows[trials[2].key] = row(0.5)
  rows[trials[8].key] = {"diverged": "step 7 is not finite"}
  finals = plan.finals(SCALE, "clip", rows)
  assert set(finals) == {plan.settings_of(trials[i]) for i in (2, 6, 7)}
  assert plan.best(SCALE, "clip", rows) is None  # the finals are not run yet
  steady = plan.settings_of(trials[6])
  for settings, runs in finals.items():
    assert [run.seed for run in runs] == list(SCALE.tuning_seeds)
    rows |= {
      run.key: row(0.9 if settings == steady else 0.2) for run in runs[1:]
    }
  assert plan.best(SCALE, "clip", rows) == steady  # not the luckiest
  seeds = {run.seed for run in plan.comparison(SCALE, rows)["CLIP"]}
  assert seeds == set(range(8))
  few = plan.comparison(SCALE._replace(seeds=2), rows)["CLIP"]
  assert {run.seed for run in few} == {0, 1}
  del rows[trials[0].key]
  assert plan.best(SCALE, "clip", rows) is None


def test_the_plan_ends():
  """Each run once; what is done opens the rest, and nothing else is left."""
  rows = {}
  while left := [x for x in plan.plan(OPTIONS, rows) if x.key not in rows]:
    rows |= {run.key: row(0.1) for run in left}
  runs = plan.plan(OPTIONS, rows)
  keys = [run.key for run in runs]
  assert len(keys) == len(set(keys)) == len(rows)
  assert abs(len(keys) - runner.size(main.STUDY, OPTIONS, {})) < 20
  assert len({run.part for run in runs}) == 13


def test_a_smoke_run_has_a_bit_of_everything():
  options = command.parse_arguments(main.STUDY, ["--smoke"])
  rows = {}
  while left := [x for x in plan.plan(options, rows) if x.key not in rows]:
    rows |= {run.key: row(0.1) for run in left}
  runs = plan.plan(options, rows)
  assert 20 < len(runs) < 50
  assert {run.part for run in runs} == set(plan.PAIRED)
  assert any("batch_size=64" in run.setting for run in runs)
  for run in runs:
    assert measure.make_config(run).num_epochs < 0.1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_one_of_the_config(name):
  for run in (plan.trials(SCALE, name)[0], plan.trials(SCALE, name)[-1]):
    settings = plan.settings_of(run)
    config = measure.make_config(plan.make_run(SCALE, name, settings, 0, 512))
    assert config.batch_size == 512 and config.seed == 0
    assert config.optimizer.learning_rate.value == pytest.approx(
      2 * dict(settings).get("optimizer.learning_rate.value", 2e-3)
    )
    first = measure.first_temperature(config.objective)
    for word, value in settings:
      if word != "optimizer.learning_rate.value":
        found = config
        for part in algorithms.keys_of(name)[word].split("."):
          found = found[part]
        if word in algorithms.RATES_OF_SIMILARITY:
          found *= first
        assert found == pytest.approx(value)


def test_settings_of_all_runs_are_in_the_studys_words():
  names = set(KEYS) | {"smoke"}
  for options in (OPTIONS, OPTIONS._replace(smoke=True)):
    runs = plan.plan(options, runner.results(main.STUDY, OPTIONS).rows)
    assert len(runs) > 5
    for run in runs:
      assert {word for word, _ in run.values} <= names
      assert run.setting == plan.words(plan.settings_of(run))


def test_examples():
  for module in (plan, algorithms):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_diverged_runs_are_counted_and_not_averaged():
  runs = [plan.make_run(SCALE, "clip", (), seed) for seed in range(3)]
  good = {summary.MEAN: 0.5, plan.CRITERION: 0.6}
  rows = {run.key: good for run in runs[:2]}
  assert summary.seeds(runs, rows) == "2"
  rows[runs[2].key] = {"diverged": "step 7"}
  assert summary.values(runs, rows, summary.MEAN) == {0: 50.0, 1: 50.0}
  assert summary.seeds(runs, rows) == "3 (1 diverged)"
  groups = {"NUCLR": runs, "CLIP": runs[:2]}
  assert tables.gap(groups, "CLIP", rows, summary.MEAN) == "–"
  assert plan.score(runs[2], rows) == -float("inf")
  assert measure.describe(rows[runs[2].key]) == "diverged: step 7"


def test_spread_is_the_learned_over_the_exact_seed_by_seed():
  settings = plan.settings_of(plan.trials(SCALE, "nuclr")[0])
  runs = [plan.make_run(SCALE, "nuclr", settings, seed) for seed in (100, 101)]
  stds = ((0.01, 0.04), (0.03, 0.04))  # learned, exact
  rows = {
    run.key: {"exact/learned_std_text": x, "exact/exact_std_text": y}
    for run, (x, y) in zip(runs, stds, strict=True)
  }
  assert tables.spread(runs, rows, "text") == "0.50 ± 3.18"  # t = 12.706
  assert tables.spread(runs, rows, "image") == "–"
  rows[runs[0].key]["exact/learned_std_text"] = 0.0  # a number, too
  assert tables.spread(runs, rows, "text") == "0.38 ± 4.76"


def test_gamma_1_is_compared_with_rows_of_its_own_kind():
  """With running averages of batch statistics, and not with newer rows."""
  settings = plan.settings_of(plan.trials(SCALE, "sogclr")[0])
  clip, averaged, plain = (
    [plan.make_run(SCALE, name, settings + more, seed) for seed in (0, 1)]
    for name, more in (
      *(("clip", ()), ("sogclr", ())),
      ("sogclr", (("gamma", 1.0),)),
    )
  )
  groups = {
    str(plan.BATCH_SIZE): {"CLIP": clip, "SogCLR": averaged},
    "γ = 1": {"SogCLR": plain},
  }
  rows = {run.key: {summary.MEAN: 0.9} for run in (*clip, *averaged)}
  rows |= {run.key: {summary.MEAN: 0.5} for run in plain}
  old = {run.key: {summary.MEAN: 0.4} for run in clip}
  old |= {run.key: {summary.MEAN: 0.7} for run in averaged}
  found = tables.without_averages(groups, rows, old)
  of = "running averages: "
  ahead = found[f"{of}SogCLR with γ = 1 − CLIP: mean R@1"]
  assert ahead.startswith("+10.0 [")
  behind = found[f"{of}SogCLR − SogCLR with γ = 1: mean R@1"]
  assert behind.startswith("+20.0 [")


def test_every_ablation_and_estimator_builds_an_objective():
  rows = {}
  while left := [x for x in plan.plan(OPTIONS, rows) if x.key not in rows]:
    rows |= {run.key: row(0.1) for run in left}
  groups = list(plan.ablations(SCALE, rows).values())
  for by_rate in plan.estimators(SCALE, rows).values():
    groups += by_rate.values()
  groups += plan.comparison(SCALE, rows).values()
  for group in groups:
    config = measure.make_config(group[0])
    build.make_objective(resolve(config), **OF_THE_RUN)

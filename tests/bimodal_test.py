"""The study of experiments/bimodal: what it runs."""

from algorithms import ALGORITHMS
import pytest
import report
import run as runner
import study
import summary
import tables
import training

from nuclr_jax import records


def row(recall):
  return {study.CRITERION: recall}


def test_everyone_has_the_same_number_of_trials():
  for name in ALGORITHMS:
    runs = study.trials(name)
    assert len({run.key for run in runs}) == study.TRIALS
    assert {run.seed for run in runs} == {study.TUNING_SEEDS[0]}


def test_the_best_finalist_on_validation_wins_and_is_used_on_other_seeds():
  trials = study.trials("clip")
  results = {run.key: row(0.1 + 0.01 * i) for i, run in enumerate(trials)}
  results[trials[2].key] = row("0.5")
  results[trials[8].key] = {"diverged": "step 7 is not finite"}
  finals = study.finals("clip", results)
  assert set(finals) == {trials[i].settings for i in (2, 6, 7)}
  assert study.best("clip", results) is None  # the finals are not run yet
  for settings, runs in finals.items():
    assert [run.seed for run in runs] == list(study.TUNING_SEEDS)
    better = settings == trials[6].settings
    results |= {run.key: row(0.9 if better else 0.2) for run in runs[1:]}
  assert study.best("clip", results) == trials[6].settings  # not the luckiest
  seeds = {run.seed for run in study.comparison(results)["CLIP"]}
  assert seeds == set(range(8))
  del results[trials[0].key]
  assert study.best("clip", results) is None


def test_the_plan_ends():
  """Each run once; what is done opens the rest, and nothing else is left."""
  results = {}
  while left := [x for x in study.plan(results) if x.key not in results]:
    results |= {run.key: row(0.1) for run in left}
  keys = [run.key for run in study.plan(results)]
  assert len(keys) == len(set(keys)) == len(results)
  assert abs(len(keys) - study.size()) < 20
  assert len({run.algorithm for run in study.plan(results)}) == 13


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_one_of_the_config(name):
  for run in (study.trials(name)[0], study.trials(name)[-1]):
    config = training.make_config(run._replace(batch_size=512))
    assert config.optimizer.learning_rate.value == pytest.approx(
      2 * dict(run.settings).get("optimizer.learning_rate.value", 2e-3)
    )
    for key, value in run.settings:
      if not key.startswith("optimizer.learning_rate"):
        found = config
        for part in key.split("."):
          found = found[part]
        assert found == value


def table_row(seed, **values):
  return dict(zip(tables.KEY, ("clip", "", 128, seed), strict=True)) | values


def test_tables_keep_all_columns(tmp_path):
  path = tmp_path / "x.csv"
  records.write_table(path, [table_row(0, a=1, b=2), table_row(1, a=3, c=4)])
  found = [tuple(row[x] for x in "abc") for row in tables.read(path)]
  assert found == [("1", "2", ""), ("3", "", "4")]


@pytest.mark.parametrize(
  "damage",
  [lambda x: x[:-2], lambda x: x + ",9", lambda x: x.replace("128", "many")],
)
def test_damaged_tables_are_refused(tmp_path, damage):
  path = tmp_path / "x.csv"
  records.write_table(path, [table_row(0, a=1), table_row(1, a=2)])
  path.write_text(damage(path.read_text().rstrip()))
  with pytest.raises(ValueError, match="damaged"):
    tables.read(path)


def test_a_run_that_is_there_twice_is_refused():
  with pytest.raises(ValueError, match="1 runs twice"):
    tables.index([table_row(0), table_row(0)])


def test_rows_of_another_config_are_refused():
  run = study.trials("clip")[0]
  training_row = row(0.5) | {"config": training.fingerprint(run)}
  runner.check_protocol({run.key: training_row})
  with pytest.raises(ValueError, match="1 runs with other configs"):
    runner.check_protocol({run.key: training_row | {"config": "0"}})


def test_all_rows_are_of_todays_configs():
  runner.check_protocol(tables.index(tables.read(tables.RUNS)))


def test_differences_are_paired():
  """Seeds that both have; the interval of a textbook example."""
  ours = {0: 5.0, 1: 7.0, 2: 6.0, 9: 0.0}
  theirs = {0: 4.0, 1: 5.0, 2: 3.0}  # differences 1, 2, 3: t = 4.303
  half = 4.303 / 3**0.5
  expected = f"+2.0 [{2 - half:+.1f}, {2 + half:+.1f}]"
  assert summary.difference(ours, theirs) == expected
  assert summary.difference({0: 1.0}, {0: 2.0}) == "–"


def test_diverged_runs_are_counted_and_not_averaged():
  runs = [study.Run("clip", (), seed=seed) for seed in range(3)]
  good = {summary.MEAN: "0.5", study.CRITERION: "0.6"}
  results = {run.key: good for run in runs[:2]}
  assert summary.seeds(runs, results) == "2"
  results[runs[2].key] = {summary.MEAN: "", "diverged": "step 7"}
  assert summary.values(runs, results, summary.MEAN) == {0: 50.0, 1: 50.0}
  assert summary.seeds(runs, results) == "3 (1 diverged)"
  groups = {"NUCLR": runs, "CLIP": runs[:2]}
  assert report.gap(groups, "CLIP", results, summary.MEAN) == "–"


def test_spread_is_the_learned_over_the_exact_seed_by_seed():
  runs = study.trials("nuclr")[:1]
  runs.append(runs[0]._replace(seed=101))
  stds = ((0.01, 0.04), (0.03, 0.04))  # learned, exact
  results = {
    run.key: {"exact/learned_std_text": x, "exact/exact_std_text": y}
    for run, (x, y) in zip(runs, stds, strict=True)
  }
  assert report.spread(runs, results, "text") == "0.50 ± 0.35"
  assert report.spread(runs, results, "image") == "–"

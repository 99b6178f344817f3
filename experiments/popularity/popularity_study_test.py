"""The study of experiments/popularity: its runs, configs and network."""

import jax
import make_pairs
import numpy as np
import pytest

from experiments.harness import Place, command, rows
from experiments.popularity import __main__ as main
from experiments.popularity import measure, network, plan, tables
from nuclr_jax.lab.config import complete

OPTIONS = command.parse_arguments(main.STUDY, [])
RUNS = {x.name: plan.make_run(x, 0) for x in plan.VARIANTS}


def test_every_variant_has_the_same_seeds():
  seeds = {}
  for row in rows.read(main.STUDY.home / rows.FILE):
    if row["part"] == plan.PART:
      seeds.setdefault(row["setting"], set()).add(row["seed"])
  assert set(seeds) == set(RUNS)
  assert len(set(map(frozenset, seeds.values()))) == 1


def test_a_warm_start_waits_for_the_run_it_starts_from(tmp_path):
  first = plan.plan(OPTIONS, {})
  assert len(first) == 3 * 5
  done = {run.key: {} for run in first if run.seed < 2}
  warm = [x for x in plan.plan(OPTIONS, done) if x not in first]
  assert [(x.setting, x.seed) for x in warm] == [
    ("warm start, fixed", 0),
    ("warm start, unbiased", 0),
    ("warm start, fixed", 1),
    ("warm start, unbiased", 1),
  ]
  with pytest.raises(ValueError, match="fixed_at_0_0.npz is missing: give"):
    measure.measure(warm[0], Place(tmp_path, tmp_path))


@pytest.mark.parametrize("name", RUNS)
def test_variants_differ_in_zeta_only(name):
  config = plan.make_config(RUNS[name])
  base = plan.make_config(RUNS["fixed at 0"])
  complete(config)
  for key in config:
    if key not in ("objective", "refresh", "warm_start"):
      assert config[key] == base[key]
  for key, value in config.objective.items():
    if not key.startswith("zeta"):
      assert base.objective[key] == value


def test_gains_are_paired_by_seed():
  runs = [
    {"setting": name, "seed": seed, "x": value}
    for seed, values in enumerate(((0.1, 0.3), (0.5, 0.7)))
    for name, value in zip(("a", "b"), values, strict=True)
  ]
  assert tables.gain(runs, "b", "x", "a") == "20.0 ± 0.0"


class TestNetwork:
  def test_it_learns_a_smooth_zeta_and_predicts_unseen_rows(self):
    x = make_pairs.unit_rows(0, 800, 4).astype(np.float32)
    zeta = 0.1 * np.log(np.exp(3 * x[:, 0]) + np.exp(3 * x[:, 1]))
    fitted = network.fit_network(
      jax.random.key(0),
      x[:600],
      zeta[:600],
      temperature=0.1,
      width=64,
      num_steps=600,
    )
    predicted = network.predict_zeta(fitted, x[600:])
    assert network.r_squared(predicted, zeta[600:]) > 0.9

  def test_r_squared_of_the_mean_is_zero(self):
    actual = np.array([1.0, 2.0, 4.0])
    mean = np.full(3, actual.mean())
    assert network.r_squared(mean, actual) == pytest.approx(0, abs=1e-6)

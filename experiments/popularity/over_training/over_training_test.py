"""The study of experiments/popularity/over_training, in plain NumPy."""

import numpy as np
import pytest
from scipy import stats

from experiments.harness import command, rows
from experiments.popularity.over_training import __main__ as main
from experiments.popularity.over_training import figures, measure, plan, tables
from nuclr_jax import Pairs, Sides
from nuclr_jax.lab.config import complete

OPTIONS = command.parse_arguments(main.STUDY, [])


def test_every_planned_run_has_all_its_looks():
  stored = rows.index(rows.read(main.STUDY.home / rows.FILE))
  for run in plan.plan(OPTIONS, {}):
    looks = stored[run.key]["looks"]
    assert tuple(x["epoch"] for x in looks) == plan.EPOCHS[run.part]
    for look in looks:
      assert ("learned" in look) == (run.setting != plan.NONE)
    pictured = "pictures" in looks[-1]
    assert pictured == (run.seed == 0 and run.setting != plan.NONE)


@pytest.mark.parametrize("part", plan.RULES)
def test_rules_differ_in_zeta_only(part):
  first, *others = (
    plan.make_config(plan.run_of(part, rule, 0)) for rule in plan.RULES[part]
  )
  complete(first)
  for config in others:
    for key in config:
      if key != "objective":
        assert config[key] == first[key]
    for key in ("name", "gamma", "temperature"):
      assert config.objective[key] == first.objective[key]


def test_zeta_are_described_in_units_of_tau():
  zeta = np.random.default_rng(0).normal(3.0, 0.5, 4000)
  found = measure.described(Sides(zeta, zeta * 0), 0.1)["image"]
  x = (zeta - zeta.mean()) / 0.1
  assert found["sd"] == pytest.approx(x.std())
  assert found["quantiles"] == pytest.approx(
    stats.scoreatpercentile(x, 100 * np.array(measure.QUANTILES))
  )
  histogram = found["histogram"]
  assert sum(histogram) == 4000  # nothing is dropped
  width = measure.BINS[1] - measure.BINS[0]
  assert histogram[0] == np.sum(x < measure.BINS[0] + width)
  assert histogram[40] == np.sum((x >= -1e-12) & (x < width))


def test_a_slope_of_1_is_tau_log_p():
  rng = np.random.default_rng(0)
  log_p = np.log(rng.dirichlet(np.ones(7)))
  caption = np.array([0, 1, 1, 2, 3, 3, 3, 5, 6])  # 4 does not occur
  noise = np.array([0, 0.3, -0.3, 0, 0.1, 0.1, -0.2, 0, 0])
  frequency = measure.Frequency(caption, log_p)
  found = measure.against_frequency(2 + log_p[caption] + noise, frequency)
  assert found == pytest.approx({"spearman": 1, "slope": 1})
  found = measure.against_frequency(-0.5 * log_p[caption], frequency)
  assert found == pytest.approx({"spearman": -1, "slope": -0.5})


def test_neighbours_have_another_caption(monkeypatch):
  monkeypatch.setattr(measure, "ENDS", 1)
  image = np.array([[1, 0], [1, 0], [0.6, 0.8], [-1, 0]])
  pairs = Pairs(image, image, np.arange(4))
  found = measure.nearest(pairs, np.array([3, 1, 2, 0]), np.array([5, 5, 6, 7]))
  assert found == pytest.approx({"most": 0.6, "least": -0.6})


def test_tables_and_figures_show_what_there_is():
  look = {
    "epoch": 8,
    "exact": {"text": {"sd": 1.0}},
    "frequency": {"exact": {"spearman": 0.25, "slope": 0.125}},
  }
  row = {"part": plan.GLYPHS, "setting": plan.BATCH, "seed": 0, "looks": [look]}
  table = tables.frequency([row], plan.GLYPHS)
  assert "| batch | exact: spearman | – | – | – | 0.25 |" in table
  assert "learned" not in table
  assert not figures.draw_pictures([row], plan.GLYPHS).get_axes()

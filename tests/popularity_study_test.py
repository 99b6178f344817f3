"""The study of experiments/popularity: its configs and its tables."""

import csv
import pathlib
import subprocess
import sys

import popularity_report
import popularity_study
import pytest

from nuclr_jax import markdown, settings

HERE = pathlib.Path(popularity_study.__file__).parent


def rows():
  with (HERE / "runs.csv").open(newline="") as file:
    return list(csv.DictReader(file))


def test_readme_has_the_tables_of_the_rows():
  found = rows()
  text = (HERE / "README.md").read_text()
  parts = {
    "variants": popularity_report.variant_table(found),
    "hubs": popularity_report.hub_table(found),
    "network": popularity_report.network_table(found),
    "solver": popularity_report.solver_line(found),
  }
  assert markdown.insert(text, parts) == text


def test_every_variant_has_the_same_seeds():
  seeds = {}
  for row in rows():
    seeds.setdefault(row["variant"], set()).add(row["seed"])
  names = {variant.name for variant in popularity_study.VARIANTS}
  assert set(seeds) == names
  assert len(set(map(frozenset, seeds.values()))) == 1


@pytest.mark.parametrize(
  "variant", popularity_study.VARIANTS, ids=lambda variant: variant.name
)
def test_variants_differ_in_zeta_only(variant):
  config = popularity_study.make_config(variant, 0)
  base = popularity_study.make_config(popularity_study.VARIANTS[0], 0)
  settings.complete(config)
  for key in config:
    if key not in ("objective", "refresh", "warm_start"):
      assert config[key] == base[key]
  for key, value in config.objective.items():
    if not key.startswith("zeta"):
      assert base.objective[key] == value


def test_intervals_are_of_the_mean():
  # Student's t of 2 degrees of freedom, 4.3027, times 1 / sqrt(3).
  assert popularity_report.interval([1, 2, 3]) == "2.00 ± 2.48"
  assert popularity_report.interval([0.5], scale=100, digits=1) == "50.0"
  assert popularity_report.interval([]) == "–"


def test_gains_are_paired_by_seed():
  runs = [
    {"variant": name, "seed": str(seed), "x": str(value)}
    for seed, values in enumerate(((0.1, 0.3), (0.5, 0.7)))
    for name, value in zip(("a", "b"), values, strict=True)
  ]
  assert popularity_report.gain(runs, "b", "x", "a") == "20.0 ± 0.0"


RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from absl import app
import popularity_report, popularity_study, run

found = {"diagnostics/u_drift/image": 0.5}
name = lambda variant, seed: {"variant": variant.name, "seed": seed}
popularity_study.execute = lambda variant, seed, *_, **__: (
  name(variant, seed) | found
)
popularity_report.write = lambda *_: None
run.experiment.load_data = lambda *_, **__: None
app.run(run.main)
"""


def test_rows_with_scores_that_earlier_ones_lack(tmp_path):
  table = tmp_path / "runs.csv"
  first = popularity_study.VARIANTS[0].name
  table.write_text(f"variant,seed,old\n{first},0,1\n")
  subprocess.run(
    [sys.executable, "-c", RUN, str(HERE), f"--table={table}", "--seeds=1"],
    check=True,
  )
  with table.open(newline="") as file:
    found = list(csv.DictReader(file))
  assert len(found) == len(popularity_study.VARIANTS)
  assert found[0]["old"] == "1" and found[0]["diagnostics/u_drift/image"] == ""
  assert (
    found[1]["old"] == "" and found[1]["diagnostics/u_drift/image"] == "0.5"
  )

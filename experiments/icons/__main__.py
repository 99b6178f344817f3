"""Contrastive objectives on real icons and their names, each tuned alike.

python -m experiments.icons --data_dir=...    # all runs that are not done yet
python -m experiments.icons --only="^rate"    # the first of them
python -m experiments.icons --tables          # only tables and figures
python -m experiments.icons --smoke           # tiny, writes to runs/

The data are those of `make icons`. Run it from the root of the repository.
Interrupt it at any time: finished runs are in rows.jsonl and are not run again.
"""

from collections.abc import Mapping
import pathlib

from experiments import harness
from experiments.icons import (
  figures,
  long_tables,
  measure,
  plan,
  stated,
  tables,
)


def all_tables(options, results) -> Mapping[str, str]:
  """Returns the tables of the study and that of long runs."""
  of_study = tables.tables(options, results)
  return of_study | {"long runs": long_tables.table()}


def all_numbers(options, results) -> Mapping[str, str]:
  """Returns the numbers of the study and those of long runs."""
  return stated.numbers(options, results) | long_tables.numbers()


STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=all_tables,
  figures=figures.figures,
  numbers=all_numbers,
  seeds=plan.SEEDS,
  describe=measure.describe,
  configs=measure.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

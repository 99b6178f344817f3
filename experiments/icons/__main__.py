"""Contrastive objectives on real icons and their names, each tuned alike.

python -m experiments.icons --data_dir=...    # all runs that are not done yet
python -m experiments.icons --only="^rate"    # the first of them
python -m experiments.icons --tables          # only tables and figures
python -m experiments.icons --smoke           # tiny, writes to runs/

The data are those of `make icons`. Run it from the root of the repository.
Interrupt it at any time: finished runs are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.icons import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=plan.SEEDS,
  describe=measure.describe,
  configs=measure.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

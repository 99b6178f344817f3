"""Whose denominators are right: the error of log u, and what it costs.

python -m experiments.normalizers --data_dir=...    # all runs
python -m experiments.normalizers --tables          # only the tables
python -m experiments.normalizers --smoke           # tiny, writes to runs/

The data are those of `make icons`. Run it from the root of the repository.
Interrupt it at any time: finished runs are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.normalizers import measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=lambda options, results: {},
  seeds=plan.SEEDS,
  describe=measure.describe,
  configs=measure.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

"""Which pairs to train on: planted errors, and trainings without them.

python -m experiments.filtering --data_dir=...    # all runs that are not done
python -m experiments.filtering --tables          # only tables and figures
python -m experiments.filtering --smoke --data_dir=...

The data are those of `make icons`. Run it from the root of the repository.
Interrupt it at any time: finished runs are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.filtering import measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  numbers=tables.numbers,
  figures=tables.figures,
  seeds=plan.SEEDS,
  describe=measure.describe,
  configs=measure.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

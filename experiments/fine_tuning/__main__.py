"""The first epoch of fine-tuning, cold and warm, and what it forgets.

python -m experiments.fine_tuning --data_dir=... --workers=1
python -m experiments.fine_tuning --tables          # only tables and figures
python -m experiments.fine_tuning --smoke --data_dir=...

The data are those of `make icons`. Run it from the root of the repository.
Interrupt it at any time: finished runs are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.fine_tuning import measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=tables.figures,
  numbers=tables.numbers,
  seeds=3,
  describe=measure.describe,
)

if __name__ == "__main__":
  harness.main(STUDY)

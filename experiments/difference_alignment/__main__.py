"""The paper on difference alignment: trains, measures, draws, writes tables.

python -m experiments.difference_alignment             # digits and glyphs
python -m experiments.difference_alignment --smoke     # takes minutes
python -m experiments.difference_alignment --data cifar10 --data_dir=...

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness, labelled
from experiments.difference_alignment import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=3,
  configs=lambda options: labelled.configs(plan.plan(options, {})),
  data=plan.AT_HAND,
  known_data=tuple(plan.SIZES),
)

if __name__ == "__main__":
  harness.main(STUDY)

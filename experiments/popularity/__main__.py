"""Popularities in training and after it: trains, measures, writes the tables.

python -m experiments.popularity             # 21 runs, 30 to 60 minutes
python -m experiments.popularity --tables    # only the tables
python -m experiments.popularity --smoke     # takes minutes, writes to runs/

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.popularity import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=3,
  configs=plan.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

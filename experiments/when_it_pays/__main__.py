"""When learned popularities pay: trains, measures, writes tables and figures.

python -m experiments.when_it_pays             # about six hours on two cores
python -m experiments.when_it_pays --tables    # only the tables and figures
python -m experiments.when_it_pays --smoke     # takes minutes, writes to runs/

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.when_it_pays import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  numbers=tables.numbers,
  figures=figures.figures,
  seeds=5,
  configs=plan.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

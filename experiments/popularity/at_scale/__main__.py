"""Ways to zeta and u where data are much larger than a memory of them.

python -m experiments.popularity.at_scale                  # three hours
python -m experiments.popularity.at_scale --only='^steps'  # the errors of steps
python -m experiments.popularity.at_scale --tables    # only tables and figure
python -m experiments.popularity.at_scale --smoke     # a minute, in runs/

Run it from the root of the repository, on two cores. Interrupt it at any time:
finished runs are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.popularity.at_scale import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=2,
)

if __name__ == "__main__":
  harness.main(STUDY)

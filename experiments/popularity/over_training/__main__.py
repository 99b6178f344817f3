"""Popularities during training: histograms, samples, frequencies.

python -m experiments.popularity.over_training             # half an hour
python -m experiments.popularity.over_training --tables    # tables and figures
python -m experiments.popularity.over_training --smoke     # a minute, in runs/

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.popularity.over_training import figures, measure, plan, tables

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

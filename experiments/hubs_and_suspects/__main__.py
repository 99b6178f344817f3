"""Hubs and suspects: zeta against other tools, for embeddings of any model.

python -m experiments.hubs_and_suspects             # an hour on two busy cores
python -m experiments.hubs_and_suspects --tables    # only tables and figures
python -m experiments.hubs_and_suspects --smoke     # writes to runs/

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.hubs_and_suspects import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=5,
  configs=plan.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

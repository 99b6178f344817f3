"""The paper's comparisons in miniature, with every algorithm tuned alike.

python -m experiments.bimodal             # all runs that are not done yet
python -m experiments.bimodal --tables    # only tables and figures
python -m experiments.bimodal --smoke     # takes minutes, writes to runs/

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.bimodal import figures, measure, plan, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=len(plan.PAIRED_SEEDS),  # the most that a setting gets
  describe=measure.describe,
  configs=measure.configs,
)

if __name__ == "__main__":
  harness.main(STUDY)

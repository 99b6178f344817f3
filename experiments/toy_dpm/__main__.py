"""Figures 2 and 6 of the NUCLR paper: measures, draws, writes the tables.

python -m experiments.toy_dpm             # everything
python -m experiments.toy_dpm --tables    # only tables and figures
python -m experiments.toy_dpm --smoke     # takes seconds, writes to runs/

Run it from the root of the repository. A seed is a repetition.
"""

import pathlib

from experiments import harness
from experiments.toy_dpm import figures, risks, tables

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=risks.plan,
  measure=risks.measure,
  tables=tables.tables,
  figures=figures.figures,
  seeds=40,
)

if __name__ == "__main__":
  harness.main(STUDY)

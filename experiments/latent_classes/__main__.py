"""Papers on latent classes: trains, measures, draws, writes the tables.

python -m experiments.latent_classes              # digits and glyphs
python -m experiments.latent_classes --smoke      # takes minutes
python -m experiments.latent_classes --data cifar100 --data_dir=...

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness
from experiments.latent_classes import (
  differences,
  figures,
  measure,
  plan,
  tables,
)

STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=differences.numbers,
  seeds=3,
  configs=plan.configs,
  data=plan.AT_HAND,
  known_data=tuple(plan.SIZES),
)

if __name__ == "__main__":
  harness.main(STUDY)

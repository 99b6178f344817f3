"""The paper on difference alignment: trains, measures, draws, writes tables.

python -m experiments.difference_alignment             # all that is at hand
python -m experiments.difference_alignment --smoke     # takes minutes
python -m experiments.difference_alignment --data cifar10 --data_dir=...
python -m experiments.difference_alignment --data sts --data_dir=...

The folder of sts has train.txt, a sentence on each line, and a TSV file for
each set of rated pairs (a score and two sentences on each line).

Run it from the root of the repository. Interrupt it at any time: finished runs
are in rows.jsonl and are not run again.
"""

import pathlib

from experiments import harness, labelled
from experiments.difference_alignment import (
  figures,
  measure,
  plan,
  sentences,
  tables,
)


def configs(options: harness.Options) -> dict[str, dict]:
  """Returns typical configs, of images and of sentences."""
  runs = plan.plan(options, {})
  images = [run for run in runs if not sentences.is_of_text(run)]
  return labelled.configs(images) | sentences.configs(runs)


STUDY = harness.Study(
  home=pathlib.Path(__file__).resolve().parent,
  doc=__doc__,
  plan=plan.plan,
  measure=measure.measure,
  tables=tables.tables,
  figures=figures.figures,
  numbers=tables.numbers,
  seeds=3,
  configs=configs,
  data=(*plan.AT_HAND, "docstrings"),
  known_data=(*plan.SIZES, *sentences.TEXTS),
)

if __name__ == "__main__":
  harness.main(STUDY)

"""Papers on latent classes: trains, measures, draws, writes the tables.

python -m experiments.latent_classes.run              # digits and glyphs
python -m experiments.latent_classes.run --smoke      # minutes, to runs/
python -m experiments.latent_classes.run --data=cifar100 --data_dir=...

From the root of the repository. Finished runs are in lines.jsonl of the output
folder and are not run again; interrupt it at any time.
"""

import pathlib
from typing import Any

from experiments import labelled_reports
from experiments.latent_classes import (
  counter_examples,
  figures,
  report,
  study,
  theorem,
)


def measure(*, seeds: int, smoke: bool) -> dict[str, Any]:
  """Counter-examples, and gradient descent on triplets."""
  steps = 50 if smoke else theorem.NUM_STEPS
  return {
    "counter-examples": counter_examples.measure(),
    "theorem 1": theorem.measure(seeds=seeds, num_steps=steps),
  }


if __name__ == "__main__":
  labelled_reports.run_study(
    __doc__,
    pathlib.Path(__file__).resolve().parent,
    study,
    measure=measure,
    draw={
      "figure_2.png": figures.draw_amounts,
      "lemmas.png": figures.draw_lemmas,
      "norms.png": figures.draw_norms,
      "exact.png": figures.draw_exact,
    },
    tables=report.tables,
  )

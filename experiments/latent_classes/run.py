"""Papers on latent classes: trains, measures, draws, writes the tables.

python -m experiments.latent_classes.run              # digits and glyphs
python -m experiments.latent_classes.run --smoke      # minutes, to runs/
python -m experiments.latent_classes.run --data=cifar100 --data_dir=...

From the root of the repository. Finished runs are in lines.jsonl of the output
folder and are not run again; interrupt it at any time.
"""

import argparse
import os
import pathlib

import jax

from experiments import labelled_reports, labelled_runs
from experiments.latent_classes import (
  counter_examples,
  figures,
  report,
  study,
  theorem,
)

HERE = pathlib.Path(__file__).resolve().parent


def main(options: argparse.Namespace) -> None:
  """Does everything."""
  output = labelled_reports.output_of(options, HERE, study.AT_HAND)
  seeds = 2 if options.smoke else options.seeds
  runs = [
    run
    for data in options.data
    for run in study.make(data, seeds=seeds, smoke=options.smoke)
  ]
  lines = labelled_runs.complete(
    runs,
    output / "lines.jsonl",
    workers=options.workers,
    data_dir=options.data_dir,
  )
  labelled_runs.say("counter-examples, and gradient descent on triplets")
  steps = 50 if options.smoke else theorem.NUM_STEPS
  measured = {
    "counter-examples": counter_examples.measure(),
    "theorem 1": theorem.measure(seeds=seeds, num_steps=steps),
    "trained seconds": round(sum(x["seconds"] for x in lines)),
    "jax": jax.__version__,
    "cores": len(os.sched_getaffinity(0)),
  }
  draw = {
    "figure_2.png": (figures.draw_amounts, lines),
    "lemmas.png": (figures.draw_lemmas, lines),
    "norms.png": (figures.draw_norms, lines),
    "exact.png": (figures.draw_exact, measured),
  }
  labelled_reports.publish(
    output, draw, report.tables(lines, measured), measured
  )


if __name__ == "__main__":
  main(labelled_reports.parse_arguments(__doc__, study.SIZES, study.AT_HAND))

"""The paper on difference alignment: trains, measures, draws, writes tables.

python -m experiments.difference_alignment.run             # digits and glyphs
python -m experiments.difference_alignment.run --smoke     # minutes, to runs/
python -m experiments.difference_alignment.run --data=cifar10 --data_dir=...

From the root of the repository. Finished runs are in lines.jsonl of the output
folder and are not run again; interrupt it at any time.
"""

import argparse
import os
import pathlib

import jax

from experiments import labelled_reports, labelled_runs
from experiments.difference_alignment import (
  figures,
  overhead,
  report,
  study,
  toy,
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
  labelled_runs.say("clusters, and the time of a step")
  short = dict(repetitions=2, batches=(64,)) if options.smoke else {}
  measured = {
    "toy": toy.measure(seeds=seeds),
    "overhead": overhead.measure(**short),
    "trained seconds": round(sum(x["seconds"] for x in lines)),
    "jax": jax.__version__,
    "cores": len(os.sched_getaffinity(0)),
  }
  draw = {
    "clusters.png": (figures.draw_clusters, measured["toy"]),
    "batches.png": (figures.draw_batches, lines),
    "curves.png": (figures.draw_curves, lines),
  }
  labelled_reports.publish(
    output, draw, report.tables(lines, measured), measured
  )


if __name__ == "__main__":
  main(labelled_reports.parse_arguments(__doc__, study.SIZES, study.AT_HAND))

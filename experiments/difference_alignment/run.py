"""The paper on difference alignment: trains, measures, draws, writes tables.

python -m experiments.difference_alignment.run             # digits and glyphs
python -m experiments.difference_alignment.run --smoke     # minutes, to runs/
python -m experiments.difference_alignment.run --data=cifar10 --data_dir=...

From the root of the repository. Finished runs are in lines.jsonl of the output
folder and are not run again; interrupt it at any time.
"""

import pathlib
from typing import Any

from experiments import labelled_reports
from experiments.difference_alignment import (
  figures,
  overhead,
  report,
  study,
  toy,
)


def measure(*, seeds: int, smoke: bool) -> dict[str, Any]:
  """Clusters, and the time of a step."""
  short = dict(repetitions=2, batches=(64,)) if smoke else {}
  return {
    "toy": toy.measure(seeds=seeds),
    "overhead": overhead.measure(**short),
  }


if __name__ == "__main__":
  labelled_reports.run_study(
    __doc__,
    pathlib.Path(__file__).resolve().parent,
    study,
    measure=measure,
    draw={
      "clusters.png": figures.draw_clusters,
      "batches.png": figures.draw_batches,
      "curves.png": figures.draw_curves,
    },
    tables=report.tables,
  )

"""Summaries over seeds: metrics in percent, diverged runs."""

from collections.abc import Sequence

import numpy as np

from experiments.bimodal.plan import Rows
from experiments.harness import Run

MEAN = "test/mean_recall@1"


def values(
  runs: Sequence[Run], rows: Rows, metric: str | Sequence[str]
) -> dict[int, float]:
  """Returns a metric, or the mean of several, in percent and by seed.

  Args:
    runs: The runs of one setting; those that are not done are left out.
    rows: All rows.
    metric: The name of a metric, or several names.
  """
  names = [metric] if isinstance(metric, str) else metric
  by_seed = {}
  for run in runs:
    row = rows.get(run.key, {})
    if all(row.get(name) is not None for name in names):
      by_seed[run.seed] = 100 * float(np.mean([row[name] for name in names]))
  return by_seed


def diverged(runs: Sequence[Run], rows: Rows) -> list[bool]:
  """Returns for each run that is done whether it diverged."""
  return ["diverged" in rows[run.key] for run in runs if run.key in rows]


def seeds(runs: Sequence[Run], rows: Rows) -> str:
  """Formats how many runs are done, and how many of them diverged."""
  wrong = diverged(runs, rows)
  return (
    f"{len(wrong)} ({sum(wrong)} diverged)" if any(wrong) else str(len(wrong))
  )

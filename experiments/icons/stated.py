"""Differences that the text of README.md states, by name."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.harness import Options, Results, Run
from experiments.harness.statistics import paired
from experiments.icons import plan, tables
from experiments.icons.arms import ARMS
from experiments.icons.plan import MAIN, Rows

PARTS = (MAIN, plan.UNMARKED, plan.FROZEN)
LARGE = 200  # queries of a set whose sign is counted


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns differences between arms in points.

  Such as "arms: SogCLR − CLIP: test R@10"; with ", seeds alone" the interval is
  Student's t over seeds. "arms: SogCLR − CLIP: other sign" counts the test sets
  with at least `LARGE` queries whose difference has another sign than the mean.
  """
  scale, rows, found = plan.scale_of(options), results.rows, {}
  for part in PARTS:
    groups = plan.comparison(scale, rows, part)
    for ours, x in groups.items():
      for theirs, y in groups.items():
        if ours == theirs:
          continue
        name = f"{part}: {ARMS[ours].label} − {ARMS[theirs].label}: "
        for column, metric in tables.COLUMNS.items():
          split, top = column.split(" R@")
          shown = tables.show(tables.difference(x, y, rows, split, int(top)))
          found[f"{name}{column}"] = shown
          found[f"{name}{column}, seeds alone"] = _of_seeds(x, y, rows, metric)
        if theirs == tables.REFERENCE:
          found[f"{name}other sign"] = _other_sign(groups, ours, rows)
  return found


def _of_seeds(
  ours: Sequence[Run], theirs: Sequence[Run], rows: Rows, metric: str
) -> str:
  values = (tables.of_runs(x, rows, metric) for x in (ours, theirs))
  return paired(*values).show_interval(2)


def _other_sign(
  groups: Mapping[str, Sequence[Run]], name: str, rows: Rows
) -> str:
  sets = tables.by_set(groups, name, rows, "test").values()
  total = np.sign(sum(count * gain for count, gain in sets))
  signs = [np.sign(gain) for count, gain in sets if count >= LARGE]
  return f"{sum(x != total for x in signs)} of {len(signs)}"

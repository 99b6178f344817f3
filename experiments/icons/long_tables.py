"""The table of long runs, from the rows that `long_runs.py` wrote."""

from collections.abc import Mapping
import pathlib
from typing import NamedTuple

import numpy as np

from experiments.harness import Run, markdown, rows
from experiments.icons import tables
from experiments.icons.arms import ARMS
from experiments.icons.plan import CRITERION, NUM_PAIRS, Rows

FILE = pathlib.Path(__file__).with_name("long_runs.jsonl")


class Kind(NamedTuple):
  """What arms that are compared have in common."""

  towers: str
  batch_size: int
  epochs: float
  size: int
  marked: bool
  pairs: int

  def name(self) -> str:
    """Says what is not as in other long runs."""
    half = f", {NUM_PAIRS:,} pairs" if self.pairs == NUM_PAIRS else ""
    return f"{self.towers}{half}{'' if self.marked else ', unmarked'}"


def groups(found: Rows) -> dict[Kind, dict[str, dict[float, list[Run]]]]:
  """Sorts long runs by kind, arm and temperature."""
  sorted_: dict[Kind, dict[str, dict[float, list[Run]]]] = {}
  for key, row in found.items():
    row = {"marked": True} | row
    arms = sorted_.setdefault(Kind(*(row[x] for x in Kind._fields)), {})
    value = row[ARMS[row["arm"]].tuned]
    arms.setdefault(row["arm"], {}).setdefault(value, []).append(Run(*key))
  return sorted_


def best(
  by_value: Mapping[float, list[Run]], found: Rows
) -> tuple[float, list[Run]]:
  """Returns the temperature with the best validation score, and its runs."""

  def score(value: float) -> float:
    return float(np.mean([found[x.key][CRITERION] for x in by_value[value]]))

  value = max(by_value, key=score)
  return value, by_value[value]


def table(path: pathlib.Path = FILE) -> str:
  """Shows each arm at its best temperature, and its differences to CLIP."""
  found, lines = rows.index(rows.read(path)), []
  for kind, arms in sorted(groups(found).items(), key=_order):
    chosen = {name: best(x, found) for name, x in arms.items()}
    runs = {name: x for name, (_, x) in chosen.items()}
    for name in (x for x in ARMS if x in chosen):
      metrics = tables.COLUMNS.values()
      lines.append(
        [
          kind.name(),
          *(f"{kind.batch_size:,}", ARMS[name].label),
          f"{chosen[name][0]:g} of {len(arms[name])}",
          *(tables.mean_of(runs[name], found, x) for x in metrics),
          *tables.against(runs, name, found),
          f"{found[runs[name][0].key]['pairs_per_second']:,}",
          tables.seeds(runs[name], found),
        ]
      )
  header = ["towers", "batch", "arm", "τ", *tables.COLUMNS, *tables.AGAINST]
  return markdown.table([*header, "pairs/s", "seeds"], lines)


def _order(item):
  kind, _ = item
  return kind.towers != "small", kind


def numbers(path: pathlib.Path = FILE) -> dict[str, str]:
  """Returns differences that the text may state, by name.

  Such as "long: small, 128: SogCLR − CLIP: test R@10".
  """
  found, named = rows.index(rows.read(path)), {}
  for kind, arms in groups(found).items():
    runs = {name: best(x, found)[1] for name, x in arms.items()}
    for ours, x in runs.items():
      for theirs, y in runs.items():
        if ours == theirs:
          continue
        name = f"{ARMS[ours].label} − {ARMS[theirs].label}"
        for split in tables.SPLITS:
          for top in (1, 10):
            shown = tables.show(tables.difference(x, y, found, split, top))
            which = f"long: {kind.name()}, {kind.batch_size}: {name}"
            named[f"{which}: {split} R@{top}"] = shown
  return named

"""Looks up what rows have measured, by seed; both sides are pooled."""

from collections.abc import Mapping
import math

from experiments.harness import Row
from experiments.harness.study import Key

Rows = Mapping[Key, Row]
BySeed = dict[int, float]
# How much greater the second error is than the first, by name.
GROWTH = {
  "1,024 to 512": ("all, 1,024", "all, 512"),
  "a tenth to all pairs": ("a tenth, 1,024", "all, 1,024"),
}


def _rows_of(rows: Rows, cell: str, arm: str) -> dict[int, Row]:
  return {
    seed: row
    for (part, setting, seed), row in rows.items()
    if (part, setting) == (cell, arm)
  }


def _pooled(sides: Mapping[str, Mapping[str, float]], kind: str) -> float:
  """Returns the mean over sides: of squares, but for means."""
  both = [x[kind] for x in sides.values()]
  if kind == "mean":
    return sum(both) / len(both)
  return math.sqrt(sum(x**2 for x in both) / len(both))


def values(rows: Rows, cell: str, arm: str, what: str, kind: str) -> BySeed:
  """Returns an error by seed.

  Args:
    rows: All rows.
    cell: A key of `plan.CELLS`.
    arm: A key of `plan.ARMS`.
    what: "used", "stored" or "batch".
    kind: "rms", "sd" (the rms without the mean) or "mean".
  """
  return {
    seed: _pooled(row["errors"][what], kind)
    for seed, row in _rows_of(rows, cell, arm).items()
    if all(row["errors"][what].values())
  }


def factor(rows: Rows, arm: str, what: str, kind: str, which: str) -> BySeed:
  """Returns by how much an error grows, see `GROWTH`."""
  small, large = (values(rows, x, arm, what, kind) for x in GROWTH[which])
  return {x: large[x] / small[x] for x in small.keys() & large.keys()}


def of_exact(rows: Rows, cell: str, arm: str, kind: str) -> BySeed:
  """Returns the mean or the spread of exact log u, by seed."""
  return {
    seed: _pooled(row["exact"], kind)
    for seed, row in _rows_of(rows, cell, arm).items()
  }

"""Looks up what rows have measured, by seed."""

from collections.abc import Mapping

from experiments.fine_tuning import plan
from experiments.fine_tuning.measure import NEW, UNTOUCHED
from experiments.harness import Results

SETS = (NEW, UNTOUCHED)
Rows = Mapping[int, Mapping]  # by seed
BySeed = dict[int, float]


def arms() -> list[tuple[str, str]]:
  """Returns all objectives and starts."""
  return [(x, y) for x, starts in plan.STARTS.items() for y in starts]


def rows_of(
  results: Results, name: str, start: str, part: str = plan.TUNED
) -> Rows:
  """Returns the rows of an arm, by seed."""
  return results.by_seed(part, f"{plan.LABELS[name]}, {start}")


def last(rows: Rows, metric: str) -> BySeed:
  """Returns the last value of a curve, by seed."""
  return {seed: row["curve"][metric][-1] for seed, row in rows.items()}


def change(rows: Rows, metric: str, i: int) -> BySeed:
  """Returns a curve's value at `plan.STEPS[i]` minus its first, by seed."""
  curves = {seed: row["curve"][metric] for seed, row in rows.items()}
  return {seed: x[i] - x[0] for seed, x in curves.items()}


def lowest(rows: Rows, metric: str, until: int = plan.STEPS[-1]) -> BySeed:
  """Returns by how much a curve falls below its first value, by seed.

  Args:
    rows: The rows of an arm.
    metric: The curve.
    until: The last step that is looked at.
  """
  count = sum(x <= until for x in plan.STEPS)
  curves = {seed: row["curve"][metric] for seed, row in rows.items()}
  return {seed: min(x[:count]) - x[0] for seed, x in curves.items()}


def mixed(rows: Rows, metric: str, share: str) -> BySeed:
  """Returns the score of a mixture, by seed; "0" and "1" are the ends."""
  return {
    seed: row["mixed"][share][metric]
    if share in row["mixed"]
    else row["curve"][metric][0 if share == "0" else -1]
    for seed, row in rows.items()
  }

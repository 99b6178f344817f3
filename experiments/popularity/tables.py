"""The tables of README.md."""

from collections.abc import Sequence
import pathlib

import numpy as np

from experiments.harness import Options, Results, Row, markdown
from experiments.harness import rows as rows_of_file
from experiments.harness.statistics import paired, statistics
from experiments.popularity.plan import STRENGTHS, VARIANTS

Rows = Sequence[Row]
BASE, QUEUE = VARIANTS[0].name, "sinkhorn"
RECALL = "mean_recall@1"
TEST = f"test/{RECALL}"
DIGITS = "test/zero_shot_digits/top1"


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = list(results.rows.values())
  return {
    "variants": variant_table(rows),
    "hubs": hub_table(rows),
    "network": network_table(rows),
    "solver": solver_line(rows),
  }


def values(
  rows: Rows, variant: str, column: str, *, scale: float = 1.0
) -> dict[int, float]:
  """Returns a column of a variant, by seed."""
  return {
    row["seed"]: scale * row[column]
    for row in rows
    if row["setting"] == variant
  }


def interval(numbers, digits: int = 2) -> str:
  """Formats a mean and the half-width of its 95 % interval."""
  return statistics(numbers).show(digits)


def gain(rows: Rows, variant: str, column: str, over: str) -> str:
  """Formats the paired difference to another variant, in points."""
  ours, theirs = (values(rows, x, column, scale=100) for x in (variant, over))
  return paired(ours, theirs).show()


def variant_table(rows: Rows) -> str:
  """Shows the results of each way to get zeta."""
  lines = []
  for variant in VARIANTS:
    name = variant.name

    def cell(column, digits=2, *, scale=1.0, name=name):
      numbers = values(rows, name, column, scale=scale).values()
      return interval(numbers, digits)

    lines.append(
      [
        name,
        cell(f"validation/{RECALL}", 1, scale=100),
        cell(TEST, 1, scale=100),
        "" if name == BASE else gain(rows, name, TEST, BASE),
        cell(DIGITS, 1, scale=100),
        "" if name == BASE else gain(rows, name, DIGITS, BASE),
        *(cell(f"exact/pearson_{side}") for side in ("image", "text")),
        *(_spread(rows, name, side) for side in ("image", "text")),
        cell("train_seconds", 0),
      ]
    )
  header = (
    "zeta, validation R@1, test R@1, test − fixed at 0, digits, "
    "digits − fixed at 0, Pearson images, Pearson texts, spread images, "
    "spread texts, seconds"
  )
  return markdown.table(header.split(", "), lines)


def hub_table(rows: Rows) -> str:
  """Shows what the correction for hubs gains, over all runs of a seed."""
  columns = (("validation", 1), ("test", 1), ("test", 5), ("test", 10))
  lines = [
    [
      source,
      f"{strength:g}",
      *(_hub_gain(rows, split, source, strength, k) for split, k in columns),
    ]
    for source in ("exact", "network")
    for strength in STRENGTHS
  ]
  header = "zeta, strength, validation R@1, test R@1, test R@5, test R@10"
  return markdown.table(header.split(", "), lines)


def network_table(rows: Rows) -> str:
  """Shows the R^2 of the network."""
  lines = []
  for variant in VARIANTS:
    cells = [
      interval(values(rows, variant.name, f"network/r2_{seen}_{side}").values())
      for seen in ("seen", "unseen")
      for side in ("image", "text")
    ]
    lines.append([variant.name, *cells])
  header = (
    "zeta in training, seen images, seen texts, unseen images, unseen texts"
  )
  return markdown.table(header.split(", "), lines)


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns the seeds, and differences that no table has.

  They are of other ways to zeta to the queue, by the correlation with the exact
  solution; of the seconds of training with refreshes and without; and of
  variants in an earlier run. That run had the same seeds, other code, and
  scores with running averages instead of recomputed batch statistics.
  """
  del options
  current = list(results.rows.values())
  seeds = {row["seed"] for row in current}
  path = pathlib.Path(__file__).with_name("running_averages.jsonl")
  rows, scores = rows_of_file.read(path), {"test R@1": TEST, "digits": DIGITS}
  found = {
    f"running averages: {variant.name}: {score}": gain(
      rows, variant.name, column, BASE
    )
    for variant in VARIANTS[1:]
    for score, column in scores.items()
  }
  for variant in VARIANTS[1:]:
    name = variant.name
    for side in ("image", "text") if name != QUEUE else ():
      found[f"{name} − {QUEUE}: Pearson {side}s"] = difference(
        current, name, f"exact/pearson_{side}", QUEUE, 3
      )
    found[f"{name} − {BASE}: seconds"] = difference(
      current, name, "train_seconds", BASE, 1
    )
  return {"seeds": str(len(seeds))} | found


def difference(
  rows: Rows, variant: str, column: str, over: str, digits: int
) -> str:
  """Formats the paired difference to another variant, with its interval."""
  ours, theirs = (values(rows, x, column) for x in (variant, over))
  return paired(ours, theirs).show_interval(digits)


def solver_line(rows: Rows) -> str:
  """Summarizes the cost of the exact solutions."""
  if not rows:
    return ""
  seconds = [row["exact/seconds"] for row in rows]
  residual = max(row["exact/residual"] for row in rows)
  iterations = [row["exact/iterations"] for row in rows]
  return (
    f"{len(rows)} exact solutions: {min(iterations)} to {max(iterations)} "
    f"iterations for both sides, {min(seconds):.0f} to {max(seconds):.0f} s, "
    f"residual at most {residual:.1e}."
  )


def _spread(rows: Rows, variant: str, side: str) -> str:
  """Formats the ratio of the standard deviations of learned and exact zeta."""
  learned, exact = (
    values(rows, variant, f"exact/{x}_std_{side}") for x in ("learned", "exact")
  )
  return interval(learned[seed] / exact[seed] for seed in learned)


def _hub_gain(rows: Rows, split, source, strength, k) -> str:
  """Formats the gain in points; a seed counts as the mean over its runs."""
  recall = f"mean_recall@{k}"
  gains = {}
  for row in rows:
    corrected = row[f"{split}/hubs_{source}_{strength}/{recall}"]
    gain = 100 * (corrected - row[f"{split}/{recall}"])
    gains.setdefault(row["seed"], []).append(gain)
  return interval(map(np.mean, gains.values()), 1)

"""The tables of README.md."""

from collections.abc import Sequence

from experiments.harness import Options, Results, Row, markdown
from experiments.harness.statistics import MISSING, statistics
from experiments.popularity.at_scale.plan import (
  BATCH_SIZE,
  BATCH_SIZES,
  BATCH_TAUS,
  BATCH_WAYS,
  BATCHES,
  DRIFTING,
  FROZEN,
  LARGE,
  LARGE_WAYS,
  RECIPE,
  RECIPE_BATCH,
  RECIPE_TAU,
  RECIPE_WAYS,
  TAU,
  TAUS,
  setting_of,
)
from experiments.popularity.at_scale.ways import WAYS

SCORES = {
  "gradient": "gradient error of ζ",
  "step": "gradient error of a step",
  "log_u": "error of log u",
  "r2": "R² of ζ",
  "spread": "spread of ζ",
}


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = list(results.rows.values())
  return {score: by_temperature(rows, score) for score in SCORES} | {
    "batches": by_batch(rows),
    "drifting": all_scores(rows, DRIFTING, WAYS),
    "large": all_scores(rows, LARGE, LARGE_WAYS),
    "recipe": all_scores(
      rows, RECIPE, RECIPE_WAYS, RECIPE_TAU, batch_size=RECIPE_BATCH
    ),
    "costs": costs(rows),
  }


def found(
  rows: Sequence[Row], part: str, way: str, tau: float, *batch_size: int
) -> list[Row]:
  """Returns the rows of a setting."""
  name = setting_of(way, tau, *batch_size)
  return [x for x in rows if x["part"] == part and x["setting"] == name]


def mean(rows: Sequence[Row], score: str) -> float | None:
  """Returns the mean of a score over both sides and all seeds."""
  values = [x for row in rows for x in row.get(score, {}).values()]
  return statistics(values).mean if values else None


def cell(value: float | None) -> str:
  """Formats a mean."""
  return MISSING if value is None else f"{value:.3f}"


def by_temperature(rows: Sequence[Row], score: str) -> str:
  """Shows a score of every way at every temperature, frozen."""
  lines = []
  for way in WAYS:
    cells = [cell(mean(found(rows, FROZEN, way, x), score)) for x in TAUS]
    if set(cells) != {MISSING}:
      lines.append([way, *cells])
  return markdown.table(["way", *(f"τ {x}" for x in TAUS)], lines)


def by_batch(rows: Sequence[Row]) -> str:
  """Shows a step's error by batch size and temperature."""
  columns = [(x, tau) for x in BATCH_SIZES for tau in BATCH_TAUS]
  lines = [
    [
      way,
      *(
        cell(mean(found(rows, BATCHES, way, tau, x), "step"))
        for x, tau in columns
      ),
    ]
    for way in BATCH_WAYS
  ]
  header = [f"batch {x}, τ {tau}" for x, tau in columns]
  return markdown.table(["gradient error of a step", *header], lines)


def all_scores(
  rows: Sequence[Row],
  part: str,
  ways: Sequence[str],
  tau: float = TAU,
  *,
  batch_size: int = BATCH_SIZE,
) -> str:
  """Shows all scores at one temperature."""
  lines = []
  for way in ways:
    some = found(rows, part, way, tau, batch_size)
    cells = [cell(mean(some, x)) for x in SCORES]
    if set(cells) != {MISSING}:
      lines.append([way, *cells])
  return markdown.table(["way", *SCORES.values()], lines)


def costs(rows: Sequence[Row]) -> str:
  """Shows what a way keeps and computes."""
  lines = []
  for way in WAYS:
    some = [x for x in found(rows, FROZEN, way, TAU) if x["bytes"]]
    if some:
      per_pair = sum(some[0]["bytes"].values()) / some[0]["num_pairs"]
      flops = some[0]["flops"] / 1e6
      lines.append([way, f"{per_pair:.1f}", f"{flops:.2f}"])
  return markdown.table(["way", "bytes per pair", "Mflop per step"], lines)

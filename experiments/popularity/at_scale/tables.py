"""The tables of README.md."""

from collections.abc import Iterable, Mapping, Sequence

from experiments.harness import Options, Results, Row, markdown
from experiments.harness.statistics import MISSING, paired, statistics
from experiments.popularity.at_scale.plan import (
  BATCH_SIZE,
  BATCH_SIZES,
  BATCH_TAUS,
  BATCH_WAYS,
  BATCHES,
  COST_WAYS,
  COSTS,
  DRIFTING,
  FROZEN,
  GAIN_WAYS,
  GAINS,
  LARGE,
  LARGE_WAYS,
  MOVING_STEPS,
  MOVING_WAYS,
  RECIPE,
  RECIPE_BATCH,
  RECIPE_TAU,
  RECIPE_WAYS,
  STEP_BATCHES,
  STEP_WAYS,
  STEPS,
  TAU,
  TAUS,
  setting_of,
)
from experiments.popularity.at_scale.ways import FROZEN_WAYS, WAYS

SCORES = {
  "gradient": "gradient error of ζ",
  "log_u": "error of log u",
  "r2": "R² of ζ",
  "spread": "spread of ζ",
  "exact_sd": "sd(ζ*) / τ",
}
# What memories hold.
LARGE_NAMES = {
  "queue 0.6 %": "queue, 784 pairs",
  "queue 0.6 %, falls": "queue, 784 pairs, falls",
}
BATCH_NAMES = {"queue 9.4 %": "queue, 1,536 pairs (batch 1,024: 2,048)"}
RECIPE_NAMES = {
  "queue 9.4 %": "queue, 6,144 pairs",
  "queue 0.6 %": "queue, 512 pairs",
}
NAMES = {  # of 4,096 pairs
  "queue 25 %": "queue, 1,024 pairs",
  "queue 9.4 %": "queue, 384 pairs",
  "queue 0.6 %": "queue, 32 pairs",
}
ANGLE_WAYS = ("SogCLR", "ζ = 0", "ζ exact", "batch, rate 0.14", "queue 25 %")
RATIOS = (
  ("ζ exact", "ζ = 0"),
  ("ζ exact", "SogCLR"),
  ("queue 25 %", "SogCLR"),
  ("batch, rate 0.14", "SogCLR"),
)


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = list(results.rows.values())
  return {
    "gradient": by_temperature(rows, "gradient"),
    "log_u": by_temperature(rows, "log_u"),
    "r2": by_temperature(rows, "r2"),
    "spread": by_temperature(rows, "spread"),
    "sd": spreads(rows),
    "batches": by_batch(rows),
    "drifting": all_scores(rows, DRIFTING, FROZEN_WAYS),
    "large": all_scores(rows, LARGE, LARGE_WAYS, names=LARGE_NAMES),
    "recipe": all_scores(
      rows,
      RECIPE,
      RECIPE_WAYS,
      RECIPE_TAU,
      batch_size=RECIPE_BATCH,
      names=RECIPE_NAMES,
    ),
    "steps": steps(rows, "step", STEP_WAYS),
    "angles": steps(rows, "angle", ANGLE_WAYS),
    "ratios": ratios(rows, "step"),
    "ratios of angles": ratios(rows, "angle"),
    "drifting steps": drifting_steps(rows),
    "gains": gains(rows),
    "costs": costs(rows),
  }


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns numbers of the text that no table has.

  They are the largest standard deviation between seeds, and differences of
  errors of steps to SogCLR, paired by seed.
  """
  del options
  rows = list(results.rows.values())
  gaps = {}
  for way in ("ζ exact", "queue 25 %", "batch, rate 0.14"):
    for tau in TAUS:
      for batch in STEP_BATCHES:
        ours, theirs = (
          by_seed(found(rows, STEPS, x, tau, batch), "step")
          for x in (way, "SogCLR")
        )
        if (gap := paired(ours, theirs)).count:
          name = f"{NAMES.get(way, way)} − SogCLR: τ {tau}, batch {batch}"
          gaps[name] = gap.show_interval(3)
  spreads = [
    statistics([mean([x], "step") for x in some]).std
    for tau in TAUS
    for way, batches in STEP_WAYS.items()
    for batch in batches
    if len(some := found(rows, STEPS, way, tau, batch)) > 1
  ]
  return gaps | (
    {"steps: sd over seeds": cell(max(spreads))} if spreads else {}
  )


def by_seed(rows: Sequence[Row], score: str) -> dict[int, float]:
  """Returns the mean of a score over both sides, by seed."""
  values = {row["seed"]: mean([row], score) for row in rows}
  return {seed: x for seed, x in values.items() if x is not None}


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
  for name in FROZEN_WAYS:
    if score != "log_u" and WAYS[name].gamma != WAYS["ζ = 0"].gamma:
      continue  # zeta does not depend on u where it is fixed
    cells = [cell(mean(found(rows, FROZEN, name, x), score)) for x in TAUS]
    if set(cells) != {MISSING}:
      lines.append([name, *cells])
  return markdown.table(["way", *(f"τ {x}" for x in TAUS)], lines)


def spreads(rows: Sequence[Row]) -> str:
  """Shows the spread of the exact zeta in units of the temperature."""
  lines = []
  for label, part, way, batch in (
    ("16,384 pairs", FROZEN, "ζ exact", BATCH_SIZE),
    ("4,096 pairs", STEPS, "ζ exact", BATCH_SIZE),
    ("131,072 pairs", LARGE, "ζ = 0", BATCH_SIZE),
    ("65,536 pairs", RECIPE, "ζ exact", RECIPE_BATCH),
  ):
    some = [found(rows, part, way, x, batch) for x in TAUS]
    lines.append([label, *(cell(mean(x, "exact_sd")) for x in some)])
  return markdown.table(["sd(ζ*) / τ", *(f"τ {x}" for x in TAUS)], lines)


def by_batch(rows: Sequence[Row]) -> str:
  """Shows the error of zeta by batch size and temperature."""
  columns = [(x, tau) for x in BATCH_SIZES for tau in BATCH_TAUS]
  lines = []
  for way in BATCH_WAYS:
    some = [found(rows, BATCHES, way, tau, x) for x, tau in columns]
    cells = [cell(mean(x, "gradient")) for x in some]
    lines.append([BATCH_NAMES.get(way, way), *cells])
  header = [f"batch {x}, τ {tau}" for x, tau in columns]
  return markdown.table(["gradient error of ζ", *header], lines)


def all_scores(
  rows: Sequence[Row],
  part: str,
  ways: Sequence[str],
  tau: float = TAU,
  *,
  batch_size: int = BATCH_SIZE,
  names: Mapping[str, str] = {},
) -> str:
  """Shows all scores at one temperature."""
  lines = []
  for way in ways:
    some = found(rows, part, way, tau, batch_size)
    cells = [cell(mean(some, x)) for x in SCORES]
    if set(cells) != {MISSING}:
      lines.append([names.get(way, way), *cells])
  return markdown.table(["way", *SCORES.values()], lines)


def steps(rows: Sequence[Row], score: str, ways: Iterable[str]) -> str:
  """Shows a score of steps by temperature, way and batch size."""
  lines = []
  for tau in TAUS:
    for way in ways:
      some = [found(rows, STEPS, way, tau, x) for x in STEP_BATCHES]
      cells = [cell(mean(x, score)) for x in some]
      if score == "step":
        cells.append(cell(mean(some[0], "whole")))
      lines.append([f"{tau}", NAMES.get(way, way), *cells])
  header = [f"batch {x}" for x in STEP_BATCHES]
  header += ["all pairs"] if score == "step" else []
  return markdown.table(["τ", "way", *header], lines)


def ratios(rows: Sequence[Row], score: str) -> str:
  """Shows what share of one way's score is left by another."""
  lines = []
  for over, under in RATIOS:
    for tau in TAUS:
      cells = []
      for batch in STEP_BATCHES:
        one, other = (
          mean(found(rows, STEPS, x, tau, batch), score) for x in (over, under)
        )
        cells.append(cell(one / other if one and other else None))
      name = f"({NAMES.get(over, over)}) / ({under})"
      lines.append([name, f"{tau}", *cells])
  header = [f"batch {x}" for x in STEP_BATCHES]
  return markdown.table(["ratio", "τ", *header], lines)


def drifting_steps(rows: Sequence[Row]) -> str:
  """Shows the scores of steps after embeddings that drift."""
  lines = []
  for way in MOVING_WAYS:
    some = found(rows, MOVING_STEPS, way, TAU)
    cells = [cell(mean(some, x)) for x in ("step", "angle", "log_u")]
    lines.append([NAMES.get(way, way), *cells])
  header = ["way", "gradient error of a step", "sine of its angle"]
  return markdown.table([*header, "error of log u"], lines)


def gains(rows: Sequence[Row]) -> str:
  """Shows what diagnostics say of zeta, and what the gradient gains."""
  lines = []
  for tau in TAUS:
    for way in GAIN_WAYS:
      some = found(rows, GAINS, way, tau)
      seeds = {x["seed"] for x in some}
      none = found(rows, STEPS, "ζ = 0", tau)
      none = mean([x for x in none if x["seed"] in seeds], "gradient")
      error = mean(some, "gradient")
      gain = None if error is None or none is None else 1 - error / none
      names = "all", "quarter", "quarter_low", "quarter_high"
      parts = [mean([x["gain"] for x in some], name) for name in names]
      cells = [cell(x) for x in (gain, *parts)]
      lines.append([f"{tau}", NAMES.get(way, way), *cells])
  header = ["share of ζ's error that is gone", "zeta_gain, all pairs"]
  header += ["zeta_gain, a quarter", "its low end", "its high end"]
  return markdown.table(["τ", "way", *header], lines)


def costs(rows: Sequence[Row]) -> str:
  """Shows what a way keeps and computes."""
  lines = []
  for way in COST_WAYS:
    for x in found(rows, COSTS, way, TAU):
      per_pair = sum(x["bytes"].values()) / x["num_pairs"]
      lines.append([way, f"{per_pair:.1f}", f"{x['flops'] / 1e6:.2f}"])
  return markdown.table(["way", "bytes per pair", "Mflop per step"], lines)

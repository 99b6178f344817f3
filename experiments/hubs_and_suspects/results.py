"""Looks up what rows have measured, by seed, as means of the models."""

from collections.abc import Sequence
from typing import Any

from experiments.harness import Row
from experiments.hubs_and_suspects.plan import (
  ARMS,
  CLEAN,
  ERRORS,
  TRAINED_ON_ERRORS,
  clean,
  with_errors,
)

BASE, PRIOR, OURS = "E", "E + τ log p", "match probability"
TUNED = ("ζ", "CSLS", "IS", "QB-Norm")  # settings chosen on validation
# Columns of the tables of hubs: kind of queries, direction and exponent.
COLUMNS = {
  "balanced: image to text": ("balanced", "image to text", 0.0),
  "balanced: text to image": ("balanced", "text to image", 0.0),
  "balanced, tail: image to text": ("balanced", "image to text", 1.2),
  "balanced, tail: text to image": ("balanced", "text to image", 1.2),
  "natural: image to text": ("natural", "image to text", 1.2),
  "natural: text to image": ("natural", "text to image", 1.2),
}
OWN, FAMILIAR, UNFAMILIAR = "own", "familiar fonts", "unfamiliar fonts"
VIEWS = (OWN, FAMILIAR, UNFAMILIAR)
WRONG = ("1 % wrong", "5 % wrong", "10 % wrong", "5 % wrong, long tail")
DUPLICATES = "duplicates"
ROUND = 10  # decimals, so that equal means are equal


def of_setting(rows: Sequence[Row], part: str, setting: str) -> dict[int, Row]:
  """Returns the rows of a setting, by seed."""
  return {
    row["seed"]: row
    for row in rows
    if row["part"] == part and row["setting"] == setting
  }


def mean_of(values: Sequence[dict[int, float]]) -> dict[int, float]:
  """Averages over models, for the seeds that all of them have.

  Example:
    >>> mean_of([{0: 1.0, 1: 2.0}, {0: 3.0}])
    {0: 2.0}
  """
  seeds = set.intersection(*(set(x) for x in values))
  return {
    seed: round(sum(x[seed] for x in values) / len(values), ROUND)
    for seed in sorted(seeds)
  }


def recall(
  rows: Sequence[Row],
  column: str,
  name: str,
  arms: Sequence[str] = tuple(ARMS),
) -> dict[int, float]:
  """Returns the test recall@1 of a correction in percent, by seed."""
  kind, direction, exponent = COLUMNS[column]
  return mean_of(
    [
      {
        seed: row["recall"][direction][kind][name]["test"]
        for seed, row in of_setting(rows, CLEAN, clean(arm, exponent)).items()
        if name in row["recall"][direction][kind]
      }
      for arm in arms
    ]
  )


def settings_of(
  rows: Sequence[Row], column: str, name: str
) -> list[dict[str, Any]]:
  """Returns the settings that validation chose, of all models and seeds."""
  kind, direction, exponent = COLUMNS[column]
  return [
    row["recall"][direction][kind][name]["setting"]
    for arm in ARMS
    for row in of_setting(rows, CLEAN, clean(arm, exponent)).values()
  ]


def chosen_strength(
  rows: Sequence[Row], column: str, name: str
) -> dict[int, float]:
  """Returns the strength that validation chose, mean of the models."""
  kind, direction, exponent = COLUMNS[column]
  return mean_of(
    [
      {
        seed: row["recall"][direction][kind][name]["setting"]["strength"]
        for seed, row in of_setting(rows, CLEAN, clean(arm, exponent)).items()
      }
      for arm in ARMS
    ]
  )


def area(
  rows: Sequence[Row],
  view: str,
  errors: str,
  name: str,
  arms: Sequence[str] = (),
) -> dict[int, float]:
  """Returns a score's AUPRC, by seed.

  Args:
    rows: All rows.
    view: `OWN` for models trained on the errors; otherwise the fonts of data
      that a model trained without errors scores.
    errors: What was planted.
    name: The score.
    arms: The models; by default all that the view has.
  """
  if view == OWN:
    return mean_of(
      [
        {
          seed: row["suspects"][OWN][name]
          for seed, row in of_setting(
            rows, ERRORS, with_errors(arm, errors)
          ).items()
        }
        for arm in arms or TRAINED_ON_ERRORS
      ]
    )
  exponent = 1.2 if errors.endswith("tail") else 0.0
  return mean_of(
    [
      {
        seed: row["suspects"][f"{view}: {errors}"][name]
        for seed, row in of_setting(rows, CLEAN, clean(arm, exponent)).items()
      }
      for arm in arms or ARMS
    ]
  )

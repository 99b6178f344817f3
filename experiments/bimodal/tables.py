"""The tables of the study: a row for each run, a row for each of its epochs."""

import csv
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
RUNS, CURVES = HERE / "runs.csv", HERE / "curves.csv"
KEY = ("algorithm", "variant", "batch_size", "seed")
Key = tuple[str, str, int, int]


def read(path: pathlib.Path) -> list[dict[str, str]]:
  """The rows of a table; none if it is not there yet.

  Raises:
    ValueError: If the file is damaged.
  """
  if not path.exists():
    return []
  try:
    with path.open(newline="", encoding="utf-8") as file:
      rows = list(csv.DictReader(file, strict=True))
    keys = [key_of(row) for row in rows]
  except (ValueError, KeyError, csv.Error) as error:
    raise ValueError(f"{path} is damaged: {error!r}") from error
  for number, row in enumerate(rows, start=2):
    if None in row or None in row.values():  # too many fields, or too few
      raise ValueError(f"{path} is damaged: line {number} is not whole")
  if not keys:
    raise ValueError(f"{path} is empty: delete it to begin from nothing")
  return rows


def key_of(row: dict) -> Key:
  """The `Run.key` of a row of either table."""
  algorithm, variant, batch_size, seed = (row[name] for name in KEY)
  return algorithm, variant, int(batch_size), int(seed)


def index(rows: list[dict]) -> dict[Key, dict]:
  """Rows of `RUNS` by `Run.key`; ValueError if one is there twice."""
  results = {key_of(row): row for row in rows}
  if len(results) < len(rows):
    raise ValueError(f"{RUNS} has {len(rows) - len(results)} runs twice")
  return results

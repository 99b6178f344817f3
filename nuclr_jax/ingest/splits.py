"""Splits that a table names, in a column of its own.

Rows of a table are then not all trained on. A column is one of splits by its
name, and its values are the usual words for train, validation and test; a value
that is none of them ends the work, since its rows may be those to test on.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import logging
import os
from typing import Any, NamedTuple

TRAIN, VALIDATION, TEST = "train", "validation", "test"
NAMES = {
  **dict.fromkeys(("train", "training", "restval"), TRAIN),
  **dict.fromkeys(("val", "valid", "validation", "dev"), VALIDATION),
  **dict.fromkeys(("test", "testing"), TEST),
}
# Usual names of the column, likeliest first; capitals make no difference.
COLUMNS = (
  "split data_split dataset_split partition set subset fold phase usage "
  "is_train is_training is_valid is_val is_validation is_test"
).split()
VAGUE = {
  "set",
  "subset",
  "fold",
  "phase",
  "usage",
}  # names of other things, too
MOST_SHOWN = 8  # values in a message

log = logging.getLogger(__name__)


class Named(NamedTuple):
  """What a row of a table says of its split."""

  column: str
  value: str


class Chosen(NamedTuple):
  """The rows of a split, in a file that names splits."""

  column: str
  split: str
  rest: bool  # whether rows that name none are listed with this split


def find_column(
  path: str | os.PathLike,
  header: Sequence[str],
  name: str | None,
  *,
  others: Collection[str] = (),
) -> str | None:
  """Finds the column that names splits; None if there is none.

  Args:
    path: The table, for messages.
    header: Its columns.
    name: The column that the user names; "" = the table names no splits.
    others: Columns that hold something else.

  Raises:
    ValueError: If the table lacks the column that the user names.

  Example:
    >>> find_column("t.csv", ["image", "caption", "Split"], None)
    'Split'
  """
  if name == "":
    return None
  if name is not None:
    if name not in header:
      raise ValueError(f"{path} has no column {name}; it has {list(header)}")
    return name
  lower = {x.lower(): x for x in header if x not in others}
  return next((lower[x] for x in COLUMNS if x in lower), None)


def named(row: Mapping[str, Any], column: str | None) -> Named | None:
  """Returns what a row says of its split; None if it says nothing.

  Args:
    row: The cells of the row, by column.
    column: The column that names splits, if there is one.

  Example:
    >>> named({"split": " Test "}, "split"), named({"split": ""}, "split")
    (Named(column='split', value='test'), None)
  """
  value = row.get(column)
  missing = value is None or value != value  # NaN
  text = "" if missing else str(value).strip().lower()
  return Named(column, text) if text else None


def rest_of(split: str | None, names: Collection[str]) -> str | None:
  """Returns the split with which rows are listed that name none.

  Args:
    split: The split of a table that names none.
    names: The splits that the table names.
  """
  return split if not names or split in names else min(names)


def assign(
  path: str | os.PathLike, found: Iterable[Named], *, chosen: bool = False
) -> dict[Named, str]:
  """Finds the split that each value of a column stands for.

  Args:
    path: The table, for messages.
    found: What its rows say.
    chosen: Whether the user has named the column.

  Returns:
    The splits; {} if the column has a vague name, and no value is a split's: it
    is then about something else.

  Raises:
    ValueError: If a value is unknown; the message names all that are.

  Example:
    >>> assign("t.csv", [Named("split", "train"), Named("split", "val")])
    {Named(column='split', value='train'): 'train', \
Named(column='split', value='val'): 'validation'}
  """
  found = list(dict.fromkeys(found))
  unknown = [x for x in found if x.value not in NAMES]
  if not unknown:
    return {x: NAMES[x.value] for x in found}
  column = unknown[0].column
  shown = ", ".join(sorted(x.value for x in unknown)[:MOST_SHOWN])
  more = f" and {len(unknown) - MOST_SHOWN} more" * (len(unknown) > MOST_SHOWN)
  if column.lower() in VAGUE and len(unknown) == len(found) and not chosen:
    log.warning(
      "%s: the column %s, with the values %s, is not taken for one of splits; "
      "all rows are of the same split",
      *(path, column, shown + more),
    )
    return {}
  raise ValueError(
    f"{path}: the column {column} names splits, but has the values {shown}"
    f"{more}, which are not known; write train, validation (or val, valid, "
    "dev) or test in each row, name another column with --split_column=NAME, "
    "or give --split_column= if none names splits"
  )

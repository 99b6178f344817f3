"""Splits that a table names, in a column of its own.

Rows of a table are then not all trained on. A column is one of splits by its
name, and its values are the usual words for train, validation and test; a value
that is none of them ends the work, since its rows may be those to test on. A
column with another name is one of splits if all its values are such words, and
of several splits. Folders and files may be called by these words, too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import functools
import logging
import os
import re
from typing import Any, NamedTuple
import urllib.parse

from nuclr_jax.lab.data.images import ENDINGS

TRAIN, VALIDATION, TEST = "train", "validation", "test"
NAMES = {
  **dict.fromkeys(("train", "training", "restval"), TRAIN),
  **dict.fromkeys(("val", "valid", "validation", "dev"), VALIDATION),
  **dict.fromkeys(("test", "testing"), TEST),
}
# Usual names of the column, likeliest first; capitals make no difference, nor
# does what stands between words.
COLUMNS = (
  "split data_split dataset_split partition set subset fold phase usage "
  "is_train is_training is_valid is_val is_validation is_test "
  "split_name split_type train_test_split is_training_image train test"
).split()
# Names of other things, too.
VAGUE = set(
  "set subset fold phase usage split_name split_type train_test_split "
  "train test".split()
)
HUB_NAME = r"([A-Za-z]\w*)-\d{5}-of-\d{5}(-\w+)?\.parquet"  # SPLIT-...
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
  row: Mapping[str, Any] | None = None,
) -> str | None:
  """Finds the column that names splits; None if there is none.

  Args:
    path: The table, for messages.
    header: Its columns.
    name: The column that the user names; "" = the table names no splits.
    others: Columns that hold something else.
    row: A row: if no column is called like one of splits, it may be one in
      which this row has the word for a split (see `assign`).

  Raises:
    ValueError: If the table lacks the column that the user names.

  Example:
    >>> find_column("t.csv", ["image", "caption", "Split"], None)
    'Split'
    >>> row = {"image": "0.jpg", "caption": "a dog", "use": "test"}
    >>> find_column("t.csv", list(row), None, row=row)
    'use'
  """
  if name == "":
    return None
  if name is not None:
    if name not in header:
      raise ValueError(f"{path} has no column {name}; it has {list(header)}")
    return name
  plain = {_plain(x): x for x in header if x not in others}
  by_name = next((plain[x] for x in COLUMNS if x in plain), None)
  if by_name is not None or row is None:
    return by_name
  found = ((x, named(row, x)) for x in plain.values())
  return next((x for x, said in found if said and of_value(said.value)), None)


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
  if isinstance(value, bytes):
    value = value.decode(errors="replace")
  missing = value is None or value != value  # NaN
  text = "" if missing else str(value).strip().lower()
  return Named(column, text) if text else None


def rest_of(split: str | None, names: Collection[str]) -> str | None:
  """Returns the split with which rows are listed that name none.

  Args:
    split: The split of a table that names none.
    names: The splits that the table names.
  """
  if not names or split in names:
    return split
  return TRAIN if TRAIN in names else min(names)


def assign(
  path: str | os.PathLike,
  found: Iterable[Named | None],
  *,
  chosen: bool = False,
) -> dict[Named, str]:
  """Finds the split that each value of a column stands for.

  Args:
    path: The table, for messages.
    found: What its rows say; None if some say nothing.
    chosen: Whether the user has named the column.

  Returns:
    The splits; {} if the column is about something else: it has a vague name,
    and no value is a split's, or an unusual one, and not all values are, or all
    are of one split. It is warned of in the last two cases if values are few,
    unless "train" is all that rows say: it may be a vehicle.

  Raises:
    ValueError: If a value is unknown; the message names all that are.

  Example:
    >>> assign("t.csv", [Named("split", "train"), Named("split", "val")])
    {Named(column='split', value='train'): 'train', \
Named(column='split', value='val'): 'validation'}
  """
  found = list(dict.fromkeys(found))
  blank, found = None in found, [x for x in found if x]
  known = {x: split for x in found if (split := of_value(x.value))}
  unknown = [x for x in found if x not in known]
  unusual = [x.column for x in found if _plain(x.column) not in COLUMNS]
  if unusual and not chosen:
    many = max(len(known), len(unknown)) > MOST_SHOWN
    several = len(set(known.values())) > 1
    trains = not (unknown or blank) and {*known.values()} == {TRAIN}
    if many or not known or trains:
      return {}
    if unknown or not several:
      log.warning(
        "%s: the column %s has the values %s, and is not taken for one of "
        "splits; if it is, write train, validation or test in each row, and "
        "give --split_column=%s",
        path,
        unusual[0],
        ", ".join(sorted(x.value for x in found) + ["(blank)"] * blank),
        unusual[0],
      )
      return {}
    log.warning(
      "%s: the column %s is taken for one of splits, by its values; give "
      "--split_column= if it is not",
      path,
      unusual[0],
    )
  if not unknown:
    return known
  column = unknown[0].column
  shown = ", ".join(sorted(x.value for x in unknown)[:MOST_SHOWN])
  more = f" and {len(unknown) - MOST_SHOWN} more" * (len(unknown) > MOST_SHOWN)
  if _plain(column) in VAGUE and len(unknown) == len(found) and not chosen:
    log.warning(
      "%s: the column %s, with the values %s, is not taken for one of splits",
      path,
      column,
      shown + more,
    )
    return {}
  raise ValueError(
    f"{path}: the column {column} names splits, but has the values {shown}"
    f"{more}, which are not known; write train, validation (or val, valid, "
    "dev) or test in each row, name another column with --split_column=NAME, "
    "or give --split_column= if none names splits"
  )


def of_value(value: str) -> str:
  """Returns the split that a word stands for, also before a number, or "".

  Example:
    >>> of_value("val_2014"), of_value("2014")
    ('validation', '')
  """
  return NAMES.get(re.sub(r"[-_]?\d+$", "", value), "")


def of_name(name: str) -> str:
  """Returns the split that a folder, or a part of a file name, is called by.

  Hugging Face's converter calls a part of a large split `partial-train`, and
  what writes tables in parts by a column calls their folders `split=train`.

  Example:
    >>> of_name("Train"), of_name("val2017"), of_name("trains")
    ('train', 'validation', '')
    >>> of_name("partial-train"), of_name("split=test"), of_name("label=test")
    ('train', 'test', '')
  """
  if part := _of_part(name):
    return of_value(part.value)
  return of_value(name.strip().lower().removeprefix("partial-"))


def _of_part(folder: str) -> Named | None:
  """Returns what a folder such as `split=train` says of the split.

  Spark, pandas, Polars and others leave the column out of the files.
  """
  column, equals, value = folder.partition("=")
  if not equals or _plain(column) not in COLUMNS:
    return None
  return named({column: urllib.parse.unquote(value)}, column)


def of_file(name: str) -> str:
  """Returns the word for a split in the name of a file; else "".

  Example:
    >>> of_file("cc3m-train-0001.tar"), of_file("trains.tar"), of_file("testA")
    ('train', '', 'test')
  """
  found = set(filter(of_name, re.split(r"[-_.\s]|(?<=[a-z])(?=[A-Z])", name)))
  return found.pop() if len(found) == 1 else ""


def of_paths(
  folder: str | os.PathLike, paths: Sequence[str | os.PathLike]
) -> list[str]:
  """Finds what files or their folders call their splits; "" = nothing.

  The names of images count for nothing, nor those of other files unless all of
  them name a split: they may show trains. Nor do folders such as `my_train`,
  unless all files are in such, of several splits.

  Example:
    >>> of_paths("/a", ["/a/Train/0.jpg", "/a/test2017/0.jpg", "/a/0.jpg"])
    ['Train', 'test2017', '']
    >>> of_paths("/a", ["/a/cc3m-train-0001.tar", "/a/cc3m-val-0001.tar"])
    ['train', 'val']
  """
  by_folder, by_name, by_word = [], [], []
  for path in paths:
    *folders, name = _within(folder, path)
    of_hub = re.fullmatch(HUB_NAME, name)
    named = [of_hub[1]] if of_hub else list(filter(of_name, folders))
    by_folder.append(named[0] if named else "")
    is_image = name.lower().endswith(ENDINGS)
    by_name.append("" if is_image else of_file(name))
    by_word.append(next(filter(None, map(of_file, folders)), ""))
  if any(by_folder):
    return by_folder
  if all(by_name):
    return by_name
  several = len(set(map(of_name, by_word))) > 1
  return by_word if all(by_word) and several else by_folder


def check_parts(
  folder: str | os.PathLike, paths: Sequence[str | os.PathLike]
) -> None:
  """Raises ValueError for folders such as `split=fold3`, of an unknown split.

  Their rows may be those to test on. Other columns that are in the names of
  folders are none of splits.

  Args:
    folder: The folder that was named.
    paths: The files in it.
  """
  names = {x for path in paths for x in _within(folder, path) if "=" in x}
  found = set(map(_of_part, names))
  for column in sorted({x.column for x in found if x}):
    values = sorted(x.value for x in found if x and x.column == column)
    unknown = [x for x in values if not of_value(x)]
    if not unknown or (_plain(column) in VAGUE and unknown == values):
      continue
    shown = ", ".join(f"{column}={x}" for x in unknown[:MOST_SHOWN])
    raise ValueError(
      f"{folder}: folders name splits that are not known, {shown}; call them "
      f"{column}=train, {column}=validation (or val, valid, dev) or {column}="
      "test, or name the files to read with a pattern"
    )


def _within(folder: str | os.PathLike, path: str | os.PathLike) -> list[str]:
  """Returns the parts of a path below a folder."""
  within = os.fspath(path).removeprefix(os.fspath(folder))
  return within.strip("/").split("/")


@functools.cache
def _plain(column: str) -> str:
  return re.sub(r"[\s-]+", "_", str(column).strip().lower())

"""The file of a study's rows: JSON lines, appended as runs finish."""

from collections.abc import Iterable, Sequence
import io
import json
import pathlib

from experiments.harness.study import Key, Row
from nuclr_jax.lab import files

FILE = "rows.jsonl"
COMMAND = "command"  # the part of rows that record commands, not runs


def read(path: pathlib.Path) -> list[Row]:
  """Reads all rows, without a last line that a crash has cut off.

  Raises:
    ValueError: If a line is damaged.

  Example:
    >>> path = tmp_path / "rows.jsonl"
    >>> write(path, [{"part": "a", "setting": "b", "seed": 0, "score": 0.5}])
    >>> read(path)[0]["score"]
    0.5
  """
  text = path.read_text(encoding="utf-8") if path.exists() else ""
  rows = []
  for number, line in enumerate(text.split("\n")[:-1], 1):
    try:
      row = json.loads(line)
      key_of(row)
    except (ValueError, TypeError, KeyError) as error:
      raise ValueError(
        f"{path}, line {number} is damaged ({error!r}): restore the file, or "
        "remove the line to run it again"
      ) from error
    rows.append(row)
  return rows


def cut_torn_line(file: io.TextIOBase) -> None:
  """Removes a last line that a crash has cut off, before rows are appended.

  Args:
    file: The file of the rows, opened for appending.
  """
  path = pathlib.Path(file.name)
  whole, newline, _ = path.read_bytes().rpartition(b"\n")
  file.truncate(len(whole + newline))


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
  """Replaces the file with these rows."""
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_atomically(path, "".join(map(as_line, rows)))


def append(path: pathlib.Path, row: Row) -> None:
  """Appends a row to the file that has this name now.

  `git checkout` and `git stash` replace files, and what was written to one
  that was opened before would be lost without a word.
  """
  with path.open("a", encoding="utf-8") as file:
    file.write(as_line(row))


def as_line(row: Row) -> str:
  """Formats a row as a line of the file."""
  return json.dumps(row, ensure_ascii=False) + "\n"


def key_of(row: Row) -> Key:
  """Returns `Run.key` of a row."""
  return row["part"], row["setting"], row["seed"]


def index(rows: Sequence[Row]) -> dict[Key, Row]:
  """Returns the rows of runs, by key.

  Raises:
    ValueError: If two rows have the same key.
  """
  runs = [row for row in rows if row["part"] != COMMAND]
  by_key = {key_of(row): row for row in runs}
  if len(by_key) < len(runs):
    raise ValueError(
      f"{len(runs) - len(by_key)} runs have two rows; remove one of each"
    )
  return by_key


def commands(rows: Sequence[Row]) -> list[Row]:
  """Returns the records of commands."""
  return [row for row in rows if row["part"] == COMMAND]

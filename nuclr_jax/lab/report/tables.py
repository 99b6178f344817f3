"""Tables as CSV files, which spreadsheets take for text and numbers only.

A cell that begins with `=`, `+`, `-` or `@` is a formula to a spreadsheet, and
captions and names of files are text of whoever made them. Texts that begin like
a formula are therefore written with an apostrophe in front, and so are texts
that begin with an apostrophe: whoever removes one apostrophe from the beginning
of every text, as `read` does, has the texts as they were. Numbers stay as they
are.
"""

from collections.abc import Mapping
import csv
import pathlib
from typing import Any

from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import as_cell, of_cell


def write(path: pathlib.Path, columns: Mapping[str, Any]) -> None:
  """Writes a table.

  Args:
    path: The file.
    columns: The columns by name, equally long.

  Example:
    >>> columns = {"caption": ["=1+1", "a dog"], "zeta": [-0.5, 1.0]}
    >>> write(tmp_path / "x.csv", columns)
    >>> (tmp_path / "x.csv").read_text().split()
    ['caption,zeta', "'=1+1,-0.5", 'a', 'dog,1.0']
    >>> read(tmp_path / "x.csv")[0]
    {'caption': '=1+1', 'zeta': '-0.5'}
  """
  with (
    files.replacing(path) as new,
    new.open("w", newline="", encoding="utf-8") as file,
  ):
    writer = csv.writer(file)
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
      writer.writerow([as_cell(x) if isinstance(x, str) else x for x in row])


def read(path: pathlib.Path) -> list[dict[str, str]]:
  """Reads the rows of a table of `write`, with the texts as they were.

  Args:
    path: The file.
  """
  with path.open(newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  return [{k: of_cell(x) for k, x in row.items()} for row in rows]

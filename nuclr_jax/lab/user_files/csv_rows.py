"""Reads the rows of CSV and TSV files as other programs write them.

A quoted cell may have several lines, and quotation marks in it may be doubled
or, as Spark and MySQL write them, behind a backslash. A quotation mark that
opens no such cell is part of the text, so that it does not swallow rows.
Blanks before cells count for nothing if the header has them, too. Above it, a
line may name what stands between cells, `sep=;`, as Excel reads it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
import csv
import itertools
import re
from typing import Any

from nuclr_jax.lab.data.captions import MAX_LETTERS
from nuclr_jax.lab.data.images import ENDINGS

# A file of an image, also as Flickr30k's tokens name its captions: x.jpg#0.
IMAGE_FILE = re.compile(
  rf".*({'|'.join(map(re.escape, ENDINGS))})(#\d+)?", re.IGNORECASE | re.S
)
# Above the header, what stands between cells.
HINT = re.compile(r'"?sep=(\t|\\t|[^\w\s"])"?\s*', re.IGNORECASE)
MAX_LINES = MAX_LETTERS  # of a row: no caption has more
MANY = 20  # lines that are rows by the number of their cells alone
DOUBLED, ESCAPED = '""', r"\""  # quotation marks in a quoted cell


def header_of(file: Iterator[str]) -> tuple[int, str, str]:
  r"""Returns the number of the header's line, the line, and its delimiter.

  Args:
    file: Its lines, which are read up to the header.

  Example:
    >>> header_of(iter(["image;caption"]))
    (1, 'image;caption', ';')
    >>> header_of(iter(["sep=,\r\n", "image,a;b;c"]))
    (2, 'image,a;b;c', ',')
  """
  line = next(file, "")
  if hint := HINT.fullmatch(line):
    return 2, next(file, ""), hint[1].replace(r"\t", "\t")
  return 1, line, "\t" if "\t" in line else max(",;|", key=line.count)


def rows_of(file: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
  r"""Yields the number of each row's first line, and the row's cells.

  Args:
    file: Its lines with their ends, as of a file opened with `newline=""`. The
      first row is the header, which `header_of` finds.

  Raises:
    csv.Error: If it is no such file.

  Example:
    >>> import io
    >>> text = 'image,caption\n0.jpg,"a\ndog"\n1.jpg,"big\n2.jpg,24"\n'
    >>> for number, cells in rows_of(io.StringIO(text)):
    ...   print(number, cells)
    1 ['image', 'caption']
    2 ['0.jpg', 'a\ndog']
    4 ['1.jpg', '"big']
    5 ['2.jpg', '24"']
  """
  number, header, mark = header_of(file)
  ahead = deque([header] if header else [])  # lines of rows to come
  width = 0
  spaced = header.count(mark) == header.count(f"{mark} ")
  how = {"delimiter": mark, "skipinitialspace": spaced}

  def lines():
    yield from ahead
    for line in file:
      ahead.append(line)
      yield line

  while line := next(lines(), None):
    try:  # most rows are a line, which is looked at first
      found = 1, next(csv.reader([line], strict=True, **how))
    except csv.Error:
      parsed = (_parse(lines(), x, width, how) for x in (DOUBLED, ESCAPED))
      found = min(filter(None, parsed), key=lambda x: x[0], default=None)
    if found is None:
      text = csv.reader([line], quoting=csv.QUOTE_NONE, **how)
      found = 1, next(text)
    taken, cells = found
    yield number, cells
    number, width = number + taken, width or len(cells)
    for _ in range(taken):
      ahead.popleft()


def _parse(
  lines: Iterator[str], quote: str, width: int, how: Mapping[str, Any]
) -> tuple[int, list[str]] | None:
  """Parses a row; returns how many lines it has, and its cells.

  Args:
    lines: The lines from the first one of the row on.
    quote: What stands for a quotation mark in a quoted cell.
    width: The number of cells; 0 = not known yet.
    how: What stands between cells, for `csv.reader`.

  Returns:
    None if a quoted cell has no end, or rows in it.
  """
  rows = csv.reader(_some(lines, quote, width), strict=True, **how)
  try:
    cells = next(rows)
  except csv.Error:
    return None
  taken = rows.line_num
  swallowed = taken > 1 and _have_rows(cells, how["delimiter"], width)
  return None if swallowed else (taken, cells)


def _some(lines: Iterator[str], quote: str, width: int) -> Iterator[str]:
  """Yields lines as long as they may be of one row.

  Each line with a single quotation mark ends a quoted cell, but for the first.
  So no line is looked at for more rows than there are columns, and a forged
  file takes no longer than others.
  """
  ends = 0
  for line in itertools.islice(lines, MAX_LINES):
    line = line.replace(quote, DOUBLED)
    yield line
    ends += line.count('"') != 2 * line.count(DOUBLED)
    if ends > (width or MANY):
      return


def _have_rows(cells: Sequence[str], mark: str, width: int) -> bool:
  """Returns whether a cell has other rows in it.

  Their lines have as many cells as the header, one of them the name of an
  image. Without names, all lines of many are rows or, if there are tabs, which
  texts seldom have, of a few.
  """
  for at, cell in enumerate(cells):
    lines = [x.split(mark) for x in cell.splitlines()]
    beside = {0: at, len(lines) - 1: len(cells) - at - 1}
    rows = [
      x
      for i, x in enumerate(lines)
      if len(x) > 1 and len(x) + beside.get(i, 0) == width
    ]
    whole = len(rows) >= len(lines) - 1
    if len(lines) > 1 and (
      any(map(IMAGE_FILE.fullmatch, itertools.chain(*rows)))
      or (whole and len(rows) > (0 if mark == "\t" else MANY))
    ):
      return True
  return False

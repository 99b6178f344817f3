"""Lists of a page that one can look through: thumbnails, filter, marks, CSV.

A page has the rows as JSON, and `browse.js` shows some of them at a time, so
that it opens at once with a hundred thousand. The script puts texts into the
page as text and never as HTML, and writes marked rows like `tables.write` does.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
import hashlib
import html
import json
import pathlib
from typing import Any, NamedTuple

from jaxtyping import Int
import numpy as np

from nuclr_jax.lab.report import page

ROWS = 100_000  # of a list, at most; its table has all
THUMBNAILS = 240  # of a list
# Characters of a text, the first of which the texts of a page all fit into
# `TOTAL`. What is longer is cut; its table has all of it.
LIMITS, TOTAL = (2_000, 1_000, 500, 200), 2**24

Column = Sequence[Any] | np.ndarray

_FOLDER = pathlib.Path(__file__).parent


class Listing(NamedTuple):
  """Rows of a table, and how they are shown.

  Columns may be numbers or texts. The column `caption` is shown as such, and
  `key`, the name of a file, so that it can be copied.
  """

  name: str  # of the list, and of what is saved of it
  title: str
  about: str  # HTML
  source: str  # the table that has all rows
  columns: Mapping[str, Column]
  photo: Int[np.ndarray, "rows"]  # which one to show
  shown: Mapping[str, str]  # columns and their labels, below the caption
  # Labels, columns and whether the largest come first; a column of None is the
  # order of the rows.
  orders: Sequence[tuple[str, str | None, bool]]
  group: str = ""  # the column whose equal values belong together
  once: bool = False  # whether a caption is shown once at first

  @property
  def size(self) -> int:
    """The number of rows."""
    return len(self.photo)


def head(listing: Listing, count: int) -> Listing:
  """Returns the first rows of a list.

  Example:
    >>> x = Listing("a", "A", "", "a.csv", {"n": [5, 6]}, np.arange(2), {}, [])
    >>> head(x, 1).columns
    {'n': [5]}
  """
  columns = {name: x[:count] for name, x in listing.columns.items()}
  return listing._replace(columns=columns, photo=listing.photo[:count])


def sections(
  listings: Sequence[Listing],
  images: Callable[[np.ndarray], np.ndarray | None],
) -> list[str]:
  r"""Returns the sections of lists, with their rows and the script.

  Args:
    listings: The lists, with different names.
    images: Returns photos by number, or None if there are none.

  Example:
    >>> columns = {"key": ["<a>.jpg"], "zeta": np.float32([0.25])}
    >>> x = Listing("a", "A", "", "a.csv", columns, np.arange(1), {}, [])
    >>> made = sections([x], lambda rows: None)
    >>> "\\u003ca>.jpg" in made[-1], "<a>" in "".join(made)
    (True, False)
  """
  pool = _Pool()
  rows = {x.name: _packed(head(x, ROWS), pool) for x in listings}
  texts = pool.cut()
  photos = [_with_thumbnail(head(x, ROWS)) for x in listings]
  photo = np.unique(np.concatenate([np.zeros(0, int), *photos]))
  pictures = images(photo) if len(photo) else None
  thumbnails = {}
  if pictures is not None and pictures.ndim >= 3:
    for i, x in zip(photo.tolist(), pictures, strict=True):
      thumbnails[i] = page.thumbnail(x)
  parts, digest = [f"<style>{_read('browse.css')}</style>"], hashlib.sha256()
  for x in listings:
    data = _json(rows[x.name])
    digest.update(data.encode())
    parts.append(_section(x, data))
  digest.update(_json(texts).encode())
  common = texts | {"thumbnails": thumbnails, "digest": digest.hexdigest()[:16]}
  parts.append(
    f"<script type=application/json id=common>{_json(common)}</script>"
    f"<script>{_read('browse.js')}</script>"
  )
  return parts


def _section(listing: Listing, data: str) -> str:
  """Returns the section that the script fills; without rows, there is none."""
  source, size = html.escape(listing.source), listing.size
  text = f"<h2>{html.escape(listing.title)}</h2>{listing.about}"
  if size > ROWS:
    text += (
      f"<p>The page has {ROWS:,} of the {size:,} rows; {source} has all.</p>"
    )
  if size:
    text += (
      "<noscript><p class=wrong>Without JavaScript, the rows are only in "
      f"{source}.</p></noscript>"
    )
  return (
    f"<section {'class=list ' if size else ''}id={listing.name}>{text}"
    f"</section><script type=application/json id=rows-{listing.name}>{data}"
    "</script>"
  )


def num_characters(texts: Sequence[str]) -> int:
  """Returns how many characters of each text a page has.

  Example:
    >>> num_characters(["a dog"]), num_characters(["x" * 900] * 30_000)
    (2000, 500)
  """
  for limit in LIMITS:
    if sum(min(len(x), limit) for x in texts) <= TOTAL:
      return limit
  return LIMITS[-1]


class _Pool:
  """Different texts, each of which a page has once."""

  def __init__(self):
    self.number: dict[str, int] = {}

  def add(self, text: str) -> int:
    return self.number.setdefault(text, len(self.number))

  def cut(self) -> dict[str, Any]:
    """Returns all texts, and how many characters of which are left out."""
    texts = list(self.number)
    limit = num_characters(texts)
    missing = {i: len(x) - limit for i, x in enumerate(texts) if len(x) > limit}
    return {"texts": [x[:limit] for x in texts], "missing": missing}


def _packed(listing: Listing, pool: _Pool) -> dict[str, Any]:
  """Returns what the script needs of a list."""
  columns = {}
  for name, values in listing.columns.items():
    numbers = as_numbers(values)
    if numbers is None:
      texts = np.array([pool.add(str(x)) for x in values], np.int32)
      columns[name] = {"texts": encoded(texts)}
    else:
      columns[name] = {"numbers": encoded(numbers)}
  return {
    "name": listing.name,
    "source": listing.source,
    "count": listing.size,
    "columns": columns,
    "photo": encoded(listing.photo.astype(np.int32)),
    "shown": listing.shown,
    "orders": listing.orders,
    "group": listing.group,
    "once": listing.once,
  }


def as_numbers(values: Column) -> np.ndarray | None:
  """Returns numbers in the smallest type that the script reads; "" is NaN.

  Integers stay exact. None says that some are texts, or too large.

  Example:
    >>> as_numbers([1, 2]).dtype, as_numbers(["", 2**40]).dtype
    (dtype('int32'), dtype('float64'))
    >>> as_numbers(["a", 1]), as_numbers([2**60])
    (None, None)
  """
  given = list(values) if not isinstance(values, np.ndarray) else values
  if not isinstance(given, np.ndarray):
    if any(isinstance(x, str) and x for x in given):
      return None
    given = np.array([np.nan if isinstance(x, str) else x for x in given])
  if given.dtype.kind == "f":
    is_float32 = isinstance(values, np.ndarray) or not any(
      isinstance(x, str) for x in values
    )
    return given.astype(np.float32 if is_float32 else np.float64)
  largest = int(np.abs(given.astype(float)).max(initial=0))
  if largest >= 2**53:
    return None
  return given.astype(np.int32 if largest < 2**31 else np.float64)


def encoded(x: np.ndarray) -> dict[str, str]:
  """Returns an array for the script, which reads it faster than JSON.

  Example:
    >>> encoded(np.int32([1]))
    {'type': 'int32', 'data': 'AQAAAA=='}
  """
  data = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()
  return {"type": x.dtype.name, "data": base64.b64encode(data).decode()}


def _with_thumbnail(listing: Listing) -> np.ndarray:
  """Returns the photos of the first rows, in the orders that rows are in."""
  ends = [np.arange(listing.size)]
  if listing.once:  # one end is popular, the other one is not
    ends.append(ends[0][::-1])
  captions, found = listing.columns.get("caption"), []
  for rows in ends:
    if listing.once:
      seen = {captions[i]: i for i in rows[::-1]}  # the first one stays
      rows = [i for i in rows if seen[captions[i]] == i]
    elif listing.group:
      rows = _first_of_groups(listing.columns[listing.group])
    found.append(listing.photo[rows[: THUMBNAILS // len(ends)]])
  return np.concatenate(found)


def _first_of_groups(group: Column, count: int = 12) -> np.ndarray:
  """Returns the first rows of each group; groups are runs of equal values.

  Example:
    >>> _first_of_groups([1, 1, 1, 2], 2)
    array([0, 1, 3])
  """
  group = np.asarray(group)
  starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]][: len(group)])
  begin = np.repeat(starts, np.diff(np.r_[starts, len(group)]))
  return np.flatnonzero(np.arange(len(group)) - begin < count)


def _json(x: Any) -> str:
  """Returns JSON that no HTML parser takes for the end of a script."""
  shown = json.dumps(x, ensure_ascii=False, separators=(",", ":"))
  return shown.replace("<", "\\u003c")


def _read(name: str) -> str:
  return (_FOLDER / name).read_text(encoding="utf-8")

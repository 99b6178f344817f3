"""What the columns of the tables beside embeddings are for.

Upper and lower case do not matter: image data sets have TEXT and URL, too.
"""

from collections.abc import Sequence
import logging
import pathlib

from nuclr_jax.lab.data.shards.tables import Column, is_uid

# Columns that say which image it is; a path is what `nuclr ingest` can open.
NAMES = ("image_path", "url", "key")
SUMS = ("sha256", "md5")  # columns that are equal for copies of an image
CAPTIONS = ("caption", "text")
MEANS = {
  "uid": "uids",
  "caption": "captions",
  "name": "names of images",
  "image": "checksums of images",
}

log = logging.getLogger(__name__)


def columns_of_datacomp(
  tables: Sequence[pathlib.Path], names: Sequence[Sequence[str]], arch: str
) -> dict[str, Column]:
  """Finds columns of DataComp's tables, of which uid and text must be there.

  Args:
    tables: The files.
    names: The names of the columns in each.
    arch: Of the arrays; the similarities of that model are a column, too.

  Raises:
    ValueError: If a table has no uids, or no texts.
  """
  columns = {}
  for role, name in (("uid", "uid"), ("caption", "text")):
    first = _match(names[0], name) or name
    for table, known in zip(tables, names, strict=True):
      if first not in known:
        raise ValueError(
          f"{table} has no column {first}; it has {', '.join(known)}"
        )
    columns[role] = Column(tables, first)
  for role, wanted in (("name", NAMES), ("image", SUMS)):
    columns |= _common(role, wanted, tables, names)
  score = f"clip_{arch}_similarity_score"
  if some := [x for x, y in zip(tables, names, strict=True) if score in y]:
    columns["score"] = Column(some, score)
  return columns


def columns_of_clip_retrieval(
  tables: Sequence[pathlib.Path], names: Sequence[Sequence[str]]
) -> dict[str, Column]:
  """Finds columns of clip-retrieval's tables; warns of those that are missing.

  Args:
    tables: The files.
    names: The names of the columns in each.
  """
  columns = {}
  for role, wanted in (
    ("uid", ("uid",)),
    ("caption", CAPTIONS),
    ("name", NAMES),
    ("image", SUMS),
  ):
    columns |= _common(role, wanted, tables, names)
    nowhere = not any(_match(x, y) for x in names for y in wanted)
    if nowhere and role in ("caption", "name"):
      log.warning(
        "%s has no column of %s (%s), so that the output has none either; it "
        "has %s: rename the column",
        tables[0],
        MEANS[role],
        " or ".join(wanted),
        ", ".join(names[0]) or "no column",
      )
  # Images of DataComp that clip-retrieval has embedded keep their uids.
  if "uid" in columns and not is_uid(first := _first(columns["uid"])):
    log.warning(
      "%s: %.80s in the column %s is no uid of DataComp; pairs are listed by "
      "their names",
      tables[0],
      repr(first),
      columns.pop("uid").name,
    )
  return columns


def _common(role, wanted, tables, names) -> dict[str, Column]:
  """Returns a role's column if all tables have it; warns if only some do."""
  partly = None
  for name in wanted:
    found = [_match(known, name) for known in names]
    if found[0] is not None and len(set(found)) == 1:
      return {role: Column(tables, found[0])}
    if partly is None and any(found):
      partly = found
  if partly is not None:
    there = next(i for i, x in enumerate(partly) if x is not None)
    other = next(i for i, x in enumerate(partly) if x != partly[there])
    log.warning(
      "%s has no column %s, and %s has it: %s are not taken from any shard",
      tables[other],
      partly[there],
      tables[there],
      MEANS[role],
    )
  return {}


def _match(names: Sequence[str], wanted: str) -> str | None:
  """Returns the name that is wanted, or one in other letters.

  Example:
    >>> _match(["TEXT", "url"], "text"), _match(["Text", "text"], "text")
    ('TEXT', 'text')
  """
  if wanted in names:
    return wanted
  return next((x for x in names if x.lower() == wanted), None)


def _first(column: Column):
  """Returns the first value of a column."""
  return next((x[0] for _, x in column.batches() if x), None)

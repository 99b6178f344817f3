"""Annotation tables: paths of images, and their captions.

Tables are CSV, TSV, JSON, JSON lines, or Parquet without images. Rows that name
the same image become one row with all its captions, in the place of the first.
A table is read into memory, at about 500 bytes per row; images are not.
"""

from collections.abc import (
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
import csv
import logging
import os
import pathlib
import re
from typing import Any, NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import captions_of, of_cell, tidy_text
from nuclr_jax.lab.data.tar_members import DAMAGED
from nuclr_jax.lab.data.text_files import decode, open_text
from nuclr_jax.lab.user_files import splits
from nuclr_jax.lab.user_files.batches import (
  ARROW,
  ASKED,
  batches_of,
  is_bytes,
  may_name,
  open_schema,
  texts_in_bytes,
  values_of,
)
from nuclr_jax.lab.user_files.columns import (
  IMAGE_COLUMNS,
  captions_in,
  choose_captions,
  choose_image,
  path_in,
  plain,
)
from nuclr_jax.lab.user_files.csv_rows import IMAGE_FILE, rows_of
from nuclr_jax.lab.user_files.items import (
  BROKEN_ROW,
  NO_CAPTION,
  NO_IMAGE,
  NO_SPLIT,
  Rejected,
)
from nuclr_jax.lab.user_files.named_images import (
  is_url,
  local_path,
  url_column,
  url_error,
)

# Columns of the tables of `nuclr popularity`, whose texts are `as_cell`.
MARKED = (
  {"own_similarity", "match_probability"},
  {"kind", "similarity", "nearest"},
)
# What is no path, but an image in base64, or as Python prints one of Pillow's.
NO_PATH = re.compile(
  r"data:image/.*|<PIL\.\w.*|[A-Za-z0-9+/_\s-]{200,}={0,2}", re.S
)
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")


# What a table says of a row's split; a text is the split itself, and None says
# nothing.
Split = splits.Named | str | None


log = logging.getLogger(__name__)


class Asked(NamedTuple):
  """The columns that the user names, and those that are known by then."""

  image: str | None
  caption: str | None
  split: str | None
  besides: Collection[str] = ()  # columns that name no splits


class Row(NamedTuple):
  """An image that a table names."""

  key: str  # the name of the image in the table
  source: str  # the table
  path: str
  captions: Sequence[str] | None  # None = in a text file beside the image


def read_table(
  path: str | os.PathLike,
  *,
  split: str | None = None,
  images: str | os.PathLike | None = None,
  image_column: str | None = None,
  caption_column: str | None = None,
  split_column: str | None = None,
) -> Iterator[tuple[str | None, Row | Rejected]]:
  """Reads a table.

  Args:
    path: The table; its suffix decides the format.
    split: The split that is made: if the table names it among others, rows that
      name none are listed with it.
    images: Folder that paths are relative to; by default the table's folder.
    image_column: Column or JSON key of the image's path.
    caption_column: Column or JSON key of the caption or the captions.
    split_column: Column or JSON key of the split, see `splits.find_column`.

  Yields:
    `(split, row)`; what cannot be a row is rejected. The split is None if the
    table names none.

  Raises:
    ValueError: If the table has an unknown form (the message lists known
      forms), or names unknown splits.
  """
  path = pathlib.Path(path)
  folder = os.fspath(path.parent if images is None else images)
  readers = {".csv": _from_csv, ".tsv": _from_csv, ".json": _from_json}
  readers |= dict.fromkeys((".parquet", ARROW), _from_parquet)
  read = readers.get(path.suffix, _from_json_lines)
  columns = Asked(image_column, caption_column, split_column)
  while True:
    try:
      rows = list(read(path, columns))
    except csv.Error as error:
      raise ValueError(
        f"{path} is not a {path.suffix} file: {error}"
      ) from error
    found = {x for x, _ in rows if isinstance(x, splits.Named)}
    blank = {x for x, row in rows if x is None and isinstance(row, Row)}
    known = splits.assign(path, found | blank, chosen=split_column is not None)
    if known or not found:
      break
    besides = {*columns.besides, *(x.column for x in found)}
    columns = columns._replace(besides=besides)
  rows = [(known.get(x) if x in found else x, row) for x, row in rows]
  names = {name for name, _ in rows if name}
  rest = splits.rest_of(split, names) if names else None
  for name, row in rows:
    if isinstance(row, Row):
      row = row._replace(path=local_path(folder, row.path))
      if names and not name:
        row = Rejected(row.key, row.source, NO_SPLIT)
    yield name or rest, row


def join_rows(
  rows: Iterable[tuple[str | None, Row | Rejected]],
) -> dict[str | None, list[Row | Rejected]]:
  """Joins the rows that name the same image, split by split.

  Args:
    rows: Splits and rows, as `read_table` yields them.

  Example:
    >>> a, b = (Row("x.jpg", "t.csv", "/x.jpg", [c]) for c in ("a dog", "dogs"))
    >>> join_rows([("train", a), ("train", b)])["train"][0].captions
    ['a dog', 'dogs']
  """
  named, places, keys = {}, {}, {}
  for split, row in rows:
    joined = named.setdefault(split, [])
    if isinstance(row, Rejected):
      joined.append(row)
      continue
    path = os.path.abspath(row.path)  # 0.jpg and ./0.jpg are one image
    place = places.setdefault(split, {}).setdefault(path, len(joined))
    if place < len(joined):
      captions = [*joined[place].captions, *row.captions]
      joined[place] = joined[place]._replace(captions=captions)
      continue
    taken = keys.setdefault(split, set())  # keys of images in other folders
    joined.append(row._replace(key=row.path) if row.key in taken else row)
    taken.add(row.key)
  return named


def _row(path, place: str, image: Any, captions, **table) -> Row | Rejected:
  """Makes the row at a place of a table; its path is not yet joined."""
  source = os.fspath(path)
  if isinstance(image, bytes):
    raise ValueError(
      f"{path} has the bytes of images, printed as text; write it with "
      "to_parquet in place of to_csv or to_json"
    )
  if not isinstance(image, str) or not image:
    return Rejected(place, source, NO_IMAGE)
  if NO_PATH.fullmatch(image.strip()):
    raise ValueError(
      f"{path} has images as text ({image[:20]}...) in place of their paths; "
      "write them to files, or as bytes to a Parquet file (base64.b64decode "
      "of Python makes bytes of base64)"
    )
  if is_url(image):
    raise url_error(path, **table, example=image)
  return Row(image, source, image, captions)


def _from_csv(path, columns) -> Iterator[tuple[Split, Row | Rejected]]:
  csv.field_size_limit(2**31 - 1)
  with open_text(path, newline="") as file:
    rows = rows_of(file)
    header = [tidy_text(name) for name in next(rows, (1, []))[1]]
    if any(map(is_url, header)):
      raise url_error(path)
    if pair := [x for x in header if IMAGE_FILE.fullmatch(x)]:
      raise ValueError(
        f"{path} has no header: its first line names the image {pair[0]}. "
        "Write one above it, such as image,caption, so that the line is read"
      )
    read = of_cell if any(x <= set(header) for x in MARKED) else str
    image, captions, split = _columns(path, header, columns)
    chosen = (image, *captions, split)
    if twice := [name for name in chosen if header.count(name) > 1]:
      raise ValueError(f"{path} has several columns with the name {twice[0]}")
    for number, cells in rows:
      place = f"line {number}"
      if len(cells) == len(header):
        row = dict(zip(header, map(read, cells), strict=True))
        if split is None and number <= ASKED:
          split = splits.find_column(
            path,
            header,
            columns.split,
            others=(*chosen, *columns.besides),
            row=row,
          )
        named, texts = splits.named(row, split), captions_in(row, captions)
        name = path_in(row | {image: tidy_text(row[image])}, image)
        yield named, _row(path, place, name, texts, header=header, column=image)
      elif cells:
        yield None, Rejected(place, os.fspath(path), BROKEN_ROW)


def _from_json(path, columns) -> Iterator[tuple[Split, Row | Rejected]]:
  """Yields rows of a list, of Karpathy's splits or of COCO's annotations."""
  with open_text(path) as file:
    try:
      content = files.parse_json(file.read())
    except ValueError as error:
      if _is_object(path):  # `to_json` of datasets writes an object a line
        yield from _from_json_lines(path, columns)
        return
      raise ValueError(f"{path} is not a .json file: {error}") from error
  if isinstance(content, list):
    yield from _from_dicts(path, content, _keys(content), columns)
  elif _has_lists(content, "images", "annotations"):
    _check_no_columns(path, "COCO's annotations", columns[:2])
    yield from _from_coco(
      path, columns, content["images"], content["annotations"]
    )
  elif _has_lists(content, "images") and any(
    isinstance(x, Mapping) and "sentences" in x for x in content["images"]
  ):
    _check_no_columns(path, "Karpathy's splits", columns)
    yield from _from_karpathy(path, content["images"])
  else:
    shown = sorted(content)[:8] if isinstance(content, Mapping) else content
    raise ValueError(
      f"{path} holds {str(shown)[:200]}; supported forms are a list of objects "
      "with an image and a caption (of pandas, to_json(orient='records')), "
      "Karpathy's JSON (images with sentences and split), and COCO's (images, "
      "annotations)"
    )


def _check_no_columns(path, form: str, columns) -> None:
  names = ("image_column", "caption_column", "split_column")
  for flag, name in zip(names, columns, strict=False):
    if name is not None:
      raise ValueError(
        f"{path} has the form of {form}, which has no columns to choose; leave "
        f"--{flag}={name} out"
      )


def _is_object(path) -> bool:
  """Returns whether the first line of a file is an object of JSON."""
  with open_text(path) as file:
    return isinstance(_object(file.readline()), Mapping)


def _from_coco(
  path, columns, images, annotations
) -> Iterator[tuple[Split, Row | Rejected]]:
  """Yields a row for each annotation, and a rejection for an image without.

  Raises:
    ValueError: If two images have the same id.
  """
  source, names, described, split = os.fspath(path), {}, set(), None
  for number, image in enumerate(images):
    if isinstance(image, Mapping) and _is_id(image.get("id")):
      split = split or splits.find_column(
        path,
        list(image),
        columns.split,
        others=columns.besides,
        row=image,
      )
      key = str(image["id"])  # some programs quote it in one of the lists
      entry = splits.named(image, split), image.get("file_name")
      if names.setdefault(key, entry) != entry:
        raise ValueError(
          f"{path} has the id {key} for two images, {names[key][1]} and "
          f"{entry[1]}, so that nothing tells whose captions are whose; give "
          "each image an id of its own (files of several sets must be numbered "
          "anew when they are joined)"
        )
    else:
      yield None, Rejected(f"image {number}", source, BROKEN_ROW)
  for number, row in enumerate(annotations):
    if not isinstance(row, Mapping) or not _is_id(row.get("image_id")):
      yield None, Rejected(f"annotation {number}", source, BROKEN_ROW)
      continue
    key, place = str(row["image_id"]), f"annotation {row.get('id', number)}"
    described.add(key)
    named, name = names.get(key, (None, None))
    yield named, _row(path, place, name, captions_of(row, "caption"))
  for key, (named, name) in names.items():
    if key not in described:
      place = name if isinstance(name, str) and name else f"image {key}"
      yield named, Rejected(place, source, NO_CAPTION)


def _from_karpathy(path, images) -> Iterator[tuple[Split, Row | Rejected]]:
  """Yields the split and the row of each image."""
  for number, row in enumerate(images):
    place = f"image {number}"
    split = row.get("split", "") if isinstance(row, Mapping) else None
    if not isinstance(split, str):
      yield None, Rejected(place, os.fspath(path), BROKEN_ROW)
      continue
    parts = row.get("filepath", ""), row.get("filename")
    is_named = all(isinstance(x, str) for x in parts) and parts[1]
    name = os.path.join(*parts) if is_named else None
    captions = captions_of(row, "sentences/raw")
    split = split.strip().lower()
    yield splits.NAMES.get(split, split), _row(path, place, name, captions)


def _is_id(value: Any) -> bool:
  return isinstance(value, int | str)


def _from_json_lines(path, columns) -> Iterator[tuple[Split, Row | Rejected]]:
  with open_text(path) as file:
    header = _keys(map(_object, file))
    file.seek(0)
    rows = (_object(line) for line in file if line.strip())
    yield from _from_dicts(path, rows, header, columns)


def _keys(rows: Iterable[Any]) -> list[str]:
  """Returns the keys of all rows: some programs leave out what has no value."""
  objects = (row for row in rows if isinstance(row, Mapping))
  return list(dict.fromkeys(key for row in objects for key in row))


def _from_dicts(
  path, rows, header: Sequence[str], columns
) -> Iterator[tuple[Split, Row | Rejected]]:
  """Yields rows of objects.

  The first one that names its split decides the column of splits.
  """
  image = captions = split = None
  for number, row in enumerate(rows):
    if not isinstance(row, Mapping):
      if image is None:
        raise ValueError(f"{path}: row {number} is not a JSON object")
      yield None, Rejected(f"row {number}", os.fspath(path), BROKEN_ROW)
      continue
    if image is None:
      image, captions, split = _columns(path, header, columns)
    if split is None:
      split = splits.find_column(
        path,
        list(row),
        columns.split,
        others=(image, *captions, *columns.besides),
        row=row,
      )
    name, texts = path_in(row, image), captions_in(row, captions)
    table = {"header": header, "column": image}
    made = _row(path, f"row {number}", name, texts, **table)
    yield splits.named(row, split), made


def _from_parquet(path, columns) -> Iterator[tuple[Split, Row | Rejected]]:
  """Yields the rows of a file of Parquet or Arrow without images."""
  import pyarrow

  try:
    schema, sizes = open_schema(path)
    texts = texts_in_bytes(path, schema)
    names = [x.name for x in schema if may_name(x.type) or x.name in texts]
    rows = (
      row
      for group in range(len(sizes))
      for batch in batches_of(path, group, names, ASKED)
      for row in _objects(path, batch)
    )
    yield from _from_dicts(path, rows, names, columns)
  except (pyarrow.ArrowException, OSError):
    yield None, Rejected("", os.fspath(path), DAMAGED)


def _objects(path, batch) -> Iterator[dict[str, Any]]:
  """Yields the rows of a batch of Parquet or Arrow.

  Raises:
    ValueError: If Python has no value for one, as for a nanosecond.
  """
  names, cells = batch.schema.names, []
  for name, column in zip(names, batch.columns, strict=True):
    try:
      values = values_of(column)
    except (ValueError, OverflowError) as error:
      raise ValueError(
        f"{path}: the column {name} ({str(column.type)[:60]}) cannot be read: "
        f"{error}. Leave it out of the file, or write it as text"
      ) from error
    cells.append(map(_decoded, values) if is_bytes(column.type) else values)
  for row in zip(*cells, strict=True):
    yield dict(zip(names, row, strict=True))


def _decoded(cell: bytes | list[bytes | None] | None) -> Any:
  if isinstance(cell, list):
    return list(map(_decoded, cell))
  return None if cell is None else decode(cell)


def _object(line: str) -> Any:
  """Parses a line of JSON; returns None if it cannot be read."""
  try:
    return files.parse_json(line)
  except ValueError:
    return None


def _columns(
  path, header: Sequence[str], columns
) -> tuple[str, tuple[str, ...], str | None]:
  """Chooses the columns of images, of captions and, if there is one, splits."""
  named, usual = columns[0] is not None, map(plain, header)
  has_image = any(x in IMAGE_COLUMNS or x.endswith("_file_name") for x in usual)
  if not named and not has_image and (column := url_column(header)):
    raise url_error(path, header, column)
  image = choose_image(path, header, columns[0])
  captions = choose_captions(path, header, columns[1], image)
  split = splits.find_column(
    path,
    header,
    columns.split,
    others=(image, *captions, *columns.besides),
  )
  return image, captions, split


def _has_lists(content: Any, *names: str) -> bool:
  return isinstance(content, Mapping) and all(
    isinstance(content.get(name), list) and content[name] for name in names
  )

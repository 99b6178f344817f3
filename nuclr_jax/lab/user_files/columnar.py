"""Reads Parquet files, and the Arrow files of `datasets`, row by row.

An image is in a column of bytes, or of structs as Hugging Face's `datasets`
writes them, `{"bytes": ..., "path": ...}`: each row has the bytes or, without
them, the path of a file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
import logging
import os
import pathlib
import re
import shlex
from typing import Any

from nuclr_jax.lab.data.captions import key_of
from nuclr_jax.lab.data.tar_members import DAMAGED
from nuclr_jax.lab.user_files import splits
from nuclr_jax.lab.user_files.batches import (
  ASKED,
  COMPRESSED,
  CUT,
  IMAGE_START,
  batches_of,
  first_rows,
  has_bytes,
  has_path,
  is_arrow,
  is_feather,
  open_schema,
  values_of,
)
from nuclr_jax.lab.user_files.columns import (
  CAPTION_COLUMNS,
  IMAGE_COLUMNS,
  MOST_NAMED,
  captions_in,
  choose_column,
  numbered,
  plain,
  warn_of_images,
)
from nuclr_jax.lab.user_files.items import (
  BROKEN_ROW,
  NO_IMAGE,
  NO_SPLIT,
  Item,
  Rejected,
)
from nuclr_jax.lab.user_files.named_images import (
  is_url,
  local_path,
  url_column,
  url_error,
)
from nuclr_jax.lab.user_files.readers import read_rows
from nuclr_jax.lab.user_files.tables import Row

BYTES_COLUMNS = (
  "jpg jpeg image image_bytes bytes png webp img photo content"
).split()
CHECKSUM = re.compile("hash|digest|checksum|md5|sha[0-9]")  # no images
# What `datasets` has for photos that it knows by their address only.
LINKS = (
  "{path} names images by URL, such as {url}, and has no bytes of them. Let "
  "datasets download them first:\n  python -c {script}\n"
  "then give --input={out}"
)
SCRIPT = (
  "import datasets as d; from datasets.table import embed_table_storage as f; "
  "x = d.{load}; x = x.with_format('arrow').map(f, batched=True, "
  "batch_size=100); x.with_format(None).to_parquet('{out}')"
)

log = logging.getLogger(__name__)


def are_tables(
  text: str, paths: Sequence[pathlib.Path], image_column: str | None
) -> bool:
  """Returns whether Parquet or Arrow files have no images, but their paths.

  Args:
    text: The input, for messages.
    paths: The files.
    image_column: The column of images that the user names, if any.

  Raises:
    ValueError: If some have images and others paths, or one has links.
  """
  found = {_is_table(path, image_column) for path in paths} - {None}
  if len(found) > 1:
    raise ValueError(
      f"--input={text}: some files have the bytes of images, others their "
      "paths in a column of texts; name files of one kind"
    )
  return found == {True}


def _is_table(path: pathlib.Path, image_column: str | None) -> bool | None:
  """Returns whether a file has no images, but their paths; None = damaged."""
  import pyarrow

  if is_arrow(path) and is_feather(path):
    raise ValueError(
      f"{path} is a Feather file, not a stream as save_to_disk writes it; "
      "write it as Parquet, with pandas.read_feather(...).to_parquet(...)"
    )
  try:
    schema, sizes = open_schema(path)
  except (pyarrow.ArrowException, OSError, ValueError):
    return None
  names = schema.names
  if twice := [name for name, count in Counter(names).items() if count > 1]:
    raise ValueError(f"{path} has several columns with the name {twice[0]}")
  binary = [x.name for x in schema if has_bytes(x.type)]
  texts = [x.name for x in schema if has_path(x.type) and x.name not in binary]
  if image_column is not None:
    return image_column in texts
  if set(map(plain, binary)) & set(BYTES_COLUMNS):
    return False
  usual = [plain(x) for x in texts]
  if any(x in IMAGE_COLUMNS or x.endswith("file_name") for x in usual):
    if binary and sum(sizes):
      _warn_of_bytes(path, binary)
    return True
  if not binary and (column := url_column(texts)):
    raise url_error(path, names, column)
  return False


def _warn_of_bytes(path, columns: Sequence[str]) -> None:
  """Warns of the columns of bytes in a table of paths that have images."""
  row = next(iter(first_rows(path, columns, 1)), {})
  for name, data in row.items():
    data = data.get("bytes") if isinstance(data, dict) else data
    if data and IMAGE_START.match(data):
      log.warning(
        "%s: images are read from the paths in it, not from its column %s, "
        "which has the bytes of images; --image_column=%s reads these",
        path,
        name,
        shlex.quote(name),
      )


def image_column(path: str | os.PathLike, schema: Any, name: str | None) -> str:
  """Chooses the column of images in a file that has them.

  Args:
    path: The file, for messages.
    schema: Its schema, by pyarrow.
    name: The column that the user names, if any.

  Raises:
    ValueError: If there is no such column, or if several may be the one.
  """
  names = schema.names
  binary = [x.name for x in schema if has_bytes(x.type)]
  if not binary or (name in names and name not in binary):
    columns = ", ".join(f"{x.name} ({str(x.type)[:60]})" for x in schema)
    raise ValueError(
      f"{path} has the columns {columns}, of which "
      f"{', '.join(binary) or 'none'} can hold the bytes of one image in each "
      f"row{f', {name} cannot' if name else ''}; the type must "
      "be binary, a struct with bytes, or a text with the path of a file. A "
      "row of several images must become several rows, a column of paths with "
      "an unusual name is named by --image_column=NAME, and images that are "
      "named by URL are downloaded first, for instance with img2dataset"
    )
  likely = [x for y in BYTES_COLUMNS for x in binary if plain(x) == y]
  known = {*CAPTION_COLUMNS, "key", *map(plain, numbered(names))}
  others = [x for x in binary if not CHECKSUM.search(plain(x))]
  images = [x for x in others if plain(x) not in known] or others or binary
  if name is None and not likely and len(images) > 1:
    shown = ", ".join(images[:MOST_NAMED])
    raise ValueError(
      f"{path} may have images in the columns {shown}; name one of them with "
      "--image_column=NAME"
    )
  chosen = choose_column(path, names, name, [*likely, *images], "image_column")
  if name is None:
    alike = [x for x in images if any(y in plain(x) for y in BYTES_COLUMNS)]
    warn_of_images(path, chosen, alike)
  return chosen


def said_of_splits(
  path: str | os.PathLike, group: int, column: str
) -> set[splits.Named | None]:
  """Returns what the rows of a group say of their splits.

  Args:
    path: The file.
    group: The group. Of a damaged one, nothing is known.
    column: The column that names splits.
  """
  import pyarrow

  said = set()
  try:
    for batch in batches_of(path, group, [column], 128):
      said |= {_said(batch, at, column) for at in range(len(batch))}
  except (pyarrow.ArrowException, OSError, ValueError):
    said.add(None)
  return said


def _said(batch, at: int, column: str) -> splits.Named | None:
  """Returns what one row of a batch says of its split."""
  (value,) = values_of(batch.column(column).slice(at, 1))
  return splits.named({column: value}, column)


def check_links(
  path: str | os.PathLike, image: str, groups: Sequence[int]
) -> bool:
  """Returns whether a file names images by path, at least some.

  Args:
    path: The file.
    image: The column of images.
    groups: Its groups. Of a damaged one, nothing is known.

  Raises:
    ValueError: If it names one by URL, and does not have its bytes; the message
      says how to download them.
  """
  import pyarrow
  from pyarrow import types

  try:
    schema, _ = open_schema(path)
    kind = schema.field(image).type
    if not types.is_struct(kind) or not has_path(kind):
      return False
    some = groups if is_arrow(path) else _without_some(path, image, groups)
  except (pyarrow.ArrowException, OSError, ValueError):
    return False
  found = []
  for group in some:
    try:
      found += _named_in(path, image, group)
    except (pyarrow.ArrowException, OSError, ValueError):
      continue
  if link := next(filter(is_url, found), None):
    raise _link_error(path, link)
  return bool(found)


def _named_in(path, image: str, group: int) -> list[str]:
  """Returns the paths of images in a group that are not in it themselves.

  If none is a link, it may be more: bytes are read in the worst case only.
  """
  if not is_arrow(path):
    paths = _paths(batches_of(path, group, [f"{image}.path"], ASKED))
    if not any(map(is_url, paths)):
      return paths
  return _paths(batches_of(path, group, [image], 128))


def _paths(batches) -> list[str]:
  """Returns the paths in the structs of batches that do not have bytes."""
  found = []
  for batch in batches:
    column = batch.column(0)
    names = [x.name for x in column.type]
    fields = dict(zip(names, column.flatten(), strict=True))
    paths = fields["path"]
    if "bytes" in fields:
      paths = paths.filter(fields["bytes"].is_null())
    found += filter(None, paths.to_pylist())
  return found


def _without_some(path, image: str, groups: Sequence[int]) -> list[int]:
  """Returns the groups of Parquet in which a row may be without bytes."""
  from pyarrow import parquet

  found = []
  with parquet.ParquetFile(path) as file:
    for group in groups:
      described = file.metadata.row_group(group)
      columns = map(described.column, range(described.num_columns))
      known = [
        x.statistics
        for x in columns
        if x.path_in_schema == f"{image}.bytes" and x.statistics
      ]
      full = [x for x in known if x.has_null_count and not x.null_count]
      if not full:
        found.append(group)
  return found


def _link_error(path, url: str) -> ValueError:
  path = pathlib.Path(path)
  out = "embedded.parquet"
  source = path.parent if is_arrow(path) else path
  load = "load_from_disk" if is_arrow(path) else "Dataset.from_parquet"
  script = SCRIPT.format(load=f"{load}({os.fspath(source)!r})", out=out)
  plain_text = not any(x in script for x in '"$`!\\')
  script = f'"{script}"' if plain_text else shlex.quote(script)
  return ValueError(
    LINKS.format(path=path, url=url[:80], script=script, out=out)
  )


def read_columns(
  path: str,
  groups: Sequence[int],
  image: str,
  captions: Sequence[str],
  folder: str | None = None,
  chosen: splits.Chosen | None = None,
) -> Iterator[Item | Rejected]:
  """Reads groups of a file, a few rows at a time.

  Args:
    path: The Parquet or Arrow file.
    groups: Which groups.
    image: Column of bytes, or of structs that have bytes or a path.
    captions: Columns of strings, or of lists of strings.
    folder: Folder that paths are relative to; by default that of the file.
    chosen: The rows to read; None = all of them.

  Yields:
    Items. Their keys come from the column `key` if there is one, else from the
    name of the file and the number of the row; so does that of a row whose
    `key` another one has, as where an image has a row for each caption.
  """
  import pyarrow

  names = {image, "key", *(x.split("/")[0] for x in captions)}
  names |= {chosen.column} if chosen else set()
  folder = os.path.dirname(path) if folder is None else folder
  keys = set()
  for group in groups:
    try:
      schema, sizes = open_schema(path)
      number = sum(sizes[:group])
      columns = [x for x in schema.names if x in {*names, *captions}]
      for batch in batches_of(path, group, columns, 16):
        for at in range(len(batch)):
          key = f"{pathlib.Path(path).stem}-{number:09d}"
          number += 1
          said = _said(batch, at, chosen.column) if chosen else None
          if chosen and said is None and chosen.rest:
            yield Rejected(key, path, NO_SPLIT)
          elif (
            not chosen or said and splits.of_value(said.value) == chosen.split
          ):
            for x in _items_of(key, path, batch, at, image, captions, folder):
              again = isinstance(x, Item) and x.key in keys
              yield x._replace(key=key) if again else x
              keys.add(x.key)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
      why = f" ({error})" if str(error) in (CUT, COMPRESSED) else ""
      yield Rejected(f"row group {group}", path, f"{DAMAGED}{why}")


def _items_of(
  key, path, batch, at, image, captions, folder
) -> Iterator[Item | Rejected]:
  """Yields the item of one row of a batch."""
  try:
    cells = zip(*map(values_of, batch.slice(at, 1).columns), strict=True)
    row = dict(zip(batch.schema.names, next(cells), strict=True))
    key = key_of(row, key)
  except Exception:  # pyarrow raises several
    yield Rejected(key, path, BROKEN_ROW)
    return
  data, place = row[image], None
  if isinstance(data, dict):
    data, place = data.get("bytes"), data.get("path")
  texts = captions_in(row, captions)
  if data:
    yield Item(key, path, data, texts)
  elif place and isinstance(place, str):
    for item in read_rows([Row(key, path, local_path(folder, place), texts)]):
      named = isinstance(item, Rejected)  # the path says more than a number
      yield item._replace(key=place) if named else item
  else:
    yield Rejected(key, path, NO_IMAGE)

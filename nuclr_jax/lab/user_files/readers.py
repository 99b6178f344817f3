"""Readers of the kinds of input; each yields one item after another.

A reader reads one part on its own. It does not fail because of bad data, but
yields what it could not read as rejected. `ingest.records` decides which
items are good.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib
from typing import Any

from nuclr_jax.lab import files
from nuclr_jax.lab.data import in_place
from nuclr_jax.lab.data.captions import captions_beside, captions_of
from nuclr_jax.lab.data.images import UNREADABLE
from nuclr_jax.lab.data.tar_files import (
  EMPTY,
  KINDS,
  LONG_TEXT,
  MAX_TEXT,
  OTHER_PICTURE,
  TOO_BIG,
  flaw_of,
  name_files,
)
from nuclr_jax.lab.data.tar_members import DAMAGED, END, Member, members_of
from nuclr_jax.lab.data.tfds_reader import (
  caption_field,
  image_field,
  read_only_builder,
)
from nuclr_jax.lab.user_files import splits
from nuclr_jax.lab.user_files.items import (
  BROKEN_RECORD,
  BROKEN_ROW,
  NO_FILE,
  NO_IMAGE,
  NO_SPLIT,
  ONLY_HIDDEN,
  OUTSIDE,
  Item,
  Rejected,
)
from nuclr_jax.lab.user_files.tables import ASKED, Row


def read_tar(path: str) -> Iterator[Item | Rejected]:
  """Reads a tar file in webdataset's format: KEY.jpg, KEY.txt, KEY.json.

  The files of a key, which ends where `tar_files.name_files` says, may be
  anywhere in the tar; in a file that holds several tars, in one of these.
  `captions_beside` says which captions are in KEY.txt and KEY.json.

  Args:
    path: The tar file.

  Example:
    >>> [item.reason for item in read_tar("no such file.tar")]
    ['damaged file']
  """
  groups, ends = {}, []
  try:
    if not os.path.isfile(path):  # a FIFO would wait forever
      raise OSError(path)
    with open(path, "rb") as file:
      with contextlib.suppress(OSError):  # what comes before is read
        for member in members_of(file):
          if member.key is None:
            ends.append(member)
          else:  # a key may come again in another tar of the file
            group = groups.setdefault((len(ends), member.key), [])
            group.append(member)
      why = ends[-1].name if ends else DAMAGED
      if why == END and not groups:
        why = ONLY_HIDDEN if ends[-1].start else EMPTY
      for members in groups.values():
        for key, found in _samples(members):
          if isinstance(found, str):
            yield Rejected(key, path, found)
          elif "image" not in found:
            yield Rejected(key, path, NO_IMAGE)
          else:
            read = {kind: _content(file, x) for kind, x in found.items()}
            offset = found["image"].place
            yield Item(key, path, read["image"], captions_beside(read), offset)
  except OSError:
    why = DAMAGED
  if why != END:
    yield Rejected("", path, why)


def read_rows(rows: Sequence[Row | Rejected]) -> Iterator[Item | Rejected]:
  """Opens the images that rows of a table name.

  Args:
    rows: The rows; rejected rows are passed on.

  Example:
    >>> row = Row("a.jpg", "t.csv", "no such folder/a.jpg", ["a dog"])
    >>> [item.reason for item in read_rows([row])]
    ['missing file']
  """
  for row in rows:
    if isinstance(row, Rejected):
      yield row
      continue
    try:
      yield from _items_of_row(row)
    except (OSError, ValueError):  # ValueError: a name that no file can have
      yield Rejected(row.key, row.source, NO_FILE)
    except Exception as error:  # must not end the part
      reason = f"{UNREADABLE} ({type(error).__name__})"
      yield Rejected(row.key, row.source, reason)


def read_parquet(
  path: str,
  groups: Sequence[int],
  image: str,
  caption: str,
  chosen: splits.Chosen | None = None,
) -> Iterator[Item | Rejected]:
  """Reads row groups of a file, a few rows at a time.

  Args:
    path: The file.
    groups: Which row groups.
    image: Column of bytes, or of structs that have bytes.
    caption: Column of strings, or of lists of strings.
    chosen: The rows to read; None = all of them.

  Yields:
    Items. Their keys come from the column `key` if there is one, else from the
    name of the file and the number of the row.
  """
  import pyarrow
  from pyarrow import parquet

  names = {image, caption, "key"} | ({chosen.column} if chosen else set())
  for group in groups:
    try:
      # Keeps a few pages in memory instead of whole row groups.
      how = {"buffer_size": 1 << 20, "pre_buffer": False}
      with parquet.ParquetFile(path, **how) as file:
        files.check_expansion(file.metadata, [group])
        sizes = (file.metadata.row_group(i).num_rows for i in range(group))
        number = sum(sizes)
        columns = sorted(names & set(file.schema_arrow.names))
        for batch in file.iter_batches(16, [group], columns, use_threads=False):
          for at in range(len(batch)):
            key = f"{pathlib.Path(path).stem}-{number:09d}"
            number += 1
            said = _said(batch, at, chosen.column) if chosen else None
            if chosen and said is None and chosen.rest:
              yield Rejected(key, path, NO_SPLIT)
            elif (
              not chosen or said and splits.NAMES[said.value] == chosen.split
            ):
              yield _parquet_item(key, path, batch, at, image, caption)
    except (pyarrow.ArrowException, OSError, ValueError):
      yield Rejected(f"row group {group}", path, DAMAGED)


def said_of_splits(
  path: str, group: int, column: str
) -> set[splits.Named | None]:
  """Returns what the rows of a row group say of their splits.

  Args:
    path: The Parquet file.
    group: The row group. Of a damaged one, nothing is known.
    column: The column that names splits.
  """
  import pyarrow
  from pyarrow import parquet

  said = set()
  try:
    with parquet.ParquetFile(path) as file:
      files.check_expansion(file.metadata, [group])
      for batch in file.iter_batches(128, [group], [column]):
        said |= {_said(batch, at, column) for at in range(len(batch))}
  except (pyarrow.ArrowException, OSError, ValueError):
    said.add(None)
  return said


def has_bytes(kind) -> bool:
  """Returns whether a column of this type can hold images."""
  from pyarrow import types

  if types.is_struct(kind):
    return any(x.name == "bytes" and has_bytes(x.type) for x in kind)
  if types.is_dictionary(kind):
    return has_bytes(kind.value_type)
  return str(kind) in ("binary", "large_binary", "binary_view")


def has_texts(kind) -> bool:
  """Returns whether a column of this type holds texts."""
  from pyarrow import types

  if types.is_dictionary(kind):
    kind = kind.value_type
  return types.is_string(kind) or types.is_large_string(kind)


def first_rows(path: str, columns: Sequence[str]) -> list[dict[str, Any]]:
  """Returns what columns of a Parquet file hold in its first rows, if any.

  Args:
    path: The Parquet file.
    columns: The columns. Of a damaged file, nothing is known.
  """
  import pyarrow
  from pyarrow import parquet

  try:
    with parquet.ParquetFile(path, pre_buffer=False) as file:
      files.check_expansion(file.metadata, [0])
      for batch in file.iter_batches(ASKED, [0], columns, use_threads=False):
        return batch.to_pylist()
  except (pyarrow.ArrowException, OSError, ValueError):
    pass
  return []


def read_tfds(
  folder: str, split: str, start: int, stop: int
) -> Iterator[Item | Rejected]:
  """Reads records of a prepared TFDS data set, with images as encoded bytes.

  Args:
    folder: The folder of a version of the data set.
    split: Name of the split.
    start: The first record.
    stop: One more than the last record.

  Raises:
    Unreached: If images are in tars, and one of these is gone or has changed.
  """
  import tensorflow_datasets as tfds

  builder = read_only_builder(folder)
  image = image_field(builder.info.features)
  caption = caption_field(builder.info.features)
  decoders = {image: tfds.decode.SkipDecoding()}
  data = builder.as_data_source(split, decoders=decoders)
  tars = in_place.tars_of(pathlib.Path(folder), split)

  def rows_of(numbers):
    return [data[int(number)] for number in numbers]

  keys = set()
  for i in range(start, stop):
    key = f"{split}-{i:09d}"
    try:
      row = data[i]
    except Exception:  # array_record and TFDS raise different errors
      yield Rejected(key, folder, BROKEN_RECORD)
      continue
    try:
      if tars is not None:
        row[image] = in_place.read_images(tars, [i], [row])[0]
    except Exception:
      try:
        in_place.check_tars(tars, rows_of)
      except ValueError as error:  # not one image alone
        raise files.bucket.Unreached(str(error)) from error
      yield Rejected(key, folder, BROKEN_RECORD)
      continue
    stored = captions_of(row, "key") if "key" in row else []
    if stored and stored[0] not in keys:  # files of equal names share a key
      keys.add(stored[0])
      key = stored[0]
    captions = captions_of(row, caption)
    yield Item(key, folder, row[image], captions)


def damaged_file(path: str) -> Iterator[Rejected]:
  """Yields a single rejection: the file cannot be opened."""
  yield Rejected("", path, DAMAGED)


def _samples(
  members: Sequence[Member],
) -> Iterator[tuple[str, dict[str, Member] | str]]:
  """Yields the files of each key, or why a file is not used.

  A second file of the same key and kind belongs to another item.
  """
  items, numbers = {}, Counter()
  named = name_files([member.name for member in members])
  for (key, kind), member in zip(named, members, strict=True):
    if kind == OTHER_PICTURE:
      yield member.name, OTHER_PICTURE
      continue
    found = items.setdefault((key, numbers[key, kind]), {})
    if kind in KINDS:
      found[kind] = member
      numbers[key, kind] += 1
  for (key, _), found in items.items():
    flaws = {kind: flaw_of(kind, x) for kind, x in found.items()}
    flaws = {kind: (found[kind].name, x) for kind, x in flaws.items() if x}
    if "json" in flaws and "txt" in found.keys() - flaws:  # it has the captions
      del found["json"]
      yield flaws.pop("json")
    yield next(iter(flaws.values()), (key, found))


def _content(file, member: Member) -> bytes:
  file.seek(member.place)
  return file.read(member.size)


def leads_out(folder: pathlib.Path, *paths: str | os.PathLike) -> bool:
  """Returns whether one of these paths in a folder is a link out of it."""
  return any(
    os.path.islink(path) and not files.inside(pathlib.Path(path), folder)
    for path in paths
  )


def _items_of_row(row: Row) -> Iterator[Item | Rejected]:
  """Opens the image of a row; a file beside it may be left out."""
  if not os.path.isfile(row.path):  # a FIFO would wait forever
    raise ValueError(row.path)
  of_folder = row.captions is None
  texts = _beside(row.path) if of_folder else {}
  places = pathlib.Path(row.source), row.path, *texts.values()
  if of_folder and leads_out(*places):
    yield Rejected(row.key, row.source, OUTSIDE)
    return
  if os.path.getsize(row.path) > files.MAX_IMAGE:
    yield Rejected(row.key, row.source, TOO_BIG)
    return
  long = [x for x, y in texts.items() if os.path.getsize(y) > MAX_TEXT]
  if long == ["json"] and "txt" in texts:  # the captions are there
    name = os.path.relpath(texts.pop("json"), row.source)
    yield Rejected(name, row.source, LONG_TEXT)
  elif long:
    yield Rejected(row.key, row.source, LONG_TEXT)
    return
  with open(row.path, "rb") as file:
    image = file.read()
  captions = row.captions
  if captions is None:
    captions = captions_beside({x: y.read_bytes() for x, y in texts.items()})
  yield Item(row.key, row.source, image, captions)


def _beside(path: str) -> dict[str, pathlib.Path]:
  """Finds the text files beside an image x.jpg: x.txt, x.TXT or x.jpg.txt."""
  image, texts = pathlib.Path(path), {}
  for kind in ("txt", "json"):
    names = (
      image.with_suffix(f".{kind}"),
      image.with_suffix(f".{kind.upper()}"),
      image.with_name(f"{image.name}.{kind}"),
    )
    if found := next(filter(pathlib.Path.is_file, names), None):
      texts[kind] = found
  return texts


def _said(batch, at: int, column: str) -> splits.Named | None:
  """Returns what one row of a batch says of its split."""
  return splits.named({column: batch.column(column)[at].as_py()}, column)


def _parquet_item(key, path, batch, at, image, caption) -> Item | Rejected:
  """Makes the item of one row of a batch."""
  try:
    row = {name: batch.column(name)[at].as_py() for name in batch.schema.names}
    key = str(row.get("key") or key)
  except Exception:  # pyarrow raises several
    return Rejected(key, path, BROKEN_ROW)
  data = row[image]
  data = data.get("bytes") if isinstance(data, dict) else data
  if not data:
    return Rejected(key, path, NO_IMAGE)
  return Item(key, path, data, captions_of(row, caption))

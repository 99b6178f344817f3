"""Opens Parquet files, and the Arrow files of `datasets`, batch by batch.

A file is cut into groups of rows, which are the row groups of Parquet; a stream
of Arrow is a single group.
"""

from collections.abc import Iterator, Sequence
import os
import re
import struct
from typing import Any

from nuclr_jax.lab import files

ARROW = ".arrow"
END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream of Arrow
FEATHER = b"ARROW1"  # how files begin that are no streams
COMPRESSED = "compressed Arrow file"
CUT = "cut off, or followed by more"
ASKED = 1000  # lines that may be the first to name a split
FEW = 16  # rows that tell texts from other bytes
# Texts of JSON, as `datasets` stores columns of mixed types, and DuckDB JSON.
JSON = "arrow.json"
# How JPEG, PNG, GIF, WebP and TIFF begin.
IMAGE_START = re.compile(
  rb"\xff\xd8\xff|\x89PNG|GIF8|RIFF.{4}WEBP|II\*\0|MM\0\*", re.S
)


def open_schema(path: str | os.PathLike) -> tuple[Any, list[int]]:
  """Returns the schema of a file, and how many rows each group has.

  Args:
    path: The Parquet or Arrow file.

  Raises:
    ArrowException: If it is damaged; so are OSError and ValueError.
  """
  import pyarrow
  from pyarrow import parquet

  if not is_arrow(path):
    with parquet.ParquetFile(path) as file:
      meta = file.metadata
      sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
      return file.schema_arrow, sizes
  num_batches, _ = _scan(path)
  with pyarrow.memory_map(os.fspath(path)) as file:
    reader = pyarrow.ipc.open_stream(file)
    rows = (reader.read_next_batch().num_rows for _ in range(num_batches))
    return reader.schema, [sum(rows)]


def is_arrow(path: str | os.PathLike) -> bool:
  """Returns whether a file is a stream of Arrow, by its name."""
  return os.fspath(path).endswith(ARROW)


def is_feather(path: str | os.PathLike) -> bool:
  """Returns whether a file of Arrow is one with a footer, not a stream."""
  with open(path, "rb") as file:
    return file.read(len(FEATHER)) == FEATHER


def batches_of(
  path: str | os.PathLike, group: int, columns: Sequence[str], size: int
) -> Iterator[Any]:
  """Yields the rows of a group, at most `size` at a time.

  Args:
    path: The Parquet or Arrow file.
    group: The group.
    columns: The columns to read.
    size: The most rows of a batch.

  Raises:
    ArrowException: If the file is damaged; so are OSError and ValueError. What
      comes before the damage is yielded.
  """
  import pyarrow
  from pyarrow import parquet

  if not is_arrow(path):
    # Keeps a few pages in memory instead of whole row groups.
    how = {"buffer_size": 1 << 20, "pre_buffer": False}
    with parquet.ParquetFile(path, **how) as file:
      files.check_expansion(file.metadata, [group])
      yield from file.iter_batches(size, [group], columns, use_threads=False)
    return
  num_batches, why = _scan(path)
  with pyarrow.memory_map(os.fspath(path)) as file:
    reader = pyarrow.ipc.open_stream(file)
    for _ in range(num_batches):
      batch = reader.read_next_batch().select(columns)
      batch.validate(full=True)  # offsets may lead anywhere
      for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)
  if why:
    raise ValueError(why)


def first_rows(
  path: str | os.PathLike, columns: Sequence[str], most: int = ASKED
) -> list[dict[str, Any]]:
  """Returns what columns of a file hold in its first rows, if any.

  Args:
    path: The file.
    columns: The columns. Of a damaged or empty file, nothing is known.
    most: The most rows.
  """
  import pyarrow

  try:
    for batch in batches_of(path, 0, columns, most):
      rows = zip(*map(values_of, batch.columns), strict=True)
      return [dict(zip(batch.schema.names, x, strict=True)) for x in rows]
  except (pyarrow.ArrowException, OSError, ValueError, IndexError):
    pass
  return []


def values_of(column) -> list[Any]:
  """Returns the values of a column of a batch, JSON in them parsed.

  Args:
    column: The column, by pyarrow.

  Raises:
    ValueError: If Python has no value for one; so is OverflowError.

  Example:
    >>> import pyarrow as pa
    >>> values_of(pa.array(['"a dog"', '["a", "b"]', None], pa.json_()))
    ['a dog', ['a', 'b'], None]
  """
  values = column.to_pylist(maps_as_pydicts="lossy")
  if JSON not in str(column.type):
    return values
  return [_parsed(x, column.type) for x in values]


def _parsed(value, kind) -> Any:
  """Parses JSON in a value, in its lists and in its structs."""
  from pyarrow import types

  if isinstance(value, str) and _is_json(kind):
    try:
      return files.parse_json(value)
    except ValueError:
      return value
  if isinstance(value, list):
    return [_parsed(x, kind.value_type) for x in value]
  if isinstance(value, dict) and types.is_struct(kind):
    return {x.name: _parsed(value[x.name], x.type) for x in kind}
  return value


def _is_json(kind) -> bool:
  return getattr(kind, "extension_name", "") == JSON


def texts_in_bytes(path: str | os.PathLike, schema: Any) -> list[str]:
  """Returns the columns of bytes that hold texts, as far as first rows tell.

  Impala, Hive and others write texts of Parquet without marking them as such.
  What begins like an image or has a NUL is none.

  Args:
    path: The file.
    schema: The columns to look at, by pyarrow.
  """
  names = [x.name for x in schema if is_bytes(x.type)]
  rows = first_rows(path, names, FEW) if names else []
  return [x for x in names if all(_are_texts(row[x]) for row in rows)]


def _are_texts(cell: bytes | list[bytes | None] | None) -> bool:
  cells = cell if isinstance(cell, list) else [cell]
  return not any(x and (b"\0" in x or IMAGE_START.match(x)) for x in cells)


def _scan(path: str | os.PathLike) -> tuple[int, str]:
  """Counts the batches of a stream, and says why it ends too early, if so.

  pyarrow takes the end of a file for the end of the stream, so that one which
  was cut between two batches would look complete. Batches that are compressed
  count as damage: `datasets` writes none, and how large they get is not known
  before they are read.
  """
  import pyarrow

  count = 0
  with pyarrow.memory_map(os.fspath(path)) as file:
    try:
      for message in pyarrow.ipc.MessageReader.open_stream(file):
        if _is_compressed(message.metadata.to_pybytes()):
          return count, COMPRESSED
        count += message.type == "record batch"
    except (pyarrow.ArrowException, OSError, struct.error) as error:
      return count, str(error)
    rest = file.size() - file.tell()
    file.seek(0)
    head = file.read(4)
    file.seek(max(0, file.size() - len(END)))
    tail = file.read()
  whole = tail == END if head == END[:4] else tail.endswith(bytes(4))
  return count, "" if whole and not rest else CUT


def _is_compressed(message: bytes) -> bool:
  """Returns whether the buffers of a batch are compressed, by its metadata.

  The metadata of a message is a table of FlatBuffers; pyarrow has verified it.
  Of a Message, the fields 1 and 2 are the type and the header. The header 3 is
  a RecordBatch, of which field 3 is the compression, and 2 a DictionaryBatch,
  of which field 1 is a RecordBatch.

  Source: Message.fbs of Apache Arrow's columnar format 1.5.
  """

  def read(kind, at):
    return struct.unpack_from(f"<{kind}", message, at)[0]

  def field(table, number):
    """Returns where a field of a table is; 0 if it is left out."""
    names = table - read("i", table)
    at = 4 + 2 * number
    offset = read("H", names + at) if at < read("H", names) else 0
    return table + offset if offset else 0

  def follow(at):
    return at + read("I", at)

  root = follow(0)
  kind = field(root, 1)
  kind = read("B", kind) if kind else 0
  if kind not in (2, 3):
    return False
  batch = follow(field(root, 2))
  if kind == 2:
    batch = follow(field(batch, 1))
  return field(batch, 3) != 0


def has_bytes(kind) -> bool:
  """Returns whether a column of this type can hold images."""
  from pyarrow import types

  if types.is_struct(kind):
    return any(x.name == "bytes" and has_bytes(x.type) for x in kind)
  if types.is_dictionary(kind):
    return has_bytes(kind.value_type)
  return str(kind) in ("binary", "large_binary", "binary_view")


def has_path(kind) -> bool:
  """Returns whether a column of this type can hold paths of images.

  Args:
    kind: The type, by pyarrow.

  Example:
    >>> import pyarrow as pa
    >>> has_path(pa.string()), has_path(pa.struct({"path": pa.string()}))
    (True, True)
  """
  from pyarrow import types

  if types.is_struct(kind):
    return any(x.name == "path" and has_texts(x.type) for x in kind)
  return has_texts(kind)


def has_texts(kind) -> bool:
  """Returns whether a column of this type holds texts."""
  from pyarrow import types

  if types.is_dictionary(kind):
    kind = kind.value_type
  texts = "string", "large_string", "string_view"
  return _is_json(kind) or str(kind) in texts


def is_bytes(kind) -> bool:
  """Returns whether a column of this type holds bytes, or lists of them.

  Args:
    kind: The type, by pyarrow.

  Example:
    >>> import pyarrow as pa
    >>> is_bytes(pa.list_(pa.binary())), is_bytes(pa.string())
    (True, False)
  """
  from pyarrow import types

  if types.is_list(kind) or types.is_large_list(kind):
    kind = kind.value_type
  return has_bytes(kind) and not types.is_struct(kind)


def may_name(kind) -> bool:
  """Returns whether a column of this type is read from a table.

  Args:
    kind: The type, by pyarrow. Bytes, times and lists of numbers are not read.

  Example:
    >>> import pyarrow as pa
    >>> may_name(pa.list_(pa.string())), may_name(pa.list_(pa.float32()))
    (True, False)
  """
  from pyarrow import types

  if types.is_dictionary(kind):
    kind = kind.value_type
  texts = any(x in str(kind) for x in ("string", JSON))
  numbers = types.is_nested(kind) and not texts
  other = numbers or types.is_temporal(kind)
  return not other and "binary" not in str(kind)

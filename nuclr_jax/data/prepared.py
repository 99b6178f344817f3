"""Prepared TFDS data sets (array_record), found by name, read by record."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import pathlib
from typing import Any, NamedTuple
import zlib

from nuclr_jax.data import sources

INFO = "dataset_info.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # names of files
WRITER_OPTIONS = "group_size:1,uncompressed"  # JPEG would not gain from more
SCANNED = 256  # records read at a time


class Split(NamedTuple):
  """The records of a split; images are left as encoded bytes."""

  name: str  # data set, configuration, version and split
  folder: pathlib.Path
  features: Any  # TFDS features by name
  length: int
  stamp: str  # another one if its files are others or have changed
  # Record numbers -> rows; images are bytes.
  read: Callable[[Sequence[int]], list[dict[str, Any]]]


def find(name: str, data_dir: str | os.PathLike | None = None) -> pathlib.Path:
  """The folder of a prepared data set's newest version.

  Args:
    name: An absolute path, or a name such as "cc3m", "coco_captions/2014" or
      "cifar100/3.0.2" below `data_dir` or where TFDS itself prepares
      ($TFDS_DATA_DIR or ~/tensorflow_datasets).
    data_dir: Folder of prepared data sets, see `sources.cache_dir`.

  Raises:
    ValueError: If there is none, or it is not clear which.
  """
  tfds_dir = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
  roots = [sources.cache_dir(data_dir), pathlib.Path(tfds_dir).expanduser()]
  for root in roots:
    # `name` itself if it is an absolute path
    folder = root / pathlib.Path(name).expanduser()
    found = versions(folder)
    configurations = {path.parent for path in found}
    if len(configurations) > 1:
      raise ValueError(
        f"{folder} holds several configurations, name one of "
        f"{sorted(map(str, configurations))}"
      )
    if found:
      return max(found, key=_version)
  raise ValueError(
    f"no data set {name!r} is prepared in {' or '.join(map(str, roots))}; "
    "prepare it with nuclr ingest, or with tfds.builder(NAME, data_dir=..., "
    "file_format='array_record').download_and_prepare(), or say where it is "
    "with --data_dir"
  )


def open_builder(name: str, data_dir: str | os.PathLike | None = None) -> Any:
  """Opens a prepared data set.

  Args:
    name: See `find`.
    data_dir: See `find`.

  Returns:
    Its TFDS builder, which reads only.

  Raises:
    ValueError: If there is none, or it is in another format than array_record.
  """
  import tensorflow_datasets as tfds

  folder = os.fspath(find(name, data_dir))
  builder = tfds.builder_from_directory(folder)
  kind = builder.info.file_format.value
  if kind != "array_record":
    raise ValueError(
      f"{folder} is in the format {kind}, which cannot be read at random "
      f"places; convert it once with nuclr convert --input={folder}"
    )
  return builder


def split_names(
  name: str, data_dir: str | os.PathLike | None = None
) -> list[str]:
  """The splits of a prepared data set.

  Args:
    name: See `find`.
    data_dir: See `find`.

  Raises:
    ValueError: See `open_builder`.
  """
  return sorted(open_builder(name, data_dir).info.splits)


def open_split(
  name: str, split: str, data_dir: str | os.PathLike | None = None
) -> Split:
  """Opens a split of a prepared data set; nothing is decoded.

  Args:
    name: See `find`.
    split: Such as "train" or "validation[:1000]".
    data_dir: See `find`.

  Raises:
    ValueError: If there is no such data set or split, its files are not those
      that were written, or it is in another format than array_record.
  """
  import tensorflow_datasets as tfds

  builder = open_builder(name, data_dir)
  folder, known = pathlib.Path(builder.data_dir), builder.info.splits
  base = split.partition("[")[0]
  if base not in known:
    raise ValueError(f"{folder} has no split {base!r}; it has {sorted(known)}")
  files = known[base].filepaths, known[base].shard_lengths
  sources.check_lengths(*files)
  images = {
    field: tfds.decode.SkipDecoding()
    for field, feature in builder.info.features.items()
    if isinstance(feature, tfds.features.Image)
  }
  data = builder.as_data_source(split, decoders=images)

  def read(numbers):
    try:
      return data.__getitems__([int(i) for i in numbers])
    except RuntimeError as error:  # of array_record
      first, last = min(numbers), max(numbers)
      raise ValueError(
        f"{folder}: records {first} to {last} of {split} cannot be read "
        f"({error}); the files are damaged: prepare the data set again"
      ) from error

  return Split(
    f"{builder.info.full_name}/{split}",
    folder,
    builder.info.features,
    len(data),
    _stamp(files[0]),
    read,
  )


def rows(
  read: Callable[[Sequence[int]], list[Any]], length: int
) -> Iterator[Any]:
  """All records in order, `SCANNED` of them read at a time.

  Example:
    >>> list(rows(lambda numbers: [10 * i for i in numbers], 3))
    [0, 10, 20]
  """
  for start in range(0, length, SCANNED):
    yield from read(range(start, min(start + SCANNED, length)))


@contextlib.contextmanager
def record_writer(path: str | os.PathLike) -> Iterator[Any]:
  """A writer of an array_record file, closed however its use ends.

  Raises:
    OSError: From its `write` and at the end, as on a full disk.

  Example:
    >>> with record_writer(tmp_path / "x.array_record") as writer:
    ...   _ = writer.write(b"first")
    >>> sources.num_records(tmp_path / "x.array_record")
    1
  """
  from array_record.python import array_record_module

  writer = array_record_module.ArrayRecordWriter(
    os.fspath(path), WRITER_OPTIONS
  )
  try:
    try:
      yield writer
    except BaseException:
      with contextlib.suppress(RuntimeError):  # the first error says more
        writer.close()
      raise
    writer.close()
  except RuntimeError as error:  # of array_record
    raise OSError(f"{path} cannot be written: {error}") from error


def versions(folder: pathlib.Path) -> list[pathlib.Path]:
  """Folders of prepared versions in or at most two levels below a folder."""
  levels = ("", "*/", "*/*/")
  found = [p for level in levels for p in folder.glob(level + INFO)]
  return [
    path.parent
    for path in found
    if not any(
      part.startswith("incomplete") for part in path.relative_to(folder).parts
    )
  ]


def _stamp(paths: Sequence[Any]) -> str:
  """A hash of names, sizes and times."""
  states = [(os.fspath(path), os.stat(path)) for path in paths]
  found = [(name, x.st_size, x.st_mtime_ns) for name, x in states]
  return f"{zlib.crc32(repr(found).encode()):08x}"


def _version(folder: pathlib.Path) -> list[int]:
  return [int(x) for x in folder.name.split(".") if x.isdigit()]

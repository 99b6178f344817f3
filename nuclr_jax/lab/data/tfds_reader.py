"""Prepared TFDS data sets (array_record): found by name, read by record.

A TFDS data set in array_record format has random access and needs no
TensorFlow. The features that hold the image and the captions are recognised by
type and name.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import os
import pathlib
from typing import Any, NamedTuple
import zlib

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data.places import INFO, find_data_set
from nuclr_jax.lab.files import remote

FEATURES = "features.json"
CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # of file names
WRITER_OPTIONS = "group_size:1,uncompressed"  # JPEG is already compressed
SCANNED = 256  # records read at a time
CAPTIONS = (  # usual names of the feature, likeliest first
  "caption",
  "captions",
  "captions/text",
  "caption/text",
  "text",
  "texts",
  "title",
  "sentence",
  "sentences",
  "sentences/raw",
  "description",
)


class PreparedSplit(NamedTuple):
  """The records of a split; images are left as encoded bytes."""

  name: str  # data set, configuration, version and split
  folder: pathlib.Path
  features: Any  # TFDS features by name
  length: int
  stamp: str  # changes when the files change
  # Record numbers -> rows; images are bytes.
  read: Callable[[Sequence[int]], list[dict[str, Any]]]


def open_builder(name: str, data_dir: str | os.PathLike | None = None) -> Any:
  """Opens a prepared data set.

  Args:
    name: The data set, see `places.find_data_set`.
    data_dir: Folder of prepared data sets.

  Returns:
    The TFDS builder of the data set, which only reads.

  Raises:
    ValueError: If there is no such data set, or its format is not array_record.
  """
  folder = find_data_set(name, data_dir)
  builder = read_only_builder(folder)
  kind = builder.info.file_format.value
  if kind != "array_record":
    raise ValueError(
      f"{folder} is in the format {kind}, which cannot be read in random "
      f"order; convert it once with nuclr convert --input={folder}"
    )
  return builder


def read_only_builder(folder: str | os.PathLike) -> Any:
  """Opens a folder of TFDS, whose metadata are not trusted.

  Args:
    folder: The folder of a data set's version.

  Returns:
    The TFDS builder of the data set, which only reads.

  Raises:
    ValueError: If the metadata are damaged, name files elsewhere, or name a
      class that is not TFDS's: TFDS would import its module, and so run its
      code.
  """
  import tensorflow_datasets as tfds

  folder = pathlib.Path(folder)
  features = files.read_json(folder / FEATURES)
  with files.reading(folder / FEATURES):
    names = sorted(_class_names(features))
  for name in names:
    if not name.startswith("tensorflow_datasets."):
      raise ValueError(
        f"{folder / FEATURES} names the class {name}, which is not one of "
        "TFDS, and is not imported; prepare the data set with features of TFDS"
      )
  with files.reading(folder / INFO):
    builder = tfds.builder_from_directory(os.fspath(folder))
    splits = builder.info.splits.values()
    for path in (pathlib.Path(x) for split in splits for x in split.filepaths):
      # Names come from dataset_info.json, which is not trusted.
      if path.absolute().parent != folder.absolute():
        raise damaged(folder, INFO, f"it names a file elsewhere, {path}")
      if path.exists() and not path.is_file():
        raise damaged(folder, path.name, "it is not a regular file")
      if not files.inside(path, folder):
        raise ValueError(
          f"{path} is a link out of {folder}, and is not followed; copy the "
          "file in place of the link"
        )
  return builder


def _class_names(content: Any) -> set[str]:
  """Finds the names of classes in the JSON of a data set's features."""
  if isinstance(content, list):
    return set().union(*map(_class_names, content))
  if not isinstance(content, dict):
    return set()
  names = set()
  for key, value in content.items():
    if key in CLASS_KEYS and isinstance(value, str):
      names.add(value)
    elif key == "json" and isinstance(value, str):  # JSON inside JSON
      names |= _class_names(json.loads(value))
    else:
      names |= _class_names(value)
  return names


def split_names(
  name: str, data_dir: str | os.PathLike | None = None
) -> list[str]:
  """Lists the names of the splits of a prepared data set.

  Args:
    name: The data set, see `places.find_data_set`.
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If `open_builder` cannot open it.
  """
  return sorted(open_builder(name, data_dir).info.splits)


def open_split(
  name: str, split: str, data_dir: str | os.PathLike | None = None
) -> PreparedSplit:
  """Opens a split of a prepared data set without decoding anything.

  Args:
    name: The data set, see `places.find_data_set`.
    split: A split such as "train", "validation[:1000]" or "train+test[:50%]".
    data_dir: Folder of prepared data sets.

  Raises:
    ValueError: If there is no such data set or split, its files have been
      damaged since they were written, or its format is not array_record.
  """
  import tensorflow_datasets as tfds

  builder = open_builder(name, data_dir)
  folder, splits = pathlib.Path(builder.data_dir), builder.info.splits
  bases = check_split(builder, split)
  paths = [path for base in bases for path in splits[base].filepaths]
  lengths = [x for base in bases for x in splits[base].shard_lengths]
  remote.fetch_more(folder, [pathlib.Path(x).name for x in paths])
  check_lengths(folder, paths, lengths)
  files.allow_open(len(paths))  # each stays open once it has been read
  images = {
    field: tfds.decode.SkipDecoding()
    for field, feature in builder.info.features.items()
    if isinstance(feature, tfds.features.Image)
  }
  data = builder.as_data_source(split, decoders=images)

  def read(numbers):
    try:
      rows = data.__getitems__([int(i) for i in numbers])
    except RuntimeError as error:  # from array_record
      first, last = min(numbers), max(numbers)
      raise ValueError(
        f"{folder}: records {first} to {last} of {split} cannot be read "
        f"({error}); the files are damaged: prepare the data set again"
      ) from error
    for name in sorted(
      {k for row in rows for k, x in row.items() if x is None}
    ):
      raise ValueError(
        f"{folder}: records of {split} lack {name!r}, which features.json "
        "names; the files are damaged: prepare the data set again"
      )
    return rows

  return PreparedSplit(
    f"{builder.info.full_name}/{split}",
    folder,
    builder.info.features,
    len(data),
    _stamp(paths),
    read,
  )


def check_split(builder: Any, split: str) -> list[str]:
  """Raises ValueError unless a split, or slices of some, have records.

  Args:
    builder: What `open_builder` returned.
    split: A split in the notation of TFDS.

  Returns:
    The names of the splits that it is part of.
  """
  folder, splits = builder.data_dir, builder.info.splits
  bases = bases_of(split)
  for base in bases:
    if base not in splits:
      raise ValueError(
        f"{folder} has no split {base!r}; it has {sorted(splits)}"
      )
  sizes = {base: splits[base].num_examples for base in bases}
  try:
    takes = [x.take for x in splits[split].file_instructions]
  except (AssertionError, ValueError) as error:
    reason = progress.first_line(error).rstrip(".")
    raise ValueError(
      f"{split} is not a slice of the records in {folder} ({sizes}): {reason}; "
      "slices are train[:1000], train[20%:30%], train[-5:], or several joined "
      "by +"
    ) from error
  if not takes or min(takes) < 1:
    raise ValueError(f"{folder} has no records in {split}; it has {sizes}")
  return bases


def bases_of(split: str) -> list[str]:
  """Returns the names of the splits that slices are of.

  Example:
    >>> bases_of("train[:10%]+test+train[-10%:]")
    ['train', 'test']
  """
  parts = (part.partition("[")[0].strip() for part in split.split("+"))
  return list(dict.fromkeys(parts))


def all_rows(
  read: Callable[[Sequence[int]], list[Any]], length: int
) -> Iterator[Any]:
  """Yields all records in order, reading `SCANNED` at a time.

  Example:
    >>> list(all_rows(lambda numbers: [10 * i for i in numbers], 3))
    [0, 10, 20]
  """
  for start in range(0, length, SCANNED):
    yield from read(range(start, min(start + SCANNED, length)))


def image_field(features: Any) -> str:
  """Finds the name of the feature that holds encoded images.

  Args:
    features: `builder.info.features` of a TFDS data set.

  Returns:
    "image" if it is an image feature, else the only image feature.

  Raises:
    ValueError: If there is no image feature, or several and none is "image".

  Example:
    >>> import tensorflow_datasets as tfds
    >>> image_field(
    ...   {"photo": tfds.features.Image(), "id": tfds.features.Text()}
    ... )
    'photo'
  """
  import tensorflow_datasets as tfds

  images = [
    name
    for name, feature in features.items()
    if isinstance(feature, tfds.features.Image)
  ]
  if "image" in images:
    return "image"
  if len(images) != 1:
    raise ValueError(
      "the data set needs a feature image, or only one image feature; its "
      f"image features are {images} of {sorted(features)}"
    )
  return images[0]


def caption_field(features: Any) -> str:
  """Finds the name of the feature that holds the captions of an image.

  Args:
    features: `builder.info.features` of a TFDS data set.

  Returns:
    The name; "captions/text" is the text of a sequence of dicts.

  Raises:
    ValueError: If no feature with a usual name holds text.

  Example:
    >>> import tensorflow_datasets as tfds
    >>> caption_field({"title": tfds.features.Text()})
    'title'
  """
  for name in CAPTIONS:
    if _is_text(_find_feature(features, name)):
      return name
  raise ValueError(
    f"no text among the features {sorted(features)} is a caption by its name; "
    f"known names are {', '.join(CAPTIONS)}"
  )


def is_prepared(folder: pathlib.Path) -> bool:
  """Returns whether a prepared data set is in a folder.

  Args:
    folder: The folder of the data set's version.

  Raises:
    ValueError: If the folder has lost the file that describes the data set.
  """
  if not folder.exists():
    return False
  if not (folder / INFO).exists():
    raise damaged(folder, INFO, "it is missing")
  return True


def damaged(folder: pathlib.Path, file: str, reason: str) -> ValueError:
  """Makes the error for a prepared file that cannot be trusted.

  Args:
    folder: The folder of the data set's version.
    file: The name of the file.
    reason: What is wrong with it.
  """
  return ValueError(
    f"the prepared data set is damaged: {folder / file}: {reason}. Delete the "
    f"folder {folder} and prepare it again: the next run draws glyphs and "
    "icons, other data sets need nuclr ingest, nuclr convert or TFDS"
  )


def check_lengths(
  folder: pathlib.Path, paths: Sequence[Any], lengths: Sequence[int]
) -> None:
  """Raises ValueError unless files hold as many records as were written.

  Args:
    folder: The folder of the data set's version, which must hold the files.
    paths: The files.
    lengths: The number of records of each file.
  """
  for path, length in zip(map(pathlib.Path, paths), lengths, strict=True):
    if not path.exists():
      raise damaged(folder, path.name, "it is missing")
    try:
      count = num_records(path)
    except Exception as error:
      reason = f"cannot be opened ({progress.first_line(error)})"
      raise damaged(folder, path.name, reason) from error
    if count != length:
      reason = f"it holds {count} records instead of {length}"
      raise damaged(folder, path.name, reason)


def num_records(path: str | os.PathLike) -> int:
  """Counts the records of an array_record file.

  Raises:
    RuntimeError: If the file cannot be read.
  """
  from array_record.python import array_record_module

  reader = array_record_module.ArrayRecordReader(os.fspath(path))
  try:
    return reader.num_records()
  finally:
    reader.close()


@contextlib.contextmanager
def record_writer(
  path: str | os.PathLike, options: str = WRITER_OPTIONS
) -> Iterator[Any]:
  """Opens a writer of an array_record file, and always closes it.

  Args:
    path: The file.
    options: Of array_record.

  Raises:
    OSError: If writing or closing fails, for instance on a full disk.

  Example:
    >>> with record_writer(tmp_path / "x.array_record") as writer:
    ...   _ = writer.write(b"first")
    >>> num_records(tmp_path / "x.array_record")
    1
  """
  from array_record.python import array_record_module

  writer = array_record_module.ArrayRecordWriter(os.fspath(path), options)
  try:
    try:
      yield writer
    except BaseException:
      with contextlib.suppress(RuntimeError):  # the first error says more
        writer.close()
      raise
    writer.close()
  except RuntimeError as error:  # from array_record
    raise OSError(f"{path} cannot be written: {error}") from error


def _stamp(paths: Sequence[Any]) -> str:
  """Hashes the names, sizes and times of files."""
  states = [(os.fspath(path), os.stat(path)) for path in paths]
  facts = [(name, x.st_size, x.st_mtime_ns) for name, x in states]
  return f"{zlib.crc32(repr(facts).encode()):08x}"


def _find_feature(features, name):
  """Finds the feature at a path, which may lead through sequences."""
  for part in name.split("/"):
    features = getattr(features, "feature", features)
    features = features[part] if part in _feature_names(features) else None
    if features is None:
      return None
  return features


def _feature_names(features) -> Sequence[str]:
  return list(features.keys()) if hasattr(features, "keys") else ()


def _is_text(feature) -> bool:
  import tensorflow_datasets as tfds

  feature = getattr(feature, "feature", feature)
  return isinstance(feature, tfds.features.Text)

"""Recognises kinds of input by their files, and cuts them into parts."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
import glob
import hashlib
import logging
import os
import pathlib
import re
import tempfile
from typing import Any, NamedTuple

from nuclr_jax.data.images import ENDINGS
from nuclr_jax.data.sets import parse_set
from nuclr_jax.data.tar_files import expand_ranges
from nuclr_jax.data.tfds_reader import (
  INFO,
  caption_field,
  check_split,
  image_field,
  open_builder,
)
from nuclr_jax.files import bucket, is_hidden, remote, visible
from nuclr_jax.ingest import readers, splits
from nuclr_jax.ingest.records import Part
from nuclr_jax.ingest.tables import (
  CAPTION_COLUMNS,
  SUFFIXES,
  Row,
  choose_column,
  join_rows,
  read_table,
)

log = logging.getLogger(__name__)

Path = pathlib.Path | str  # a text is a path in a bucket
Choose = Callable[[Path, list[Path]], list[Path]]  # files of a split


class FarFile(NamedTuple):
  """A tar or Parquet file in a bucket."""

  path: str
  stamp: str  # changes when the file does


PART_SIZE = 5_000  # rows of a part, if the input has no parts of its own
BYTES_COLUMNS = "jpg jpeg image image_bytes bytes png webp img".split()
HUB_NAME = r"([A-Za-z]\w*)-\d{5}-of-\d{5}(-\w+)?\.parquet"  # SPLIT-...
SPLITS = {"train", "val", "valid", "validation", "dev", "test"}
NO_SPLITS = (
  "{text} has no splits that --split={split} could choose from; leave the flag "
  "out to read all of it"
)
UNDERSTOOD = (
  "supported inputs are .tar and .parquet files as img2dataset writes them, "
  ".parquet files with images, .csv, .tsv, .json and .jsonl tables of images, "
  "folders of .tar or .parquet files or of images with texts beside them, and "
  "tfds:NAME"
)


class Plan(NamedTuple):
  """An input, cut into parts; they keep its order."""

  parts: list[Part]
  files: list[list[Any]]  # path, size and modification time of input files


def plan(
  text: str,
  *,
  split: str | None = None,
  data_dir: str | os.PathLike | None = None,
  images: str | os.PathLike | None = None,
  image_column: str | None = None,
  caption_column: str | None = None,
  split_column: str | None = None,
  made: bool = True,
) -> Plan:
  """Recognises an input and cuts it into parts.

  Args:
    text: A path, a pattern or a folder, or several of them separated by commas;
      {00000..00331} stands for a range of numbers; or tfds:NAME or
      tfds:NAME:SPLIT. Paths may be in a bucket: tar and Parquet files are then
      copied here one at a time, while they are read, and other files all at
      once.
    split: The split to make, "train" by default; from a table that names
      splits, as Karpathy's does, all of them by default. Of a Parquet file in a
      bucket, only the rows of this split are read.
    data_dir: Folder of prepared TFDS data sets.
    images: Folder that the paths of a table are relative to.
    image_column: Column of the images.
    caption_column: Column of the captions.
    split_column: Column that names splits; "" = there is none.
    made: Whether a split of the name `split` is made. Otherwise `split` must
      be one that the input has.

  Raises:
    ValueError: If the input does not exist, or is not understood, or an option
      is not for its kind.
  """
  only, split = split, split or "train"
  columns = {
    "image_column": image_column,
    "caption_column": caption_column,
    "split_column": split_column,
  }
  options = {"images": images} | columns
  if images is not None and not pathlib.Path(images).is_dir():
    raise ValueError(f"--images={images} is not a folder")
  if text.startswith("tfds:"):
    _check_options(text, {"tfds"}, options)
    return _plan_tfds(text.removeprefix("tfds:"), split, data_dir)
  if re.search(r"[\[+]", split):
    raise ValueError(
      f"--split={split}: slices are of TFDS data sets, --input=tfds:NAME; "
      f"--input={text} is none"
    )
  must = only is not None and not made
  choose = partial(_of_split, split=split, must=must)
  paths = [path for item in _items(text) for path in _expand(item, choose)]
  paths = list(dict.fromkeys(paths))
  kinds = set(map(_kind, paths))
  _check_options(text, kinds, options)
  if any(isinstance(path, FarFile) for path in paths):
    return _plan_far(text, paths, split, columns)
  if kinds == {"folder"}:
    return _plan_images(split, paths, choose)
  if kinds == {".tar"}:
    parts = [
      Part(split, partial(readers.read_tar, str(x)), _stamp(x)) for x in paths
    ]
  elif kinds == {".parquet"}:
    cut = [
      part
      for path in paths
      for part in _cut_parquet(
        path, None if must and not _is_named(path, split) else split, **columns
      )
    ]
    named = {part.split: [] for part in cut}
    for part in cut:
      named[part.split].append(part)
    parts = [x for found in _chosen(named, only, text).values() for x in found]
  elif kinds <= set(SUFFIXES):
    how = {"split": None if must else split} | options
    rows = (row for path in paths for row in read_table(path, **how))
    joined = join_rows(rows)
    _warn_of_folders(text, joined)
    chosen = _chosen(joined, only, text)
    stamps = [_stamp(path) for path in paths]
    parts = [
      part._replace(stamp=stamps) for x in chosen.items() for part in _cut(*x)
    ]
  else:
    raise ValueError(
      f"--input={text} is of the kinds {', '.join(sorted(kinds))}; name files "
      f"of one kind; {UNDERSTOOD}"
    )
  return Plan(parts, [_stamp(path) for path in paths])


def _items(text: str) -> list[str]:
  """Splits a list into items; a path that exists may contain commas."""
  if os.path.exists(text):
    return [text]
  return [x for item in text.split(",") for x in expand_ranges(item)]


def _kind(path: pathlib.Path | FarFile) -> str:
  """Returns the suffix of a file, or "folder"."""
  if isinstance(path, FarFile):
    return os.path.splitext(path.path)[1]
  return path.suffix if path.is_file() else "folder"


def _check_options(text: str, kinds: set[str], options: Mapping) -> None:
  """Raises ValueError for an option that is not for the kinds of an input."""
  tables, parquet = ", ".join(SUFFIXES), (*SUFFIXES, ".parquet")
  for name, value in options.items():
    fitting = SUFFIXES if name == "images" else parquet
    if value is not None and not kinds <= set(fitting):
      more = "" if name == "images" else " or Parquet files"
      raise ValueError(
        f"--{name}={value} goes with a table ({tables}){more}; "
        f"--input={text} is of the kinds {', '.join(sorted(kinds))}"
      )


def _expand(item: str, choose: Choose) -> list[pathlib.Path | FarFile]:
  """Lists the files of an item, sorted; a folder of images stays a folder."""
  item = os.path.expanduser(item.strip())
  if bucket.is_remote(item):
    found = {
      x: stamp
      for x, stamp in bucket.find(item).items()
      if not is_hidden(x, named=item)
    }
    for ending in (".tar", ".parquet"):
      far = [x for x in found if x.endswith(ending)]
      if far:
        return [FarFile(x, found[x]) for x in choose(item, far)]
    item = os.fspath(remote.fetch(item))
  names = [item]
  if not os.path.exists(item):
    found = glob.glob(item, recursive=True)
    names = [x for x in found if not is_hidden(x, named=item)]
  paths = [pathlib.Path(name).absolute() for name in sorted(names)]
  if not paths:
    raise ValueError(f"--input: {item or 'an empty name'} does not exist")
  return [x for path in paths for x in _files_of(path, choose)]


def _files_of(path: pathlib.Path, choose: Choose) -> list[pathlib.Path]:
  """Lists the data files in a folder, or the path itself."""
  if path.is_file():  # a table may name splits
    return [path] if path.suffix in SUFFIXES else choose(path.parent, [path])
  if not path.is_dir():
    raise ValueError(f"{path} is neither a regular file nor a folder")
  tars, parquets = (
    visible(path.rglob(x), path) for x in ("*.tar", "*.parquet")
  )
  for found in (*tars, *parquets):
    if not found.is_file():
      raise ValueError(
        f"{found} is not a regular file; remove it, or name the "
        "files to read with a pattern"
      )
    if readers.leads_out(path, found):
      raise ValueError(
        f"{found} is a link out of {path}, which is not followed; name the "
        "files themselves, with a pattern"
      )
  of_hub = parquets and all(re.fullmatch(HUB_NAME, x.name) for x in parquets)
  if tars:  # img2dataset also writes .parquet files, without the images
    return choose(path, tars)
  if next(_images_of(path), None) and not of_hub:
    return [path]
  if not parquets:
    raise ValueError(f"{path} holds nothing to read; {UNDERSTOOD}")
  return choose(path, parquets)


def _of_split(
  folder: Path, paths: list[Path], *, split: str, must: bool
) -> list[Path]:
  """Selects the files of one split, if names or folders distinguish splits.

  Otherwise a run would train on test images. They must distinguish them if the
  split is to be chosen, and not made.
  """
  splits = []
  for path in paths:
    within = os.fspath(path).removeprefix(os.fspath(folder))
    *folders, name = within.strip("/").split("/")
    of_hub = re.fullmatch(HUB_NAME, name)
    names = [of_hub[1]] if of_hub else [x for x in folders if x in SPLITS]
    splits.append(names[0] if names else "")
  if must and set(splits) <= {""}:
    here = all(isinstance(x, pathlib.Path) for x in paths)
    if here and set(map(_kind, paths)) == {".parquet"}:
      return paths  # they may have a column of splits
    raise ValueError(NO_SPLITS.format(text=folder, split=split))
  if len(set(splits)) < 2 and not must:
    return paths
  if split not in splits:
    raise ValueError(
      f"{folder} has the splits {sorted(set(splits))}, not {split}; name the "
      "files of one split with a pattern"
    )
  log.info("%s: only the files of split %s are read", folder, split)
  return [path for path, x in zip(paths, splits, strict=True) if x == split]


def _is_named(path: pathlib.Path, split: str) -> bool:
  """Returns whether the name of a file or its folders are those of a split."""
  of_hub = re.fullmatch(HUB_NAME, path.name)
  return split == of_hub[1] if of_hub else split in path.parts[:-1]


def _chosen(
  named: dict[str | None, list], only: str | None, text: str
) -> dict[str, list]:
  """Selects the split that the user names, or all splits."""
  if only is None or set(named) <= {only}:
    return named
  unnamed = named.pop(None, [])
  if not named:
    raise ValueError(NO_SPLITS.format(text=text, split=only))
  if only not in named:
    raise ValueError(
      f"{text} has the splits {sorted(named)}, not {only}; name one of them "
      "with --split, or leave the flag out to make all"
    )
  log.info("%s: only the split %s is read", text, only)
  return {only: named[only] + unnamed}


def _warn_of_folders(text: str, joined: dict[str, list]) -> None:
  """Warns if only the folders of a table's images tell splits apart."""
  folders = {
    folder
    for rows in joined.values()
    for row in rows
    if isinstance(row, Row)
    for folder in SPLITS.intersection(pathlib.PurePath(row.key).parts[:-1])
  }
  if len(folders) > 1 and len(joined) == 1:
    log.warning(
      "%s: its images are in folders called %s, and all of them become the "
      "split %s; a column `split` in the table would tell them apart",
      *(text, ", ".join(sorted(folders)), *joined),
    )


def _images_of(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the paths of the images in a folder, in order."""
  for path in _walk(folder):
    if path.name.lower().endswith(ENDINGS):
      yield path


def _walk(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the paths of the files in a folder, in order."""
  for place, folders, names in os.walk(folder):
    folders[:] = sorted(x for x in folders if not is_hidden(x))
    for name in sorted(names):
      if not is_hidden(name):
        yield pathlib.Path(place, name)


def _warn_of_others(folder: pathlib.Path) -> None:
  """Names files that are neither known images nor their texts, or hidden."""
  known = (*ENDINGS, ".txt", ".json")
  unread = Counter(
    path.suffix.lower() or path.name
    for path in _walk(folder)
    if not path.name.lower().endswith(known)
  )
  if unread:
    log.warning(
      "%s: files of these kinds are not read: %s; images are %s",
      folder,
      ", ".join(f"{kind} ({n})" for kind, n in unread.most_common(10)),
      " ".join(ENDINGS),
    )
  hidden = [
    path.relative_to(folder)
    for path in folder.rglob("*")
    if path.name.lower().endswith(ENDINGS)
    and is_hidden(path.relative_to(folder))
  ]
  if hidden:
    log.info(
      "%s: %d images are hidden, such as %s, and are not read",
      *(folder, len(hidden), min(hidden)),
    )


def _warn_of_lone_texts(folder: pathlib.Path) -> None:
  """Warns about texts that lie beside no image of their name."""
  paths = list(_walk(folder))
  images = [x for x in paths if x.name.lower().endswith(ENDINGS)]
  owners = {*images, *(x.with_suffix("") for x in images)}
  lone = [
    str(x.relative_to(folder))
    for x in paths
    if x.suffix.lower() in (".txt", ".json") and x.with_suffix("") not in owners
  ]
  if lone:
    log.warning(
      "%s: %d texts are not read, such as %s: x.jpg has its caption in x.txt, "
      "x.json or x.jpg.txt",
      *(folder, len(lone), min(lone)),
    )


def _plan_images(split, folders, choose: Choose) -> Plan:
  parts, files = [], []
  for folder in folders:
    paths = choose(folder, list(_images_of(folder)))
    rows = [
      Row(str(path.relative_to(folder)), str(folder), str(path), None)
      for path in paths
    ]
    stamps = [_stamp(path) for path in paths]
    parts += [
      part._replace(stamp=stamps[i * PART_SIZE : (i + 1) * PART_SIZE])
      for i, part in enumerate(_cut(split, rows))
    ]
    _warn_of_others(folder)
    _warn_of_lone_texts(folder)
    text = "\n".join(map(str, stamps))
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    files.append([str(folder), len(paths), digest])
  return Plan(parts, files)


def _plan_tfds(name, split, data_dir) -> Plan:
  """Cuts a split of a prepared TFDS data set into ranges of records."""
  source, named = parse_set(name)
  builder = open_builder(source, data_dir)
  folder, read_split = pathlib.Path(builder.data_dir), named or split
  check_split(builder, read_split)
  image_field(builder.info.features)  # raises early, before any reading
  caption_field(builder.info.features)
  length = len(builder.as_data_source(read_split))
  starts = range(0, length, PART_SIZE)
  read = partial(readers.read_tfds, str(folder), read_split)
  parts = [partial(read, i, min(i + PART_SIZE, length)) for i in starts]
  stamps = [[read_split, length, 0], _stamp(folder / INFO)]
  return Plan([Part(split, part, stamps) for part in parts], stamps)


def _plan_far(text: str, found: list, split: str, columns) -> Plan:
  """Makes a part of each file in a bucket."""
  kinds = {
    os.path.splitext(x.path)[1] if isinstance(x, FarFile) else "files here"
    for x in found
  }
  if len(kinds) > 1:
    raise ValueError(
      f"--input={text} is of the kinds {', '.join(sorted(kinds))}; name files "
      "of one kind, all here or all in buckets"
    )
  parts = [
    Part(split, partial(_read_far, x.path, split, **columns), list(x))
    for x in found
  ]
  return Plan(parts, [list(x) for x in found])


def _read_far(path: str, split: str, **columns) -> Iterator[Any]:
  """Reads a file in a bucket, through a copy that exists meanwhile."""
  with tempfile.TemporaryDirectory(prefix="nuclr-") as folder:
    here = pathlib.Path(folder) / os.path.basename(path)
    bucket.download(path, here)
    for part in plan(os.fspath(here), split=split, **columns).parts:
      for item in part.read():
        yield item._replace(source=path)


def _cut(split: str, rows: Sequence) -> list[Part]:
  """Cuts a list of rows into parts."""
  return [
    Part(split, partial(readers.read_rows, rows[i : i + PART_SIZE]))
    for i in range(0, len(rows), PART_SIZE)
  ]


def _cut_parquet(
  path: pathlib.Path,
  split: str | None,
  *,
  image_column: str | None,
  caption_column: str | None,
  split_column: str | None,
) -> list[Part]:
  """Makes parts of a file's row groups; small groups share one part.

  Args:
    path: The file.
    split: The split of its rows, if it does not name splits.
    image_column: The column of images that the user names, if any.
    caption_column: That of captions.
    split_column: That of splits.
  """
  import pyarrow
  from pyarrow import parquet

  try:
    with parquet.ParquetFile(path) as file:
      schema, meta = file.schema_arrow, file.metadata
      sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
  except (pyarrow.ArrowException, OSError):
    return [Part(split, partial(readers.damaged_file, str(path)), _stamp(path))]
  names = schema.names
  if twice := [name for name, count in Counter(names).items() if count > 1]:
    raise ValueError(f"{path} has several columns with the name {twice[0]}")
  binary = [field.name for field in schema if _has_bytes(field.type)]
  if not binary or (image_column in names and image_column not in binary):
    raise ValueError(
      f"{path} has the columns {names}, of which "
      f"{', '.join(binary) or 'none'} can hold the bytes of images"
      f"{f', {image_column} cannot' if image_column else ''}; a table of paths "
      f"must be one of {', '.join(SUFFIXES)}, and images that are named "
      "by URL are downloaded first, for instance with img2dataset"
    )
  likely = [name for name in BYTES_COLUMNS if name in binary] + binary
  image = choose_column(path, names, image_column, likely, "image_column")
  caption = choose_column(
    path, names, caption_column, CAPTION_COLUMNS, "caption_column"
  )
  column = splits.find_column(
    path, names, split_column, others=(image, caption)
  )
  said = [{None}] * len(sizes)
  if column is not None:
    said = [
      readers.said_of_splits(str(path), i, column) for i in range(len(sizes))
    ]
  known = splits.assign(
    path, set().union(*said) - {None}, chosen=split_column is not None
  )
  rest = splits.rest_of(split, known.values())
  read = partial(readers.read_parquet, str(path), image=image, caption=caption)
  parts = []
  for name in sorted({rest, *known.values()}):
    chosen = splits.Chosen(column, name, name == rest)
    how = {"chosen": chosen} if known else {}
    numbers = [
      i for i, x in enumerate(said) if name in {known.get(y, rest) for y in x}
    ]
    for groups in _groups(numbers, sizes):
      parts.append(Part(name, partial(read, groups, **how), _stamp(path)))
  return parts


def _groups(
  numbers: Sequence[int], sizes: Sequence[int]
) -> Iterator[list[int]]:
  """Cuts a list of row groups into lists of about `PART_SIZE` rows."""
  groups, filled = [], 0
  for number in numbers:
    groups.append(number)
    filled += sizes[number]
    if filled >= PART_SIZE:
      yield groups
      groups, filled = [], 0
  if groups:
    yield groups


def _has_bytes(kind) -> bool:
  """Returns whether a column of this type can hold images."""
  from pyarrow import types

  if types.is_struct(kind):
    return any(x.name == "bytes" and _has_bytes(x.type) for x in kind)
  return types.is_binary(kind) or types.is_large_binary(kind)


def _stamp(path: str | os.PathLike) -> list:
  """Returns path, size and time of a file, which differ once it has changed."""
  state = os.stat(path)
  return [os.fspath(path), state.st_size, state.st_mtime_ns]

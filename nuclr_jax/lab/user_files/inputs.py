"""Recognises kinds of input by their files, and cuts them into parts."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
import logging
import os
import pathlib
import re
import tempfile
from typing import Any, NamedTuple

from nuclr_jax.lab.data import in_place
from nuclr_jax.lab.data.sets import parse_set
from nuclr_jax.lab.data.tfds_reader import (
  INFO,
  caption_field,
  image_field,
  open_split,
)
from nuclr_jax.lab.files import bucket
from nuclr_jax.lab.user_files import (
  columnar,
  image_folder,
  listing,
  readers,
  splits,
)
from nuclr_jax.lab.user_files.batches import (
  ARROW,
  first_rows,
  has_texts,
  open_schema,
  texts_in_bytes,
)
from nuclr_jax.lab.user_files.columns import (
  choose_captions,
)
from nuclr_jax.lab.user_files.items import (
  AGAIN,
  Part,
  Rejected,
  stamp_of,
  stamp_of_all,
)
from nuclr_jax.lab.user_files.split_choice import (
  choose_split,
  own_split,
  settle,
)
from nuclr_jax.lab.user_files.tables import (
  SUFFIXES,
  Row,
  join_rows,
  read_table,
)

log = logging.getLogger(__name__)


PART_SIZE = 5_000  # rows of a part, if the input has no parts of its own
COLUMNAR = ({".parquet"}, {ARROW})  # kinds of files with rows and columns


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
    images: Folder that the paths of a table, or in Parquet, are relative to.
    image_column: Column of the images.
    caption_column: Column of the captions, see `columns.choose_captions`.
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
    if only is not None and not made and parse_set(text[len("tfds:") :])[1]:
      raise ValueError(
        f"--input={text} names a split already; leave --split={only} out"
      )
    return _plan_tfds(text.removeprefix("tfds:"), split, data_dir)
  if re.search(r"[\[+]", split):
    raise ValueError(
      f"--split={split}: slices are of TFDS data sets, --input=tfds:NAME; "
      f"--input={text} is none"
    )
  must = only is not None and not made
  choose = partial(listing.of_split, split=split, must=must)
  paths = [
    path
    for item in listing.items_of(text)
    for path in listing.expand(item, split=split, must=must)
  ]
  paths = list({listing.place_of(x): x for x in paths}.values())
  listing.check_no_pointers(paths)
  kinds = set(map(listing.kind_of, paths))
  _check_options(text, kinds, options)
  if any(isinstance(path, listing.FarFile) for path in paths):
    return _plan_far(text, paths, split, options)
  if kinds == {listing.IMAGE_FOLDER}:
    return _plan_described(text, paths, only, split, columns, choose)
  if kinds == {"folder"}:
    listing.warn_of_merged(text, paths, split)
    return _plan_images(split, paths, choose)
  if kinds == {".tar"}:
    parts = [
      Part(split, partial(readers.read_tar, str(x)), stamp_of(x)) for x in paths
    ]
  elif kinds in COLUMNAR and not columnar.are_tables(text, paths, image_column):
    split = split if only else own_split(text, paths, split)
    parts = _parts_of_columns(text, paths, only, split, must, options)
  elif kinds <= set(SUFFIXES) or kinds in COLUMNAR:
    split = split if only else own_split(text, paths, split)
    rows = [
      row for path in paths for row in read_table(path, split=split, **options)
    ]
    joined = join_rows(settle(rows, split=split, must=must, text=text))
    _warn_of_folders(text, joined)
    chosen = choose_split(joined, only, text)
    stamps = [stamp_of(path) for path in paths]
    parts = [part for x in chosen.items() for part in _cut(*x)]
    parts = [x._replace(stamp=[*stamps, _of_images(x)]) for x in parts]
    return _planned(text, paths, parts, [x.stamp[-1] for x in parts])
  else:
    raise ValueError(
      f"--input={text} is of the kinds {', '.join(sorted(kinds))}; name files "
      f"of one kind; {listing.UNDERSTOOD}"
    )
  return _planned(text, paths, parts)


def _of_images(part: Part) -> list:
  """Returns what differs once images have changed that a part's rows name."""
  rows = (x for x in part.read.args[0] if isinstance(x, Row))
  return stamp_of_all("images", [x.path for x in rows])


def _planned(text: str, paths, parts: list[Part], more=()) -> Plan:
  if len({part.split for part in parts}) == 1:
    listing.warn_of_merged(text, paths, parts[0].split)
  return Plan(parts, [*map(stamp_of, paths), *more])


def _check_options(text: str, kinds: set[str], options: Mapping) -> None:
  """Raises ValueError for an option that is not for the kinds of an input."""
  tables = {*SUFFIXES, ".parquet", ARROW}
  for name, value in options.items():
    fitting = tables if name == "images" else {*tables, listing.IMAGE_FOLDER}
    if value is not None and not kinds <= fitting:
      more = "" if name == "images" else ", and with a folder that has one"
      raise ValueError(
        f"--{name}={value} goes with a table ({', '.join(SUFFIXES)}) or "
        f"Parquet files{more}; --input={text} is of the kinds "
        f"{', '.join(sorted(kinds))}"
      )


def _warn_of_folders(text: str, joined: dict[str | None, list]) -> None:
  """Warns if only the folders of a table's images tell splits apart."""
  folders = {
    folder
    for rows in joined.values()
    for row in rows
    if isinstance(row, Row)
    for folder in pathlib.PurePath(row.key).parts[:-1]
    if splits.of_name(folder)
  }
  several = len({*map(splits.of_name, folders)}) > 1
  if several and len(joined) == 1 and None not in joined:
    log.warning(
      "%s: its images are in folders called %s, and all of them become the "
      "split %s; a column `split` in the table would tell them apart",
      text,
      ", ".join(sorted(folders)),
      *joined,
    )


def _from_above(folders: Sequence[Any]) -> list[tuple[Any, pathlib.PurePath]]:
  """Returns folders, and where they are in the one that has them all.

  Images of equal names in several folders then have different keys.
  """
  top = os.path.commonpath([os.path.abspath(x) for x in folders])
  return [(x, pathlib.PurePath(os.path.relpath(x, top))) for x in folders]


def _plan_images(split, folders, choose) -> Plan:
  parts, files = [], []
  for folder, within in _from_above(folders):
    paths = choose(folder, list(listing.images_of(folder)))
    rows = [
      Row(str(within / path.relative_to(folder)), str(folder), str(path), None)
      for path in paths
    ]
    stamps = [stamp_of(path) for path in paths]
    parts += [
      part._replace(stamp=stamps[i * PART_SIZE : (i + 1) * PART_SIZE])
      for i, part in enumerate(_cut(split, rows))
    ]
    listing.warn_of_others(folder)
    listing.warn_of_lone_texts(folder)
    files.append(stamp_of_all(folder, paths))
  return Plan(parts, files)


def _plan_described(text, folders, only, split, columns, choose) -> Plan:
  """Cuts folders of images that have tables, by their splits."""
  parts, noted = [], []
  places_of = _from_above([x.path for x in folders])
  for folder, (_, within) in zip(folders, places_of, strict=True):
    images = list(listing.images_of(folder.path))
    rows = image_folder.rows_of(folder, images, columns)
    if any(name for name, _ in rows):
      kept = choose_split(join_rows(rows), only, text)
    else:  # the splits may be folders
      top = os.path.abspath(folder.path)
      places = [x.path for _, x in rows if isinstance(x, Row)]
      wanted = set(choose(top, places))
      whole = len(wanted) == len(set(places))
      of_split = [
        (split, x)
        for _, x in rows
        if whole
        or (x.path in wanted if isinstance(x, Row) else _may_be(top, x, split))
      ]
      kept = join_rows(of_split)
    stamps = [stamp_of(table) for table in folder.tables]
    for name, found in kept.items():
      found = [x._replace(key=str(within / x.key)) for x in found]
      for part in _cut(name, found):
        beside = [
          stamp_of(x.path)
          for x in part.read.args[0]
          if isinstance(x, Row) and x.captions is None
        ]
        parts.append(part._replace(stamp=[*stamps, *beside, _of_images(part)]))
    listing.warn_of_others(folder.path, folder.tables)
    noted += [*stamps, stamp_of_all(folder.path, images)]
  return Plan(parts, noted)


def _may_be(top: str, rejected: Rejected, split: str) -> bool:
  """Returns whether a row that was rejected may be of a split, by its place."""
  place = os.path.join(os.path.dirname(rejected.source), rejected.key)
  (named,) = splits.of_paths(top, [place])
  return not named or (splits.of_name(named) or named) == splits.of_name(split)


def _plan_tfds(name, split, data_dir) -> Plan:
  """Cuts a split of a prepared TFDS data set into ranges of records."""
  source, named = parse_set(name)
  read_split = named or split
  data = open_split(source, read_split, data_dir)
  folder, length = data.folder, data.length
  image_field(data.features)  # raises early, before any reading
  caption_field(data.features)
  if (tars := in_place.tars_of(folder, read_split)) is not None:
    in_place.check_tars(tars, data.read)
  starts = range(0, length, PART_SIZE)
  read = partial(readers.read_tfds, str(folder), read_split)
  parts = [partial(read, i, min(i + PART_SIZE, length)) for i in starts]
  stamps = [[read_split, length, 0], stamp_of(folder / INFO)]
  return Plan([Part(split, part, stamps) for part in parts], stamps)


def _plan_far(text: str, found: list, split: str, options) -> Plan:
  """Makes a part of each file in a bucket."""
  kinds = {
    os.path.splitext(x.path)[1]
    if isinstance(x, listing.FarFile)
    else "files here"
    for x in found
  }
  if len(kinds) > 1:
    raise ValueError(
      f"--input={text} is of the kinds {', '.join(sorted(kinds))}; name files "
      "of one kind, all here or all in buckets"
    )
  parts = [
    Part(split, partial(_read_far, x.path, split, **options), list(x))
    for x in found
  ]
  return Plan(parts, [list(x) for x in found])


def _read_far(path: str, split: str, **options) -> Iterator[Any]:
  """Reads a file in a bucket, through a copy that exists meanwhile."""
  with tempfile.TemporaryDirectory(prefix="nuclr-") as folder:
    here = pathlib.Path(folder) / os.path.basename(path)
    try:
      bucket.download(path, here)
    except FileNotFoundError as error:  # no damage, of which some is expected
      raise bucket.Unreached(f"{error}, and did at first; {AGAIN}") from error
    column = options["image_column"]
    if here.suffix != ".parquet":
      parts = plan(os.fspath(here), split=split, **options).parts
    elif columnar.are_tables(path, [here], column):  # one split is read
      joined = join_rows(read_table(here, split=split, **options))
      parts = [part for x in joined.items() for part in _cut(*x)]
    else:  # so it is here
      parts, _ = _cut_columns(here, split, **options)
    for part in parts:
      for item in part.read() if part.split in (None, split) else ():
        yield item._replace(source=path)


def _cut(split: str, rows: Sequence) -> list[Part]:
  """Cuts a list of rows into parts."""
  return [
    Part(split, partial(readers.read_rows, rows[i : i + PART_SIZE]))
    for i in range(0, len(rows), PART_SIZE)
  ]


def _parts_of_columns(text, paths, only, split, must, options) -> list[Part]:
  """Makes parts of Parquet or Arrow files with images, of one or all splits."""
  found, named, any_path = [], {}, False
  for path in paths:
    parts, has_paths = _cut_columns(path, split, **options)
    any_path |= has_paths
    found += [(part.split, part) for part in parts]
  for name, part in settle(found, split=split, must=must, text=text):
    named.setdefault(name, []).append(part._replace(split=name))
  if options["images"] is not None and not any_path:
    raise ValueError(
      f"--images={options['images']} goes with paths of images, but "
      f"--input={text} has the images themselves; leave the flag out"
    )
  return [
    x for found in choose_split(named, only, text).values() for x in found
  ]


def _cut_columns(
  path: pathlib.Path,
  split: str,
  *,
  images: str | os.PathLike | None,
  image_column: str | None,
  caption_column: str | None,
  split_column: str | None,
) -> tuple[list[Part], bool]:
  """Makes parts of a file's row groups; small groups share one part.

  Args:
    path: The file, of Parquet or Arrow.
    split: The split that is made, see `read_table`.
    images: The folder that paths are relative to, if the user names one.
    image_column: The column of images that the user names, if any.
    caption_column: That of captions.
    split_column: That of splits.

  Returns:
    The parts, of the split None if the file names none, and whether some images
    are named by path.
  """
  import pyarrow

  try:
    schema, sizes = open_schema(path)
  except (pyarrow.ArrowException, OSError, ValueError):
    damaged = partial(readers.damaged_file, str(path))
    return [Part(None, damaged, stamp_of(path))], False
  names = schema.names
  image = columnar.image_column(path, schema, image_column)
  captions = choose_captions(path, names, caption_column, image)
  has_paths = columnar.check_links(path, image, range(len(sizes)))
  others = [x for x in schema if x.name not in (image, *captions)]
  texts = [x.name for x in others if has_texts(x.type)]
  texts += texts_in_bytes(path, others)
  rows = first_rows(str(path), texts) if texts else []
  find = partial(splits.find_column, path, names, split_column)
  besides = {image, *captions}
  while True:
    asked = (find(others=besides, row=row) for row in rows or [{}])
    column = next(filter(None, asked), None)
    said = [{None}] * len(sizes)
    if column is not None:
      said = [
        columnar.said_of_splits(str(path), i, column) for i in range(len(sizes))
      ]
    found = set().union(*said)
    known = splits.assign(path, found, chosen=split_column is not None)
    if known or found <= {None}:
      break
    besides.add(column)  # it is about something else
  rest = splits.rest_of(split, known.values()) if known else None
  how = {"image": image, "captions": captions}
  how |= {} if images is None else {"folder": os.fspath(images)}
  read = partial(columnar.read_columns, str(path), **how)
  parts = []
  for name in sorted({rest, *known.values()}):
    chosen = splits.Chosen(column, name, name == rest)
    of = {"chosen": chosen} if known else {}
    numbers = [
      i for i, x in enumerate(said) if name in {known.get(y, rest) for y in x}
    ]
    for groups in _groups(numbers, sizes):
      parts.append(Part(name, partial(read, groups, **of), stamp_of(path)))
  return parts, has_paths


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

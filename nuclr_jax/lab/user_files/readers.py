"""Readers of the kinds of input; each yields one item after another.

A reader reads one part on its own. It does not fail because of bad data, but
yields what it could not read as rejected. `ingest.records` decides which
items are good.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import contextlib
import itertools
import logging
import os
import pathlib

from nuclr_jax.lab import files
from nuclr_jax.lab.data import in_place
from nuclr_jax.lab.data.captions import (
  captions_beside,
  captions_of,
  key_of,
)
from nuclr_jax.lab.data.images import UNREADABLE
from nuclr_jax.lab.data.tar_files import (
  EMPTY,
  KINDS,
  LONG_TEXT,
  MAX_TEXT,
  OTHER_PICTURE,
  REPEATED,
  TOO_BIG,
  flaw_of,
  is_repeated,
  name_files,
  why_no_image,
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
  NO_FILE,
  ONLY_HIDDEN,
  OUTSIDE,
  Item,
  Rejected,
)
from nuclr_jax.lab.user_files.tables import Row

log = logging.getLogger(__name__)


def read_tar(path: str) -> Iterator[Item | Rejected]:
  """Reads a tar file in webdataset's format: KEY.jpg, KEY.txt, KEY.json.

  The files of a key, which ends where `tar_files.name_files` says, may be
  anywhere in the tar; in a file that holds several tars, in one of these. If a
  kind of them comes twice, only those that follow each other are a sample.
  `captions_beside` says which captions are in KEY.txt and KEY.json.

  Args:
    path: The tar file.

  Example:
    >>> [item.reason for item in read_tar("no such file.tar")]
    ['damaged file']
  """
  groups, ends, before, unread = {}, [], None, Counter()
  try:
    if not os.path.isfile(path):  # a FIFO would wait forever
      raise OSError(path)
    with open(path, "rb") as file:
      with contextlib.suppress(OSError):  # what comes before is read
        for member in members_of(file):
          if member.key is None:
            ends.append(member)
          else:  # a key may come again in another tar of the file
            runs = groups.setdefault((len(ends), member.key), [])
            if member.key != before:
              runs.append([])
            runs[-1].append(member)
          before = member.key
      _warn_of_folders(path, {os.path.dirname(key) for _, key in groups})
      why = ends[-1].name if ends else DAMAGED
      if why == END and not groups:
        why = ONLY_HIDDEN if ends[-1].start else EMPTY
      for runs in groups.values():
        for key, found in _samples(runs):
          if isinstance(found, str):
            yield Rejected(key, path, found)
          elif "image" not in found:
            yield Rejected(key, path, why_no_image(found))
          else:
            read = {
              kind: _content(file, member)
              for kind, member in found.items()
              if kind in KINDS
            }
            if [*read] == ["image"]:
              unread.update(found.keys() - read)
            offset = found["image"].place
            yield Item(key, path, read["image"], captions_beside(read), offset)
      if unread:
        endings = [f".{x[:20]} ({n})" for x, n in unread.most_common(10)]
        log.warning(
          "%s: images have no captions, and files of these endings beside them "
          "are not read: %s; captions are in KEY.txt or KEY.json",
          path,
          ", ".join(endings),
        )
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
    stored = key_of(row, key)
    if stored not in keys:  # files of equal names share a key
      keys.add(stored)
      key = stored
    captions = captions_of(row, caption)
    yield Item(key, folder, row[image], captions)


def damaged_file(path: str) -> Iterator[Rejected]:
  """Yields a single rejection: the file cannot be opened."""
  yield Rejected("", path, DAMAGED)


def _warn_of_folders(path: str, folders: Iterable[str]) -> None:
  """Warns if folders in a tar are called by several splits.

  Args:
    path: The tar.
    folders: The folders of its files.
  """
  named = {x for folder in folders for x in folder.split("/") if x}
  named = {x: split for x in named if (split := splits.of_name(x))}
  if len({*named.values()}) > 1:
    log.warning(
      "%s: its files are in folders called %s, and all of them are read as one "
      "split; unpack it, or make a tar for each, to tell them apart",
      path,
      ", ".join(sorted(named)),
    )


def _samples(
  runs: Sequence[Sequence[Member]],
) -> Iterator[tuple[str, dict[str, Member] | str]]:
  """Yields the files of each key, or why a file is not used.

  Args:
    runs: Members with the same `first_key`, as they follow each other in the
      tar. The files of a key may be in several runs, as in a tar that is sorted
      by endings. But if a kind comes twice, each run is a sample of its own, as
      in tars that were joined.
  """
  named = iter(name_files([member.name for run in runs for member in run]))
  by_key = {}
  for run in runs:
    pairs = [(next(named), member) for member in run]
    for name, member in pairs:
      if name.kind == OTHER_PICTURE:
        yield member.name, OTHER_PICTURE
    pairs = [pair for pair in pairs if pair[0].kind != OTHER_PICTURE]
    for key, group in itertools.groupby(pairs, lambda pair: pair[0].key):
      by_key.setdefault(key, []).append([(x.kind, y) for x, y in group])
  for key, parts in by_key.items():
    whole = [*itertools.chain(*parts)]
    for part in parts if is_repeated(x for x, _ in whole) else [whole]:
      if is_repeated(x for x, _ in part):
        yield key, REPEATED
        continue
      found = dict(part)
      flaws = {x: flaw_of(x, y) for x, y in found.items() if x in KINDS}
      flaws = {kind: (found[kind].name, x) for kind, x in flaws.items() if x}
      if "json" in flaws and "txt" in found.keys() - flaws:  # has the captions
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
  """Finds the text files beside an image x.jpg: x.jpg.txt, x.txt or x.TXT.

  The first one is of no other image, while x.txt may be that of x.png.
  """
  image, texts = pathlib.Path(path), {}
  for kind in ("txt", "json"):
    names = (
      image.with_name(f"{image.name}.{kind}"),
      image.with_suffix(f".{kind}"),
      image.with_suffix(f".{kind.upper()}"),
    )
    if found := next(filter(pathlib.Path.is_file, names), None):
      texts[kind] = found
  return texts

"""Finds the files of an input, and those of the split that is asked for."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
import fnmatch
from functools import partial
import glob
import itertools
import logging
import os
import pathlib
import re
from typing import NamedTuple

from nuclr_jax.lab.data.images import ENDINGS, POINTER
from nuclr_jax.lab.data.tar_files import check_ranges, expand_ranges
from nuclr_jax.lab.files import as_pattern, bucket, is_hidden, remote, visible
from nuclr_jax.lab.user_files import image_folder, readers, saved, splits
from nuclr_jax.lab.user_files.batches import ARROW
from nuclr_jax.lab.user_files.image_folder import ImageFolder
from nuclr_jax.lab.user_files.tables import SUFFIXES

log = logging.getLogger(__name__)

IMAGE_FOLDER = "imagefolder"
# Where programs note which Parquet files of a folder count.
LOGS = {
  "_delta_log": "Delta Lake",
  ".hoodie": "Hudi",
  "metadata/*.metadata.json": "Iceberg",
  "_spark_metadata": "Spark's streams",
}
READ = ".tar", ".parquet"  # endings in folders of these
_ENDING = re.compile(r"(\.(tar|parquet))?\.[^./]+$", re.IGNORECASE)
_BESIDE = re.compile(  # notes and counts, which hold no pairs
  r"_.*|(readme|licen[cs]e|citation|notice)\b.*|.*\.(md|py|idx|crc)"
  r"|.*_stats\.json|dataset_infos?\.json",
  re.IGNORECASE,
)
MAX_POINTER = 1024  # bytes of a pointer of Git LFS, by its specification
Path = pathlib.Path | str  # a text is a path in a bucket


class FarFile(NamedTuple):
  """A tar or Parquet file in a bucket."""

  path: str
  stamp: str  # changes when the file does


NO_SPLITS = (
  "{text} has no splits that --split={split} could choose from; leave the flag "
  "out to read all of it"
)
UNDERSTOOD = (
  "supported inputs are .tar and .parquet files as img2dataset writes them, "
  ".parquet files with images or their paths, .csv, .tsv, .json and .jsonl "
  "tables of images (one of another ending must be renamed), folders of .tar "
  "or .parquet files, of images with texts or a metadata.csv beside them, or "
  "as save_to_disk of datasets writes them, and tfds:NAME"
)


def items_of(text: str) -> list[str]:
  """Splits a list into items; a path that exists may contain commas."""
  if os.path.exists(text):
    return [text]
  check_ranges(text)
  return [x for item in text.split(",") for x in expand_ranges(item)]


def kind_of(path: pathlib.Path | FarFile | ImageFolder) -> str:
  """Returns the suffix of a file, "folder" or "imagefolder"."""
  if isinstance(path, ImageFolder):
    return IMAGE_FOLDER
  if isinstance(path, FarFile):
    return os.path.splitext(path.path)[1]
  return path.suffix if path.is_file() else "folder"


def place_of(path: pathlib.Path | FarFile | ImageFolder) -> str:
  """Returns what is equal for two spellings of the path of a file."""
  if isinstance(path, FarFile):
    return path.path
  return os.path.abspath(path.path if isinstance(path, ImageFolder) else path)


def expand(
  item: str, *, split: str, must: bool
) -> list[pathlib.Path | FarFile | ImageFolder]:
  """Lists the files of an item, sorted; a folder of images stays a folder.

  Args:
    item: A path or a pattern.
    split: The split to choose, if files or folders distinguish splits.
    must: Whether they have to; see `of_split`.

  Raises:
    ValueError: If there is nothing to read.
  """
  choose = partial(of_split, split=split, must=must)
  item = os.path.expanduser(item.strip())
  if bucket.is_remote(item):
    listed = bucket.find(item)
    _check_no_log(item, listed)
    found = {
      x: stamp for x, stamp in listed.items() if not is_hidden(x, named=item)
    }
    for ending in READ:
      far = [
        x
        for x in found
        if x.endswith(ending) and os.path.basename(x) not in image_folder.NAMES
      ]
      if ending == ".parquet":
        far = _without_leftovers(item, far)
      if far:
        _warn_of_endings(item, found)
        return [FarFile(x, found[x]) for x in choose(item, far)]
    item = os.fspath(remote.fetch(item))
  found = glob.glob(as_pattern(item), recursive=True)
  names = [x for x in found if not is_hidden(x, named=item)]
  paths = [pathlib.Path(name).absolute() for name in sorted(names)]
  if not paths:
    raise ValueError(f"--input: {item or 'an empty name'} does not exist")
  return [x for path in paths for x in _files_of(path, split, must)]


def _files_of(
  path: pathlib.Path, split: str, must: bool
) -> list[pathlib.Path | ImageFolder]:
  """Lists the data files in a folder, or the path itself."""
  choose = partial(of_split, split=split, must=must)
  if path.is_file() and path.suffix == ARROW:
    saved.check_listed(path)
  if path.is_file():  # a table may name splits
    return [path] if path.suffix in SUFFIXES else choose(path.parent, [path])
  if not path.is_dir():
    raise ValueError(f"{path} is neither a regular file nor a folder")
  is_saved = saved.is_saved(path)
  tars, parquets, arrows = (
    visible(path.rglob(x), path) for x in ("*.tar", "*.parquet", "*.arrow")
  )
  if is_saved:
    tars, parquets = [], []
    arrows = saved.files_of(path, split=split, must=must)
  for found in (*tars, *parquets, *arrows):
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
  of_hub = parquets and all(
    re.fullmatch(splits.HUB_NAME, x.name) for x in parquets
  )
  if is_saved:
    return arrows
  if tars:  # img2dataset also writes .parquet files, without the images
    _warn_of_unread(path, tars, parquets)
    return choose(path, tars)
  homes = {home for x in parquets for home in x.parents}
  _check_no_log(path, (x for y in homes for z in LOGS for x in y.glob(z)))
  parquets = _without_leftovers(path, parquets)
  described = tuple(filter(image_folder.describes_images, _walk(path)))
  if described and not {*parquets} - {*described}:
    return [ImageFolder(path, described)]
  if next(images_of(path), None) and not of_hub:
    return [ImageFolder(path, described) if described else path]
  if parquets:
    _warn_of_unread(path, parquets, [])
    return choose(path, parquets)
  _check_no_arrows(path, arrows)
  raise ValueError(f"{path} holds nothing to read; {UNDERSTOOD}")


def _without_leftovers(folder: Path, parquets: Sequence[Path]) -> list[Path]:
  """Leaves out what Spark and others have not finished, or keep beside data.

  As for them, names that begin with "_" are not part of the data.

  Args:
    folder: The folder or pattern that was named; its own parts do not count.
    parquets: The files.
  """
  named = set(os.fspath(folder).split("/"))
  kept = [
    path
    for path in parquets
    if not any(x.startswith("_") for x in {*os.fspath(path).split("/")} - named)
  ]
  if left_out := sorted(set(parquets) - set(kept)):
    log.warning(
      "%s: %d Parquet files are not read, such as %s: names that begin with "
      "_ are of what is unfinished or about other files",
      folder,
      len(left_out),
      os.fspath(left_out[0]).removeprefix(f"{folder}/"),
    )
  return kept


def _check_no_log(folder: Path, paths: Iterable[Path]) -> None:
  """Raises ValueError if one of some paths is the log of a table."""
  for path in paths:
    for pattern, program in LOGS.items():
      if fnmatch.fnmatchcase(os.fspath(path), f"*/{pattern}*"):
        raise ValueError(
          f"{folder} is a table of {program}, whose log says which of its "
          "files count, and is not read: others may hold rows that were "
          "deleted or replaced. Write the table as plain Parquet first, for "
          "instance with write.parquet of Spark or to_parquet of pandas"
        )


def _warn_of_unread(
  folder: pathlib.Path,
  read: Sequence[pathlib.Path],
  others: Sequence[pathlib.Path],
) -> None:
  """Warns of images that lie beside the files that are read.

  Args:
    folder: The folder.
    read: Its tar or Parquet files, which are read.
    others: Its Parquet files, if tar files are read; img2dataset writes one
      with each of them, of the same name.
  """
  stems = {path.with_suffix("") for path in read}
  others = [path for path in others if path.with_suffix("") not in stems]
  images = sum(1 for _ in images_of(folder))
  unread = [f"{images} images"] * bool(images)
  unread += [f"{len(others)} Parquet files"] * bool(others)
  if unread:
    log.warning(
      "%s: its %s files are read, and not the %s there; name these with a "
      "pattern, or move them into a folder of their own",
      folder,
      read[0].suffix,
      " and ".join(unread),
    )
  names = (path.name for path in _walk(folder))
  _warn_of_endings(
    folder, (x for x in names if not x.lower().endswith(ENDINGS))
  )


def _warn_of_endings(folder: Path, names: Iterable[str]) -> None:
  """Warns of files beside tar or Parquet files that are not read.

  Args:
    folder: The folder.
    names: The names of its files.
  """
  unread = [
    x
    for x in map(os.path.basename, names)
    if not x.endswith(READ) and not _BESIDE.fullmatch(x)
  ]
  if unread:
    log.warning(
      "%s: files of these endings are not read: %s; decompress what is "
      "compressed, and let the names end in %s; a table is read if --input "
      "names it",
      folder,
      _counted(unread),
      " or ".join(READ),
    )


def _counted(names: Iterable[str]) -> str:
  """Returns how many names have each ending, the most frequent ones first."""
  endings = Counter(x[0] if (x := _ENDING.search(y)) else y for y in names)
  return ", ".join(f"{x} ({n})" for x, n in endings.most_common(10))


def _check_no_arrows(folder: pathlib.Path, arrows) -> None:
  """Raises ValueError if a folder has Arrow files, and nothing else."""
  homes = {x.parent for x in arrows if saved.is_saved(x.parent)}
  homes = {x.parent if saved.is_saved(x.parent) else x for x in homes}
  if homes:
    raise ValueError(
      f"{folder} holds {len(homes)} folders that save_to_disk wrote; name one "
      f"of them, such as --input={min(homes)}"
    )
  if arrows:
    raise ValueError(
      f"{folder} has Arrow files, but no {saved.STATE}, which save_to_disk "
      "writes last: it was interrupted, or the folder is a cache. Save it "
      "again, or name the files to read with a pattern, such as "
      f"--input='{folder}/*.arrow'"
    )


def check_no_pointers(
  paths: Sequence[pathlib.Path | FarFile | ImageFolder],
) -> None:
  """Raises ValueError if a file here is a pointer of Git LFS.

  A clone of a repository has these where Git LFS is not installed.

  Args:
    paths: The files of an input; tables of folders are looked at, too.
  """
  for path in paths:
    tables = path.tables if isinstance(path, ImageFolder) else [path]
    for table in tables:
      if not isinstance(table, pathlib.Path) or not table.is_file():
        continue
      if table.stat().st_size < MAX_POINTER:
        if table.read_bytes().startswith(POINTER):
          raise ValueError(
            f"{table} is a pointer of Git LFS, not the file itself; run "
            "`git lfs pull` in its folder"
          )


def of_split(
  folder: Path, paths: list[Path], *, split: str, must: bool
) -> list[Path]:
  """Selects the files of one split, if names or folders distinguish splits.

  Otherwise a run would train on test images. They must distinguish them if the
  split is to be chosen, and not made.

  Raises:
    ValueError: If they name other splits, or unknown ones.
  """
  splits.check_parts(folder, paths)
  found = splits.of_paths(folder, paths)
  same = [splits.of_name(x) or x for x in found]
  if must and set(same) <= {""}:
    here = all(isinstance(x, pathlib.Path) for x in paths)
    if here and set(map(kind_of, paths)) == {".parquet"}:
      return paths  # they may have a column of splits
    raise ValueError(NO_SPLITS.format(text=folder, split=split))
  if len(set(same)) < 2 and not must:
    return paths
  wanted = splits.of_name(split) or split
  chosen = [x == wanted for x in same]
  if not any(chosen):
    raise ValueError(
      f"{folder} has the splits {sorted(set(found))}, not {split}; name one "
      "with --split, or its files with a pattern"
    )
  log.info("%s: only the files of split %s are read", folder, split)
  unnamed = [x for x, name in zip(paths, found, strict=True) if not name]
  if unnamed:  # it may be a photo of a train in a folder of such photos
    log.warning(
      "%s: only the files of split %s are read, and not the %d files that are "
      "of no split, such as %s; if there are no splits, give the folders or "
      "files with a pattern",
      folder,
      split,
      len(unnamed),
      os.fspath(unnamed[0]).removeprefix(f"{folder}/"),
    )
  return list(itertools.compress(paths, chosen))


def is_named(path: pathlib.Path, split: str, item: str) -> bool:
  """Returns whether a file's name, or a folder within an item, is a split's."""
  within = os.path.abspath(item) if os.path.isdir(item) else path.parent
  (found,) = splits.of_paths(within, [path])
  return (splits.of_name(found) or found) == (splits.of_name(split) or split)


def warn_of_merged(text: str, paths: Sequence[Path], split: str) -> None:
  """Warns if files of several splits become one.

  A pattern or a list may name them; and in a folder, files are of no split once
  the name of one tells none.
  """
  if len(paths) < 2:
    return
  folder = os.path.commonpath(paths)
  within = [x / "*" if x.is_dir() else x for x in paths]
  found = set(splits.of_paths(folder, within))
  several = len({splits.of_name(x) or x for x in found}) > 1
  if found == {""}:
    found = {splits.of_file(x.name) for x in within}
    several = bool({*map(splits.of_name, found)} - {"", splits.of_name(split)})
  if several:
    names = ", ".join(x or "others" for x in sorted(found))
    log.warning(
      "--input=%s: by their names, its files are of several splits (%s), and "
      "all of them become the split %s; name the files of one",
      text,
      names,
      split,
    )


def images_of(folder: pathlib.Path) -> Iterator[pathlib.Path]:
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


def warn_of_others(
  folder: pathlib.Path, read: Collection[pathlib.Path] = ()
) -> None:
  """Names files that are neither known images nor their texts, or hidden.

  Args:
    folder: A folder of images.
    read: Tables in it that are read.
  """
  known = (*ENDINGS, ".txt", ".json")
  others = [
    path
    for path in _walk(folder)
    if not path.name.lower().endswith(known) and path not in read
  ]
  tables = [x for x in others if x.suffix in (*SUFFIXES, ".parquet")]
  if others:
    log.warning(
      "%s: files of these kinds are not read: %s; images are %s%s",
      folder,
      _counted(x.stem + x.suffix.lower() for x in others),
      " ".join(ENDINGS),
      f"; to read captions from a table, give --input={tables[0]}"
      if tables
      else "",
    )
  links = sorted(
    str(path.relative_to(folder))
    for path in folder.rglob("*")
    if path.is_symlink() and path.is_dir()
  )
  if links:
    log.warning(
      "%s: %d links to folders, such as %s, are not followed; name the folders "
      "themselves, separated by commas",
      folder,
      len(links),
      links[0],
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
      folder,
      len(hidden),
      min(hidden),
    )


def warn_of_lone_texts(folder: pathlib.Path) -> None:
  """Warns about texts that lie beside no image of their name, or several."""
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
      folder,
      len(lone),
      min(lone),
    )
  texts = {x.with_suffix("") for x in paths if x.suffix.lower() == ".txt"}
  stems = Counter(x.with_suffix("") for x in images if x not in texts)
  shared = sorted(x for x, n in stems.items() if n > 1 and x in texts)
  if shared:
    names = (x.name for x in images if x.with_suffix("") == shared[0])
    log.warning(
      "%s: %d texts are read as the captions of several images each, such as "
      "%s; move masks and the like into another folder, or give an image a "
      "text of its own, as x.jpg.txt",
      folder,
      len(shared),
      " and ".join(names),
    )

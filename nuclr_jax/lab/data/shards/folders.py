"""Which files below a folder hold embeddings, and what else lies there."""

from collections.abc import Sequence
import logging
import os
import pathlib

from nuclr_jax.lab import files
from nuclr_jax.lab.data.images import ENDINGS

MOST_FOLDERS = 2**16
OUTPUT = {"scores.parquet", "summary.json"}  # in what `nuclr filter` wrote
AT_WORK = ("unfinished.", "incomplete.")  # and in what it is writing

log = logging.getLogger(__name__)


def below(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the files of a folder and of all folders below it, sorted.

  Hidden files are left out, and so are folders that `nuclr filter` wrote or is
  writing: their tables are no shards. Links are followed, each folder is listed
  once.

  Raises:
    ValueError: If a folder cannot be listed, or there are too many.

  Example:
    >>> folder = tmp_path / "metadata"
    >>> for name in ("a/b/c/x.npz", ".d/x.npz", "unfinished.kept/x.npz"):
    ...   (folder / name).parent.mkdir(parents=True)
    ...   _ = (folder / name).write_text("")
    >>> [x.relative_to(folder).as_posix() for x in below(folder)]
    ['a/b/c/x.npz']
  """

  def refuse(error: OSError):
    raise ValueError(f"{error.filename} cannot be listed: {error.strerror}")

  found, seen = [], set()
  for place, inner, names in os.walk(folder, onerror=refuse, followlinks=True):
    here, state = pathlib.Path(place), os.stat(place)
    which = (state.st_dev, state.st_ino)
    if which in seen or (here != folder and _is_left_out(here, folder, names)):
      inner.clear()
      continue
    seen.add(which)
    if len(seen) > MOST_FOLDERS:
      raise ValueError(
        f"{folder} has more than {MOST_FOLDERS:,} folders below it; give one "
        "that holds embeddings alone"
      )
    found += [here / name for name in names]
  return files.visible((x for x in found if x.is_file()), folder)


def _is_left_out(here: pathlib.Path, folder: pathlib.Path, names) -> bool:
  if files.is_hidden(here.relative_to(folder)):
    return True
  if here.name.startswith(AT_WORK) or set(names) >= OUTPUT:
    log.info("%s is of nuclr filter, and left out", here)
    return True
  return False


def about(place: pathlib.Path, found: Sequence[pathlib.Path], flag: str) -> str:
  """Returns what else a folder without embeddings holds, and what to do.

  Args:
    place: The folder.
    found: Its files.
    flag: The flag that names it.
  """
  if {place / x for x in OUTPUT} <= set(found):
    return "; that is what nuclr filter wrote, not what it reads"
  images = [x for x in found if x.suffix.lower() in (".tar", *ENDINGS)]
  tars = [x for x in images if x.suffix.lower() == ".tar"]
  if images:
    taken = f"'{tars[0].parent}/*.tar'" if tars else place
    how = f"--model=MODEL --input={taken}"
    if flag == "embeddings":
      return f"; that holds images: embed them by {how} in place of --{flag}"
    return f"; that holds images: embed them by nuclr embed {how}"
  if tables := [x for x in found if x.suffix == ".parquet"]:
    return (
      f"; {tables[0]} has no {tables[0].stem}.npz beside it "
      "(download_upstream.py --download_npz)"
    )
  return ""

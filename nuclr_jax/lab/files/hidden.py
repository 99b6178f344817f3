"""What lies among the files of a data set without being part of it.

Notebooks, desktops and file servers leave copies, thumbnails and metadata
beside photos. All listings of folders and tars ask here what to pass over.
"""

from collections.abc import Iterable
import fnmatch
import os
import pathlib

# Besides names that begin with a dot; in lower case.
NAMES = {
  "__macosx",  # archives made on a Mac
  "__pycache__",
  "$recycle.bin",  # Windows
  "desktop.ini",
  "system volume information",
  "thumbs.db",
  "@eadir",  # Synology, with thumbnails
  "#recycle",
  "@recycle",  # QNAP
  "lost+found",  # ext4
}


def is_hidden(path: str | os.PathLike, named: str | os.PathLike = "") -> bool:
  """Returns whether a part of a path begins with a dot, or is in `NAMES`.

  Args:
    path: The path, relative to the folder or tar that is listed.
    named: The folder or pattern that somebody has named, if the path is not
      relative to it: its own parts do not count.

  Example:
    >>> is_hidden("a/__MACOSX/._b.jpg"), is_hidden("./a/../b.c.jpg")
    (True, False)
    >>> is_hidden("/home/me/.cache/a.tar", named="/home/me/.c*/*.tar")
    False
  """
  given = set(os.fspath(named).split("/"))
  patterns = [x for x in given if x.startswith(".")]
  return any(
    part.lower() in NAMES or part.startswith(".")
    for part in set(os.fspath(path).split("/")) - given - {".", ".."}
    if not any(fnmatch.fnmatchcase(part, x) for x in patterns)
  )


def visible(
  paths: Iterable[pathlib.Path], folder: pathlib.Path
) -> list[pathlib.Path]:
  """Sorts paths, and leaves out those that are hidden below a folder.

  Example:
    >>> names = ("b", "a", ".ipynb_checkpoints", "@eaDir")
    >>> [x.name for x in visible([tmp_path / x for x in names], tmp_path)]
    ['a', 'b']
  """
  return sorted(x for x in paths if not is_hidden(x.relative_to(folder)))

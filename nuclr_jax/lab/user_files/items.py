"""What readers yield: items, and what cannot be one, with the reason."""

from collections.abc import Callable, Iterable, Sequence
import hashlib
import os
from typing import Any, NamedTuple

from nuclr_jax.lab.data.captions import (
  BOX,
  CUT_LIST,
  NO_TEXT,
  NO_UTF8,
  NO_VALUE,
  TOO_LONG,
  clean_text,
  tidy_captions,
)

# Reasons to reject an item; `images.decode_input` has those of images.
NO_CAPTION = "no caption"
NO_IMAGE = "missing image"  # the input names no image
NO_FILE = "missing file"  # the input names no regular file
OUTSIDE = "link out of the folder"  # the file, or the text beside it
AWAY = "path out of the folder"  # that a table in the folder names
BROKEN_ROW = "broken row"  # of a table
NO_SPLIT = "no split"  # in a table that names those of other rows
BROKEN_RECORD = "unreadable record"  # of a TFDS data set
ONLY_HIDDEN = "only hidden files"  # in a tar, see `files.is_hidden`
# What to do if the input changes while it is read.
AGAIN = "run the command again once the input is complete"


class Item(NamedTuple):
  """An image and its captions as they are in the input, not yet checked.

  A checked image that is not the one of the input has no `offset`.
  """

  key: str
  source: str  # the input file
  image: bytes
  captions: Sequence[str]
  offset: int | None = None  # of the image in `source`, if that is a tar


class Rejected(NamedTuple):
  """An item, or a part of the input, that did not become a record."""

  key: str
  source: str
  reason: str


class Part(NamedTuple):
  """A part of a split's items, which one process reads."""

  split: str
  read: Callable[[], Iterable[Item | Rejected]]
  stamp: Any = None  # changes when the files do that are read


def tidy(item: Item | Rejected) -> tuple[Item | Rejected, list[Rejected]]:
  """Cleans the texts of an item and separates its bad captions.

  Example:
    >>> item, bad = tidy(Item("a", "x.tar", b"", [" a dog ", "?!"]))
    >>> item.captions, bad[0].reason
    (['a dog'], 'empty caption')
  """
  key, source = clean_text(item.key), clean_text(item.source)
  item = item._replace(key=key, source=source)
  if isinstance(item, Rejected):
    return item, []
  kept, wrong = tidy_captions(item.captions)
  bad = [Rejected(key, source, reason) for reason in wrong]
  return item._replace(captions=kept), bad


def why_none(bad: Sequence[Rejected]) -> str:
  """Returns why an image has no caption.

  Args:
    bad: The captions of the image, all of them bad.

  Example:
    >>> why_none([]), why_none([Rejected("a", "x.tar", NO_UTF8)])
    ('no caption', 'caption is not UTF-8')
  """
  reasons = (NO_UTF8, TOO_LONG, CUT_LIST, NO_VALUE, BOX)
  telling = (
    x.reason for x in bad if x.reason in reasons or x.reason.startswith(NO_TEXT)
  )
  return next(telling, NO_CAPTION)


def stamp_of(path: str | os.PathLike) -> list:
  """Returns path, size and time of a file, which differ once it has changed."""
  state = os.stat(path)
  return [os.fspath(path), state.st_size, state.st_mtime_ns]


def stamp_of_all(name: Any, paths: Sequence[str | os.PathLike]) -> list:
  """Returns a name, the number of files, and a digest of their stamps.

  Args:
    name: What the files are.
    paths: The files; those that are missing count by their names.
  """
  digest = hashlib.sha256()
  for path in paths:
    state = stamp_of(path) if os.path.exists(path) else os.fspath(path)
    digest.update(str(state).encode("utf-8", "replace"))
  return [str(name), len(paths), digest.hexdigest()]


def check_unchanged(stamp: Any) -> None:
  """Raises OSError if a file here is gone, or has changed.

  It would pass for a damaged one, of which some are expected.

  Args:
    stamp: The stamp of a part: path, size and time of a file, or several such.
  """
  stamps = [stamp] if stamp and isinstance(stamp[0], str) else stamp or ()
  for path, *before in stamps:
    if not os.path.isabs(path):  # of a bucket, or the name of a split
      continue
    gone = not os.path.exists(path)
    now = [] if gone else [os.stat(path).st_size, os.stat(path).st_mtime_ns]
    if now != before:
      raise OSError(
        f"{path} {'is gone' if gone else 'has changed'} since the command "
        f"began; {AGAIN}"
      )

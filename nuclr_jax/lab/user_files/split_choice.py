"""Which splits an input names, and which of them is read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import functools
import logging
import os
import pathlib

from nuclr_jax.lab.user_files import listing, saved, splits
from nuclr_jax.lab.user_files.batches import ARROW
from nuclr_jax.lab.user_files.items import NO_SPLIT, Item, Part, Rejected
from nuclr_jax.lab.user_files.tables import SUFFIXES, Row

log = logging.getLogger(__name__)


def settle(
  found: Sequence[tuple[str | None, Row | Rejected | Part]],
  *,
  split: str,
  must: bool,
  text: str,
) -> list[tuple[str | None, Row | Rejected | Part]]:
  """Gives a split to the rows or parts of files that name none.

  If no file names one, all are of the split that is made. Otherwise a file may
  be of it by its own name or folder; the rows of others are rejected, as those
  that name none in a file that names some.

  Args:
    found: Splits, or None, with rows of tables or parts of files.
    split: The split that is made.
    must: Whether the input has to name it; None remains None then, but for
      Parquet and Arrow files that are of it by their place.
    text: The input.
  """
  names = {name for name, _ in found if name}
  if not names and not must:
    return [(split, x) for _, x in found]
  if names - {split}:  # which may call it otherwise
    split = splits.of_name(split) or split

  @functools.cache
  def is_of_it(path: str) -> bool:
    may_be = not must or os.path.splitext(path)[1] not in SUFFIXES
    return may_be and _is_named(pathlib.Path(path), split, text)

  rest, settled, unnamed = splits.rest_of(split, names), [], {}
  for name, x in found:
    path = x.stamp[0] if isinstance(x, Part) else x.source
    if name is None and is_of_it(path):
      name = split
    elif name is None and not must:
      name, x = rest, _without_split(x)
      unnamed[path] = True
    settled.append((name, x))
  if unnamed:
    log.warning(
      "%s: %d files name no split, such as %s, while others do: their rows are "
      "rejected; give them a column of splits, or read them by themselves",
      text,
      len(unnamed),
      next(iter(unnamed)),
    )
  return settled


def _without_split(x: Row | Item | Rejected | Part) -> Rejected | Part:
  if isinstance(x, Part):
    return x._replace(read=functools.partial(_rejected, x.read))
  return x if isinstance(x, Rejected) else Rejected(x.key, x.source, NO_SPLIT)


def _rejected(
  read: Callable[[], Iterable[Item | Rejected]],
) -> Iterator[Rejected]:
  """Yields what is read as rejected, since it names no split."""
  return map(_without_split, read())


def own_split(text: str, paths: Sequence, split: str) -> str:
  """Returns the split that a saved folder says it is, or else `split`."""
  own = ""
  if set(map(listing.kind_of, paths)) == {ARROW}:
    own = saved.own_split(paths)
  if own and own != split:
    log.info("%s: it was saved as the split %s, which is made", text, own)
  return own or split


def _is_named(path: pathlib.Path, split: str, text: str) -> bool:
  if path.suffix == ARROW:
    return saved.own_split([path]) == (splits.of_name(split) or split)
  return listing.is_named(path, split, text)


def choose_split(
  named: dict[str | None, list], only: str | None, text: str
) -> dict[str, list]:
  """Selects the split that the user names, or all splits."""
  if only is None or set(named) <= {only}:
    return named
  unnamed = named.pop(None, [])
  if not named:
    raise ValueError(listing.NO_SPLITS.format(text=text, split=only))
  if unnamed:
    log.warning(
      "%s: %d rows or parts name no split, and are left out",
      text,
      len(unnamed),
    )
  key = only if only in named else splits.of_name(only)
  if key not in named:
    raise ValueError(
      f"{text} has the splits {sorted(named)}, not {only}; name one of them "
      "with --split, or leave the flag out to make all"
    )
  log.info("%s: only the split %s is read", text, only)
  return {key: named[key]}

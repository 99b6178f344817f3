"""Draws the chosen sets of a package into a folder, and goes on where it was.

Each set that is finished is a file, so that a killed command loses no more than
a set. `builder` makes a data set of these files, and removes them.
"""

from collections.abc import Iterator, Sequence
import csv
import hashlib
import io
import json
import logging
import pathlib
from typing import Any, NamedTuple

import numpy as np

from nuclr_jax.lab import files, progress
from nuclr_jax.lab.data.captions import as_cell
from nuclr_jax.lab.data.icons import families, names, pool
from nuclr_jax.lab.data.icons.package import IconSet, Package, read_sets

CHUNK = 256  # icons that a process draws at a time
MAX_REJECTED, FEW = 0.01, 10  # share of icons, and a number that is always fine
NAMED = 3  # icons that a message names
SETS = "sets.csv"
REJECTED = "rejected.csv"

log = logging.getLogger(__name__)


class Drawn(NamedTuple):
  """A set that has been drawn."""

  icon_set: IconSet
  split: str
  path: pathlib.Path  # of the file with its images
  drawn: list[int]  # the numbers of the icons that have one
  reasons: dict[int, str]  # why the others do not

  def images(self) -> np.ndarray:
    """Reads the images [drawn, size, size, 1]."""
    return files.read_arrays(self.path)["images"]

  def names(self) -> Iterator[tuple[str, names.Name]]:
    """Yields the name of each drawn icon, and its parts."""
    every = [icon.name for icon in self.icon_set.icons]
    sizes = names.sizes_of(every)
    declared = self.icon_set.suffixes, self.icon_set.prefixes
    for i in self.drawn:
      yield every[i], names.split_name(every[i], *declared, sizes)


def choose_sets(package: Package, sets: Sequence[str] = ()) -> list[IconSet]:
  """Reads the sets that were asked for or, if none were, the default ones.

  Args:
    package: The package.
    sets: Identifiers of sets; () = those that `why_left_out` does not exclude.

  Raises:
    ValueError: If the package has no such set, or the sets do not give every
      split icons.
  """
  if sets:
    chosen = list(read_sets(package, set(sets)))
  else:
    every = read_sets(package)
    chosen = [x for x in every if families.why_left_out(x) is None]
  chosen = sorted((x for x in chosen if x.icons), key=lambda x: x.prefix)
  splits = {x.prefix: families.split_of(families.family_of(x)) for x in chosen}
  missing = [x for x in families.SPLITS if x not in splits.values()]
  if missing:
    raise ValueError(
      f"the chosen sets have no icons for {' and '.join(missing)}: "
      f"{dict(list(splits.items())[:8])}; designers are in one split each, so "
      "choose more sets (--config.data.sets), or leave them all out for the "
      "default"
    )
  return chosen


def draw_sets(
  chosen: Sequence[IconSet], folder: pathlib.Path, *, size: int, processes: int
) -> list[Drawn]:
  """Draws all icons of sets that are not yet in a folder.

  Args:
    chosen: The sets.
    folder: Where finished sets are kept.
    size: Height and width of the images, in pixels.
    processes: How many icons are drawn at a time.

  Returns:
    The sets, in order.

  Raises:
    ValueError: If more than `MAX_REJECTED` of the icons cannot be drawn.
  """
  total = sum(len(x.icons) for x in chosen)
  before = {x.prefix: _finished(x, folder) for x in chosen}
  missing = [x for x in chosen if before[x.prefix] is None]
  result = {name: x for name, x in before.items() if x is not None}
  kept = total - sum(len(x.icons) for x in missing)
  if kept:
    log.info("%d of %d icons have been drawn before", kept, total)
  show = progress.reporter("icons", total, start=kept)
  seen, rejected = kept, sum(len(x.reasons) for x in result.values())
  most = max(FEW, MAX_REJECTED * total)
  with pool.painters(processes, size) as draw:
    work = [(x, [draw(part) for part in _chunks(x.icons)]) for x in missing]
    for icon_set, parts in work:
      images, drawn, reasons, start = [], [], {}, 0
      for future, part in zip(parts, _chunks(icon_set.icons), strict=True):
        done = future.result()
        images.append(done.images)
        drawn += [start + i for i in done.drawn]
        reasons |= {start + i: x for i, x in done.reasons.items()}
        start += len(part)
        seen += len(part)
        rejected += len(done.reasons)
        show(seen)
        if rejected > most:
          bad = _drawn(icon_set, folder, drawn, reasons)
          raise _too_many([*result.values(), bad], total)
      parts.clear()  # and with them the memory of the images
      result[icon_set.prefix] = _finish(
        icon_set, folder, np.concatenate(images), drawn, reasons
      )
  return [result[x.prefix] for x in chosen]


def _chunks(icons):
  return [icons[i : i + CHUNK] for i in range(0, len(icons), CHUNK)]


def _digest(icon_set: IconSet) -> str:
  """Identifies what is drawn of a set."""
  content = json.dumps(icon_set.icons).encode()
  return hashlib.sha256(content).hexdigest()


def _part(icon_set: IconSet, folder: pathlib.Path) -> pathlib.Path:
  return folder / f"{icon_set.prefix}.npz"


def _drawn(icon_set, folder, drawn, reasons) -> Drawn:
  split = families.split_of(families.family_of(icon_set))
  return Drawn(icon_set, split, _part(icon_set, folder), drawn, reasons)


def _finish(icon_set, folder, images, drawn, reasons) -> Drawn:
  """Keeps what has been drawn of a set."""
  about = {"digest": _digest(icon_set), "reasons": sorted(reasons.items())}
  with files.replacing(_part(icon_set, folder)) as new:
    with new.open("wb") as file:
      np.savez(
        file,
        images=images,
        drawn=np.array(drawn, np.int64),
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
      )
  return _drawn(icon_set, folder, drawn, reasons)


def _finished(icon_set: IconSet, folder: pathlib.Path) -> Drawn | None:
  """Finds a set that was drawn before; None if it was not, or differs."""
  path = _part(icon_set, folder)
  if not path.exists():
    return None
  try:
    arrays = files.read_arrays(path)
    about = json.loads(arrays["about"].tobytes())
    if about["digest"] != _digest(icon_set):
      return None
    drawn, reasons = arrays["drawn"].tolist(), dict(about["reasons"])
    if len(arrays["images"]) != len(drawn):
      return None
  except (KeyError, ValueError) as error:
    log.warning("%s is damaged, and is drawn again (%s)", path, error)
    return None
  return _drawn(icon_set, folder, drawn, reasons)


def _too_many(drawn: Sequence[Drawn], total: int) -> ValueError:
  """Makes the error for a package of which too much cannot be drawn."""
  found = [
    f"{x.icon_set.prefix}:{x.icon_set.icons[i].name} ({reason})"
    for x in drawn
    for i, reason in x.reasons.items()
  ]
  return ValueError(
    f"{len(found)} of {total} icons are rejected, more than "
    f"{100 * MAX_REJECTED:.0f} %: {', '.join(found[:NAMED])}, ...; the package "
    "is not what the library was made for; check where it is from, or choose "
    "other sets (--config.data.sets)"
  )


def rejected_table(drawn: Sequence[Drawn]) -> str:
  """Lists the icons that were not drawn, with reasons, as CSV."""
  rows = [
    (x.icon_set.prefix, x.icon_set.icons[i].name, reason)
    for x in drawn
    for i, reason in sorted(x.reasons.items())
  ]
  return as_csv(("set", "icon", "reason"), rows)


def sets_table(drawn: Sequence[Drawn], copies: dict[str, int]) -> str:
  """Lists the sets, with their authors, licences and splits, as CSV.

  Args:
    drawn: The sets.
    copies: How many icons of each set are copies of others, see `builder`.
  """
  rows = []
  for x in drawn:
    about = x.icon_set
    rows.append(
      (
        about.prefix,
        about.name,
        about.author,
        about.author_url,
        about.license,
        about.license_url,
        families.family_of(about),
        x.split,
        len(x.drawn),
        copies.get(about.prefix, 0),
        about.category or "",
      )
    )
  columns = (
    *("set", "name", "author", "author_url", "license", "license_url"),
    *("family", "split", "icons", "copies", "category"),
  )
  return as_csv(columns, rows)


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  r"""Makes CSV in which no cell is a formula.

  Example:
    >>> as_csv(["set"], [["=1+1"]])
    "set\n'=1+1\n"
  """
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(columns)
  for row in rows:
    writer.writerow([as_cell(progress.plain(str(x), keep="")) for x in row])
  return file.getvalue()

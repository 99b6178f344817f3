"""clip-retrieval's files: which of them belong together.

The files of shard N are `img_emb_N.npy`, `text_emb_N.npy` and
`metadata_N.parquet`. They lie in one folder, or in folders beside each other
that hold a kind each: clip-retrieval calls these `img_emb`, `text_emb` and
`metadata`, others `images`, `texts` and `metadata`.
"""

from collections.abc import Iterable, Sequence
import logging
import pathlib
from typing import NamedTuple

ENDINGS = {"img_emb": ".npy", "text_emb": ".npy", "metadata": ".parquet"}
SHOWN = 5  # gaps

log = logging.getLogger(__name__)


class Numbered(NamedTuple):
  """A file of clip-retrieval's."""

  kind: str  # one of `ENDINGS`
  number: str  # of the shard, with leading zeros, if there are any
  path: pathlib.Path


def numbered(found: Iterable[pathlib.Path]) -> list[Numbered]:
  """Returns those of some files that are clip-retrieval's.

  Example:
    >>> names = ("img_emb_03.npy", "img_emb_3.txt", "metadata_x.parquet")
    >>> [(x.kind, x.number) for x in numbered(map(pathlib.Path, names))]
    [('img_emb', '03')]
  """
  names = []
  for path in found:
    kind, _, number = path.stem.rpartition("_")
    if ENDINGS.get(kind) == path.suffix and number.isascii():
      if number.isdigit():
        names.append(Numbered(kind, number, path))
  return names


def images(parts: Sequence[Numbered]) -> list[pathlib.Path]:
  """Returns the files of images, in the order of their numbers.

  Raises:
    ValueError: If a number is there twice.
  """
  some = [x for x in parts if x.kind == "img_emb"]
  _check_once(some)
  _warn_of_gaps(some)
  return [x.path for x in sorted(some, key=_number)]


def shards(
  parts: Sequence[Numbered], folder: pathlib.Path
) -> list[dict[str, pathlib.Path]]:
  """Returns the files of each shard by their kinds, in the order of numbers.

  A number that is not there at all may have been left out on purpose: a warning
  says so.

  Args:
    parts: All files.
    folder: The folder that has been given.

  Raises:
    ValueError: If a file is missing, there twice, or of another folder.
  """
  _check_once(parts)
  shard: dict[str, dict[str, pathlib.Path]] = {}
  for part in sorted(parts, key=_number):
    shard.setdefault(part.number, {})[part.kind] = part.path
  root = _roots(parts, folder)
  for number, kinds in shard.items():
    first = next(iter(kinds.values()))
    for kind, ending in ENDINGS.items():
      if kind not in kinds:
        raise ValueError(
          f"{first} has no {kind}_{number}{ending} with it; clip-retrieval "
          "inference writes it with --enable_text --enable_image "
          "--enable_metadata"
        )
      if root[kinds[kind]] != root[first]:
        raise ValueError(
          f"{first} and {kinds[kind]} are in folders that do not belong "
          "together; keep the files of a shard in one folder, or in folders "
          "beside each other with a kind of file each"
        )
  _warn_of_gaps(parts)
  return list(shard.values())


def _number(part: Numbered) -> int:
  return int(part.number)


def _check_once(parts: Sequence[Numbered]) -> None:
  seen: dict[tuple[str, int], Numbered] = {}
  for part in parts:
    other = seen.setdefault((part.kind, _number(part)), part)
    if other is not part:
      raise ValueError(
        f"{part.kind}_{part.number} is there twice: {other.path} and "
        f"{part.path}; filter each folder by itself, or number the shards of "
        "one from where those of the other end"
      )


def _roots(parts: Sequence[Numbered], folder: pathlib.Path):
  """Returns the folder in which, or below which, a file's shard is."""
  kinds: dict[pathlib.Path, set[str]] = {}
  for part in parts:
    kinds.setdefault(part.path.parent, set()).add(part.kind)
  root = {
    place: place if place == folder or len(held) > 1 else place.parent
    for place, held in kinds.items()
  }
  return {part.path: root[part.path.parent] for part in parts}


def _warn_of_gaps(parts: Sequence[Numbered]) -> None:
  """Warns of numbers that are left out, from 0 on."""
  numbers = sorted({_number(part) for part in parts})
  gaps = [
    f"{first}" if last == first else f"{first} to {last}"
    for first, last in (
      (before + 1, after - 1)
      for before, after in zip([-1, *numbers], numbers, strict=False)
    )
    if first <= last
  ]
  if gaps:
    more = f" and {len(gaps) - SHOWN} more gaps" if len(gaps) > SHOWN else ""
    log.warning(
      "%s and the other files of clip-retrieval have no number %s%s; if you "
      "have not left these shards out yourself, copy or write them again",
      parts[0].path,
      ", ".join(gaps[:SHOWN]),
      more,
    )

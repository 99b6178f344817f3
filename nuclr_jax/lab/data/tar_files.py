"""Tar files in webdataset's format, as img2dataset writes them.

A sample is the files of one key, which follow each other: KEY.jpg, and KEY.txt
with a caption on each line, or the caption in KEY.json. `name_files` says where
a key ends. If a kind of file comes twice there, nothing says which image has
which text, and none of the files is used.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
import fnmatch
import glob
import io
import itertools
import os
import re
from typing import NamedTuple

from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import (
  captions_beside,
  clean_text,
  tidy_captions,
)
from nuclr_jax.lab.data.images import ENDINGS
from nuclr_jax.lab.data.tar_members import (
  DAMAGED,
  END,
  Member,
  members_of,
  split_name,
)
from nuclr_jax.lab.files import as_pattern, bucket, is_hidden

ENDING = ".tar"
STATS = "_stats.json"  # in place of `ENDING`: img2dataset's counts
MAX_TEXT = 2**20  # bytes of a file with captions
SMALLEST = 4 * 512  # bytes of a sample: two headers, and a block behind each
LENIENT = 10  # times as many may be given, since an epoch may be any number
MAX_STATS = 2**20  # bytes
THREADS = 32  # that read counts
FEW = 10_000  # tars that are checked before a stream begins
MAX_NAMES = 1_000_000  # that ranges stand for
MAX_DIGITS = 18  # of a number in a range
# Reasons to leave out a sample.
NO_IMAGE = "missing image"
NO_CAPTION = "no caption"
REPEATED = "two images or texts of one key; give each sample its own key"
TOO_BIG = "too large a file"
LONG_TEXT = "too large a file of captions"
OTHER_PICTURE = (
  "another picture of its key, which ends at the first dot; rename the file"
)
EMPTY = "no sample"  # in the tar
KINDS = ("image", "txt", "json")  # of files that are read
MOST_SHOWN = 4  # endings in a reason
# What files beside tars raise that do not hold a count.
_NO_COUNT = OSError, ValueError, LookupError, TypeError, ArithmeticError
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class TarSample(NamedTuple):
  """An image and its captions."""

  key: str
  source: str  # the tar
  image: bytes  # of the file, not decoded yet
  captions: Sequence[str]


class LeftOut(NamedTuple):
  """Something in a tar that is not a sample."""

  key: str
  source: str
  reason: str


class FileName(NamedTuple):
  """What the name of a file in a tar says."""

  key: str
  kind: str  # one of `KINDS`, `OTHER_PICTURE`, or another ending


class TarPart(NamedTuple):
  """A part of a tar, and where the next part begins."""

  content: TarSample | LeftOut
  end: int  # in bytes
  skip: int = 0  # parts from there on that have come already


def are_tars(text: str) -> bool:
  """Returns whether a text names tars, not prepared data sets.

  Example:
    >>> are_tars("/data/cc3m/*.tar"), are_tars("cc3m:train")
    (True, False)
  """
  return any(item.strip().endswith(ENDING) for item in text.split(","))


def name_files(names: Sequence[str]) -> list[FileName]:
  """Says which sample each file belongs to, and what it is there.

  In webdataset's format, a key ends at the first dot: 1.seg.png is a file of
  another kind of the sample 1. But 1.jpg, 1.txt or 1.json is there then. If
  none of them is, the names have other dots, and a key ends at the last one. A
  text may also have the whole name of its image before its ending.

  Args:
    names: The names of files that have the same `first_key`.

  Example:
    >>> _, mask = name_files(["1.jpg", "1.seg.png"])
    >>> mask.key, mask.kind == OTHER_PICTURE
    ('1', True)
    >>> [tuple(x) for x in name_files(["Track 2.1.JPG", "Track 2.1.txt"])]
    [('Track 2.1', 'image'), ('Track 2.1', 'txt')]
  """
  named = [_named(*split_name(name)) for name in names]
  if not any(x.kind in KINDS for x in named):
    return [_named(*split_name(name, last=True)) for name in names]
  return [
    x._replace(kind=OTHER_PICTURE) if x.kind.endswith(ENDINGS) else x
    for x in named
  ]


def expand_ranges(name: str) -> list[str]:
  """Expands every {first..last} of a name; numbers keep their leading zeros.

  Example:
    >>> expand_ranges("{8..10}.tar"), expand_ranges("x{00..01}.tar")
    (['8.tar', '9.tar', '10.tar'], ['x00.tar', 'x01.tar'])

  Raises:
    ValueError: If a range counts down, or `check_ranges` does.
  """
  check_ranges(name)
  parts = _RANGE.split(name)  # text, first, last, text, first, ...
  ranges = [
    [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    for first, last in zip(parts[1::3], parts[2::3], strict=True)
  ]
  return [
    "".join(x + y for x, y in zip(parts[::3], (*numbers, ""), strict=True))
    for numbers in itertools.product(*ranges)
  ]


def check_ranges(text: str) -> None:
  """Raises ValueError if the ranges of a text are of more than `MAX_NAMES`.

  Args:
    text: Names, with commas between; none of them is expanded.

  Example:
    >>> check_ranges("{0..999}{0..9}.tar")
    >>> check_ranges("{0..9999}{0..9999}.tar")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: {0..9999}{0..9999}.tar stands for 100,000,000 names, ...
  """
  count = 0
  for item in text.split(","):
    product = 1
    for first, last in _RANGE.findall(item):
      if max(len(first), len(last)) > MAX_DIGITS:
        raise ValueError(
          f"{_short(item)} has a range of numbers of {len(last)} digits, at "
          f"most {MAX_DIGITS} are allowed"
        )
      if int(first) > int(last):
        raise ValueError(
          f"{_short(item)} does not exist: {{{first}..{last}}} counts down; "
          f"write {{{last}..{first}}}"
        )
      product *= int(last) - int(first) + 1
    count += product
  if count > MAX_NAMES:
    raise ValueError(
      f"{_short(text)} stands for {count:,} names, at most {MAX_NAMES:,} are "
      "allowed; use smaller ranges, or *"
    )


def find_tars(text: str) -> list[str]:
  """Lists the tars that a text names, in the order of their paths.

  Args:
    text: Paths that end in .tar, here or in a bucket, with commas between;
      `*`, `?` and `[...]` stand for parts of names, `**` for any folders, and
      {00000..00331} for a range of numbers.

  Raises:
    ValueError: If one of them does not exist, or is not a tar, or if the ranges
      stand for too many names.

  Example:
    >>> for i in range(3):
    ...   _ = (tmp_path / f"0{i}.tar").write_bytes(b"")
    >>> tars = find_tars(f"{tmp_path}/{{00..01}}.tar")
    >>> [x.removeprefix(str(tmp_path)) for x in tars]
    ['/00.tar', '/01.tar']
  """
  items, found = [item.strip() for item in text.split(",")], []
  check_ranges(",".join(x for x in items if not os.path.isfile(x)))
  for item in items:
    if not item.endswith(ENDING):
      raise ValueError(
        f"{text} names tars and something else, {item!r}; train on tars, or "
        "on prepared data sets (nuclr ingest --in_place leaves images in tars)"
      )
    found += _expand(item)
  return sorted(dict.fromkeys(found))


def count_pairs(tars: Sequence[str], given: int | None = None) -> int | None:
  """Adds up the numbers of samples that img2dataset has written beside tars.

  Args:
    tars: Paths of tars; the numbers are in files such as 00000_stats.json.
    given: The number of samples, if it is given; the files are not read then.

  Returns:
    The number; None if one of the tars has no such file.

  Raises:
    ValueError: If there are more than tars of their sizes can hold, or
      `LENIENT` times as many are given.
  """
  paths = [f"{tar.removesuffix(ENDING)}{STATS}" for tar in tars]
  with futures.ThreadPoolExecutor(THREADS) as pool:
    count = given
    if count is None:
      try:
        count = sum(pool.map(_successes, paths))
      except _NO_COUNT:
        return None
    size = sum(pool.map(_size, tars))
  most = size // SMALLEST
  if count > (most if given is None else LENIENT * most):
    what = "data.num_pairs" if given else f"the {STATS} files beside the tars"
    raise ValueError(
      f"{what}: {count:,} pairs are too many for tars of {size:,} bytes, which "
      f"hold at most {most:,}; give data.num_pairs, about as many as an epoch "
      "has"
    )
  return count


def check_filled(tars: Sequence[str]) -> None:
  """Raises ValueError if there is no file in any of at most `FEW` tars.

  A stream would find out once it has left out as much, a minute later.

  Args:
    tars: Paths of tars.
  """
  starts = range(1, min(len(tars), FEW), THREADS)
  reasons = Counter()
  with futures.ThreadPoolExecutor(THREADS) as pool:
    # In most cases, the first one is enough.
    for some in (tars[:1], *(tars[i : i + THREADS] for i in starts)):
      reasons.update(pool.map(_first_reason, some))
      if "" in reasons:
        return
  if len(tars) <= FEW:
    found = ", ".join(f"{count} {x}" for x, count in reasons.most_common())
    raise ValueError(
      f"there is no file in any of the tars: {found}; the last one is "
      f"{tars[-1]}"
    )


def read_samples(tar: str, start: int = 0) -> Iterator[TarPart]:
  """Reads a tar from one end to the other.

  Args:
    tar: Path of a tar, which may be in a bucket.
    start: The byte to begin at, 0 or the end of a part.

  Yields:
    Its parts. Unusable ones are yielded as well, with the reason; after
    damage, nothing is read.

  Raises:
    OSError: If the file cannot be read.
  """
  with _open(tar) as file:
    file.seek(start)
    held, num_samples = [], 0
    for member in members_of(file):
      if held and member.key != held[0].key:
        samples = _samples(held)
        ends = [*(files[0].start for _, files in samples[1:]), member.start]
        for (named, files), end in zip(samples, ends, strict=True):
          num_samples += 1
          *bad, last = _contents(file, tar, named, files)
          for number, content in enumerate(bad, 1):
            yield TarPart(content, files[0].start, number)
          yield TarPart(last, end)
        held = []
      if member.key is not None:
        held.append(member)
    if member.name != END or start == num_samples == 0:
      reason = EMPTY if member.name == END else member.name
      yield TarPart(LeftOut("", tar, reason), member.start, 1)


def is_repeated(kinds: Iterable[str]) -> bool:
  """Returns whether files of these kinds are of more than one sample.

  Example:
    >>> is_repeated(["image", "txt", "npy", "npy"]), is_repeated(["txt", "txt"])
    (False, True)
  """
  found = [kind for kind in kinds if kind in KINDS]
  return len(found) > len({*found})


def flaw_of(kind: str, member: Member) -> str:
  """Returns why a file of a kind of `KINDS` is not read, or "".

  Example:
    >>> flaw_of("txt", Member("a", "a.txt", 0, 512, size=2**40))
    'too large a file of captions'
  """
  if member.flaw:
    return member.flaw
  if kind == "image":
    return TOO_BIG if member.size > files.MAX_IMAGE else ""
  return LONG_TEXT if member.size > MAX_TEXT else ""


def why_no_image(kinds: Iterable[str]) -> str:
  """Returns why a sample is left out that has no image.

  Args:
    kinds: What its files are, as `name_files` says.

  Example:
    >>> why_no_image(["txt"]), why_no_image(["txt", "heic"])
    ('missing image', 'missing image (not read: .heic)')
  """
  others = sorted({x[:20] for x in kinds if x not in (*KINDS, OTHER_PICTURE)})
  unread = ", ".join(f".{x}" for x in others[:MOST_SHOWN])
  return f"{NO_IMAGE} (not read: {unread})" if others else NO_IMAGE


def _expand(item: str) -> list[str]:
  """Lists the tars of one item; each name of a range must be there."""
  if not bucket.is_remote(item):
    item = os.path.abspath(os.path.expanduser(item))
    if os.path.isfile(item):  # whatever the characters of its name
      return [item]
  names = expand_ranges(item)
  pattern = _RANGE.sub("*", item)
  if bucket.is_remote(item):
    there = sorted(bucket.find(pattern))
  else:
    there = sorted(glob.glob(as_pattern(pattern), recursive=True))
  there = [x for x in there if not is_hidden(x, named=pattern)]
  if names == [item]:
    found = {item: there}
  else:
    exact = set(there)
    found = {
      name: [name] if name in exact else _matching(there, name)
      for name in names
    }
  missing = [name for name, tars in found.items() if not tars]
  if missing:
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    raise ValueError(
      f"there is no tar {missing[0]}{more}; name files, or use * or {{0..9}}"
    )
  tars = [tar for name in names for tar in found[name]]
  if not bucket.is_remote(item):
    for tar in tars:
      if not os.path.isfile(tar):
        raise ValueError(
          f"{tar} is not a regular file; remove it, or name the tars without it"
        )
  return tars


def _matching(paths: Sequence[str], pattern: str) -> list[str]:
  """Returns the paths that a name stands for, if it is a pattern."""
  return fnmatch.filter(paths, pattern) if glob.has_magic(pattern) else []


def _short(text: str) -> str:
  return text if len(text) <= 200 else f"{text[:200]}..."


def _successes(path: str) -> int:
  if bucket.is_remote(path):
    content = bucket.read_range(path, 0, MAX_STATS)
  else:
    with files.reading(path), open(path, "rb") as file:
      content = file.read(MAX_STATS)
  count = int(files.parse_json(content)["successes"])
  if count < 0:
    raise ValueError(f"{path}: a negative number of samples")
  return count


def _size(tar: str) -> int:
  """Returns the bytes of a tar."""

  def read():
    with _open(tar) as file:
      return file.seek(0, os.SEEK_END)

  return files.keep_trying(tar, read)


def _first_reason(tar: str) -> str:
  """Returns why nothing in a tar can be read, or "" if there is a file."""

  def read():
    with _open(tar) as file:
      for member in members_of(file):
        if member.key is not None:
          return ""
    return EMPTY if member.name == END else member.name

  return files.keep_trying(tar, read)


def _open(tar: str) -> io.BufferedIOBase:
  if bucket.is_remote(tar):
    return bucket.open_file(tar)
  if not os.path.isfile(tar):  # a pipe would wait forever
    raise FileNotFoundError(f"{tar} is not there, or no regular file")
  return open(tar, "rb")


def _named(key: str, ending: str) -> FileName:
  return FileName(key, "image" if f".{ending}" in ENDINGS else ending)


def _samples(
  members: Sequence[Member],
) -> list[tuple[Sequence[FileName], Sequence[Member]]]:
  """Cuts a list of members with the same `first_key` into samples."""
  named = name_files([member.name for member in members])
  pairs = zip(named, members, strict=True)
  by_key = itertools.groupby(pairs, lambda pair: pair[0].key)
  return [tuple(zip(*group, strict=True)) for _, group in by_key]


def _contents(
  file: io.BufferedIOBase,
  tar: str,
  named: Sequence[FileName],
  members: Sequence[Member],
) -> list[TarSample | LeftOut]:
  """Reads the files of a key: what cannot be used, and at last the sample."""
  key, found, bad, flaws = clean_text(named[0].key), {}, [], {}
  repeated = is_repeated(kind for _, kind in named)
  for (_, kind), member in zip(named, members, strict=True):
    name = clean_text(member.name)
    if kind == OTHER_PICTURE:
      bad.append(LeftOut(name, tar, kind))
    if kind not in KINDS or repeated:
      continue
    if flaw := flaw_of(kind, member):
      flaws[kind] = LeftOut(name, tar, flaw)
      continue
    file.seek(member.place)
    found[kind] = file.read(member.size)
    if len(found[kind]) < member.size:
      return [*bad, LeftOut(key, tar, DAMAGED)]
  if repeated:
    return [*bad, LeftOut(key, tar, REPEATED)]
  if "txt" in found and "json" in flaws:  # the captions are there
    bad.append(flaws.pop("json"))
  if flaws:
    return [*bad, next(iter(flaws.values()))]
  if "image" not in found:
    return [*bad, LeftOut(key, tar, why_no_image(x.kind for x in named))]
  captions, wrong = tidy_captions(captions_beside(found))
  bad += [LeftOut(key, tar, reason) for reason in wrong]
  if captions:
    return [*bad, TarSample(key, tar, found["image"], captions)]
  return bad or [LeftOut(key, tar, NO_CAPTION)]

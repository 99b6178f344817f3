"""Tar files in webdataset's format, as img2dataset writes them.

A sample is the files of one key, which follow each other: KEY.jpg, and KEY.txt
with a caption on each line, or the caption in KEY.json. `name_files` says where
a key ends.
"""

from collections.abc import Iterator, Sequence
from concurrent import futures
import fnmatch
import glob
import io
import itertools
import json
import os
import re
import tarfile
from typing import NamedTuple

from nuclr_jax.data.captions import captions_beside, clean_text, tidy_captions
from nuclr_jax.data.images import ENDINGS
from nuclr_jax.files import as_pattern, bucket, is_hidden

ENDING = ".tar"
STATS = "_stats.json"  # in place of `ENDING`: img2dataset's counts
BLOCK = 512  # bytes in a block of a tar file
MAX_BYTES = 2**30  # of an image file
MAX_STATS = 2**20  # bytes
THREADS = 32  # that read counts
MAX_RANGE = 1_000_000
# Reasons to leave out a sample.
NO_IMAGE = "missing image"
NO_CAPTION = "no caption"
REPEATED = "a second file of its key"  # and kind; the first one counts
TOO_BIG = "too large a file"
OTHER_PICTURE = (
  "another picture of its key, which ends at the first dot; rename the file"
)
LINK = "link in a tar, which is not followed"  # in place of a picture
DAMAGED = "damaged file"  # the tar, or the remainder of it
EMPTY = "no sample"  # in the tar
END = "end"  # of a tar, which is as it should be
KINDS = ("image", "txt", "json")  # of files that are read
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_TEXT_OF_FILE = re.compile(
  rf"({'|'.join(map(re.escape, ENDINGS))})(\.(txt|json))$", re.IGNORECASE
)


class Sample(NamedTuple):
  """An image and its captions."""

  key: str
  source: str  # the tar
  image: bytes  # of the file, not decoded yet
  captions: Sequence[str]


class LeftOut(NamedTuple):
  """Something in a tar that is no sample."""

  key: str
  source: str
  reason: str


class Named(NamedTuple):
  """What the name of a file in a tar says."""

  key: str
  kind: str  # one of `KINDS`, `OTHER_PICTURE`, or another ending


class Member(NamedTuple):
  """A file in a tar; or its end, which has no key, and `END` or `DAMAGED`."""

  key: str | None  # see `first_key`
  name: str
  start: int  # of its header, in bytes
  place: int = 0  # of its content
  size: int = 0
  is_link: bool = False  # to another file, in place of content


class Part(NamedTuple):
  """A part of a tar, and where the next part begins."""

  content: Sample | LeftOut
  end: int  # in bytes
  skip: int = 0  # parts from there on that have come already


def are_tars(text: str) -> bool:
  """Returns whether a text names tars, not prepared data sets.

  Example:
    >>> are_tars("/data/cc3m/*.tar"), are_tars("cc3m:train")
    (True, False)
  """
  return any(item.strip().endswith(ENDING) for item in text.split(","))


def first_key(name: str) -> str:
  """Returns a name up to the first dot of its last part.

  Example:
    >>> first_key("./v1.0/0001.seg.png")
    'v1.0/0001'
  """
  return _split(name)[0]


def name_files(names: Sequence[str]) -> list[Named]:
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
  named = [_named(*_split(name)) for name in names]
  if not any(x.kind in KINDS for x in named):
    return [_named(*_split(name, last=True)) for name in names]
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
    ValueError: If a range has more than `MAX_RANGE` numbers.
  """
  match = _RANGE.search(name)
  if match is None:
    return [name]
  first, last = match.groups()
  numbers = range(int(first), int(last) + 1)
  if len(numbers) > MAX_RANGE:
    raise ValueError(
      f"{match[0]} is a range of more than {MAX_RANGE:,} numbers"
    )
  head, tail = name[: match.start()], name[match.end() :]
  return [
    f"{head}{number:0{len(first)}d}{rest}"
    for number in numbers
    for rest in expand_ranges(tail)
  ]


def find_tars(text: str) -> list[str]:
  """Lists the tars that a text names, in the order of their paths.

  Args:
    text: Paths that end in .tar, here or in a bucket, with commas between;
      `*`, `?` and `[...]` stand for parts of names, `**` for any folders, and
      {00000..00331} for a range of numbers.

  Raises:
    ValueError: If one of them does not exist, or is no tar.

  Example:
    >>> for i in range(3):
    ...   _ = (tmp_path / f"0{i}.tar").write_bytes(b"")
    >>> tars = find_tars(f"{tmp_path}/{{00..01}}.tar")
    >>> [x.removeprefix(str(tmp_path)) for x in tars]
    ['/00.tar', '/01.tar']
  """
  found = []
  for item in map(str.strip, text.split(",")):
    if not item.endswith(ENDING):
      raise ValueError(
        f"{text} names tars and something else, {item!r}; train on tars, or "
        "on prepared data sets (nuclr ingest --in_place leaves images in tars)"
      )
    found += _expand(item)
  return sorted(dict.fromkeys(found))


def count_pairs(tars: Sequence[str]) -> int | None:
  """Adds up the numbers of samples that img2dataset has written beside tars.

  Args:
    tars: Paths of tars; the numbers are in files such as 00000_stats.json.

  Returns:
    The sum; None if one of the tars has no such file.
  """
  paths = [f"{tar.removesuffix(ENDING)}{STATS}" for tar in tars]
  with futures.ThreadPoolExecutor(THREADS) as pool:
    try:
      return sum(pool.map(_successes, paths))
    except (OSError, ValueError, KeyError, TypeError):
      return None


def read_samples(tar: str, start: int = 0) -> Iterator[Part]:
  """Reads a tar from one end to the other.

  Args:
    tar: Path of a tar, which may be in a bucket.
    start: The byte to begin at, 0 or the end of a part.

  Yields:
    Its parts. What cannot be used is yielded as well, with the reason; after
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
            yield Part(content, files[0].start, number)
          yield Part(last, end)
        held = []
      held.append(member)
    end = held[0]
    if end.name == DAMAGED or start == num_samples == 0:
      reason = EMPTY if end.name == END else DAMAGED
      yield Part(LeftOut("", tar, reason), end.start, 1)


def members_of(file: io.BufferedIOBase) -> Iterator[Member]:
  """Finds the files of a tar, from where it is, and its end.

  The tarfile module takes a damaged header for the end, so the end is checked
  here.

  Args:
    file: The tar, at the header of a member.

  Yields:
    Its files, and a last one whose key is None.

  Raises:
    OSError: If it cannot be read.
  """
  start = file.tell()
  try:
    with tarfile.open(fileobj=file, mode="r:") as tar:
      while (member := tar.next()) is not None:
        tar.members = []  # else it keeps them all in memory
        start = tar.offset
        is_link = member.issym() or member.islnk()
        if is_hidden(member.name) or not (member.isfile() or is_link):
          continue
        yield Member(
          first_key(member.name),
          member.name,
          member.offset,
          member.offset_data,
          member.size,
          is_link,
        )
      start = tar.offset
    file.seek(start)
    is_end = file.read(BLOCK) == bytes(BLOCK)
  except OSError:
    raise
  except Exception:  # not only tarfile's own, such as of sizes like 2^70
    is_end = False
  yield Member(None, END if is_end else DAMAGED, start)


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
    found = {
      name: [name] if name in there else fnmatch.filter(there, name)
      for name in names
    }
  missing = [name for name, tars in found.items() if not tars]
  if missing or not names:
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    raise ValueError(
      f"there is no tar {(missing or [item])[0]}{more}; name files, or use * "
      "or {0..9}"
    )
  tars = [tar for name in names for tar in found[name]]
  if not bucket.is_remote(item):
    for tar in tars:
      if not os.path.isfile(tar):
        raise ValueError(
          f"{tar} is no regular file; remove it, or name the tars without it"
        )
  return tars


def _successes(path: str) -> int:
  if bucket.is_remote(path):
    content = bucket.read_range(path, 0, MAX_STATS)
  else:
    with open(path, "rb") as file:
      content = file.read(MAX_STATS)
  return int(json.loads(content)["successes"])


def _open(tar: str) -> io.BufferedIOBase:
  return bucket.open_file(tar) if bucket.is_remote(tar) else open(tar, "rb")


def _split(name: str, *, last: bool = False) -> tuple[str, str]:
  """Splits a name at the first dot of its last part, or at the last one."""
  folder, base = os.path.split(name.removeprefix("./"))
  base = _TEXT_OF_FILE.sub(r"\2", base)
  stem, _, ending = base.rpartition(".") if last else base.partition(".")
  return os.path.join(folder, stem), ending.lower()


def _named(key: str, ending: str) -> Named:
  return Named(key, "image" if f".{ending}" in ENDINGS else ending)


def _samples(
  members: Sequence[Member],
) -> list[tuple[Sequence[Named], Sequence[Member]]]:
  """Cuts a list of members with the same `first_key` into samples."""
  named = name_files([member.name for member in members])
  pairs = zip(named, members, strict=True)
  by_key = itertools.groupby(pairs, lambda pair: pair[0].key)
  return [tuple(zip(*group, strict=True)) for _, group in by_key]


def _contents(
  file: io.BufferedIOBase,
  tar: str,
  named: Sequence[Named],
  members: Sequence[Member],
) -> list[Sample | LeftOut]:
  """Reads the files of a key: what cannot be used, and at last the sample."""
  key, found, bad = clean_text(named[0].key), {}, []
  for (_, kind), member in zip(named, members, strict=True):
    name = clean_text(member.name)
    if kind == OTHER_PICTURE:
      bad.append(LeftOut(name, tar, kind))
    if kind not in KINDS:
      continue
    if kind in found:
      bad.append(LeftOut(key, tar, REPEATED))
      continue
    if member.is_link:
      return [*bad, LeftOut(name, tar, LINK)]
    if member.size > MAX_BYTES:
      return [*bad, LeftOut(key, tar, TOO_BIG)]
    file.seek(member.place)
    found[kind] = file.read(member.size)
    if len(found[kind]) < member.size:
      return [*bad, LeftOut(key, tar, DAMAGED)]
  if "image" not in found:
    return [*bad, LeftOut(key, tar, NO_IMAGE)]
  captions, wrong = tidy_captions(captions_beside(found))
  bad += [LeftOut(key, tar, reason) for reason in wrong]
  if captions:
    return [*bad, Sample(key, tar, found["image"], captions)]
  return bad or [LeftOut(key, tar, NO_CAPTION)]

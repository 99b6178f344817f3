"""Splits the names of icons into words, style and size.

"calendar-24-filled" has the words "calendar", the style "filled" and the size
"24". Only what a set declares counts as its style: where a set does not declare
"outline", it stays a word.
"""

from collections import Counter
from collections.abc import Collection, Iterable
import re
from typing import NamedTuple

SEPARATORS = re.compile(r"[-_\s]+")
# Sizes of icons in pixels. Other numbers are part of what is drawn, as in
# "battery-50".
NUMBERS = frozenset("10 12 14 15 16 18 20 24 28 32 36 40 48 64 96 128".split())
PIXELS = re.compile(r"\d+px|px")
ASPECT = re.compile(r"\d+x\d+")  # "grid-3x3" has it as a word
# The least share of a set's names, and number of names, that end in a number
# that is a size: elsewhere "24" is part of what is drawn ("hours-24").
SHARE, COUNT = 0.05, 10


class Name(NamedTuple):
  """What the name of an icon says."""

  words: str  # what is drawn, lower case, separated by spaces
  style: str = ""  # how it is drawn: "filled", "outline rounded"
  size: str = ""  # the size that it is drawn for: "24"


def sizes_of(names: Collection[str]) -> frozenset[str]:
  """Returns the numbers that are sizes in a set, by the ends of its names.

  Example:
    >>> names = [f"shape{i}-24" for i in range(10)] + ["looks-5", "battery-20"]
    >>> sorted(sizes_of(names))
    ['24']
  """
  ends = Counter(name.rpartition("-")[2] for name in names if "-" in name)
  least = max(COUNT, SHARE * len(names))
  return frozenset(x for x in NUMBERS if ends[x] >= least)


def split_name(
  name: str,
  suffixes: Iterable[str] = (),
  prefixes: Iterable[str] = (),
  sizes: Collection[str] = (),
) -> Name:
  """Splits a name into words, style and size.

  Args:
    name: The name in its set, such as "calendar-24-filled".
    suffixes: The suffixes that the set declares, without the hyphen.
    prefixes: The prefixes that the set declares, likewise.
    sizes: The numbers that are sizes at the end of a name, see `sizes_of`;
      those within suffixes and prefixes and such as "24px" always are.

  Returns:
    The parts; a name that consists of style and size alone has them as words.

  Example:
    >>> split_name("calendar-24-filled", ["filled", "24-filled"])
    Name(words='calendar', style='filled', size='24')
    >>> split_name("baseline-4g-mobiledata", prefixes=["baseline"])
    Name(words='4g mobiledata', style='baseline', size='')
    >>> split_name("alarm-24px"), split_name("outline", ["outline"]).words
    (Name(words='alarm', style='', size='24px'), 'outline')
  """
  rest, taken = name.lower(), []
  for suffix in sorted(suffixes, key=len, reverse=True):
    if rest.endswith(f"-{suffix}"):
      rest, taken = rest[: -len(suffix) - 1], _words(suffix)
      break
  for prefix in sorted(prefixes, key=len, reverse=True):
    if rest.startswith(f"{prefix}-"):
      rest, taken = rest[len(prefix) + 1 :], _words(prefix) + taken
      break
  words = _words(rest)
  pixels = [x for x in taken if _is_size(x) or ASPECT.fullmatch(x)]
  style = [x for x in taken if x not in pixels]
  while len(words) > 1 and (words[-1] in sizes or PIXELS.fullmatch(words[-1])):
    pixels.append(words.pop())
  if not words:
    return Name(" ".join(_words(name.lower())) or name)
  return Name(" ".join(words), " ".join(style), " ".join(pixels))


def _words(text: str) -> list[str]:
  return [x for x in SEPARATORS.split(text) if x]


def _is_size(word: str) -> bool:
  return word in NUMBERS or PIXELS.fullmatch(word) is not None

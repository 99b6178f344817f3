"""Sentences and rated pairs from the docstrings of installed packages.

They stand in for Wikipedia and for the STS data sets of Table 5. Nobody rated
the pairs: the score of a pair says how close to each other its sentences are.
"""

import ast
from collections.abc import Iterator
import importlib.util
import pathlib
import re
from typing import NamedTuple
import zlib

import numpy as np

PACKAGES = ("flax", "jax", "matplotlib", "numpy", "optax", "scipy", "sklearn")
TESTS = {"test", "tests"}  # folders that are left out
HELD_OUT = 5  # one file in so many is only tested on
WORDS = (6, 30)  # of a sentence, at least and at most
# Scores of pairs, from 3 to 0.
SCORES = (
  "neighbours in a paragraph",
  "two paragraphs of a docstring",
  "two docstrings of a package",
  "two packages",
)
# A paragraph with one of these is no prose: code, tables, lists, references.
NO_PROSE = re.compile(r">>>|::|\.\. |^\s*[-*:|+=\[#]|--|==|`{3}", re.MULTILINE)
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
SENTENCE = re.compile(r"[A-Z][\w\s,;:()'\"`./-]*[.!?]")


class Text(NamedTuple):
  """Sentences by package, docstring and paragraph."""

  train: list[str]
  test: list[list[list[list[str]]]]


def read(packages: tuple[str, ...] = PACKAGES) -> Text:
  """Reads the docstrings of packages without importing them.

  A file is trained or tested on, as a checksum of its name decides. Repeated
  sentences are kept where they are first.

  Args:
    packages: The names of installed packages.
  """
  train, test, seen = [], [], set()
  for package in packages:
    tested = []
    root = pathlib.Path(importlib.util.find_spec(package).origin).parent
    for path in sorted(root.rglob("*.py")):
      if TESTS & set(path.parts):
        continue
      name = path.relative_to(root.parent).as_posix()
      held_out = zlib.crc32(name.encode()) % HELD_OUT == 0
      for docstring in _docstrings(path):
        paragraphs = [_new(x, seen) for x in paragraphs_of(docstring)]
        paragraphs = [x for x in paragraphs if x]
        if paragraphs and held_out:
          tested.append(paragraphs)
        train += [] if held_out else [x for part in paragraphs for x in part]
    test.append(tested)
  return Text(train, test)


def paragraphs_of(docstring: str) -> list[list[str]]:
  r"""Returns the sentences of every paragraph of prose.

  Example:
    >>> text = "Sums rows.\n\nThe sum of an axis is returned. It may be 0.\n"
    >>> paragraphs_of(text + "\n>>> f()")
    [['The sum of an axis is returned.']]
  """
  found = []
  for block in re.split(r"\n\s*\n", docstring):
    if NO_PROSE.search(block):
      continue
    parts = END.split(" ".join(block.split()))
    found.append([x for x in parts if _is_sentence(x)])
  return [x for x in found if x]


def rated_pairs(
  test: list[list[list[list[str]]]], count: int, seed: int = 0
) -> list[tuple[int, str, str]]:
  """Draws pairs of every score of `SCORES`.

  Args:
    test: Sentences by package, docstring and paragraph.
    count: The number of pairs of each score.
    seed: The seed of the draws.

  Returns:
    Scores and sentences; no pair occurs twice.
  """
  rng = np.random.default_rng(seed)
  near = [x for package in test for docs in package for x in docs]
  near = [pair for x in near for pair in zip(x[:-1], x[1:], strict=True)]
  docs = [x for package in test for x in package if len(x) > 1]

  def pick(items):
    return items[rng.integers(len(items))]

  def two(items):
    first, second = rng.choice(len(items), 2, replace=False)
    return items[first], items[second]

  def sentence(docstring):
    return pick(pick(docstring))

  kinds = (
    lambda: pick(near),
    lambda: map(pick, two(pick(docs))),
    lambda: map(sentence, two(pick([x for x in test if len(x) > 1]))),
    lambda: (sentence(pick(x)) for x in two([x for x in test if x])),
  )
  found = {}
  for score, kind in zip((3, 2, 1, 0), kinds, strict=True):
    drawn = set()
    for _ in range(20 * count):
      if len(drawn) < count:
        drawn.add(tuple(kind()))
    found |= {pair: score for pair in drawn if pair not in found}
  return [(score, *pair) for pair, score in found.items()]


def _docstrings(path: pathlib.Path) -> Iterator[str]:
  try:
    tree = ast.parse(path.read_text(encoding="utf-8"))
  except SyntaxError:  # templates of code
    return
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  for node in ast.walk(tree):
    if isinstance(node, kinds) and (text := ast.get_docstring(node)):
      yield text


def _is_sentence(text: str) -> bool:
  low, high = WORDS
  return low <= len(text.split()) <= high and bool(SENTENCE.fullmatch(text))


def _new(sentences: list[str], seen: set[str]) -> list[str]:
  """Returns the sentences that were not seen before, and notes them."""
  fresh = [x for x in dict.fromkeys(sentences) if x not in seen]
  seen.update(fresh)
  return fresh

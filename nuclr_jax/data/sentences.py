"""Sentences in memory, each of them both views of a pair.

Views of the same tokens differ by the encoder's dropout alone (SimCSE).
"""

from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple
import zlib

import numpy as np

from nuclr_jax.data.sources import Source, single
from nuclr_jax.types import Batch


class Rated(NamedTuple):
  """Pairs of sentences and how similar people find them."""

  first: list[str]
  second: list[str]
  score: np.ndarray  # float64 [n], of any scale


def read(path: str | os.PathLike) -> list[str]:
  r"""The different sentences of a text file, one on each line.

  Raises:
    ValueError: If there is no such file, it is not UTF-8, or it has fewer than
      two sentences.

  Example:
    >>> _ = (tmp_path / "a.txt").write_text("One.\nTwo.\nOne.\n")
    >>> read(tmp_path / "a.txt")
    ['One.', 'Two.']
  """
  lines = [line.strip() for line in _text(path).split("\n")]
  found = list(dict.fromkeys(line for line in lines if line))
  if len(found) < 2:
    raise ValueError(
      f"{path} has {len(found)} different sentences; one on each line is wanted"
    )
  return found


def read_rated(path: str | os.PathLike) -> Rated:
  r"""Rated pairs of a TSV file: a score, a sentence and a sentence a line.

  Raises:
    ValueError: For a line that is none, or fewer than two of them.

  Example:
    >>> text = "5\tA dog.\tDogs.\n0\tA dog.\tNoon.\n"
    >>> _ = (tmp_path / "sts.tsv").write_text(text)
    >>> read_rated(tmp_path / "sts.tsv").score.tolist()
    [5.0, 0.0]
  """
  rows = []
  for number, line in enumerate(_text(path).split("\n"), 1):
    if not line.strip():
      continue
    parts = [x.strip() for x in line.rstrip("\r").split("\t")]
    try:
      score = float(parts[0])
    except ValueError:
      score = float("nan")
    if len(parts) != 3 or not np.isfinite(score) or not all(parts):
      raise ValueError(
        f"{path}, line {number}: a score, a sentence and a sentence with tabs "
        f"between them are wanted, got {line[:80]!r}"
      )
    rows.append((parts[1], parts[2], score))
  if len(rows) < 2:
    raise ValueError(f"{path} has {len(rows)} rated pairs; two are the least")
  first, second, score = zip(*rows, strict=True)
  return Rated(list(first), list(second), np.array(score))


def twice(sentences: Sequence[str], tokens: np.ndarray, name: str) -> Source:
  """Pairs of a sentence with itself; pair i is sentence i.

  Args:
    sentences: All different.
    tokens: Their token ids [n, length].
    name: Of the data; checkpoints remember it.
  """
  n = len(sentences)

  def fetch(pair_ids, random=None):
    del random  # dropout makes the views
    rows = tokens[pair_ids]
    return Batch(rows, rows, np.asarray(pair_ids, np.int32))

  check = zlib.crc32("\n".join(sentences).encode())
  return single(
    n,
    fetch,
    lambda text_ids: [sentences[i] for i in text_ids],
    f"{name}/{n}/{check:08x}",
    lambda: (x.encode() for x in sentences),
  )


def _text(path: str | os.PathLike) -> str:
  try:
    return pathlib.Path(path).expanduser().read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(f"{path} cannot be read: {error}") from error

"""Sentences in memory, for the model `views` with a text encoder.

Each sentence is both views of a pair. Views of the same tokens differ by the
encoder's dropout alone (SimCSE).
"""

from collections.abc import Callable, Mapping, Sequence
import os
import pathlib
from typing import Any, NamedTuple
import zlib

import numpy as np

from nuclr_jax.checks import Count
from nuclr_jax.lab import files
from nuclr_jax.lab.data.captions import all_lines_of
from nuclr_jax.lab.data.options import flat, group_in
from nuclr_jax.lab.data.source import (
  Data,
  HeldOut,
  Inputs,
  RatedPairs,
  Source,
  source_of_samples,
)
from nuclr_jax.lab.data.text_files import MARK, open_text
from nuclr_jax.lab.data.tokenizer import (
  BUILD,
  Clean,
  Tokenizer,
  choose_tokenizer,
)
from nuclr_jax.lab.ranges import Ids, Length
from nuclr_jax.types import Batch


class Words(NamedTuple):
  """How sentences become token ids."""

  # A file, a folder or a hub name, see `tokenizer.pretrained_tokenizer`; or
  # "build", to build one from the sentences
  tokenizer: str = BUILD
  length: Length = 32  # Token ids per sentence
  # How a pretrained tokenizer cleans sentences, and whether they are
  # `cleaning.repaired` first
  clean: Clean = False
  repair: bool = False
  # The number of ids of a pretrained encoder, if it is not the tokenizer's
  vocab_size: Ids | None = None
  # The number of sentences in which a word must occur to become a token of a
  # built tokenizer
  min_count: Count = 1


@flat("words")
def sentences(
  *,
  train: str | None,
  validation: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
  words: Words,
) -> Data:
  """Reads sentences without labels; dropout makes two views of each (SimCSE).

  Args:
    train: A text file with a sentence on each line; repeated sentences count
      once.
    validation: TSV files of rated pairs (a score and two sentences on each
      line) to score during training, see `evaluate.sts`.
    test: TSV files of rated pairs to score at the end.
    words: `tokenizer`, `length`, `clean`, `repair`, `vocab_size` and
      `min_count`, which are arguments and keys of `config.data` themselves.

  Raises:
    ValueError: If a file is not named, cannot be read, or has another format.

  Reference: Gao et al., SimCSE: Simple Contrastive Learning of Sentence
    Embeddings, EMNLP 2021.
  """
  if train is None:
    raise ValueError(
      "config.data.train is missing; name a text file with a sentence on each "
      "line"
    )
  lines = read_sentences(train)
  tokenizer = _tokenizer(words, lambda: lines)
  return Data(
    train=twice(lines, tokenizer.encode(lines), pathlib.Path(train).name),
    tokenizer=tokenizer,
    image_shape=(words.length,),
    held_out={
      "validation": HeldOut(rated=_read_all_rated(validation)),
      "test": HeldOut(rated=_read_all_rated(test)),
    },
  )


def inputs_of(spec: Mapping[str, Any]) -> Inputs | None:
  """Returns the model inputs of a `config.data`, if known without its data.

  Args:
    spec: The mapping `config.data`.

  Returns:
    The inputs, or None for other data, or if the tokenizer is built from the
    sentences.
  """
  if spec["name"] != "sentences":
    return None
  words = group_in(spec, Words)
  if words.tokenizer == BUILD:
    return None
  return Inputs((words.length,), _tokenizer(words, list))


def read_sentences(path: str | os.PathLike) -> list[str]:
  r"""Reads the distinct sentences of a text file, one on each line.

  Args:
    path: The text file.

  Raises:
    ValueError: If there is no such file, it is not UTF-8, or it has fewer than
      two sentences.

  Example:
    >>> _ = (tmp_path / "a.txt").write_text("One.\nTwo.\nOne.\n")
    >>> read_sentences(tmp_path / "a.txt")
    ['One.', 'Two.']
  """
  distinct = read_lines(path)
  if len(distinct) < 2:
    raise ValueError(
      f"{path} has {len(distinct)} different sentences, at least 2 are needed; "
      "put one on each line"
    )
  return distinct


def read_lines(path: str | os.PathLike) -> list[str]:
  r"""Reads the distinct lines of a text file; empty ones are left out.

  Args:
    path: The text file.

  Raises:
    ValueError: If there is no such file or it is not UTF-8.

  Example:
    >>> _ = (tmp_path / "a.txt").write_text("One.\n\nOne.\n")
    >>> read_lines(tmp_path / "a.txt")
    ['One.']
  """
  return list(dict.fromkeys(filter(None, read_all_lines(path))))


def read_all_lines(path: str | os.PathLike) -> list[str]:
  r"""Reads the lines of a text file, in order; "" is one that is empty.

  Args:
    path: The text file.

  Returns:
    The lines, without empty ones at the end.

  Raises:
    ValueError: If there is no such file or it is not UTF-8.

  Example:
    >>> _ = (tmp_path / "a.txt").write_text("One.\n\nOne.\n\n")
    >>> read_all_lines(tmp_path / "a.txt")
    ['One.', '', 'One.']
  """
  lines = all_lines_of(_text(path))
  while lines and not lines[-1]:
    lines.pop()
  return lines


def read_rated_pairs(path: str | os.PathLike) -> RatedPairs:
  r"""Reads rated pairs of a TSV file: a score and two sentences on each line.

  Args:
    path: The TSV file.

  Raises:
    ValueError: If a line has another form, or there are fewer than two.

  Example:
    >>> text = "5\tA dog.\tDogs.\n0\tA dog.\tNoon.\n"
    >>> _ = (tmp_path / "sts.tsv").write_text(text)
    >>> read_rated_pairs(tmp_path / "sts.tsv").score.tolist()
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
        f"{path}, line {number}: a score, a sentence and a sentence separated "
        f"by tabs are needed, got {line[:80]!r}"
      )
    rows.append((parts[1], parts[2], score))
  if len(rows) < 2:
    raise ValueError(
      f"{path} has {len(rows)} rated pairs, at least 2 are needed"
    )
  first, second, score = zip(*rows, strict=True)
  return RatedPairs(list(first), list(second), np.array(score))


def twice(lines: Sequence[str], tokens: np.ndarray, name: str) -> Source:
  """Makes pairs of a sentence with itself; pair i is sentence i.

  Args:
    lines: The sentences, all different.
    tokens: Their token ids [n, length].
    name: The name of the data, which checkpoints record.
  """
  n = len(lines)

  def fetch(pair_ids, random=None):
    del random  # dropout makes the views
    rows = tokens[pair_ids]
    return Batch(rows, rows, np.asarray(pair_ids, np.int32))

  checksum = zlib.crc32("\n".join(lines).encode())
  return source_of_samples(
    n,
    fetch,
    lambda text_ids: [lines[i] for i in text_ids],
    f"{name}/{n}/{checksum:08x}",
    lambda: (x.encode() for x in lines),
  )


def _tokenizer(words: Words, lines: Callable[[], list[str]]) -> Tokenizer:
  """Reads the tokenizer, or builds it from the sentences."""
  how = words._asdict()
  return choose_tokenizer(how.pop("tokenizer"), lines, **how)


def _read_all_rated(paths: Sequence[str]) -> dict[str, RatedPairs]:
  """Reads rated pairs, by the names of their files."""
  names = [pathlib.Path(path).stem for path in paths]
  if len(set(names)) < len(names):
    raise ValueError(f"files of rated pairs need different names, got {paths}")
  return {
    name: read_rated_pairs(path)
    for name, path in zip(names, paths, strict=True)
  }


def _text(path: str | os.PathLike) -> str:
  with files.reading(files.remote.fetch(path)) as path:
    with open_text(path, errors="strict") as file:
      text = file.read()
    if "\0" in text:
      raise ValueError("it holds NULs, so that it is not text in UTF-8")
    return text.replace(MARK, "")

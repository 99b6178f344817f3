"""Calls of the library `tokenizers` with untrusted files.

It is written in Rust: some files make it panic, which is not an `Exception` of
Python, and others make it fill the memory.
"""

import base64
from collections.abc import Iterator, Mapping
import contextlib
import functools
import json
import logging
import os
import re
import sys
import tempfile
from typing import Any

import tokenizers
from tokenizers import processors

from nuclr_jax import checks
from nuclr_jax.lab import files
from nuclr_jax.lab.ranges import Ids

log = logging.getLogger(__name__)

MAX_GROWTH = 1_000  # times that a normalizer may lengthen a caption
COMPATIBLE = 18  # characters that NFKD and NFKC make of one, at most
MAX_WORD = 1_000  # characters; the time of WordPiece is the cube of these


@contextlib.contextmanager
def calling(what: str) -> Iterator[None]:
  """Makes a ValueError of whatever the library raises.

  Args:
    what: What has failed, the beginning of the message.

  Raises:
    ValueError: If the block raises an error, or the library panics.
  """
  try:
    with files.without_panics():
      yield
  except Exception as error:  # the library raises nothing more specific
    remedy = ""
    if re.search(r"\bunk(\b|_)", str(error), re.IGNORECASE):
      remedy = (
        "; the tokenizer has no id for what it does not know: add its unknown "
        "token to the vocabulary, or let unk_token (or unk_id) name another"
      )
    raise ValueError(f"{what}: {error}{remedy}") from error


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
  """Hides the lines that a panic writes to standard error, past Python."""
  sys.stderr.flush()
  with tempfile.TemporaryFile() as written:
    kept = os.dup(2)
    os.dup2(written.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(kept, 2)
      os.close(kept)
      written.seek(0)
      if b"panicked" not in (text := written.read()):
        os.write(2, text)  # of another thread


def open_json(path: str | os.PathLike) -> tokenizers.Tokenizer:
  """Opens a `tokenizer.json`.

  Raises:
    ValueError: If it is none, or an id is too large.
  """
  with calling(f"{path} is not a tokenizer"), without_messages():
    tokenizer = tokenizers.Tokenizer.from_file(os.fspath(path))
  if getattr(tokenizer.model, "dropout", None):
    log.warning("%s cuts words at random (dropout); not here", path)
    tokenizer.model.dropout = None
  largest_id = max(tokenizer.get_vocab().values(), default=0)
  if not checks.fits(largest_id + 1, Ids):  # the library makes room for all
    raise ValueError(
      f"{path} has the id {largest_id}; the number of its ids must be "
      f"{checks.allowed(Ids)}"
    )
  return tokenizer


def check_effort(
  tokenizer: tokenizers.Tokenizer, path: str | os.PathLike
) -> None:
  """Raises ValueError if captions might take much memory or time.

  Args:
    tokenizer: The tokenizer.
    path: Its file, for the message.
  """
  growth = 1.0
  with calling(f"{path} is not a tokenizer"):
    for step in (tokenizer.normalizer, tokenizer.pre_tokenizer):
      if step is not None:  # its state is its part of the file
        growth *= _growth(json.loads(step.__getstate__()))
  longest = getattr(tokenizer.model, "max_input_chars_per_word", 0)
  if longest > MAX_WORD:
    raise ValueError(
      f"{path} cuts words of up to {longest} characters into pieces "
      f"(max_input_chars_per_word); at most {MAX_WORD:,} are allowed"
    )
  if growth > MAX_GROWTH:
    raise ValueError(
      f"{path} may make a caption {growth:.2g} times as long before it is cut; "
      f"at most {MAX_GROWTH:,} times are allowed"
    )


@functools.lru_cache(maxsize=8)
def encoder(text: str, length: int) -> tokenizers.Tokenizer:
  """Parses a tokenizer; cached, since that takes tens of milliseconds."""
  encoder = tokenizers.Tokenizer.from_str(text)
  encoder.enable_truncation(length)
  return encoder


@functools.lru_cache(maxsize=8)
def largest_id(text: str, length: int) -> int:
  """Returns the largest id of a vocabulary, -1 if it is empty."""
  return max(encoder(text, length).get_vocab().values(), default=-1)


def _growth(step: Mapping[str, Any]) -> float:
  """Returns how many times longer a step may make a text, at most."""
  if step["type"] == "Sequence":
    growth = 1.0
    for inner in step.get("normalizers") or step.get("pretokenizers") or ():
      growth *= _growth(inner)
    return growth
  if step["type"] == "Prepend":
    return 1.0 + len(step["prepend"])
  if step["type"] == "Replace":
    old, new = step["pattern"].get("String"), len(step["content"])
    # A regular expression may match nothing, between any two characters.
    return max(1.0, new / len(old)) if old else 1.0 + new
  if step["type"] in ("NFKC", "NFKD"):
    return COMPATIBLE
  if step["type"] == "Precompiled":
    return _longest_text(base64.b64decode(step["precompiled_charsmap"]))
  return 2.0 if step["type"] == "ByteLevel" else 1.0


def _longest_text(charsmap: bytes) -> float:
  """Returns the length of the longest text in a map of sentencepiece.

  Behind a trie, whose size comes first, are the texts that others become, each
  with a NUL behind it.
  """
  start = 4 + int.from_bytes(charsmap[:4], "little")
  texts = charsmap[start:].decode(errors="replace").split("\0")
  return max(1, *map(len, texts))


def set_template(
  tokenizer: tokenizers.Tokenizer, template: str, path: str | os.PathLike
) -> None:
  """Changes which tokens a tokenizer adds to a text.

  Args:
    tokenizer: The tokenizer, which is changed.
    template: Names of its tokens, and $A for the text, separated by blanks.
    path: Where it was read, for messages.

  Raises:
    ValueError: If $A is not there once, or the tokenizer lacks a token.
  """
  names = template.split()
  ids = {x: tokenizer.token_to_id(x) for x in names if x != "$A"}
  if names.count("$A") != 1 or None in ids.values():
    raise ValueError(
      f"the template {template!r} must have $A once, and tokens of {path} "
      f"around it; its tokens have the ids {ids}"
    )
  tokenizer.post_processor = processors.TemplateProcessing(
    single=" ".join(names), special_tokens=list(ids.items())
  )

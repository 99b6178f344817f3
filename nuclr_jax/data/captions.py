"""Captions as they are in files, and which of them can be used."""

from collections.abc import Mapping, Sequence
import json
from typing import Any

from nuclr_jax.data.pair_index import canonical

# Reasons to leave out a caption; its image keeps its other captions.
EMPTY_CAPTION = "empty caption"
NO_UTF8 = "caption is not UTF-8"


def captions_of(row: Mapping[str, Any], field: str) -> list[str]:
  """Returns the captions of a row, however they are stored.

  Args:
    row: A row of a data source, of JSON or of a table.
    field: The name that `caption_field` returns, or the name of a column.

  Returns:
    The captions, with "" for one that is missing from a list.

  Example:
    >>> captions_of({"caption": b"a dog"}, "caption")
    ['a dog']
    >>> captions_of({"captions": [{"text": "a dog"}, None]}, "captions/text")
    ['a dog', '']
  """
  value = row
  for name in field.split("/"):
    if isinstance(value, Mapping):
      value = value.get(name)
    else:  # a sequence of dicts, which may also be a dict of sequences
      value = [
        x.get(name) if isinstance(x, Mapping) else None for x in _listed(value)
      ]
  return [as_text(x) for x in _listed(value)]


def captions_beside(texts: Mapping[str, bytes]) -> list[str]:
  """Returns the captions of an image from the files beside it.

  Args:
    texts: What the files hold, by ending: the caption is that of "txt", or else
      the one in "json".

  Example:
    >>> captions_beside({"txt": b"a dog", "json": b'{"caption": "a cat"}'})
    ['a dog']
    >>> captions_beside({"json": b'{"caption": "a cat"}'})
    ['a cat']
  """
  if "txt" in texts:
    return captions_of(texts, "txt")
  try:
    content = json.loads(texts.get("json", b"{}"))
  except (ValueError, RecursionError):
    return []
  return captions_of(content, "caption") if type(content) is dict else []


def tidy_captions(captions: Sequence[str]) -> tuple[list[str], list[str]]:
  """Cleans captions, and says why some of them cannot be used.

  Returns:
    The captions that can be used, and the reasons why the others cannot.

  Example:
    >>> tidy_captions([" a dog ", "?!"])
    (['a dog'], ['empty caption'])
  """
  cleaned = [clean_text(caption).strip() for caption in captions]
  wrong = list(map(_wrong, cleaned))
  kept = [x for x, reason in zip(cleaned, wrong, strict=True) if not reason]
  return kept, [reason for reason in wrong if reason]


def as_text(value: Any) -> str:
  r"""Returns a text that may be stored as bytes; "" for anything else.

  Example:
    >>> as_text(b"caf\xc3\xa9"), as_text("a dog"), as_text(None)
    ('café', 'a dog', '')
  """
  if isinstance(value, bytes):
    return value.decode("utf-8", "replace")
  return value if isinstance(value, str) else ""


def clean_text(text: str) -> str:
  r"""Replaces whatever UTF-8 cannot encode.

  Example:
    >>> clean_text("a dog"), clean_text("\ud800")
    ('a dog', '?')
  """
  return text.encode("utf-8", "replace").decode()


def _wrong(caption: str) -> str:
  """Returns why a caption is bad, or ""; U+FFFD marks undecodable bytes."""
  if "\ufffd" in caption:
    return NO_UTF8
  return "" if canonical(caption) else EMPTY_CAPTION


def _listed(value) -> list:
  """Returns one value or many as a list."""
  if value is None:
    return []
  if isinstance(value, str | bytes | Mapping):
    return [value]
  return list(value) if hasattr(value, "__iter__") else [value]

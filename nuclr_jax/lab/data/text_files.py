"""Text files in UTF-8, and in the encodings that a byte order mark names."""

import codecs
import os
from typing import TextIO

MARK = "\ufeff"  # the byte order mark, wherever files were joined
MARKS = {  # the longer ones first: one of UTF-32 begins like one of UTF-16
  codecs.BOM_UTF32_LE: "utf-32",
  codecs.BOM_UTF32_BE: "utf-32",
  codecs.BOM_UTF16_LE: "utf-16",
  codecs.BOM_UTF16_BE: "utf-16",
}
# How files begin that are no texts, whatever their names say; and what to do.
OTHERS = {
  b"\x1f\x8b": "compressed with gzip; decompress it (gzip -dc < FILE > NEW)",
  b"PK\3\4": "a ZIP archive or a spreadsheet (.xlsx, .ods); unpack an archive, "
  "and export a spreadsheet as CSV UTF-8",
  b"\xd0\xcf\x11\xe0": "a file of older Excel or Office (.xls); export it as "
  "CSV UTF-8",
}


def encoding_of(head: bytes) -> str:
  r"""Returns the encoding of a text that begins with these bytes.

  It is UTF-8, unless a byte order mark says otherwise. Decoding removes the
  mark.

  Args:
    head: At least the first four bytes, if there are as many.

  Example:
    >>> encoding_of(b"a dog"), encoding_of(b"\xff\xfea\0")
    ('utf-8-sig', 'utf-16')
  """
  found = (name for mark, name in MARKS.items() if head.startswith(mark))
  return next(found, "utf-8-sig")


def decode(data: bytes, errors: str = "replace") -> str:
  r"""Decodes the text of a file, see `encoding_of`.

  Example:
    >>> decode(b"\xef\xbb\xbfa dog"), decode(b"caf\xe9")
    ('a dog', 'caf\ufffd')
  """
  return data.decode(encoding_of(data[:4]), errors)


def open_text(
  path: str | os.PathLike,
  *,
  errors: str = "replace",
  newline: str | None = None,
) -> TextIO:
  r"""Opens a text file to read it, see `encoding_of`.

  Args:
    path: The file.
    errors: As of `open`.
    newline: As of `open`.

  Raises:
    ValueError: If it begins with NULs, as UTF-16 without a mark does, or is one
      of `OTHERS`.

  Example:
    >>> _ = (tmp_path / "x.txt").write_text("a dog", encoding="utf-16")
    >>> with open_text(tmp_path / "x.txt") as file:
    ...   file.read()
    'a dog'
  """
  with open(path, "rb") as file:
    head = file.read(4)
  for start, what in OTHERS.items():
    if head.startswith(start):
      raise ValueError(f"{path} is not a text file: it is {what}")
  encoding = encoding_of(head)
  if b"\0" in head and encoding == "utf-8-sig":
    raise ValueError(
      f"{path} is not UTF-8: it begins with NULs, as UTF-16 without a byte "
      "order mark does; save it as UTF-8"
    )
  return open(path, encoding=encoding, errors=errors, newline=newline)

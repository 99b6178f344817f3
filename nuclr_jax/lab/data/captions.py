"""Captions as they are in files, and which of them can be used.

All readers of files share what is here. A text file has a caption on each line;
there or in a cell of a table, a list or an object may also be printed, as JSON
or as Python prints it.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
import json
import re
import shlex
from typing import Any

import numpy as np

from nuclr_jax.lab.data.pair_index import canonical
from nuclr_jax.lab.data.text_files import MARK, decode

# Reasons to leave out a caption; its image keeps its other captions.
EMPTY_CAPTION = "empty caption"
NO_UTF8 = "caption is not UTF-8"
CUT_LIST = "list of captions is cut"  # by "...", as NumPy prints long ones
TOO_LONG = "too long a caption"
NO_VALUE = "the word for a missing value"  # that a program has printed
BOX = "numbers of a box"  # of an object, as YOLO and KITTI write labels
NO_TEXT = "caption is no text, but "  # followed by what it is
MOST_NAMES = 4  # of fields, in a reason
MAX_LETTERS = 2**15  # of a caption; a page of text has 3,000
TXT = "txt"  # what webdataset calls the text file of a sample
KEYS = ("caption", "captions", "raw", "text")  # of an object in a list
# The words of Python, pandas, JSON, SQL, R and spreadsheets, which show #NAME?
# for a text that begins like a formula, and other errors.
MISSING = {"None", "nan", "NaN", "<NA>", "NaT", "null", "NULL", r"\N"}
MISSING |= {"NA", "N/A", "n/a", "#N/A", "#NAME?", "#VALUE!", "#REF!", "#NULL!"}
MISSING |= {"#DIV/0!", "#NUM!", "#ERROR!", "#SPILL!", "#CALC!", "#FIELD!"}
MISSING |= {"#BUSY!", "#BLOCKED!", "#CONNECT!", "#UNKNOWN!", "#GETTING_DATA"}
MISSING |= {f"Err:{x}" for x in range(501, 600)}  # of LibreOffice
BOX_NUMBERS = 4  # with a decimal point, at least
FIELDS = ("caption", "captions", "sentences", "text")  # of KEY.json, in order
APOSTROPHE = "'"
# How texts begin that spreadsheets take for formulas, also behind spaces and in
# the width of Chinese characters; and the apostrophe.
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n']")
_NAME = re.compile("[A-Za-z][A-Za-z_-]{0,19}")  # such as en
_NUMBERED = re.compile(r"caption_?(\d{1,3})")
_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)(e-?\d+)?")
_LINE_END = re.compile(r"\r\n?|\n")
# Bytes as Python prints them, which pandas writes into tables.
_BYTES = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")
_ARRAY = re.compile(r"array\((\[.*\])(?:,\s*dtype=[^)]*)?\)", re.S)
# Strings as NumPy prints them in lists.
_NUMPY = re.compile(r"""np\.str_\(('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\)""")
# An element of a printed list of strings. An open one is all the rest:
# else its end would be looked for again from each quotation mark in it.
_ELEMENT = re.compile(
  r"""b?(["'])(?:(?!\1)[^\\]|\\.)*(?:\1|(?P<open>\\?\Z))"""
  r"""|\bNone\b|\bnan\b""",
  re.S,
)


class NoText(str):
  """An empty caption in place of what is no text, as `reason` says."""

  reason: str

  def __new__(cls, reason: str):
    self = super().__new__(cls)
    self.reason = reason
    return self


def lines_of(text: str) -> list[str]:
  r"""Returns the lines of a text file that are not blank.

  Lines end as in any text file, at \n, \r\n or \r: what `str.splitlines` takes
  for line ends as well, such as U+2028 and U+0085, occurs within captions.

  Example:
    >>> lines_of("a dog\r\n\n a cat\u2028sleeps \n")
    ['a dog', 'a cat\u2028sleeps']
  """
  return list(filter(None, all_lines_of(text)))


def all_lines_of(text: str) -> list[str]:
  r"""Returns the lines of a text file, "" for one that is blank.

  Example:
    >>> all_lines_of("a dog\r\n\n a cat")
    ['a dog', '', 'a cat']
  """
  return [x.replace(MARK, "").strip() for x in _LINE_END.split(text)]


def captions_of(
  row: Mapping[str, Any], field: str, *, is_column: bool = False
) -> list[str]:
  """Returns the captions of a row, however they are stored.

  Args:
    row: A row of a data source, of JSON or of a table.
    field: The name that `caption_field` returns, or the name of a column. One
      with the name "txt" holds text files, see `lines_of`.
    is_column: Whether the user can name a field of it in --caption_column.

  Returns:
    The captions, with "" for one that is missing from a list, and `NoText` in
    place of an object, a number or a list in a list.

  Example:
    >>> captions_of({"caption": b"a dog"}, "caption")
    ['a dog']
    >>> captions_of({"captions": [{"text": "a dog"}, None]}, "captions/text")
    ['a dog', '']
    >>> captions_of({"sentences": {"raw": ["a dog", "dogs"]}}, "sentences")
    ['a dog', 'dogs']
  """
  value = row
  for name in [field] if field in row else field.split("/"):
    if isinstance(value, Mapping):
      value = value.get(name)
    else:  # a sequence of dicts, which may also be a dict of sequences
      value = [
        x.get(name) if isinstance(x, Mapping) else None for x in _listed(value)
      ]
  column = field if is_column else ""
  texts = [_text(y, column) for x in _listed(value) for y in _unfolded(x)]
  if field != TXT:
    return texts
  return [x for text in texts for x in _in_text_file(text)]


def captions_beside(texts: Mapping[str, bytes]) -> list[str]:
  r"""Returns the captions of an image from the files beside it.

  Args:
    texts: What the files hold, by ending. Each line of "txt" is a caption; but
      if "json" has the whole text as its caption, as img2dataset writes it, all
      lines are one caption. Without "txt", or if it has no letters, the
      captions are those in "json", in the first of `FIELDS` or in caption_0,
      caption_1 and so on.

  Example:
    >>> captions_beside({"txt": b"a dog\nan animal\n"})
    ['a dog', 'an animal']
    >>> captions_beside(
    ...   {"txt": b"Dogs.\nBuy!", "json": b'{"caption": "Dogs.\\nBuy!"}'}
    ... )
    ['Dogs.\nBuy!']
    >>> captions_beside({"json": b'{"caption": "a cat"}'})
    ['a cat']
    >>> captions_beside(
    ...   {"json": b'{"caption_0": "a cat", "caption_1": "cats"}'}
    ... )
    ['a cat', 'cats']
  """
  captions = captions_of(texts, TXT)
  if not any(map(canonical, captions)):
    return _captions_in(texts.get("json", b"{}")) or captions
  if len(captions) > 1:
    text = decode(texts[TXT])
    for whole in _captions_in(texts.get("json", b"{}")):
      if whole.split() == text.replace(MARK, "").split():
        return [whole]
  return captions


def tidy_captions(captions: Iterable[str]) -> tuple[list[str], list[str]]:
  r"""Cleans captions, and says why some of them cannot be used.

  A caption that is a printed list, such as '["a dog", "a cat"]', becomes those
  in the list; a printed object, such as '{"caption": "a dog"}', the caption in
  it; and printed bytes, such as "b'a dog'", the text that they hold.

  Returns:
    The captions that can be used, and the reasons why the others cannot.

  Example:
    >>> tidy_captions([" a dog ", "?!"])
    (['a dog'], ['empty caption'])
    >>> tidy_captions(["['a dog' 'a cat']", "[MUSIC] a man"])
    (['a dog', 'a cat', '[MUSIC] a man'], [])
    >>> tidy_captions(["b'caf\\xc3\\xa9'"])
    (['café'], [])
  """
  found = [caption for text in captions for caption in _unprinted(text)]
  cleaned = [x if isinstance(x, NoText) else tidy_text(x) for x in found]
  wrong = list(map(_wrong, cleaned))
  kept = [x for x, reason in zip(cleaned, wrong, strict=True) if not reason]
  return kept, [reason for reason in wrong if reason]


def as_text(value: Any) -> str:
  r"""Returns a text that may be bytes, or in an object of a list; else "".

  Example:
    >>> as_text(b"caf\xc3\xa9"), as_text({"raw": "a dog"}), as_text(None)
    ('café', 'a dog', '')
  """
  if isinstance(value, Mapping):
    value = _caption_in(value)
  if isinstance(value, bytes):
    return decode(value)
  return value if isinstance(value, str) else ""


def key_of(row: Mapping[str, Any], otherwise: str) -> str:
  """Returns the key of a row, a text or a number, or `otherwise` without one.

  Example:
    >>> key_of({"key": b"a"}, "row 7"), key_of({"key": 0}, "row 7")
    ('a', '0')
  """
  key = row.get("key")
  if isinstance(key, str | bytes | Mapping | Sequence | np.ndarray | None):
    return as_text(key) or otherwise
  return str(key)


def tidy_text(text: str) -> str:
  r"""Returns a caption without marks, and without blanks around it.

  Example:
    >>> tidy_text("\ufeff a dog ")
    'a dog'
  """
  return clean_text(text).replace(MARK, "").strip()


def as_cell(text: str) -> str:
  """Marks a text for a table by an apostrophe if it begins like a formula.

  Texts that begin with an apostrophe are marked, too: see `report.tables`.

  Example:
    >>> [as_cell(x) for x in ("=1+1", "'tis", "a dog")]
    ["'=1+1", "''tis", 'a dog']
  """
  return APOSTROPHE + text if FORMULA.match(text) else text


def of_cell(text: str) -> str:
  """Returns the text of which `as_cell` made a cell.

  What `as_cell` cannot have made is left alone, since somebody may have removed
  its marks.

  Example:
    >>> [of_cell(x) for x in ("'=1+1", "''tis", "'tis", "a dog")]
    ['=1+1', "'tis", "'tis", 'a dog']
  """
  rest = text.removeprefix(APOSTROPHE)
  return rest if as_cell(rest) == text else text


def clean_text(text: str) -> str:
  r"""Replaces whatever UTF-8 cannot encode.

  Example:
    >>> clean_text("a dog"), clean_text("\ud800")
    ('a dog', '?')
  """
  return text.encode("utf-8", "replace").decode()


def _captions_in(data: bytes) -> list[str]:
  """Returns the captions in a JSON file beside an image."""
  try:
    try:
      content = json.loads(data)  # UTF-16 needs no mark in JSON
    except UnicodeDecodeError:
      content = json.loads(decode(data))
  except (ValueError, RecursionError):
    return []
  if type(content) is not dict:
    return []
  field = next((x for x in FIELDS if content.get(x) is not None), None)
  if field is not None:
    return captions_of(content, field)
  numbers = {x: int(y[1]) for x in content if (y := _NUMBERED.fullmatch(x))}
  names = sorted(numbers, key=numbers.get)
  found = [x for name in names for x in captions_of(content, name)]
  return [x for x in found if x.strip() or isinstance(x, NoText)]


def _in_text_file(text: str) -> list[str]:
  """Returns the captions of a text file: its lines, or those of its JSON."""
  lines = lines_of(text) or [text]
  if len(lines) > 1 and lines[0][0] in "[{":  # JSON may have several lines
    found = _unprinted(text)
    return lines if found == [text.strip()] else found
  return lines


def _unprinted(text: str) -> list[str]:
  """Returns the captions of a printed list, object or bytes, or the text.

  Other objects, and lists of lists, have no caption: [NoText].
  """
  if isinstance(text, NoText):
    return [text]
  text = text.strip()
  if array := _ARRAY.fullmatch(text):
    text = array[1]
  if text.startswith("[np.str_("):
    text = _NUMPY.sub(r"\1", text)
  in_brackets = text[:1] + text[-1:] in ("[]", "()", "{}")
  if not in_brackets and not _BYTES.fullmatch(text):
    return [text]
  for parse in (json.loads, _parse_strings, ast.literal_eval):
    try:
      found = parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      continue
    if isinstance(found, bytes):
      return [as_text(found)]
    if isinstance(found, Mapping):
      held = _caption_in(found)
      is_list = isinstance(held, list)
      found = held if is_list else [_text(found if held is None else held)]
    if isinstance(found, list | tuple):
      if all(map(_may_be_caption, found)):
        return list(map(_text, found)) or [""]
      if any(isinstance(x, list | tuple | Mapping) for x in found):
        return [_text(found)]
  return [text]


def _text(value: Any, column: str = "") -> str:
  """Returns a text as `as_text` does; `NoText` for what is none, nor missing.

  Args:
    value: The value.
    column: The column that has it, if the user can name a field of it.
  """
  held = value
  if isinstance(value, Mapping) and any(x in value for x in KEYS):
    held = _caption_in(value)
  if isinstance(held, str | bytes):
    return as_text(held)
  if not (what := _what(held)):
    return ""
  fields = map(str, held) if isinstance(held, Mapping) else ()
  names = list(filter(_NAME.fullmatch, fields))[:MOST_NAMES]
  more = f" ({', '.join(names)})" if names else ""
  if names and column and held is value:
    more += f"; give --caption_column={shlex.quote(f'{column}/{names[0]}')}"
  return NoText(f"{NO_TEXT}{what}{more}")


def _what(value: Any) -> str:
  """Returns what a value is that is no text; "" for one that is missing."""
  if isinstance(value, Mapping):
    return "an object" if value else ""
  if hasattr(value, "__iter__"):
    return "a list in a list" if len(value) else ""
  missing = value is None or value != value  # NaN
  return "" if missing else f"of the type {type(value).__name__}"


def _caption_in(row: Mapping[str, Any]) -> Any:
  return next((row[key] for key in KEYS if key in row), None)


def _may_be_caption(value) -> bool:
  missing = value is None or value != value  # NaN
  return missing or isinstance(value, str | bytes | Mapping)


def _parse_strings(text: str) -> list[str | bytes | None]:
  """Parses strings in brackets; NumPy, and so pandas, prints no commas.

  For Python, strings without commas between them are a single one, and a set
  has no order.
  """
  between = _without_elements(text[1:-1]).replace(",", "")
  if text[0] not in "[{" or between.strip():
    raise ValueError(text)
  parts = [x[0] for x in _ELEMENT.finditer(text)]
  return [ast.literal_eval(x) if x[0] in "\"'b" else None for x in parts]


def _without_elements(text: str) -> str:
  """Removes the elements of a printed list of strings."""
  return _ELEMENT.sub(lambda x: "" if x["open"] is None else x[0], text)


def _wrong(caption: str) -> str:
  """Returns why a caption is bad, or "".

  U+FFFD marks undecodable bytes, and NULs are those of UTF-16 without a mark.
  """
  if isinstance(caption, NoText):
    return caption.reason
  if "\ufffd" in caption or "\0" in caption:
    return NO_UTF8
  if len(caption) > MAX_LETTERS:
    return TOO_LONG
  if caption in MISSING:
    return NO_VALUE
  if _is_box(caption):
    return BOX
  if caption[:1] + caption[-1:] == "[]":
    rest = _without_elements(caption[1:-1]).replace(",", " ")
    if rest.split() == ["..."] and _ELEMENT.search(caption):
      return CUT_LIST
  return "" if canonical(caption) else EMPTY_CAPTION


def _is_box(caption: str) -> bool:
  """Returns whether a caption is a class and at least four decimal numbers."""
  _, *numbers = caption.split() or [""]
  decimal = [x for x in numbers if "." in x]
  return len(decimal) >= BOX_NUMBERS and all(map(_NUMBER.fullmatch, numbers))


def _unfolded(value) -> list:
  """Returns the captions in an object that has a list of them, or the value."""
  held = _caption_in(value) if isinstance(value, Mapping) else None
  several = hasattr(held, "__iter__") and not isinstance(
    held, str | bytes | Mapping
  )
  return list(held) if several else [value]


def _listed(value) -> list:
  """Returns one value or many as a list."""
  if value is None:
    return []
  if isinstance(value, str | bytes | Mapping):
    return [value]
  return list(value) if hasattr(value, "__iter__") else [value]

"""MkDocs hook: adds line numbers to the lines of code that pages quote."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A table cell `nuclr_jax/file.py` followed by a cell with a line of that file.
QUOTED = re.compile(r"\| `(?P<path>[\w/]+\.py)` \| `(?P<code>[^`]+)` \|")


def line_number(path: str, code: str) -> int:
  """Returns the number of the line of a file that contains this code.

  Raises:
    ValueError: If no line contains it, or if several do.
  """
  lines = (ROOT / path).read_text().splitlines()
  matches = [i for i, line in enumerate(lines, 1) if code in line]
  if len(matches) != 1:
    raise ValueError(f"{path} has {len(matches)} lines with {code!r}, not one")
  return matches[0]


def on_page_markdown(markdown: str, **_) -> str:
  """Numbers the lines that a page quotes; MkDocs calls it for every page."""

  def numbered(match):
    path, code = match["path"], match["code"]
    return f"| `{path}:{line_number(path, code)}` | `{code}` |"

  return QUOTED.sub(numbered, markdown)

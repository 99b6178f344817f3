"""MkDocs hooks: lines of code that pages quote get their numbers."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A cell `nuclr_jax/file.py` followed by a cell `a line of it`.
QUOTED = re.compile(r"\| `(?P<path>[\w/]+\.py)` \| `(?P<code>[^`]+)` \|")


def line_number(path: str, code: str) -> int:
  """Where a file has a line with this code.

  Raises:
    ValueError: If it has none, or several.
  """
  lines = (ROOT / path).read_text().splitlines()
  found = [i for i, line in enumerate(lines, 1) if code in line]
  if len(found) != 1:
    raise ValueError(f"{path} has {len(found)} lines with {code!r}, not one")
  return found[0]


def on_page_markdown(markdown: str, **_) -> str:
  """Called by MkDocs for every page."""

  def numbered(match):
    path, code = match["path"], match["code"]
    return f"| `{path}:{line_number(path, code)}` | `{code}` |"

  return QUOTED.sub(numbered, markdown)

"""Generated parts of Markdown files, such as the READMEs of studies."""

from collections.abc import Mapping, Sequence
import re


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Formats a Markdown table.

  Example:
    >>> print(table(["name", "%"], [["CLIP", "53.2"]]))
    | name | % |
    | --- | --- |
    | CLIP | 53.2 |
  """
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def insert(text: str, parts: Mapping[str, str]) -> str:
  """Replaces the text between `<!-- name -->` and `<!-- end -->`.

  Args:
    text: The text of the Markdown file.
    parts: The new text of each part, by name.

  Raises:
    ValueError: If a mark is missing.

  Example:
    >>> insert("<!-- a --> old <!-- end -->", {"a": "new"}).split()
    ['<!--', 'a', '-->', 'new', '<!--', 'end', '-->']
  """
  for name, part in parts.items():
    mark = f"<!-- {name} -->"
    pattern = f"{re.escape(mark)}.*?<!-- end -->"
    if not re.search(pattern, text, re.DOTALL):
      raise ValueError(
        f"the file lacks {mark} ... <!-- end -->: add both where the part "
        "belongs"
      )
    new = f"{mark}\n{part}\n<!-- end -->"
    text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
  return text

"""Docstrings as the site draws them: equations and examples as code."""

import re
import textwrap

import griffe

SECTION = re.compile(r"^(Args|Returns|Raises|Example|Reference|Attributes):")


class Equations(griffe.Extension):
  """Rewrites docstrings before they are parsed."""

  def on_instance(self, *, obj: griffe.Object, **_) -> None:
    """Called for every object."""
    if obj.docstring is not None:
      obj.docstring.value = sections(fenced(obj.docstring.value))

  def on_class(self, *, cls: griffe.Class, **_) -> None:
    """Called for every class, when its members are known."""
    if "NamedTuple" in map(str, cls.bases) and cls.docstring is not None:
      rows = [f"  {name}: {comment(x)}" for name, x in cls.attributes.items()]
      cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)


def comment(field: griffe.Attribute) -> str:
  """What is said of a field behind it, or in the lines above it."""
  lines = field.module.lines
  if " # " in lines[field.endlineno - 1]:
    return lines[field.endlineno - 1].split(" # ")[1]
  found = []
  for line in reversed(lines[: field.lineno - 1]):
    if not line.strip().startswith("# "):
      break
    found.append(line.strip().removeprefix("# "))
  return " ".join(reversed(found))


def sections(text: str) -> str:
  r"""The text with sections by names that the parser knows.

  Example:
    >>> sections("Example:\n  x\n\nReference: One.")
    'Examples:\n  x\n\n**Reference:** One.'
  """
  text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
  return re.sub(r"^Reference:", "**Reference:**", text, flags=re.MULTILINE)


def fenced(text: str) -> str:
  r"""The text with fences around indented paragraphs outside of sections.

  Example:
    >>> print(fenced("Of x:\n\n  y = x\n\nDone."))
    Of x:
    <BLANKLINE>
    ```text
    y = x
    ```
    <BLANKLINE>
    Done.
  """
  paragraphs, section = re.split(r"\n[ \t]*\n", text), False
  for i, paragraph in enumerate(paragraphs):
    section = bool(SECTION.match(paragraph)) or (
      section and paragraph.startswith(" ")
    )
    if paragraph.startswith("  ") and not section:
      code = textwrap.dedent(paragraph)
      paragraphs[i] = f"```text\n{code}\n```"
  return "\n\n".join(paragraphs)

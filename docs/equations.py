"""Docstrings for the reference: equations and examples become code blocks."""

import re
import textwrap

import griffe

SECTION = re.compile(r"^(Args|Returns|Raises|Example|Reference|Attributes):")
# Code between backticks, or what Markdown would take for an HTML tag.
CODE_OR_TAG = re.compile(r"(`+[^`]*`+)|<(?=[a-z/!?])", re.IGNORECASE)


class Equations(griffe.Extension):
  """Rewrites docstrings before they are parsed."""

  def on_instance(self, *, obj: griffe.Object, **_) -> None:
    """Called for every object."""
    if obj.docstring is not None:
      obj.docstring.value = sections(marked(obj.docstring.value))

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


def marked(text: str) -> str:
  r"""The text as Markdown that shows its formulas as they were written.

  Indented paragraphs outside of sections get fences; prose keeps its "<".

  Example:
    >>> print(marked("With s = <a, b>:\n\n  y = x\n\nDone."))
    With s = &lt;a, b>:
    <BLANKLINE>
    ```text
    y = x
    ```
    <BLANKLINE>
    Done.
  """
  paragraphs, section = re.split(r"\n[ \t]*\n", text), None
  for i, paragraph in enumerate(paragraphs):
    if begun := SECTION.match(paragraph):
      section = begun[1]
    elif not paragraph.startswith(" "):
      section = None
    if paragraph.startswith("  ") and not section:
      code = textwrap.dedent(paragraph)
      paragraphs[i] = f"```text\n{code}\n```"
    elif section != "Example":
      paragraphs[i] = CODE_OR_TAG.sub(lambda x: x[1] or "&lt;", paragraph)
  return "\n\n".join(paragraphs)

"""mkdocstrings extension: equations and examples become code blocks."""

import re
import textwrap

import griffe

SECTION = re.compile(r"^(Args|Returns|Raises|Example|Reference|Attributes):")
# Code between backticks, or what Markdown would take for an HTML tag.
CODE_OR_TAG = re.compile(r"(`+[^`]*`+)|<(?=[a-z/!?])", re.IGNORECASE)


class Equations(griffe.Extension):
  """Rewrites docstrings before they are parsed."""

  def on_instance(self, *, obj: griffe.Object, **_) -> None:
    """Rewrites the docstring of an object; griffe calls it for every one."""
    if obj.docstring is not None:
      obj.docstring.value = sections(marked(obj.docstring.value))

  def on_class(self, *, cls: griffe.Class, **_) -> None:
    """Lists the fields of a NamedTuple; called when its members are known."""
    if "NamedTuple" in map(str, cls.bases) and cls.docstring is not None:
      rows = [f"  {name}: {comment(x)}" for name, x in cls.attributes.items()]
      cls.docstring.value += "\n\nAttributes:\n" + "\n".join(rows)


def comment(field: griffe.Attribute) -> str:
  """Returns the comment on a field: on its last line, or in the lines above."""
  lines = field.module.lines
  if " # " in lines[field.endlineno - 1]:
    return lines[field.endlineno - 1].split(" # ")[1]
  above = []
  for line in reversed(lines[: field.lineno - 1]):
    if not line.strip().startswith("# "):
      break
    above.append(line.strip().removeprefix("# "))
  return " ".join(reversed(above))


def sections(text: str) -> str:
  r"""Renames the sections of a docstring to names that the parser knows.

  Example:
    >>> sections("Example:\n  x\n\nReference: One.")
    'Examples:\n  x\n\n**Reference:** One.'
  """
  text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
  return re.sub(r"^Reference:", "**Reference:**", text, flags=re.MULTILINE)


def marked(text: str) -> str:
  r"""Turns a docstring into Markdown that shows its formulas as written.

  Indented paragraphs outside sections are fenced; "<" in prose is escaped.

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

"""Docstrings' indented equations and tables as blocks of code, for the site."""

import re
import textwrap

import griffe

SECTION = re.compile(r"^(Args|Returns|Raises|Example|Reference|Attributes):")


class Equations(griffe.Extension):
  """Fences what a docstring indents outside of its sections."""

  def on_instance(self, *, obj: griffe.Object, **_) -> None:
    """Called for every object."""
    if obj.docstring is not None:
      obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
  r"""The text with fences around paragraphs that are indented.

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

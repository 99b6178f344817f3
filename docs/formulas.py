"""MkDocs hook: TeX between dollar signs becomes MathML, which browsers typeset.

Showing a formula needs neither a script nor a font to be loaded.
"""

import html
import re

from latex2mathml import converter

# What pymdownx.arithmatex (generic) makes of `$...$` and `$$...$$`.
FORMULA = re.compile(
  r'<(span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</\1>', re.DOTALL
)

# TeX's spacing, which the converter's MathML lacks: a thin space between a
# function and an argument without parentheses, and none around infinity.
MENDED = (
  (
    re.compile("(<mi>(?:exp|log|max|min)</mi>)(?!<mo)"),
    r'\1<mspace width="0.167em" />',
  ),
  (re.compile("<mo>(&#x0221E;)</mo>"), r"<mi>\1</mi>"),
)


def mathml(tex: str, *, display: bool = False) -> str:
  r"""Converts a formula from TeX to MathML.

  Args:
    tex: The formula, without dollar signs.
    display: Whether the formula is on a line of its own.

  Raises:
    ValueError: If the formula has a command that the converter does not know.

  Example:
    >>> mathml(r"\zeta_j").removeprefix("<math ")
    ... # doctest: +ELLIPSIS
    'xmlns=...<msub><mi>&#x003B6;</mi><mi>j</mi></msub></mrow></math>'
  """
  converted = converter.convert(tex, display="block" if display else "inline")
  unknown = re.findall(r"\\\w*", converted)
  if unknown or tex.count("{") != tex.count("}"):
    raise ValueError(
      f"the formula {tex!r} must have known commands and as many {{ as }}; "
      f"not known: {unknown}; write it with other commands"
    )
  for pattern, replacement in MENDED:
    converted = pattern.sub(replacement, converted)
  return converted


def on_page_content(content: str, **_) -> str:
  """Typesets the formulas of a page; MkDocs calls it with the page's HTML."""
  return FORMULA.sub(
    lambda x: mathml(html.unescape(x["tex"]).strip(), display=x[1] == "div"),
    content,
  )

"""What a page may state, and what has to stand beside it.

These are the rules of `check_numbers` that are about words: which numbers are
given, how numbers are spelled, and which sentences need an interval.
"""

import ast
from collections.abc import Iterator
import math
import re

# Whatever is measured has one of these units. A number in words counts, too.
RESULT_UNITS = (
  r"(?:more )?(?:percentage )?points?\b|-points?\b|pp\b|nats\b|times\b|-?fold\b"
  r"|orders? of magnitude\b|standard errors?\b"
)
SPELLED = {
  **{"half a": 0.5, "half an": 0.5, "a": 1, "an": 1, "one": 1, "two": 2},
  **{"three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8},
  **{"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "twenty": 20},
}
WORDS = (
  rf"\b(?i:{'|'.join(sorted(SPELLED, key=len, reverse=True))})"
  rf"(?=[\s-]+(?:per ?cent\b|{RESULT_UNITS}))"
)

# The kinds of given numbers.
KINDS = {
  "setting": "what we chose: parameters, limits, amounts of data, confidence",
  "definition": "what a definition says: bytes of a row, numbers of items",
  "published": "what others state; the source stands beside it",
  "plan": "predictions, targets, estimates and budgets, named as such",
}
BESIDE = {  # what the paragraph of such a number must contain
  "published": re.compile(
    r"paper|publish|et al\.|the maker|arXiv|OpenAI|official|\(\d{4}\)|https?:"
  ),
  "plan": re.compile(
    r"predict|target|estimate|budget|plan|guess|limit|asked for|was to be",
    re.IGNORECASE,
  ),
}
# A number after one of these words is no setting and no definition.
RESULT = re.compile(
  r"\b(?:cosines?|correlations?|accurac(?:y|ies)|recall|R@\d+|gain(?:s|ed)?"
  r"|los(?:es?|t)|f[ae]lls?|r[io]ses?|t[ao]kes?|took|costs?|leaves?|behind"
  r"|ahead|mean of|is (?:the )?best|worst)\b"
  r"(?:(?!\b(?:with|at)\s(?!least|most))[^.;:()|]){0,30}$"
)
AFTER = re.compile(rf"[*_`$]*\s*(?:{RESULT_UNITS}|[kmµun]?s\b|\w+/s\b|±)")
BEFORE = re.compile(r"±\s*$|\[[-+−\d.,\s]*$")

POINTS = re.compile(
  rf"(?:{WORDS}|\d)[\s-]*(?:percentage\s)?(?:points?\b(?!\s(?:of|in|on|at)\b)|pp\b)"
)

# Sentences that say that things are equal. Not to have found a difference is
# not to have found equality, so they need an interval.
EQUAL = re.compile(
  r"\b(?:equally\s+(?:good|well)|as\s+good\s+as|(?:no|any|not)\s+better\s+than"
  r"|(?:does|do|did|retrieves?|scores?)\s+as\s+well\s+as|(?:they|both|all\s+(?:three|four)|the\s+two)\s+are\s+equal"
  r"|cannot\s+be\s+(?:told\s+apart|distinguished))\b",
  re.IGNORECASE,
)
INTERVAL = re.compile(r"\d\s*±|[-+−]?\d[\d.]*\s*,\s*[-+−]?\d[\d.]*\s*\]")
OTHER_SPREAD = re.compile(
  r"±[^.|]{0,60}\b(?:standard\s+(?:errors?|deviations?)|std)\b"
  r"|\b(?:standard\s+(?:errors?|deviations?)|std)\b[^.|]{0,30}±"
)


def of_given(kind: str | None, block: str, start: int, end: int) -> str:
  """Says what speaks against a given number; "" if nothing does.

  Args:
    kind: The kind that the comment states.
    block: The paragraph, without comments.
    start: Where the number begins in the paragraph.
    end: Where it ends.

  Example:
    >>> of_given("setting", "a cosine of at least 0.998", 21, 26)
    '0.998 is measured, not a setting'
    >>> of_given("setting", "with a memory of 0.6 % of the pairs", 17, 20)
    ''
  """
  number = block[start:end]
  if kind not in KINDS:
    return f"{number} is given as {kind}; say {' or '.join(KINDS)}"
  if needed := BESIDE.get(kind):
    beside = needed.search(block)
    return "" if beside else f"{number} is {kind}: where does it say so?"
  if (
    AFTER.match(block, end)
    or BEFORE.search(block[:start])
    or RESULT.search(block[:start])
  ):
    return f"{number} is measured, not a {kind}"
  return ""


def of_sentences(block: str) -> Iterator[tuple[int, str]]:
  """Yields where a paragraph claims too much, and why.

  Example:
    >>> [x for _, x in of_sentences("CLIP and SogCLR retrieve equally well.")]
    ["'equally well' needs the interval of the difference beside it"]
    >>> list(of_sentences("They are equally good within 0.1 ± 0.9 points."))
    []
  """
  if not INTERVAL.search(block):
    for found in EQUAL.finditer(block):
      words = " ".join(found[0].split())
      yield (
        found.start(),
        f"{words!r} needs the interval of the difference beside it",
      )
  for found in OTHER_SPREAD.finditer(block):
    yield found.start(), "± is half of the 95 % interval on every page"


def of_docstring(text: str) -> Iterator[tuple[int, str]]:
  """Yields where a docstring states what was measured, and the words.

  Example:
    >>> [x for _, x in of_docstring("SogCLR is two points behind CLIP.")]
    ['two points']
  """
  for found in (*POINTS.finditer(text), *EQUAL.finditer(text)):
    yield found.start(), " ".join(found[0].split())


def number_of(shown: str) -> float:
  """Reads a number as pages write it, in digits or in words.

  Example:
    >>> number_of("1,210"), number_of("−0.5"), number_of("half a")
    (1210.0, -0.5, 0.5)
    >>> number_of("10^{36}")
    1e+36
  """
  word = " ".join(shown.lower().split())
  if word in SPELLED:
    return float(SPELLED[word])
  plain = re.sub(r"10\^\{?([-−]?\d+)\}?", r"1e\1", shown)
  return float(plain.replace(",", "").replace("−", "-"))


def compute(text: str) -> float:
  """Computes an arithmetic expression with `sqrt` and `log`.

  Raises:
    LookupError: If it is anything else.

  Example:
    >>> compute("2048 / 16384 * 100")
    12.5
  """
  functions = {"sqrt": math.sqrt, "log": math.log}
  allowed = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
    *(ast.Constant, ast.Call, ast.Name, ast.Load),
  )
  try:
    tree = ast.parse(text, mode="eval")
  except SyntaxError:
    raise LookupError(f"{text!r} is not arithmetic") from None
  for node in ast.walk(tree):
    known = not isinstance(node, ast.Name) or node.id in functions
    if not isinstance(node, allowed) or not known:
      raise LookupError(f"{text!r} is not arithmetic")
  code = compile(tree, "comment", "eval")
  return float(eval(code, {"__builtins__": {}}, functions))

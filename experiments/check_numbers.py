"""Checks the numbers that pages state against the rows they were computed from.

python -m experiments.check_numbers           # says what is wrong
python -m experiments.check_numbers --write   # corrects the numbers

Run it from the root of the repository; `make docs` does, too. Every
table of a study is recomputed from its rows and compared with the page. In the
text, a comment right after numbers says which cells they are from:

  NUCLR - CLIP is +6.9 [+4.0, +9.8]<!--= differences; CLIP; digits -->

It has a mark of the study's README.md, the first cell of a row (more of them if
one does not identify it) and the header of a column. `A | B` in place of one
name stands for several cells. On pages outside of the study, `bimodal:` in
front says which study. `file.json; key; key` is a value of a JSON file in the
study's folder; `numbers; name` is a value of the study's function `numbers`.
The numbers may be rounded further; of `53.2 ± 0.7`, the text may have the first
only. `-a; CLIP; gain` is the negative of a cell, for "it loses 0.3".

`computed; 30 ** 24` is arithmetic. ± is half of the 95 % interval everywhere.

What looks like a measurement (decimals, or a unit; "two points" counts) must
have a comment, except the value of a setting, as in "τ = 0.05". `<!--= given:
setting -->` says of the last such number, and `<!--= given 3: setting -->` of
the last three, that no row has them, and why (`KINDS` in claims.py: setting,
definition, published, plan). What is measured is none of these, and a
measurement without a row is not stated. `<!--= given below: plan -->` says so
of all numbers under a heading that have no comment of their own.

A sentence that calls things equal needs the interval of their difference in its
paragraph. Docstrings of the library state no results, since they cannot name a
row.

README.md has no comments. What it measures must stand in a table of
docs/benchmarks.md, with its ± or interval.

`--write` corrects numbers in the text only; tables are written by the studies'
own `--tables`.
"""

import argparse
import ast
from collections.abc import Iterator, Mapping, Sequence
import functools
import importlib
import itertools
import json
import pathlib
import re
from typing import NamedTuple

from experiments import claims
from experiments.harness import command, markdown, runner

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
STUDIES = (
  "accelerator",
  "bimodal",
  "difference_alignment",
  "filtering",
  "fine_tuning",
  "hubs_and_suspects",
  "icons",
  "latent_classes",
  "normalizers",
  "parity",
  "popularity",
  "popularity/at_scale",
  "popularity/over_training",
  "step_time",
  "toy_dpm",
  "when_it_pays",
)
# A page without comments, and the page whose tables have its numbers.
README, TABLES = "README.md", "docs/benchmarks.md"
# Other pages whose texts are checked: all but the history.
PAGES = tuple(
  str(path.relative_to(ROOT))
  for folder in ("", "docs/**/", "experiments/**/", "nuclr_jax/**/")
  for path in sorted(ROOT.glob(f"{folder}*.md"))
  if path not in {ROOT / README, ROOT / "CHANGELOG.md"}
)

MODULES = tuple(
  str(path.relative_to(ROOT))
  for folder in ("nuclr_jax", "configs")
  for path in sorted(ROOT.glob(f"{folder}/**/*.py"))
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

COARSEST = 0.2  # how much rounding may change a number
GIVEN = re.compile(r"given(?: (\d+))?(?:: (.+))?$", re.DOTALL)
BELOW = re.compile(
  r"<!--= given below(?:: (\w+))? -->.*?(?=^#|\Z)", re.DOTALL | re.MULTILINE
)
COMMENT = re.compile(r"<!--=\s*(.*?)\s*-->", re.DOTALL)
UNITS = (
  rf"%|‰|per ?cent\b|{claims.RESULT_UNITS}"
  r"|[×x](?=\s+[a-z])|[×x]\b(?!\s?\d)|of (?:the )?\d|in \d"
  r"|(?:milli|micro|nano)?seconds?\b|k?[mµun]?s\b|sec\b|min(?:utes?)?\b"
  r"|h(?:ours?)?\b|days?\b|weeks?\b|[kMGT]Hz\b|[KMGT]i?B\b|(?:kilo|mega|giga)?bytes?\b"
  r"|\w+/s\b|\w+ (?:per|a) (?:second|minute|hour)\b|seeds?\b|iterations?\b"
  r"|trials?\b|cells?\b|process hours\b"
)
NUMBER = re.compile(
  rf"{claims.WORDS}|(?<![A-Za-z0-9.@^])10\^\{{?[-−]?\d+\}}?"
  r"|(?<![A-Za-z0-9.@^])(?<!\w-)[+\-−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
  r"(?:e[+-]?\d+)?(?![A-Za-z0-9]|\.\d)"
  rf"|(?<![A-Za-z0-9.@^])(?<!\w-)\d[\d,]*(?:\.\d+)?(?={UNITS})"
)
QUANTITY = re.compile(  # a number with its spread
  r"(?:±\s*)?(?:" + NUMBER.pattern + r")(?:\s*±\s*[\d.]+|\s*\[[^\]\n]*\])?"
)
UNIT = re.compile(rf"[*_`$]*\s{{0,9}}(?:{UNITS})")
# What precedes the value of a setting, which is no measurement.
SETTING = re.compile(
  r"((\b[A-Zbcdkmns]|[τγλρε][₀⁺]?)\s*=|\b([τγλρε]|(?<!accuracy )rates?|version"
  r"|Sections?|Tables?|Figures?|Theorems?|Propositions?|Lemmas?|Corollary"
  r"|Definition))\s*$"
)
GENERATED = re.compile(r"<!-- ([^\n]*?) -->\n.*?<!-- end -->", re.DOTALL)
# What is not text: code, formulas, addresses, other comments.
NOT_TEXT = re.compile(
  r"^```.*?^```|`[^`]*`|\$[^$]*\$"
  r"|\]\([^)]*\)|<!--(?!=).*?-->|^\|[-| ]+\|$",
  re.DOTALL | re.MULTILINE,
)


class Problem(NamedTuple):
  """A number that is wrong, or that has no row."""

  page: str
  line: int
  message: str


def check(page: str, text: str, study: str) -> tuple[str, list[Problem]]:
  """Checks one page.

  Args:
    page: The name of the page, for messages.
    text: The text of the page.
    study: The study that comments mean unless they name another.

  Returns:
    The text with wrong numbers corrected, and the problems.
  """
  problems, corrections = [], []

  def complain(at: int, message: str) -> None:
    problems.append(Problem(page, text.count("\n", 0, at) + 1, message))

  plain = text
  for found in GENERATED.finditer(text):
    parts = recompute(study) if study else of_guides()
    if found[1] in parts:
      plain = plain.replace(found[0], _blank(found))
      if not study and markdown.insert(found[0], parts) != found[0]:
        complain(found.start(), f"{found[1]!r} is not what its script gives")
    else:
      complain(found.start(), f"no study makes the part {found[1]!r}")
  plain = NOT_TEXT.sub(_blank, plain)
  below = [x.span() for x in BELOW.finditer(plain)]
  for found in BELOW.finditer(plain):
    if found[1] not in claims.KINDS:
      complain(found.start(), f"say given below: {' or '.join(claims.KINDS)}")
  plain = re.sub(r"<!--= given below.*?-->", _blank, plain)
  without_comments = COMMENT.sub(_blank, plain)
  for first, last in _blocks(plain):
    free = list(NUMBER.finditer(without_comments, first, last))
    before = first
    exempt = any(start <= first < end for start, end in below)
    block = without_comments[first:last]
    for at, message in () if exempt else claims.of_sentences(block):
      complain(first + at, message)
    for comment in COMMENT.finditer(plain, first, last):
      here = [x for x in free if before <= x.start() < comment.start()]
      if given := GIVEN.match(comment[1]):
        count = int(given[1] or 1)
        named = [x for x in here if _is_measurement(plain, first, x)][-count:]
        if len(named) < count:
          complain(comment.start(), f"{comment[0]}: too few numbers before it")
        for x in named:
          span = x.start() - first, x.end() - first
          if wrong := claims.of_given(given[2], block, *span):
            complain(x.start(), wrong)
        free = [x for x in free if x not in named]
        continue
      try:
        choices = values(comment[1], study)
      except LookupError as error:
        complain(comment.start(), f"{comment[0]}: {error.args[0]}")
        continue
      found, right = _match(plain, comment, here, choices)
      if not found:
        complain(comment.start(), f"{comment[0]}: too few numbers before it")
      for number, value in zip(found, right, strict=True):
        if not _agrees(number[0], value):
          new = _as(number[0], value)
          corrections.append((number.span(), new))
          complain(number.start(), f"{number[0]} is {new}: {comment[0]}")
      free = [x for x in free if x not in found]
      before = comment.end()
    for number in () if exempt else free:
      if _is_measurement(plain, first, number):
        complain(number.start(), f"{number[0]} has no comment with its row")
  for (start, end), new in sorted(corrections, reverse=True):
    text = text[:start] + new + text[end:]
  return text, problems


def check_quotes(text: str, tables: str) -> list[Problem]:
  """Finds what a page without comments measures, but no table has.

  Args:
    text: The text of the page.
    tables: A page with tables, whose numbers `check` compares with their rows.

  Example:
    >>> table = "| CLIP | 52.8 ± 0.5<!--= a; CLIP --> % |"
    >>> check_quotes("R@1 is 52.8 ± 0.5 %.", table)
    []
    >>> check_quotes("R@1 is 52.8 %.", table)[0].message
    'no table of docs/benchmarks.md has 52.8'
  """
  rows = re.findall(r"^\|.*", COMMENT.sub("", tables), re.MULTILINE)
  known = {x[0] for row in rows for x in QUANTITY.finditer(row)}
  plain = NOT_TEXT.sub(_blank, text)
  problems = []

  def complain(at: int, message: str) -> None:
    problems.append(Problem(README, plain.count("\n", 0, at) + 1, message))

  if COMMENT.search(text):
    complain(COMMENT.search(text).start(), "the page has comments")
  for first, last in _blocks(plain):
    for at, message in claims.of_sentences(plain[first:last]):
      complain(first + at, message)
    for found in QUANTITY.finditer(plain, first, last):
      number = NUMBER.search(plain, found.start(), found.end())
      measured = _is_measurement(plain, first, number) or number[0] != found[0]
      if measured and " ".join(found[0].split()) not in known:
        complain(found.start(), f"no table of {TABLES} has {found[0]}")
  return problems


def _is_measurement(plain: str, first: int, number: re.Match) -> bool:
  """Returns whether a number has decimals or a unit and is no setting's."""
  if UNIT.match(plain, number.end()) or "^" in number[0]:
    return True
  return "." in number[0] and not SETTING.search(plain, first, number.start())


def _blocks(plain: str) -> Iterator[tuple[int, int]]:
  """Yields where paragraphs, items and rows of tables begin and end."""
  begins = re.finditer(r"^(?=\s*(?:[-*|#]+ |\d+\. )|\s*\n)", plain, re.M)
  starts = [x.start() for x in begins]
  ends = [*starts, len(plain)]
  return zip([0, *starts], ends, strict=True)


def _blank(found: re.Match) -> str:
  """Returns spaces in place of a text, and its ends of lines.

  A number alone stays, in code or in a formula.
  """
  if re.fullmatch(r"[`$]([-+\d.,%\\]+|10\^\{?-?\d+\}?)[`$]", found[0]):
    return found[0]
  return re.sub(r"[^\n]", " ", found[0])


def _match(
  plain: str,
  comment: re.Match,
  numbers: Sequence[re.Match],
  choices: Sequence[Sequence["Value"]],
) -> tuple[list[re.Match], list["Value"]]:
  """Returns the last numbers before a comment, and what they should be.

  The choices are the values alone, and the values with their spreads. The
  latter are meant where there is a ± or an interval; otherwise, the choice that
  fits better, and if all numbers of both agree, the longer one.
  """

  def share_wrong(choice):
    pairs = zip(numbers[-len(choice) :], choice, strict=True)
    return sum(not _agrees(x[0], y) for x, y in pairs) / len(choice)

  possible = [x for x in choices if len(x) <= len(numbers)]
  if not possible:
    return [], []
  longest = max(possible, key=len)
  text = plain[numbers[-len(longest)].start() : comment.start()]
  if len(longest) > 1 and re.search(r"±|\]", text):
    best = longest
  else:
    best = min(
      possible,
      key=lambda x: (wrong := share_wrong(x), len(x) if wrong else -len(x)),
    )
  return list(numbers[-len(best) :]), list(best)


def _agrees(shown: str, value: "Value") -> bool:
  """Returns whether a number of a text is the rounded value."""
  x = claims.number_of(shown)
  y = value.number
  # A cell is rounded itself, so a text with fewer digits may be off by both.
  unit = _unit(shown)
  tolerance = (unit + value.unit) / 2 if unit > value.unit else 0.0
  return abs(x - y) <= min(tolerance, COARSEST * abs(y)) + 1e-9 * abs(y)


def _unit(shown: str) -> float:
  """Returns the value of a number's last digit."""
  if not re.search(r"\d", shown):
    return 1.0
  if "^" in shown:
    return claims.number_of(shown)
  mantissa, _, exponent = shown.partition("e")
  decimals = len(mantissa.partition(".")[2])
  return 10.0 ** (int(exponent or 0) - decimals)


def _as(shown: str, value: "Value") -> str:
  """Formats a value as another number is formatted."""
  if not re.search(r"\d", shown):
    return f"{value.number:.1f}"
  if "^" in shown:
    return f"{value.number:.1e}"
  decimals = len(shown.partition("e")[0].partition(".")[2])
  kind = "e" if "e" in shown else "f"
  comma = "," if "," in shown else ""
  sign = "+" if shown[0] in "+-−" else ""
  return f"{value.number:{sign}{comma}.{decimals}{kind}}"


class Value(NamedTuple):
  """A number of a table, and the value of its last digit; 0 = not rounded."""

  number: float
  unit: float = 0.0


def values(comment: str, study: str) -> list[list[Value]]:
  """Looks up what a comment names: the values alone, and with their spreads.

  Raises:
    LookupError: If there is no such row, column, file or key.
  """
  negative, comment = comment.startswith("-"), comment.removeprefix("-")
  if other := re.match(r"([\w/]+): ", comment):
    study, comment = other[1], comment[other.end() :]
  first, *names = (x.strip() for x in comment.split(";"))
  if first == "computed":
    return [[Value(claims.compute(x)) for (x,) in _paths(names)]]
  if first.endswith(".json"):
    path, sign = HERE / study / first, -1 if negative else 1
    return [[Value(sign * _follow(path, keys)) for keys in _paths(names)]]
  if study not in STUDIES:
    raise LookupError(
      f"{study!r} is not a study; they are {', '.join(STUDIES)}"
    )
  cells = [_numbers(_cell(study, first, chosen)) for chosen in _paths(names)]
  if negative:
    cells = [_negative(*cell) for cell in cells]
  return [[x for x, *_ in cells], [x for cell in cells for x in cell]]


def _paths(names: Sequence[str]) -> list[tuple[str, ...]]:
  """Returns what names with alternatives, `A | B`, stand for."""
  return list(itertools.product(*(x.split(" | ") for x in names)))


def _numbers(cell: str) -> list[Value]:
  found = [x[0] for x in NUMBER.finditer(cell)]
  if not found:
    raise LookupError(f"the cell has no number, but {cell!r}")
  return [Value(float(x.replace(",", "")), _unit(x)) for x in found]


def _negative(mean: Value, *spread: Value) -> list[Value]:
  """Negates a value; a ± stays, and the ends of an interval change places."""
  mean, *ends = (Value(-x.number, x.unit) for x in (mean, *reversed(spread)))
  return [mean, *(ends if len(ends) == 2 else spread)]


def _follow(path: pathlib.Path, keys: Sequence[str]) -> float:
  if not path.exists():
    raise LookupError(f"there is no {path.name}")
  value = json.loads(path.read_text(encoding="utf-8"))
  for key in keys:
    if isinstance(value, list):
      key = int(key)
    elif key not in value:
      raise LookupError(f"{path.name} has no {key!r}, only {sorted(value)}")
    value = value[key]
  return float(value)


def _cell(study: str, mark: str, names: Sequence[str]) -> str:
  """Finds a cell of a table by its row and its column."""
  parts = recompute(study)
  if mark not in parts:
    raise LookupError(f"{study} has no {mark!r}, only {', '.join(parts)}")
  lines = [
    [x.strip() for x in line.strip().strip("|").split(" | ")]
    for line in parts[mark].splitlines()
  ]
  header, *rows = lines
  *row, column = names if len(names) > 1 else (*names, header[-1])
  if column not in header:
    raise LookupError(f"{mark} has no column {column!r}, only {header}")
  found = [x for x in rows if x[: len(row)] == list(row)]
  if len(found) != 1:
    raise LookupError(f"{mark} has {len(found)} rows that begin with {row}")
  return found[0][header.index(column)]


@functools.cache
def recompute(study: str) -> Mapping[str, str]:
  """Recomputes all tables of a study, and its other numbers, from its rows."""
  module = importlib.import_module(
    f"experiments.{study.replace('/', '.')}.__main__"
  )
  if not hasattr(module, "STUDY"):  # has the JSON of benchmarks, not rows
    return module.tables()
  options = command.parse_arguments(module.STUDY, ["--tables"])
  results = runner.results(module.STUDY, options)
  parts = dict(module.STUDY.tables(options, results))
  numbers = module.STUDY.numbers(options, results)
  lines = [[name, text] for name, text in numbers.items()]
  return parts | {"numbers": markdown.table(["name", "value"], lines)}


def of_guides() -> Mapping[str, str]:
  """Recomputes the generated parts of pages outside of studies."""
  return importlib.import_module("experiments.parity.__main__").guide_tables()


def check_tables(study: str) -> list[Problem]:
  """Compares the generated parts of a study's page with its rows."""
  page = f"experiments/{study}/README.md"
  text = (ROOT / page).read_text(encoding="utf-8")
  parts = {k: x for k, x in recompute(study).items() if k != "numbers" and x}
  problems = []
  for name, part in parts.items():
    try:
      if markdown.insert(text, {name: part}) != text:
        problems.append(f"the part {name!r} is not what the rows give")
    except ValueError as error:  # has no such marks
      problems.append(str(error))
  return [Problem(page, 1, x) for x in problems]


def check_docstrings(module: str, text: str) -> list[Problem]:
  """Finds results in the docstrings of a module, which cannot name a row.

  Args:
    module: The name of the module, for messages.
    text: Its code.
  """
  problems = []
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, DOCUMENTED) or not ast.get_docstring(node):
      continue
    line, docstring = node.body[0].lineno, node.body[0].value.value
    for at, what in claims.of_docstring(docstring):
      message = f"a docstring states a result: {what}; say it on a page"
      place = line + docstring.count("\n", 0, at)
      problems.append(Problem(module, place, message))
  return problems


def study_of(page: str) -> str:
  """Returns the study that a page reports; "" for other pages.

  Example:
    >>> study_of("experiments/popularity/at_scale/README.md")
    'popularity/at_scale'
  """
  folder = str(pathlib.PurePath(page).parent).removeprefix("experiments/")
  return folder if folder in STUDIES else ""


def main() -> None:
  """Checks all pages; exits with 1 if a number is wrong."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition("\n")[0], prog="experiments.check_numbers"
  )
  parser.add_argument(
    "--write", action="store_true", help="corrects wrong numbers in the pages"
  )
  write = parser.parse_args().write
  problems = [x for study in STUDIES for x in check_tables(study)]
  for page in PAGES:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    corrected, found = check(page, text, study_of(page))
    problems += found
    if write and corrected != text:
      path.write_text(corrected, encoding="utf-8")
  quoting, tables = ((ROOT / x).read_text("utf-8") for x in (README, TABLES))
  problems += check_quotes(quoting, tables)
  for module in MODULES:
    text = (ROOT / module).read_text(encoding="utf-8")
    problems += check_docstrings(module, text)
  for x in problems:
    print(f"{x.page}:{x.line}: {x.message}")
  raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
  main()

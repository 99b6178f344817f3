"""Numbers in the pages are those of the rows."""

import ast

import pytest

from experiments import check_numbers
from experiments.harness import markdown

TABLE = markdown.table(
  ["algorithm", "recall", "gain", "one", "half"],
  [
    ["CLIP", "53.2 ± 0.7", "-0.3 [-1.1, +0.5]", "1.1", "0.5"],
    ["NUCLR", "54.0 ± 0.2", "", "2.0", "1.5"],
  ],
)


@pytest.fixture(autouse=True)
def study(monkeypatch):
  monkeypatch.setattr(check_numbers, "STUDIES", ("mine",))
  monkeypatch.setattr(check_numbers, "recompute", lambda study: {"a": TABLE})


def check(text):
  corrected, problems = check_numbers.check("page", text, "mine")
  return corrected, [x.message for x in problems]


@pytest.mark.parametrize(
  "text",
  [
    "R@1 is 53.2<!--= a; CLIP; recall -->.",
    "R@1 is 53<!--= a; CLIP; recall --> of 100.",
    "R@1 is 53.2 ± 0.7 %<!--= a; CLIP; recall -->.",
    "At 128, 53.2 and\n54.0<!--= a; CLIP | NUCLR; recall --> after 8 epochs.",
    "It loses 0.3<!--= -a; CLIP; gain -->.",
    "The other gains 0.3 [-0.5, 1.1]<!--= -a; CLIP; gain -->.",
    "It is -53.2 ± 0.7<!--= -a; CLIP; recall -->.",
    "It is -0.3 [-1.1, +0.5]<!--= a; CLIP; gain -->.",
    "Elsewhere 53.2<!--= mine: a; CLIP; recall -->.",
    "With τ = 0.05, at rate 0.1, in `x = 0.5`, $y = 0.5$ and for 8 epochs.",
    "Apache-2.0 and jax 0.10.2.",
    "From 1.5 to 2.5, at rate 0.1<!--= given 2: setting -->.",
    "1.5<!--= given: setting -->, then 54.0<!--= a; NUCLR; recall -->.",
    "```\n1.5 s\n```\n\n<!-- a -->\n| 1.5 |\n<!-- end -->\n",
    "<!--= given below: plan -->\nIt is 1.5 here.\n\nAnd 3 s.\n",
    "It is one point<!--= a; CLIP; one --> behind, 0.5<!--= a; CLIP; half -->.",
    "Half a point<!--= a; CLIP; half --> is little.",
    "That is 2.8e35<!--= computed; 30 ** 24 --> units.",
    "12.5 %<!--= computed; 100 * 2 / 16 --> or 2.4<!--= computed; sqrt(6) -->.",
    "At $10^{36}$<!--= computed; 10 ** 36 --> it ends.",
    "The paper has 80 to 89 %<!--= given: published -->.",
    "The target is 3,000 pairs/s<!--= given: plan -->.",
    "A row has 16 bytes<!--= given: definition -->.",
    "With 0.6 %<!--= given: setting --> it has 53.2<!--= a; CLIP; recall -->.",
    "They are equally good, -0.3 [-1.1, +0.5]<!--= a; CLIP; gain -->.",
    "- 1\n- 54.0<!--= a; NUCLR; recall --> in an item",
  ],
)
def test_what_is_right(text):
  assert check(text) == (text, [])


@pytest.mark.parametrize(
  "text, corrected",
  [
    (
      "R@1 is 53.3<!--= a; CLIP; recall -->.",
      "R@1 is 53.2<!--= a; CLIP; recall -->.",
    ),
    (
      "It is +0.3 [-1.1, +0.6]<!--= a; CLIP; gain -->.",
      "It is -0.3 [-1.1, +0.5]<!--= a; CLIP; gain -->.",
    ),
    (
      "It is +7.3 [+6.1, +8.5]<!--= a; CLIP; gain -->.",
      "It is -0.3 [-1.1, +0.5]<!--= a; CLIP; gain -->.",
    ),
    (
      "53.2, 53.2<!--= a; CLIP | NUCLR; recall -->",
      "53.2, 54.0<!--= a; CLIP | NUCLR; recall -->",
    ),
    (
      "R@1 is 55<!--= a; NUCLR; recall -->.",
      "R@1 is 54<!--= a; NUCLR; recall -->.",
    ),
    (
      "It gains 0.3<!--= a; CLIP; gain -->.",
      "It gains -0.3<!--= a; CLIP; gain -->.",
    ),
    (
      "R@1 is 1e2<!--= a; CLIP; recall -->.",
      "R@1 is 5e+01<!--= a; CLIP; recall -->.",
    ),
  ],
)
def test_wrong_numbers_are_found_and_corrected(text, corrected):
  found, problems = check(text)
  assert found == corrected and problems
  assert check(corrected) == (corrected, [])


@pytest.mark.parametrize(
  "text, message",
  [
    ("It is 1.5 here.", "1.5 has no comment"),
    ("It takes 3 s.", "3 has no comment"),
    *(
      (f"It is {text} here.", "77 has no comment")
      for text in (
        *("77 %", "**77** %", "77 seconds", "77s", "77 µs", "77 GB", "77 pp"),
        *("77 times faster", "77x", "77 of 100 runs", "77 photos per second"),
        *("77\n  points", "77 × faster", "77 milliseconds", "77 bytes"),
        *("77 percentage points", "77 pairs a second", "77 seeds", "_77_ %"),
        *("77 of the 100", "rate 77 %", "n = 77 s", "`77` %", "$77$ %"),
      )
    ),
    ("It is .77 nats.", ".77 has no comment"),
    ("ζ correlates `0.77` here.", "0.77 has no comment"),
    ("an accuracy rate 0.77", "0.77 has no comment"),
    ("It is 77.7x faster.", "77.7 has no comment"),
    ("1.5<!--= given: setting --> and\n2.5", "2.5 has no comment"),
    ("1.5 and 2.5<!--= given: setting -->", "1.5 has no comment"),
    ("1.5<!--= given 2: setting -->", "too few numbers"),
    ("1.5 as in r = 0.87", "0.87 has no comment"),
    ("<!-- mine -->\n| 1.5 |\n<!-- end -->", "no study makes the part 'mine'"),
    ("<!-- mine -->\n| 1.5 |\n<!-- end -->", "1.5 has no comment"),
    ("<!--= given below: plan -->\n1.5\n\n# New\n\n2.5", "2.5 has no comment"),
    ("1.5\n\n2.5<!--= given: setting -->", "1.5 has no comment"),
    ("1.5<!--= b; CLIP; recall -->", "mine has no 'b', only a"),
    ("1.5<!--= a; SogCLR; recall -->", "0 rows that begin with"),
    ("1.5<!--= a; CLIP; digits -->", "no column 'digits'"),
    ("1.5<!--= a; NUCLR; gain -->", "the cell has no number"),
    ("1.5<!--= yours: a; NUCLR; gain -->", "'yours' is not a study"),
    ("1.5<!--= missing.json; key -->", "there is no missing.json"),
    ("None<!--= a; CLIP; recall -->", "too few numbers"),
  ],
)
def test_numbers_without_a_row(text, message):
  found, problems = check(text)
  assert found == text
  assert any(message in x for x in problems), problems


@pytest.mark.parametrize(
  "text, message",
  [  # sentences that pages had, and what is wrong with them
    (
      "Three models gave cosines of at least 0.998<!--= given -->.",
      "0.998 is given as None; say setting or definition",
    ),
    (
      "Three models gave cosines of at least 0.998<!--= given: setting -->.",
      "0.998 is measured, not a setting",
    ),
    ("It is, with a mean of 0.95<!--= given: setting -->.", "0.95 is measured"),
    ("PyTorch took 0.77<!--= given: setting --> of that.", "0.77 is measured"),
    ("It costs 0.2 ms<!--= given: setting -->.", "0.2 is measured"),
    ("It gains 1.5 ± 0.5<!--= given: setting -->.", "0.5 is measured"),
    ("It is [0.1, 0.5]<!--= given: definition -->.", "0.5 is measured"),
    ("It has 2.4 times<!--= given: definition --> more.", "2.4 is measured"),
    ("It is 430 GB<!--= given: published -->.", "where does it say so?"),
    ("It needs 3,000 pairs/s<!--= given: plan -->.", "where does it say so?"),
    ("<!--= given below -->\n1.5\n", "say given below: setting or"),
    (
      "<!--= given below: plan -->\nIt is 53.9<!--= a; CLIP; recall -->.",
      "53.9 is 53.2",
    ),
    ("SogCLR is two points behind CLIP.", "two has no comment"),
    ("It is behind by a point and a half.", "a has no comment"),
    ("by half a point with a weight", "half a has no comment"),
    ("E is up to\n  four points lower.", "four has no comment"),
    ("by two to nine orders of magnitude", "nine has no comment"),
    ("five times less than the lemma's", "five has no comment"),
    ("Three points<!--= a; NUCLR; one --> behind.", "Three is 2.0"),
    ("that is more than $10^{36}$ units", "10^{36} has no comment"),
    ("that is 1e36<!--= computed; 30 ** 24 -->", "1e36 is 3e+35"),
    ("1.5<!--= computed; open('x') -->", "is not arithmetic"),
    ("1.5<!--= computed; 1 + -->", "is not arithmetic"),
    ("CLIP and SogCLR retrieve\nequally well: 53.", "'equally well' needs"),
    ("0.1 and 0 are equally good.", "'equally good' needs"),
    ("On glyphs, all three are equal.", "'all three are equal' needs"),
    ("It is as good as float32.", "'as good as' needs"),
    ("It is no better\nthan CURL.", "'no better than' needs"),
    (
      "In percent; ± is the standard error over\nseeds.",
      "± is half of the 95 % interval on every page",
    ),
    (
      "Mean ± standard deviation over seeds.",
      "± is half of the 95 % interval on every page",
    ),
  ],
)
def test_claims_without_a_row(text, message):
  _, problems = check(text)
  assert any(message in x for x in problems), problems


@pytest.mark.parametrize(
  "text, message",
  [
    ("In long runs SogCLR falls behind CLIP by 2 points.", "2 points"),
    ("SogCLR is two points behind.", "two points"),
    ("0.1 (published) and 0 are equally good.", "equally good"),
  ],
)
def test_docstrings_state_no_results(text, message):
  module = f'def f():\n  """Does it.\n\n  {text}\n  """\n'
  (found,) = check_numbers.check_docstrings("module", module)
  assert message in found.message and found.line == 4
  about = 'def f():\n  """Moves two points of the plane, at point 1."""\n'
  assert not check_numbers.check_docstrings("module", about)


QUOTED = """
| CLIP | 53.2 ± 0.7<!--= a; CLIP; recall --> % | ± 1 point | [0.1, 0.2] |
| NUCLR − CLIP | +0.8 [-0.1, +1.7]<!--= a; NUCLR; gain --> points | 0.05 s |
"""


@pytest.mark.parametrize(
  "text, message",
  [
    ("CLIP has 53.2 ± 0.7 %, within ± 1 point, +0.8\n[-0.1, +1.7].", ""),
    ("At τ = 0.07, in 0.05 s, with `x = 0.5` and 8 epochs.", ""),
    ("CLIP has 53.2 %.", "has 53.2"),
    ("CLIP has 53.3 ± 0.7 %.", "has 53.3 ± 0.7"),
    ("It gains +0.8 [-0.1, +1.6].", "has +0.8 [-0.1, +1.6]"),
    ("It loses -0.8 [-0.1, +1.7].", "has -0.8 [-0.1, +1.7]"),
    ("It takes 3 s.", "has 3"),
    ("CLIP and NUCLR are equally good.", "'equally good' needs"),
    ("53.2 ± 0.7<!--= a; CLIP; recall -->", "the page has comments"),
  ],
)
def test_a_page_without_comments_quotes_tables(text, message):
  found = check_numbers.check_quotes("\n" + text, QUOTED)
  assert bool(found) == bool(message)
  assert all(message in x.message and x.line == 2 for x in found)
  assert all(check_numbers.check_quotes(text, "no table") for _ in found)


def test_only_one_spread_is_written():
  """Tables get their ± from `Statistics.show`, which is half of an interval."""
  for path in sorted(check_numbers.HERE.glob("**/*.py")):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    formats = [
      x.value
      for node in ast.walk(tree)
      if isinstance(node, ast.JoinedStr)
      for x in node.values
      if isinstance(x, ast.Constant)
    ]
    if path.name not in ("statistics.py", "claims.py"):
      assert not any("±" in x for x in formats), path


def test_the_pages(monkeypatch, capsys):
  monkeypatch.undo()
  monkeypatch.setattr("sys.argv", ["check_numbers"])
  with pytest.raises(SystemExit) as end:
    check_numbers.main()
  assert not end.value.code, capsys.readouterr().out

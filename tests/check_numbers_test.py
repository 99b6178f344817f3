"""Numbers in the pages are those of the rows."""

import pytest

from experiments import check_numbers
from experiments.harness import markdown

TABLE = markdown.table(
  ["algorithm", "recall", "gain"],
  [["CLIP", "53.2 ± 0.7", "-0.3 [-1.1, +0.5]"], ["NUCLR", "54.0 ± 0.2", ""]],
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
    "From 1.5 to 2.5 s, at rate 0.1<!--= given 2 -->.",
    "1.5<!--= given -->, then 54.0<!--= a; NUCLR; recall -->.",
    "```\n1.5 s\n```\n\n<!-- a -->\n| 1.5 |\n<!-- end -->\n",
    "<!--= given below -->\nIt is 1.5 here.\n\nAnd 3 s.\n",
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
    ("1.5<!--= given --> and\n2.5", "2.5 has no comment"),
    ("1.5 and 2.5<!--= given -->", "1.5 has no comment"),
    ("1.5<!--= given 2 -->", "too few numbers"),
    ("1.5 as in r = 0.87", "0.87 has no comment"),
    ("<!-- mine -->\n| 1.5 |\n<!-- end -->", "no study makes the part 'mine'"),
    ("<!-- mine -->\n| 1.5 |\n<!-- end -->", "1.5 has no comment"),
    ("<!--= given below -->\n1.5\n\n# New\n\n2.5", "2.5 has no comment"),
    ("1.5\n\n2.5<!--= given -->", "1.5 has no comment"),
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


def test_the_pages(monkeypatch, capsys):
  monkeypatch.undo()
  monkeypatch.setattr("sys.argv", ["check_numbers"])
  with pytest.raises(SystemExit) as end:
    check_numbers.main()
  assert not end.value.code, capsys.readouterr().out

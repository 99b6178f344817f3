"""What became of the predictions of README.md."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.harness import Row, markdown
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.hubs_and_suspects.results import (
  BASE,
  COLUMNS,
  DUPLICATES,
  FAMILIAR,
  OURS,
  OWN,
  PRIOR,
  TUNED,
  UNFAMILIAR,
  WRONG,
  area,
  chosen_strength,
  mean_of,
  recall,
)

LEVEL = [x for x in COLUMNS if x.startswith("balanced:")]
BALANCED = [x for x in COLUMNS if x.startswith("balanced")]
NATURAL = "natural: image to text"
SHARES = WRONG[:3]
CAPTIONS = "neighbours: captions"
CONFIDENT = "CL, cross-validated: self-confidence"
UNTOLD = (  # scores that are not told the classes
  *(
    "own similarity",
    OURS,
    "margin",
    "margin, ζ = 0",
    "match probability, ζ = 0",
  ),
  *("neighbours: overlap", CAPTIONS, "neighbours: images", "neighbours: both"),
)


class Outcome(NamedTuple):
  """A quantity that a prediction is about."""

  prediction: int
  what: str
  found: Statistics
  holds: bool
  digits: int


def prediction_table(rows: Sequence[Row]) -> str:
  """Shows what each prediction is about, and whether it held."""
  outcomes = [x for f in (of_hubs, of_suspects) for x in f(rows)]
  if not all(x.found.count for x in outcomes):
    return ""
  outcomes += [x for x in of_dual_bank(rows) if x.found.count]
  lines = [
    [
      f"{x.prediction}: {x.what}",
      x.found.show(x.digits),
      "holds" if x.holds else "fails",
    ]
    for x in outcomes
  ]
  return markdown.table(["prediction", "found", "outcome"], lines)


def of_hubs(rows: Sequence[Row]) -> list[Outcome]:
  """Returns the outcomes of predictions 1 to 7."""
  found = []

  def note(number, what, statistics, holds, digits=1):
    found.append(Outcome(number, what, statistics, bool(holds), digits))

  def gap(column, name, base, **arms):
    return paired(
      recall(rows, column, name, **arms), recall(rows, column, base, **arms)
    )

  for name in TUNED:
    x = gap("balanced: text to image", name, BASE)
    note(1, f"{name} − E", x, x.mean >= 0.5 and x.mean - x.half_width > 0)
  for column in LEVEL:
    best = max(
      TUNED[1:],
      key=lambda name, c=column: (
        statistics(recall(rows, c, name).values()).mean
      ),
    )
    x = gap(column, "ζ", best)
    note(2, f"{column}: ζ − {best}", x, abs(x.mean) <= 1)
  for column in LEVEL:
    x = gap(column, "ζ, strength 1, fixed", "IS, τ, fixed")
    note(3, f"{column}: ζ − IS, strength 1", x, abs(x.mean) <= 0.5)
  for column in BALANCED:
    x = gap(column, "QB-Norm", "IS")
    note(4, f"{column}: QB-Norm − IS", x, x.mean <= 0.5)
  for name in TUNED:
    x = gap(NATURAL, PRIOR, name)
    note(5, f"(E + τ log p) − {name}", x, x.mean >= 5)
  for name in ("CSLS", "IS"):
    x = gap(NATURAL, name, BASE)
    note(6, f"{name} − E", x, x.mean <= -2)
  chosen = statistics(chosen_strength(rows, NATURAL, "ζ").values())
  note(6, "chosen strength of ζ", chosen, chosen.mean <= 0.25, 2)

  def gain(arm):
    ours, base = (
      mean_of([recall(rows, x, name, arms=(arm,)) for x in LEVEL])
      for name in ("ζ", BASE)
    )
    return {seed: ours[seed] - base[seed] for seed in ours}

  x = paired(gain("NUCLR"), gain("CLIP"))
  note(7, "gain of NUCLR − gain of CLIP", x, x.mean > 0)
  return found


def of_dual_bank(rows: Sequence[Row]) -> list[Outcome]:
  """Returns the outcomes of predictions 16 to 19, which were added later."""
  found = []

  def gap(
    number: int,
    column: str,
    names: tuple[str, str],
    holds: Callable[[float], bool],
  ) -> None:
    x = paired(*(recall(rows, column, name) for name in names))
    what = f"{column}: {' − '.join(names)}"
    found.append(Outcome(number, what, x, bool(holds(x.mean)), 1))

  for column in BALANCED:
    names = ("DBSN, τ, fixed", "ζ, strength 1, fixed")
    gap(16, column, names, lambda x: abs(x) <= 0.3)
  for column in BALANCED:
    most = -0.2 if column == "balanced, tail: text to image" else 0.5
    gap(17, column, ("DBSN", "ζ"), lambda x, most=most: x <= most)
  for column in BALANCED:
    gap(18, column, ("DBSN, published, fixed", BASE), lambda x: x <= -1)
  gap(19, NATURAL, (PRIOR, "DBSN"), lambda x: x >= 5)
  return found


def of_suspects(rows: Sequence[Row]) -> list[Outcome]:
  """Returns the outcomes of predictions 8 to 15."""
  found = []

  def gap(
    number: int,
    view: str,
    errors: str,
    name: str,
    base: str,
    holds: Callable[[float], bool],
  ) -> None:
    x = paired(area(rows, view, errors, name), area(rows, view, errors, base))
    what = f"{view}, {errors}: ({name}) − ({base})"
    found.append(Outcome(number, what, x, bool(holds(x.mean)), 3))

  for share in SHARES:
    gap(8, OWN, share, OURS, "own similarity", lambda x: x >= 0.02)
  for view in (OWN, FAMILIAR, UNFAMILIAR):
    for share in SHARES:
      zero = "match probability, ζ = 0"
      gap(9, view, share, OURS, zero, lambda x: abs(x) <= 0.02)
  gap(10, OWN, SHARES[1], CAPTIONS, OURS, lambda x: x >= 0.05)
  gap(11, UNFAMILIAR, SHARES[1], OURS, CAPTIONS, lambda x: x >= 0)
  for share in SHARES[1:]:
    gap(12, OWN, share, CONFIDENT, OURS, lambda x: x > 0)
  for share in SHARES:
    best = max(
      UNTOLD,
      key=lambda name, s=share: (
        statistics(area(rows, OWN, s, name).values()).mean
      ),
    )
    gap(13, OWN, share, "LEMoN", best, lambda x: x >= -0.02)
  gap(14, OWN, WRONG[3], OURS, "own similarity", lambda x: x < 0)
  gap(14, OWN, WRONG[3], "margin", OURS, lambda x: x >= 0.1)
  gap(15, OWN, DUPLICATES, "image − density", "image", lambda x: x >= 0.05)
  flag = "the page's threshold: precision"
  x = statistics(area(rows, OWN, DUPLICATES, flag).values())
  found.append(Outcome(15, flag, x, x.mean < 0.2, 3))
  return found

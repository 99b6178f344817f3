"""The tables of scores at many temperatures, unmarked and marked."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.harness import Row, markdown
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.when_it_pays.plan import (
  MARKED,
  MORE_ARMS,
  MORE_TAUS,
  SCORES,
  TEMPERATURES,
)

BASE, TIED = "SogCLR", "ζ = τ log p"
E, ADJUSTED = "E", "E + τ log p"
USED = 0.08  # SogCLR's temperature in the other parts
# What is shown of each arm, besides E.
MORE = {
  (TEMPERATURES, "CLIP"): (ADJUSTED,),
  (TEMPERATURES, BASE): (ADJUSTED,),
  (MARKED, BASE): (ADJUSTED, "E - τ log p"),
}

BySeed = Mapping[int, float]


def tables(rows: Sequence[Row]) -> dict[str, str]:
  """Returns all tables, by mark."""
  gains = {
    f"all temperatures: {kind}": gain_table(rows, kind) for kind in SCORES
  }
  return gains | {"all temperatures: differences": differences(rows)}


def by_seed(
  rows: Sequence[Row], part: str, arm: str, tau: float, score: str, kind: str
) -> BySeed:
  """Returns an accuracy in percent, by seed."""
  return {
    row["seed"]: row["scores"][score][kind]
    for row in rows
    if row["part"] == part and row["setting"] == f"{arm}, τ {tau}"
  }


def best(
  rows: Sequence[Row], part: str, arm: str, score: str, kind: str
) -> float:
  """Returns the temperature at which the mean of a score is highest."""

  def mean(tau):
    found = by_seed(rows, part, arm, tau, score, kind).values()
    return np.mean(list(found)) if found else -np.inf

  return max(MORE_TAUS, key=mean)


def shown(found: Statistics) -> str:
  """Formats a mean and its 95 % interval."""
  return found.show() if found.count else "–"


def gain_table(rows: Sequence[Row], kind: str) -> str:
  """Shows all scores minus SogCLR's E at `USED`, unmarked."""
  base = by_seed(rows, TEMPERATURES, BASE, USED, E, kind)
  lines = [
    [f"{BASE}, {E}, τ {USED}: %", shown(statistics(base.values()))]
    + [""] * (len(MORE_TAUS) - 1)
  ]
  for part, arms in MORE_ARMS.items():
    for arm in arms:
      for score in (E, *MORE.get((part, arm), ())):
        cells = [
          shown(paired(by_seed(rows, part, arm, tau, score, kind), base))
          for tau in MORE_TAUS
        ]
        name = f"{arm}, {score.replace('-', '−')}"
        lines.append([name + ", marked" * (part == MARKED), *cells])
  return markdown.table([kind, *(f"τ {x}" for x in MORE_TAUS)], lines)


def differences(rows: Sequence[Row]) -> str:
  """Shows the differences that predictions and conclusions are about."""

  def score(part, arm, tau, name, kind):
    return by_seed(rows, part, arm, tau, name, kind)

  taus = {
    name: best(rows, TEMPERATURES, BASE, name, "natural")
    for name in (E, ADJUSTED)
  }
  level = best(rows, TEMPERATURES, BASE, E, "balanced")
  marked, marked_adjusted, marked_tied = (
    best(rows, MARKED, arm, name, "natural")
    for arm, name in ((BASE, E), (BASE, ADJUSTED), (TIED, E))
  )
  plain = (TEMPERATURES, BASE)
  unmarked = f"E + τ log p at τ {taus[ADJUSTED]}"
  found = {
    f"natural: E + τ log p at τ {taus[ADJUSTED]} − E at τ {taus[E]}": (
      score(*plain, taus[ADJUSTED], ADJUSTED, "natural"),
      score(*plain, taus[E], E, "natural"),
    ),
    f"balanced: E at τ {taus[E]} − E at τ {level}": (
      score(*plain, taus[E], E, "balanced"),
      score(*plain, level, E, "balanced"),
    ),
    f"natural: E at τ {marked}, marked − {unmarked}": (
      score(MARKED, BASE, marked, E, "natural"),
      score(*plain, taus[ADJUSTED], ADJUSTED, "natural"),
    ),
    f"natural: E + τ log p at τ {marked_adjusted}, marked − {unmarked}": (
      score(MARKED, BASE, marked_adjusted, ADJUSTED, "natural"),
      score(*plain, taus[ADJUSTED], ADJUSTED, "natural"),
    ),
    f"natural: {TIED}, E at τ {marked_tied}, marked − {unmarked}": (
      score(MARKED, TIED, marked_tied, E, "natural"),
      score(*plain, taus[ADJUSTED], ADJUSTED, "natural"),
    ),
  }
  for tau in MORE_TAUS:
    found[f"natural, τ {tau}: SogCLR, E + τ log p: marked − unmarked"] = (
      score(MARKED, BASE, tau, ADJUSTED, "natural"),
      score(*plain, tau, ADJUSTED, "natural"),
    )
  for tau in MORE_TAUS:
    found[f"natural, τ {tau}: (SogCLR, E + τ log p) − (ζ = τ log p, E)"] = (
      score(*plain, tau, ADJUSTED, "natural"),
      score(TEMPERATURES, TIED, tau, E, "natural"),
    )
  for kind in SCORES:
    for (arm, name), (part, other) in {
      (BASE, E): (TEMPERATURES, E),
      (BASE, ADJUSTED): (MARKED, E),
      (BASE, "E - τ log p"): (MARKED, E),
      (TIED, E): (MARKED, E),
    }.items():
      where = "E, unmarked" if part == TEMPERATURES else "E, marked"
      label = f"{kind}, τ {USED}: ({arm}, {name}, marked) − (SogCLR, {where})"
      found[label.replace("E - τ", "E − τ")] = (
        score(MARKED, arm, USED, name, kind),
        score(part, BASE, USED, other, kind),
      )
  lines = [[name, shown(paired(*pair))] for name, pair in found.items()]
  return markdown.table(["difference", "points"], lines)

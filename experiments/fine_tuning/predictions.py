"""What became of the predictions of README.md."""

import itertools
import math
from typing import NamedTuple

from experiments.fine_tuning import plan
from experiments.fine_tuning.measure import NEW, UNTOUCHED
from experiments.fine_tuning.results import (
  SETS,
  arms,
  last,
  lowest,
  mixed,
  rows_of,
)
from experiments.harness import Results, markdown
from experiments.harness.statistics import Statistics, paired, statistics

SHARES = ("0", *(f"{x:g}" for x in plan.SHARES), "1")
EARLY = 20  # the last step at which prediction 1 looks for a dip
OURS = ("sogclr", "nuclr")


class Outcome(NamedTuple):
  """A quantity that a prediction is about, and the values it predicts."""

  prediction: int
  what: str
  found: Statistics
  low: float = -math.inf
  high: float = math.inf


def table(results: Results) -> str:
  """Shows what each prediction is about, and whether it held."""
  parts = (of_dips, of_starts, of_objectives, of_mixtures, of_additions)
  lines = [
    [
      f"{x.prediction}: {x.what}",
      x.found.show_interval(digits=2).removesuffix(" *"),
      x.found.outcome(x.low, x.high),
    ]
    for part in parts
    for x in part(results)
    if x.found.count
  ]
  return markdown.table(["prediction", "found", "outcome"], lines)


def of_dips(results: Results) -> list[Outcome]:
  """Returns the outcomes of predictions 1 and 2."""

  def dips(name, start, x):
    return lowest(rows_of(results, name, start), f"{x} R@1", EARLY)

  found = []
  for name, label in plan.LABELS.items():
    new, untouched = (dips(name, plan.COLD, x) for x in SETS)
    x = statistics(untouched.values())
    found += [
      Outcome(1, f"{label}, dip, {UNTOUCHED}", x, high=-1),
      Outcome(
        1,
        f"{label}, dip, {NEW} − {UNTOUCHED}",
        paired(new, untouched),
        low=0,
      ),
    ]
  for start in (plan.ALONE, plan.WARM_UP):
    for name, label in plan.LABELS.items():
      half = {
        seed: x / 2 for seed, x in dips(name, plan.COLD, UNTOUCHED).items()
      }
      x = paired(dips(name, start, UNTOUCHED), half)
      what = f"{label}, {start}: dip − half of the cold one, {UNTOUCHED}"
      found.append(Outcome(2, what, x, low=0))
  return found


def of_starts(results: Results) -> list[Outcome]:
  """Returns the outcomes of predictions 3 and 4."""

  def gap(name, ours, theirs, x):
    metric = f"{x} R@1"
    return paired(
      *(last(rows_of(results, name, y), metric) for y in (ours, theirs))
    )

  found = []
  for name, ours, theirs in (
    ("sogclr", "u", plan.COLD),
    ("nuclr", "u", plan.COLD),
    ("nuclr", "u, ζ", "u"),
  ):
    for x in SETS:
      what = f"{plan.LABELS[name]}, ({ours}) − ({theirs}), {x}"
      found.append(Outcome(3, what, gap(name, ours, theirs, x), -0.3, 0.3))
  for name, label in plan.LABELS.items():
    gaps = {
      start: gap(name, start, plan.COLD, NEW)
      for other, start in arms()
      if other == name and start != plan.COLD
    }
    best = max(gaps, key=lambda x, gaps=gaps: gaps[x].mean)
    what = f"{label}, ({best}) − ({plan.COLD}), the best start, {NEW}"
    found.append(Outcome(4, what, gaps[best], high=0.5))
  return found


def of_objectives(results: Results) -> list[Outcome]:
  """Returns the outcomes of prediction 5."""
  return [
    Outcome(
      5,
      f"{plan.LABELS[ours]} − {plan.LABELS[theirs]}, {x}",
      _between(results, ours, theirs, x, plan.COLD, plan.TUNED),
      -0.7,
      0.7,
    )
    for x in SETS
    for theirs, ours in itertools.combinations(plan.LABELS, 2)
  ]


def of_mixtures(results: Results) -> list[Outcome]:
  """Returns the outcomes of prediction 6."""
  found = []
  for name, label in plan.LABELS.items():
    rows = rows_of(results, name, plan.COLD)
    new, untouched = (
      {share: mixed(rows, f"{x} R@1", share) for share in SHARES} for x in SETS
    )
    # What is kept beyond two thirds of the gain.
    kept = statistics(
      new["0.5"][s] - new["0"][s] / 3 - 2 * new["1"][s] / 3 for s in rows
    )
    both = {
      x: {s: (new[x][s] + untouched[x][s]) / 2 for s in rows} for x in SHARES
    }
    others = [x for x in SHARES if x != "0.5"]
    best = max(others, key=lambda x, y=both: statistics(y[x].values()).mean)
    found += [
      Outcome(6, f"{label}, gain at 0.5 − 2/3 of the gain, {NEW}", kept, low=0),
      Outcome(
        6,
        f"{label}, mean of both sets, 0.5 − {best}, the best other share",
        paired(both["0.5"], both[best]),
        low=0,
      ),
    ]
  return found


def of_additions(results: Results) -> list[Outcome]:
  """Returns the outcomes of predictions 7 and 8, which were added later."""
  found = []
  for name, warm in zip(OURS, ("u, moments", "u, ζ, moments"), strict=True):
    label = plan.LABELS[name]
    alone, cold, both = (
      last(rows_of(results, name, x), f"{NEW} R@1")
      for x in (plan.ALONE, plan.COLD, warm)
    )
    found += [
      Outcome(
        7,
        f"{label}, ({plan.ALONE}) − ({plan.COLD}), {NEW}",
        paired(alone, cold),
        0.2,
        1.5,
      ),
      Outcome(
        7,
        f"{label}, ({plan.ALONE}) − ({warm}), {NEW}",
        paired(alone, both),
        low=0,
      ),
    ]
  for ours, theirs, x, low, high in (
    ("sogclr", "clip", NEW, -0.5, 1.5),
    ("sogclr", "clip", UNTOUCHED, 0, math.inf),
    ("nuclr", "sogclr", NEW, -0.7, 0.7),
    ("nuclr", "sogclr", UNTOUCHED, -0.7, 0.7),
  ):
    what = f"{plan.LABELS[ours]} − {plan.LABELS[theirs]}, four epochs, {x}"
    gap = _between(results, ours, theirs, x, plan.WARM_UP, plan.LONG)
    found.append(Outcome(8, what, gap, low, high))
  return found


def _between(results, ours, theirs, x, start, part) -> Statistics:
  """Returns the difference of two objectives in R@1 at the end."""
  return paired(
    *(
      last(rows_of(results, name, start, part), f"{x} R@1")
      for name in (ours, theirs)
    )
  )

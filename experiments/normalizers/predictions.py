"""What became of the predictions of README.md."""

from collections.abc import Mapping
import math
from typing import NamedTuple

from experiments.harness import markdown
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.normalizers.plan import ARMS, CELLS
from experiments.normalizers.results import GROWTH, Rows, factor, values

FIRST, _, TENTH = CELLS


class Outcome(NamedTuple):
  """A quantity that a prediction is about, and the values it predicts."""

  prediction: int
  what: str
  found: Statistics
  low: float
  high: float

  @property
  def verdict(self) -> str:
    """Whether the prediction holds, and whether the seeds leave it open."""
    return self.found.outcome(self.low, self.high)


def table(rows: Rows, costs: Mapping[str, dict]) -> str:
  """Shows what each prediction is about, and whether it held."""
  lines = [
    [f"{x.prediction}: {x.what}", x.found.show(2), x.verdict]
    for x in (*of_errors(rows), *of_costs(costs))
    if x.found.count
  ]
  return markdown.table(["prediction", "found", "outcome"], lines)


def of_errors(rows: Rows) -> list[Outcome]:
  """Returns the outcomes of predictions 1 to 10."""
  found = []

  def note(
    number: int, what: str, x: Statistics, low=-math.inf, high=math.inf
  ) -> None:
    found.append(Outcome(number, what, x, low, high))

  def gap(
    number, cell, ours, theirs, low, high, what="used", kind="sd", base=None
  ) -> None:
    x = paired(
      values(rows, cell, ours, what, kind),
      values(rows, cell, theirs, base or what, kind),
    )
    ours, theirs = (ARMS[x].label for x in (ours, theirs))
    name = f"{cell}, {what}, {kind}: {ours} − {theirs}"
    if base:
      name = f"{cell}, {what} − {base}, {kind}: {ours}"
    note(number, name, x, low, high)

  lower = -math.inf, 0.0
  for cell in CELLS:
    gap(1, cell, "neuclip", "sogclr", *lower)
  for number, which in enumerate(GROWTH, 2):
    ours, theirs = (
      factor(rows, x, "used", "sd", which) for x in ("neuclip", "sogclr")
    )
    name = f"growth, {which}: NeuCLIP − {ARMS['sogclr'].label}"
    note(number, name, paired(ours, theirs), *lower)
  for cell in CELLS:
    for other in ("sogclr", "neuclip"):
      gap(4, cell, "amorlip", other, *lower, what="stored")
    x = statistics(values(rows, cell, "amorlip", "stored", "mean").values())
    note(4, f"{cell}, stored, mean: AmorLIP", x, high=-0.2)
  ours, theirs = (
    values(rows, FIRST, x, "stored", "rms")
    for x in ("amorlip_published", "amorlip")
  )
  x = statistics(ours[s] / theirs[s] for s in ours.keys() & theirs.keys())
  note(5, f"{FIRST}, stored, rms: published / fitted", x, low=2.0)
  for cell in CELLS:
    ours, theirs = (
      values(rows, cell, "scent", x, "sd") for x in ("used", "batch")
    )
    x = statistics(ours[s] / theirs[s] for s in ours)
    name = f"{cell}, used / batch, sd: {ARMS['scent'].label}"
    note(6, name, x, 0.9, 1.1)
  for cell in CELLS:
    gap(7, cell, "scent_slow", "sogclr", *lower)
    gap(7, cell, "scent_slow", "sogclr", 0.3, math.inf, kind="mean")
  slow = "sogclr_slow", "sogclr"
  gap(8, FIRST, *slow, 0.0, math.inf, kind="rms")
  gap(8, TENTH, *slow, *lower, kind="rms")
  for cell in CELLS:
    gap(9, cell, "nuclr", "sogclr", -0.1, 0.1)
  for cell in CELLS:
    gap(10, cell, "clip", "clip", *lower, base="batch")
  return found


def of_costs(costs: Mapping[str, dict]) -> list[Outcome]:
  """Returns the outcomes of prediction 11, which is of arms that have runs."""
  found = []
  for name in (x for x in costs if x in ARMS):
    ratio = costs[name]["ratio_to_clip"]
    low, high = -math.inf, 1.15
    if name.startswith("neuclip"):
      low, high = 1.5, math.inf
    elif name.startswith("amorlip"):
      high = 1.3
    what = f"step / CLIP's: {ARMS[name].label}"
    found.append(Outcome(11, what, statistics([ratio]), low, high))
  return found

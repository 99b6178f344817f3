"""What became of the predictions of README.md."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from experiments.harness import markdown
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.normalizers.plan import ARMS, CELLS
from experiments.normalizers.results import GROWTH, Rows, factor, values

FIRST, _, TENTH = CELLS


class Outcome(NamedTuple):
  """A quantity that a prediction is about."""

  prediction: int
  what: str
  found: Statistics
  holds: bool


def table(rows: Rows, costs: Mapping[str, dict]) -> str:
  """Shows what each prediction is about, and whether it held."""
  lines = [
    [
      f"{x.prediction}: {x.what}",
      x.found.show(2),
      "holds" if x.holds else "fails",
    ]
    for x in (*of_errors(rows), *of_costs(costs))
    if x.found.count
  ]
  return markdown.table(["prediction", "found", "outcome"], lines)


def of_errors(rows: Rows) -> list[Outcome]:
  """Returns the outcomes of predictions 1 to 10."""
  found = []

  def note(number: int, what: str, x: Statistics, holds: Callable) -> None:
    found.append(Outcome(number, what, x, bool(holds(x.mean))))

  def gap(
    number, cell, ours, theirs, holds, what="used", kind="sd", base=None
  ) -> None:
    x = paired(
      values(rows, cell, ours, what, kind),
      values(rows, cell, theirs, base or what, kind),
    )
    ours, theirs = (ARMS[x].label for x in (ours, theirs))
    name = f"{cell}, {what}, {kind}: {ours} − {theirs}"
    if base:
      name = f"{cell}, {what} − {base}, {kind}: {ours}"
    note(number, name, x, holds)

  def lower(x):
    return x < 0

  for cell in CELLS:
    gap(1, cell, "neuclip", "sogclr", lower)
  for number, which in enumerate(GROWTH, 2):
    ours, theirs = (
      factor(rows, x, "used", "sd", which) for x in ("neuclip", "sogclr")
    )
    name = f"growth, {which}: NeuCLIP − {ARMS['sogclr'].label}"
    note(number, name, paired(ours, theirs), lower)
  for cell in CELLS:
    for other in ("sogclr", "neuclip"):
      gap(4, cell, "amorlip", other, lower, "stored")
    x = statistics(values(rows, cell, "amorlip", "stored", "mean").values())
    note(4, f"{cell}, stored, mean: AmorLIP", x, lambda x: x <= -0.2)
  ours, theirs = (
    values(rows, FIRST, x, "stored", "rms")
    for x in ("amorlip_published", "amorlip")
  )
  x = statistics(ours[s] / theirs[s] for s in ours.keys() & theirs.keys())
  note(5, f"{FIRST}, stored, rms: published / fitted", x, lambda x: x >= 2)
  for cell in CELLS:
    ours, theirs = (
      values(rows, cell, "scent", x, "sd") for x in ("used", "batch")
    )
    x = statistics(ours[s] / theirs[s] for s in ours)
    name = f"{cell}, used / batch, sd: {ARMS['scent'].label}"
    note(6, name, x, lambda x: abs(x - 1) <= 0.1)
  for cell in CELLS:
    gap(7, cell, "scent_slow", "sogclr", lower)
    gap(7, cell, "scent_slow", "sogclr", lambda x: x >= 0.3, kind="mean")
  slow = "sogclr_slow", "sogclr"
  gap(8, FIRST, *slow, lambda x: x > 0, kind="rms")
  gap(8, TENTH, *slow, lower, kind="rms")
  for cell in CELLS:
    gap(9, cell, "nuclr", "sogclr", lambda x: abs(x) <= 0.1)
  for cell in CELLS:
    gap(10, cell, "clip", "clip", lower, base="batch")
  return found


def of_costs(costs: Mapping[str, dict]) -> list[Outcome]:
  """Returns the outcomes of prediction 11."""
  found = []
  for name, cost in costs.items():
    ratio = cost["ratio_to_clip"]
    if name.startswith("neuclip"):
      holds = ratio >= 1.5
    else:
      holds = ratio <= (1.3 if name.startswith("amorlip") else 1.15)
    x = statistics([ratio])
    found.append(Outcome(11, f"step / CLIP's: {ARMS[name].label}", x, holds))
  return found

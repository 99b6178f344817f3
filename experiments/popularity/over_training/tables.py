"""The tables of README.md."""

from collections.abc import Callable, Sequence
from typing import Any

from experiments.harness import Options, Results, Row, markdown
from experiments.harness.statistics import statistics
from experiments.popularity.over_training.measure import QUANTILES
from experiments.popularity.over_training.plan import (
  EPOCHS,
  GLYPHS,
  QUEUE,
  RULES,
)

Rows = Sequence[Row]
PARTS = tuple(RULES)


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = list(results.rows.values())
  by_part = {f"frequency, {part}": frequency(rows, part) for part in PARTS}
  return by_part | {
    "quantiles": quantiles(rows),
    "nearest": nearest(rows),
    "status": status(results),
  }


def found(rows: Rows, part: str, rule: str) -> Rows:
  """Returns the rows of a part and a rule, by seed."""
  return [x for x in rows if (x["part"], x["setting"]) == (part, rule)]


def cell(
  rows: Rows, epoch: int, value: Callable[[Row], Any], digits: int = 2
) -> str:
  """Formats a number of one epoch over seeds; a dash if no row has it."""
  looks = [y for x in rows for y in x["looks"] if y["epoch"] == epoch]
  try:
    numbers = [value(look) for look in looks]
  except KeyError:  # the rule learns nothing
    numbers = []
  return statistics(numbers).show(digits)


def frequency(rows: Rows, part: str) -> str:
  """Shows texts' zeta against frequency, and learned against exact zeta."""
  lines = []
  for rule in RULES[part]:
    of_rule = found(rows, part, rule)
    measured: dict[str, Callable[[Row], Any]] = {}
    for kind in ("learned", "exact"):
      for what in ("spearman", "slope"):
        measured[f"{kind}: {what}"] = lambda x, kind=kind, what=what: x[
          "frequency"
        ][kind][what]
      measured[f"{kind}: sd / τ"] = lambda x, kind=kind: x[kind]["text"]["sd"]
    for side in ("image", "text"):
      measured[f"correlation with exact, {side}s"] = lambda x, side=side: x[
        "pearson"
      ][side]
    for name, value in measured.items():
      cells = [cell(of_rule, epoch, value) for epoch in EPOCHS[part]]
      if set(cells) != {"–"}:
        lines.append([rule, name, *cells])
  header = ["rule", "texts", *(f"epoch {x}" for x in EPOCHS[part])]
  return markdown.table(header, lines)


def quantiles(rows: Rows) -> str:
  """Shows quantiles of the queue's zeta, in units of tau."""
  lines = []
  for part in PARTS:
    of_rule = found(rows, part, QUEUE)
    for side in ("image", "text"):
      for epoch in EPOCHS[part]:
        values = [
          cell(
            of_rule,
            epoch,
            lambda x, side=side, i=i: x["learned"][side]["quantiles"][i],
          )
          for i in range(len(QUANTILES))
        ]
        lines.append([part, f"{side}s", str(epoch), *values])
  header = ["data", "ζ / τ of", "epoch", *(f"{100 * x:g} %" for x in QUANTILES)]
  return markdown.table(header, lines)


def nearest(rows: Rows) -> str:
  """Shows how near the nearest image of another caption is, at either end."""
  lines = []
  for part in PARTS:
    of_rule, last = found(rows, part, QUEUE), EPOCHS[part][-1]
    cells = [
      cell(of_rule, last, lambda x, end=end: x["nearest"][end])
      for end in ("most", "least")
    ]
    lines.append([part, *cells])
  return markdown.table(["data", "most popular", "least popular"], lines)


def status(results: Results) -> str:
  """Summarizes what was run."""
  rows = results.rows.values()
  seconds = sum(x["run_seconds"] for x in rows)
  longest = max((x["run_seconds"] for x in rows), default=0)
  versions = {x["versions"]["jax"] for x in results.commands}
  glyphs = sum(x["part"] == GLYPHS for x in rows)
  return (
    f"{len(rows)} training runs, {glyphs} of them on glyphs; "
    f"{seconds / 60:.0f} minutes, the longest {longest / 60:.1f}; "
    f"jax {', '.join(versions)}."
  )

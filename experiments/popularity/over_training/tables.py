"""The tables of README.md."""

from collections.abc import Callable, Sequence
from typing import Any

from experiments.harness import Options, Results, Row, markdown
from experiments.harness.statistics import paired, statistics
from experiments.popularity.over_training.measure import QUANTILES
from experiments.popularity.over_training.plan import (
  BATCH,
  EPOCHS,
  GLYPHS,
  LETTERS,
  QUEUE,
  RULES,
  SHARED,
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


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns differences that the text states, paired by seed.

  They are of slopes at the end, with shared ids and with ids of their own; of
  the spreads of learned zeta in the last look and in the one before; and of
  the rank correlations and the spreads of the last and the first look.
  """
  del options
  rows, result = list(results.rows.values()), {}

  def note(name, ours, theirs, digits=2):
    difference = paired(ours, theirs)
    if difference.count:
      result[name] = difference.show_interval(digits)

  def at(part, rule, look, *keys):
    return by_seed(found(rows, part, rule), EPOCHS[part][look], *keys)

  for rule in RULES[LETTERS]:
    for kind in ("learned", "exact"):
      keys = ("frequency", kind, "slope")
      ends = (at(part, rule, -1, *keys) for part in (SHARED, LETTERS))
      note(f"slope, shared − own: {rule}, {kind}", *ends)
      keys = ("frequency", kind, "spearman")
      looks = (at(LETTERS, rule, look, *keys) for look in (-1, 0))
      note(f"spearman, last − first: {rule}, {kind}", *looks)
  for part in PARTS:
    for rule in (QUEUE, BATCH):
      for side in ("image", "text"):
        keys = ("learned", side, "sd")
        last, before = (at(part, rule, look, *keys) for look in (-1, -2))
        note(f"sd / τ, last − before: {part}, {rule}, {side}s", last, before)
  for part in PARTS:
    ends = (at(part, QUEUE, -1, "nearest", end) for end in ("most", "least"))
    note(f"nearest, most − least popular: {part}", *ends)
  for look, name in ((0, "first"), (-1, "last")):
    sd = at(GLYPHS, QUEUE, look, "learned", "image", "sd")
    if sd:
      result[f"sd / τ of images, glyphs: {name}"] = statistics(
        sd.values()
      ).show(2)
  return result


def by_seed(rows: Rows, epoch: int, *keys: str) -> dict[int, float]:
  """Returns a number of one epoch, by seed; empty if no row has it."""
  values = {}
  for row in rows:
    for look in row["looks"]:
      value: Any = look if look["epoch"] == epoch else {}
      for key in keys:
        value = value.get(key, {})
      if value != {}:
        values[row["seed"]] = value
  return values


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

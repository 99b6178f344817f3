"""The tables of README.md."""

from collections.abc import Sequence

from experiments.harness import Options, Results, Row, markdown
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.when_it_pays import (
  duplicates,
  duplicates_report,
  positive_weight,
  positive_weight_report,
  temperatures_report,
)
from experiments.when_it_pays.letters import ARMS
from experiments.when_it_pays.plan import (
  DIMS,
  EXPONENTS,
  ONE_TAU,
  SCORES,
  TABLE,
  TAILS,
  TAUS,
  TUNING,
  TUNING_SEEDS,
  WIDTHS,
  chosen_tau,
  criterion,
  settings,
)

BASE = "SogCLR"
LONG_TAILS = [(max(EXPONENTS), dim) for dim in WIDTHS]
ADJUSTED = "SogCLR, E + τ log p"
WIDE = 8  # dimensions in which vectors can fit the table
# Rows of the table of gains: the score of an arm that is not E.
OTHER_SCORES = {
  ADJUSTED: (BASE, "E + τ log p"),
  "SogCLR, E + τ log p counted": (BASE, "E + τ log p, counted"),
  "SogCLR, E + ζ exact": (BASE, "E + ζ exact"),
  "SogCLR, E − ζ exact": (BASE, "E - ζ exact"),
  "CLIP, E + τ log p": ("CLIP", "E + τ log p"),
  "ζ learned, batch, E − ζ": ("ζ learned, batch", "E - ζ"),
  "ζ learned, batch, E + ζ": ("ζ learned, batch", "E + ζ"),
  "ζ learned, batch, E − ζ + τ log p": ("ζ learned, batch", "E - ζ + τ log p"),
  "ζ learned, queue, E − ζ": ("ζ learned, queue", "E - ζ"),
  "ζ learned, queue, E + ζ": ("ζ learned, queue", "E + ζ"),
  "ζ learned, queue, E − ζ + τ log p": ("ζ learned, queue", "E - ζ + τ log p"),
  "ζ exact, each epoch, E − ζ": ("ζ exact, each epoch", "E - ζ"),
  "ζ exact, each epoch, E + ζ": ("ζ exact, each epoch", "E + ζ"),
  "ζ exact, each epoch, E − ζ + τ log p": (
    "ζ exact, each epoch",
    "E - ζ + τ log p",
  ),
  "ζ = τ log p, E − ζ": ("ζ = τ log p", "E - ζ"),
}
PAIRS = (
  (ADJUSTED, "ζ = τ log p"),
  ("SogCLR, E + τ log p counted", ADJUSTED),
  ("ζ = τ log p, counted", "ζ = τ log p"),
  ("SogCLR, E + ζ exact", BASE),
)
NAMES = {arm: (arm, "E") for arm in ARMS} | OTHER_SCORES


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  tails = of_part(results, TAILS)
  return {
    "table": exact_table(of_part(results, TABLE)),
    "tuning": tuning_table(results),
    **{kind: gain_table(tails, kind) for kind in SCORES},
    "spread": spread_table(tails),
    "one temperature": one_temperature_table(results),
    "pairs": pair_table(tails),
    **duplicates_report.tables(of_part(results, duplicates.PART)),
    **positive_weight_report.tables(of_part(results, positive_weight.PART)),
    **temperatures_report.tables(list(results.rows.values())),
  }


def of_part(results: Results, part: str) -> list[Row]:
  """Returns the rows of a part."""
  return [row for row in results.rows.values() if row["part"] == part]


def values(
  rows: Sequence[Row], name: str, setting: str, kind: str
) -> dict[int, float]:
  """Returns the accuracy of a score of an arm, by seed."""
  arm, score = NAMES[name]
  return {
    row["seed"]: row["scores"][score][kind]
    for row in rows
    if row["setting"] == f"{arm}, {setting}"
  }


def gain(
  rows: Sequence[Row], name: str, setting: str, kind: str, over: str = BASE
) -> Statistics:
  """Returns the paired difference to another score, in points."""
  ours, base = (values(rows, x, setting, kind) for x in (name, over))
  return paired(ours, base)


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns other numbers that pages state, by name."""
  del options
  weights = of_part(results, positive_weight.PART)
  return (
    exact_numbers(of_part(results, TABLE))
    | quarter_numbers(of_part(results, TAILS))
    | positive_weight_report.numbers(weights)
  )


def quarter_numbers(rows: Sequence[Row]) -> dict[str, str]:
  """Compares a gain of exact zeta with a quarter of that of log p."""
  found = {}
  for x in map(names_of, LONG_TAILS):
    exact, adjusted, base = (
      values(rows, name, x, "natural")
      for name in ("SogCLR, E + ζ exact", ADJUSTED, BASE)
    )
    quarter = {k: base[k] + (y - base[k]) / 4 for k, y in adjusted.items()}
    gap = paired(exact, quarter)
    if gap.count:
      found[f"E + ζ exact − a quarter of the adjusted: {x}"] = gap.show()
  return found


def pair_table(rows: Sequence[Row]) -> str:
  """Shows differences under natural queries that predictions are about."""
  columns = [names_of(x) for x in LONG_TAILS]
  lines = []
  for name, over in PAIRS:
    gains = [gain(rows, name, x, "natural", over) for x in columns]
    cells = [x.show() if x.count else "–" for x in gains]
    lines.append([f"({name}) − ({over})", *cells])
  for name in ("ζ learned, batch", "ζ learned, queue", "ζ exact, each epoch"):
    shares = []
    for x in columns:
      part, whole = (gain(rows, y, x, "natural") for y in (name, ADJUSTED))
      shares.append(f"{part.mean / whole.mean:.2f}" if part.count else "–")
    lines.append([f"{name}: gain as a share of the adjusted", *shares])
  return markdown.table(["natural queries", *columns], lines)


def exact_table(rows: Sequence[Row]) -> str:
  """Shows fits to a known density."""
  fits = ("0", "learned", "learned from elsewhere", "tau log p")
  lines = []
  for dim in DIMS:
    found = [row for row in rows if row["setting"] == f"d {dim}"]
    if not found:
      continue
    for name in fits:

      def cell(column, kind, name=name, found=found):
        return (
          f"{100 * statistics(x[name][column][kind] for x in found).mean:.1f}"
        )

      excess = statistics(x[name]["excess"] for x in found).mean
      lines.append(
        [
          str(dim),
          name.replace("tau", "τ"),
          f"{excess:.4f}",
          *(cell("E", kind) for kind in SCORES),
          *(cell("E - zeta", kind) for kind in SCORES),
          *(cell("E - zeta + tau log p", kind) for kind in SCORES),
        ]
      )
  header = ["width", "ζ", "excess: nats"]
  for score in ("E", "E − ζ", "E − ζ + τ log p"):
    header += [f"{score}: {kind}" for kind in SCORES]
  return markdown.table(header, lines)


def exact_numbers(rows: Sequence[Row]) -> dict[str, str]:
  """Compares E of learned zeta with others, in points, for wide vectors."""
  zero, adjusted = {}, {}
  for row in rows:
    dim = int(row["setting"].removeprefix("d "))
    for name in ("learned", "learned from elsewhere") if dim >= WIDE else ():
      for kind in SCORES:
        ours, place = row[name]["E"][kind], (dim, name, kind)
        zero.setdefault(place, []).append(100 * (ours - row["0"]["E"][kind]))
        if kind == "natural":
          best = row[name]["E - zeta + tau log p"][kind]
          adjusted.setdefault(place, []).append(100 * (best - ours))
  if not zero:
    return {}
  means = [statistics(x).mean for x in zero.values()]
  singles = [y for x in zero.values() for y in x]
  least = min(statistics(x).mean for x in adjusted.values())
  return {
    "table: seeds": str(len(next(iter(zero.values())))),
    "table: E of learned ζ − ζ = 0: lowest mean": f"{min(means):.1f}",
    "table: E of learned ζ − ζ = 0: lowest": f"{min(singles):+.1f}",
    "table: E of learned ζ − ζ = 0: highest": f"{max(singles):+.1f}",
    "table: adjusted − E of learned ζ: least mean": f"{least:.1f}",
  }


def tuning_table(results: Results) -> str:
  """Shows the criterion of each temperature, and which one is used."""
  rows = results.rows
  lines = []
  for arm in ARMS:
    line = [arm]
    for tau in TAUS:
      keys = [(TUNING, f"{arm}, τ {tau}", seed) for seed in TUNING_SEEDS]
      found = [criterion(rows[key]) for key in keys if key in rows]
      line.append(f"{statistics(found).mean:.1f}" if found else "–")
    best = chosen_tau(rows, arm)
    lines.append([*line, "–" if best is None else str(best)])
  return markdown.table(["arm", *(f"τ {x}" for x in TAUS), "chosen"], lines)


def names_of(setting: tuple[float, int]) -> str:
  """Returns how rows name a setting."""
  exponent, dim = setting
  return f"exponent {exponent}, d {dim}"


def gain_table(rows: Sequence[Row], kind: str) -> str:
  """Shows SogCLR's accuracy, and every score's difference to it."""
  columns = [names_of(x) for x in sorted(settings())]
  base = [statistics(values(rows, BASE, x, kind).values()) for x in columns]
  lines = [
    [
      "SogCLR, E: %",
      *(x.show() if x.count else "–" for x in base),
      "",
    ]
  ]
  for name in NAMES:
    if name != BASE:
      gains = [gain(rows, name, x, kind) for x in columns]
      cells = [x.show() if x.count else "–" for x in gains]
      lines.append([name, *cells, mean_gain(rows, name, columns, kind)])
  return markdown.table(["score", *columns, "mean of all"], lines)


def mean_gain(
  rows: Sequence[Row], name: str, settings: Sequence[str], kind: str
) -> str:
  """Shows a score's difference to SogCLR's E, averaged over settings."""

  def means(name):
    found = [values(rows, name, x, kind) for x in settings]
    seeds = set.intersection(*(set(x) for x in found))
    return {x: statistics(y[x] for y in found).mean for x in seeds}

  found = paired(means(name), means(BASE))
  return found.show() if found.count else "–"


def one_temperature_table(results: Results) -> str:
  """Shows the gain tables' scores where all arms have SogCLR's temperature."""
  rows = of_part(results, TAILS)
  again = of_part(results, ONE_TAU)
  arms = {row["setting"].rpartition(", exponent")[0] for row in again}
  columns = [names_of((exponent, dim)) for exponent, dim in LONG_TAILS]
  lines = []
  for name, (arm, _) in NAMES.items():
    if arm not in arms:
      continue
    cells = []
    for setting in columns:
      for kind in SCORES:
        ours = values(again, name, setting, kind)
        found = paired(ours, values(rows, BASE, setting, kind))
        cells.append(found.show() if found.count else "–")
    lines.append([name, *cells])
  header = [f"d {dim}: {kind}" for _, dim in LONG_TAILS for kind in SCORES]
  return markdown.table(["score", *header], lines)


def spread_table(rows: Sequence[Row]) -> str:
  """Shows the spread of zeta over texts, in units of the temperature."""
  columns = [names_of(x) for x in sorted(settings())]
  lines = []
  for name in ARMS:
    for column, what in (("zeta_sd", "its ζ"), ("exact_sd", "exact ζ")):
      cells = []
      for setting in columns:
        found = [
          row[column]
          for row in rows
          if row["setting"] == f"{name}, {setting}" and column in row
        ]
        cells.append(f"{statistics(found).mean:.2f}" if found else "–")
      if set(cells) != {"–"}:
        lines.append([f"{name}: {what}", *cells])
  return markdown.table(["sd / τ", *columns], lines)

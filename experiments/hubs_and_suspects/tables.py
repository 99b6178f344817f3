"""The tables of README.md."""

from collections.abc import Callable, Sequence

from experiments.harness import Options, Results, Row, markdown
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.hubs_and_suspects import classes
from experiments.hubs_and_suspects.plan import (
  ARMS,
  CLASSES,
  DIMS,
  TRAINED_ON_ERRORS,
  of_dim,
)
from experiments.hubs_and_suspects.predictions import prediction_table
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
  VIEWS,
  WRONG,
  area,
  of_setting,
  recall,
  settings_of,
)

UNTUNED = (
  *("ζ, strength 1, fixed", "ζ, strength 0.5, fixed", "CSLS, k 10, fixed"),
  *("IS, τ, fixed", "IS, τ, strength 0.5, fixed", "QB-Norm, fixed"),
)
# Measured after the study, and not among the rivals of its decision.
LATER = ("DBSN", "DBSN, any strength", "DBSN, τ, fixed")
LATER += ("DBSN, published, fixed",)
FREE = ("ζ, any τ", "CSLS, any strength", "IS, any strength")
WITH_PRIOR = (
  *(PRIOR, "E + prior, any strength", "ζ + τ log p", "CSLS + τ log p"),
  *("IS + τ log p", "QB-Norm + τ log p", "CSLS, any strength + τ log p"),
  *("IS, any strength + τ log p",),
)
NATURAL = next(x for x in COLUMNS if x.startswith("natural: image"))
SCORES = (
  *(
    "own similarity",
    OURS,
    "match probability, images",
    "match probability, texts",
  ),
  *("match probability, ζ = 0", "margin", "margin, images", "margin, ζ = 0"),
  *("neighbours: overlap", "neighbours: captions", "neighbours: images"),
  *("neighbours: both", "LEMoN"),
)
OF_CLASSES = tuple(
  f"CL, {p}: {x}"
  for p in ("cross-validated", "zero-shot")
  for x in ("self-confidence", "adjusted margin", "flagged first")
)
NEAREST = ("image", "image + text", "image − density", "image − ζ", "gap")
RIVALS = (  # not told the classes, and without ζ
  *("own similarity", "neighbours: overlap", "neighbours: captions"),
  *("neighbours: images", "neighbours: both", "LEMoN"),
)
TOLD = "CL, cross-validated: self-confidence"
FLAGS = tuple(
  f"{who} threshold: {x}"
  for who in ("the page's", "cleanlab's")
  for x in ("precision", "recall")
)


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  rows = list(results.rows.values())
  return {
    "predictions": prediction_table(rows),
    "decision on hubs": hub_decision(rows),
    "decision on suspects": suspect_decision(rows),
    "hubs": hub_table(rows, (*TUNED, *FREE, *UNTUNED, *LATER), BASE),
    "hubs against ζ": hub_table(
      rows, (*TUNED[1:], *FREE, *UNTUNED, *LATER), "ζ"
    ),
    "hubs with log p": prior_table(rows),
    "hubs by model": model_table(rows),
    "hubs chosen": chosen_table(rows),
    **{f"suspects, {view}": suspect_table(rows, view) for view in VIEWS},
    **{
      f"suspects, {view}, against {OURS}": suspect_table(rows, view, OURS)
      for view in VIEWS
    },
    "suspects by model": suspects_by_model(rows),
    "duplicates": duplicate_table(rows),
    "class names": class_table(rows),
  }


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns paired differences that the text states and no table has.

  They are of zeta with a strength of 1 to zeta with 0.5 and to CSLS, all with
  fixed settings; of DBSN to CSLS; of scores of suspects to the match
  probability, by model; and of two shrinkages.
  """
  del options
  rows, found = list(results.rows.values()), {}
  pairs = [(UNTUNED[0], x) for x in UNTUNED[1:3]]
  pairs += [(LATER[0], "CSLS"), (LATER[-1], UNTUNED[2])]
  for column in COLUMNS:
    for name, base in pairs:
      ours, theirs = (recall(rows, column, x) for x in (name, base))
      found[f"{name} − {base}: {column}"] = paired(ours, theirs), 2
  for arm in TRAINED_ON_ERRORS:
    for errors in WRONG:
      for name in ("margin", "neighbours: both", "LEMoN"):
        ours, theirs = (
          area(rows, OWN, errors, x, arms=(arm,)) for x in (name, OURS)
        )
        found[f"own: {arm}, {errors}: {name} − {OURS}"] = (
          paired(ours, theirs),
          3,
        )
  ours, theirs = (area(rows, FAMILIAR, WRONG[0], x) for x in ("margin", OURS))
  found[f"{FAMILIAR}, {WRONG[0]}: margin − {OURS}"] = paired(ours, theirs), 4
  low, high = classes.SHRINKAGES[0], classes.SHRINKAGES[-1]
  for dim in DIMS:
    by_seed = of_setting(rows, CLASSES, of_dim(dim))
    for case in classes.CASES:
      ours, theirs = (
        {
          seed: row["classes"][case.name][classes.confidence(x)]
          for seed, row in by_seed.items()
          if case.name in row["classes"]
        }
        for x in (high, low)
      )
      name = f"{case.name}, {dim}: shrinkage {high} − {low}"
      found[name] = paired(ours, theirs), 3
  return {k: x.show_interval(n) for k, (x, n) in found.items() if x.count}


def shown(found: Statistics, digits: int = 1) -> str:
  """Formats a mean and its 95 % interval."""
  return found.show(digits) if found.count else "–"


def hub_table(rows: Sequence[Row], names: Sequence[str], base: str) -> str:
  """Shows differences of recall@1 to one score, means of the models."""
  first = [shown(statistics(recall(rows, x, base).values())) for x in COLUMNS]
  lines = [[f"{base}: %", *first]]
  for name in names:
    cells = [
      shown(paired(recall(rows, x, name), recall(rows, x, base)))
      for x in COLUMNS
    ]
    lines.append([name, *cells])
  return markdown.table(["correction", *COLUMNS], lines)


def hub_decision(rows: Sequence[Row]) -> str:
  """Shows ζ against the best rival of each column, tuned and not."""
  ours = {"tuned": "ζ", "fixed": UNTUNED[1]}
  rivals = {"tuned": TUNED[1:], "fixed": UNTUNED[2:]}
  lines = []
  for how, name in ours.items():
    for column in COLUMNS:
      found = recall(rows, column, name)
      best = best_of(rivals[how], lambda x, c=column: recall(rows, c, x))
      gains = [
        shown(paired(found, recall(rows, column, x)))
        for x in (BASE, rivals[how][0], best)
      ]
      lines.append([f"{how}: {column}", *gains[:2], best, gains[2]])
  header = ["queries", "ζ − E", "ζ − CSLS", "best rival", "ζ − best rival"]
  return markdown.table(header, lines)


def suspect_decision(rows: Sequence[Row]) -> str:
  """Shows the match probability against similarity, the best rival, and CL."""
  lines = []
  for view in VIEWS:
    for errors in WRONG:
      found = {x: area(rows, view, errors, x) for x in (OURS, TOLD, *RIVALS)}
      best = best_of(RIVALS, found.get)
      differences = [
        shown(paired(found[OURS], found[x]), 3) for x in (RIVALS[0], best, TOLD)
      ]
      lines.append(
        [f"{view}: {errors}", differences[0], best, *differences[1:]]
      )
  header = ["data", "− own similarity", "best rival", "− best rival", "− CL"]
  return markdown.table(header, lines)


def best_of(
  names: Sequence[str], values: Callable[[str], dict[int, float]]
) -> str:
  """Returns the name with the highest mean over seeds."""
  return max(names, key=lambda x: statistics(values(x).values()).mean)


def prior_table(rows: Sequence[Row]) -> str:
  """Shows natural queries with and without log p, image to text."""
  lines = []
  for name in (*TUNED, *FREE, *WITH_PRIOR):
    ours = recall(rows, NATURAL, name)
    lines.append(
      [
        name,
        shown(statistics(ours.values())),
        shown(paired(ours, recall(rows, NATURAL, BASE))),
        shown(paired(ours, recall(rows, NATURAL, PRIOR))),
      ]
    )
  header = ["score", "%", "− E", f"− ({PRIOR})"]
  return markdown.table(header, lines)


def model_table(rows: Sequence[Row]) -> str:
  """Shows each model's E, and what corrections gain."""
  lines = []
  for arm in ARMS:
    base = {x: recall(rows, x, BASE, arms=(arm,)) for x in COLUMNS}
    cells = [shown(statistics(x.values())) for x in base.values()]
    lines.append([f"{arm}, E: %", *cells])
    for name in TUNED:
      gains = (
        paired(recall(rows, x, name, arms=(arm,)), base[x]) for x in COLUMNS
      )
      lines.append([f"{arm}, {name}", *map(shown, gains)])
  return markdown.table(["model and correction", *COLUMNS], lines)


def chosen_table(rows: Sequence[Row]) -> str:
  """Shows the mean of the settings that validation chose."""
  names = {
    "ζ": ("ζ", "strength", 1.0),
    "ζ, any τ: strength": ("ζ, any τ", "strength", 1.0),
    "ζ, any τ: τ / τ of the training": ("ζ, any τ", "setting", 1.0),
    "CSLS: k": ("CSLS", "setting", 1.0),
    "CSLS, any strength: strength": ("CSLS, any strength", "strength", 1.0),
    "IS: temperature / τ": ("IS", "setting", 0.08),
    "IS, any strength: strength": ("IS, any strength", "strength", 1.0),
    "QB-Norm: temperature / τ": ("QB-Norm", "setting", 0.08),
    "QB-Norm: k": ("QB-Norm", "k", 1.0),
  }
  lines = []
  for shown_name, (name, key, unit) in names.items():
    cells = [
      [y[key] / unit for y in settings_of(rows, x, name)] for x in COLUMNS
    ]
    lines.append(
      [shown_name, *(f"{statistics(x).mean:.2f}" if x else "–" for x in cells)]
    )
  return markdown.table(["mean of the chosen", *COLUMNS], lines)


def suspect_table(rows: Sequence[Row], view: str, base: str = "") -> str:
  """Shows the AUPRC of wrong captions, or differences to one score."""
  lines = []
  for name in (*SCORES, *OF_CLASSES):
    if name == base:
      continue
    cells = []
    for errors in WRONG:
      ours = area(rows, view, errors, name)
      found = (
        paired(ours, area(rows, view, errors, base))
        if base
        else statistics(ours.values())
      )
      cells.append(shown(found, 3))
    lines.append([name, *cells])
  return markdown.table(["score", *WRONG], lines)


def suspects_by_model(rows: Sequence[Row]) -> str:
  """Shows the AUPRC of the main scores for each model at 5 % wrong."""
  names = (
    *("own similarity", OURS, "margin", "neighbours: both", "LEMoN"),
    "CL, cross-validated: self-confidence",
  )
  lines = []
  for view in VIEWS:
    for arm in TRAINED_ON_ERRORS if view == OWN else ARMS:
      cells = [
        shown(
          statistics(area(rows, view, WRONG[1], x, arms=(arm,)).values()), 3
        )
        for x in names
      ]
      lines.append([f"{view}: {arm}", *cells])
  return markdown.table(["model", *names], lines)


def class_table(rows: Sequence[Row]) -> str:
  """Shows the AUPRC of names by match probability, and classifiers' gain."""
  header, lines = ["data", "share"], {x.name: [x.name] for x in classes.CASES}
  for dim in DIMS:
    of_dim_rows = of_setting(rows, CLASSES, of_dim(dim))
    header += [f"{dim}: match probability"]
    header += [f"{dim}: shrinkage {x}" for x in classes.SHRINKAGES]
    for name, line in lines.items():
      found = {
        seed: row["classes"][name]
        for seed, row in of_dim_rows.items()
        if name in row["classes"]
      }

      def values(score, found=found):
        return {seed: x[score] for seed, x in found.items()}

      if dim == DIMS[0]:
        share = statistics(values(classes.SHARE).values())
        line.append(f"{share.mean:.3f}" if share.count else "–")
      ours = values(classes.OURS)
      line.append(shown(statistics(ours.values()), 3))
      for x in classes.SHRINKAGES:
        line.append(shown(paired(values(classes.confidence(x)), ours), 3))
  return markdown.table(header, list(lines.values()))


def duplicate_table(rows: Sequence[Row]) -> str:
  """Shows the AUPRC of duplicates, differences, and what thresholds find."""
  views = (OWN, FAMILIAR, UNFAMILIAR)

  def line(name: str, found: Callable[[str], Statistics]) -> list[str]:
    return [name, *(shown(found(view), 3) for view in views)]

  lines = []
  for name in NEAREST:
    lines.append(
      line(
        name,
        lambda view, name=name: statistics(
          area(rows, view, DUPLICATES, name).values()
        ),
      )
    )
  for name in NEAREST[1:]:
    lines.append(
      line(
        f"({name}) − (image)",
        lambda view, name=name: paired(
          area(rows, view, DUPLICATES, name),
          area(rows, view, DUPLICATES, NEAREST[0]),
        ),
      )
    )
  for name in FLAGS:
    lines.append(
      line(
        name,
        lambda view, name=name: statistics(
          area(rows, view, DUPLICATES, name).values()
        ),
      )
    )
  return markdown.table(["score", *views], lines)

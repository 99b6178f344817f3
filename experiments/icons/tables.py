"""The tables of README.md.

They work on an unfinished study too: a cell that is not measured has a dash.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np
from scipy import stats

from experiments.harness import Options, Results, Run, markdown
from experiments.harness.statistics import MISSING, statistics
from experiments.icons import plan
from experiments.icons.arms import ARMS, GRIDS, RHO
from experiments.icons.plan import CRITERION, Rows, Scale
from experiments.icons.planted import SCORES
from experiments.icons.scores import OF_SETS
from experiments.icons.zeta import BATCHES
from nuclr_jax import Sides

SPLITS = ("validation", "test")
SIDES = Sides._fields
REFERENCE = "clip"
PARTS_OF_QUERIES = ("natural", "balanced", "seen", "unseen", "no_copies")
COLUMNS = {
  f"{split} R@{k}": f"{split}/natural/mean_recall@{k}"
  for split in SPLITS
  for k in (1, 10)
}

ON_TEST = list(COLUMNS)[2:]
# What a reader should see first, in the words of one who knows CLIP.
FIRST_LOOK = {
  "clip": "InfoNCE",
  "siglip": "a logistic loss for each image and each name",
  "cyclip": "CLIP, and similarities that agree in both directions",
  "sogclr_batch": "CLIP whose denominators leave out the positive pair",
  "sogclr_batch_cyclic": "the two together",
  "sogclr": "as γ = 1, but denominators are averaged over epochs (γ = 0.8)",
  "nuclr_queue": "SogCLR with a learned popularity ζ of every sample",
  "scent": "SogCLR with a γ for each visit, which hardly averages here",
  "neuclip": "denominators from prototypes, without rows of samples",
  "amorlip": "denominators from networks, without rows of samples",
}


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  scale, rows = plan.scale_of(options), results.rows
  return {
    "status": status(results),
    "first look": first_look(plan.comparison(scale, rows), rows),
    "arms": arm_table(plan.comparison(scale, rows), rows, scale),
    "queries": query_table(plan.comparison(scale, rows), rows, scale),
    "learning rate": rate_table(scale, rows),
    "temperatures": temperature_table(scale, rows),
    "choice": choice_table(scale, rows),
    "batches": batch_table(scale, rows),
    "sizes": size_table(scale, rows),
    "batch rates": batch_rate_table(scale, rows),
    "averaged": averaged_table(scale, rows),
    "unmarked": part_table(scale, rows, plan.UNMARKED),
    "full size": part_table(scale, rows, plan.FULL),
    "what zeta follows": follows_table(scale, rows),
    "gradients": gradient_table(scale, rows),
    "noise": noise_table(scale, rows),
    "corrections": correction_table(scale, rows),
    "planted": planted_table(scale, rows),
    "frozen encoder": frozen_table(scale, rows),
  }


def status(results: Results) -> str:
  """Says how much has been run, and how fast."""
  done = list(results.rows.values())
  if not done:
    return f"No run of about {results.planned} has been done yet."
  seconds = sum(row["seconds"] for row in done) / 3600
  timed = [x["pairs_per_second"] for x in done if "pairs_per_second" in x]
  pace = sorted(timed)[len(timed) // 2] if timed else MISSING
  wrong = sum("diverged" in x for x in done)
  return (
    f"{len(done)} of about {results.planned} runs are done, in {seconds:.1f} "
    f"hours of a worker, with pauses (median: {pace} pairs a second); {wrong} "
    f"diverged.{_not_begun(results.rows)}"
  )


def first_look(groups: Mapping[str, Sequence[Run]], rows: Rows) -> str:
  """Shows some arms on test."""
  lines = [
    [ARMS[name].label, what]
    + [mean_of(groups.get(name, ()), rows, COLUMNS[x]) for x in ON_TEST]
    + against(groups, name, rows)[1:]
    for name, what in FIRST_LOOK.items()
  ]
  header = ["objective", "what it is", *ON_TEST, *AGAINST[1:]]
  return markdown.table(header, lines)


def begun(rows: Rows) -> tuple[str, ...]:
  """Returns the arms that have a run; only these are in the long tables."""
  found = {row["settings"]["arm"] for row in rows.values()}
  return tuple(x for x in ARMS if x in found)


def _not_begun(rows: Rows) -> str:
  names = [arm.label for x, arm in ARMS.items() if x not in begun(rows)]
  return f" Not begun: {'; '.join(names)}." if names else ""


def of_runs(runs: Sequence[Run], rows: Rows, metric: str) -> dict[int, float]:
  """Returns a metric in percent, by the seeds that have it."""
  return {
    run.seed: 100 * rows[run.key][metric]
    for run in runs
    if rows.get(run.key, {}).get(metric) is not None
  }


def mean_of(runs: Sequence[Run], rows: Rows, metric: str) -> str:
  """Formats the mean of a metric over seeds."""
  return show_mean(list(of_runs(runs, rows, metric).values()))


def difference(
  ours: Sequence[Run],
  theirs: Sequence[Run],
  rows: Rows,
  split: str,
  top: int,
) -> tuple[float, float, float] | None:
  """Returns the mean difference of natural recall, and its 95 % interval.

  Seeds and families of designers are both drawn from more: the variance is that
  over families, with all of their queries, by leaving out one at a time (the
  jackknife), plus that over seeds, which are paired. The interval is Student's,
  with Satterthwaite's degrees of freedom.

  Args:
    ours: The runs of one arm.
    theirs: The runs to compare with.
    rows: All rows.
    split: "validation" or "test".
    top: The k of recall@k; the mean of both directions is taken.

  Returns:
    Percentage points; None without two common seeds and two families.
  """
  pairs = [
    (a, b)
    for x in ours
    for y in theirs
    if x.seed == y.seed
    and (a := _of_sets(rows, x, split))
    and (b := _of_sets(rows, y, split))
  ]
  if len(pairs) < 2:
    return None
  sets = sorted(pairs[0][0])
  families = sorted({pairs[0][0][x][0] for x in sets})
  place = {x: i for i, x in enumerate(families)}
  columns = [2 + i for i, x in enumerate(OF_SETS) if x.endswith(f"@{top}")]
  queries = np.zeros(len(families))
  gains = np.zeros((len(pairs), len(families)))  # in correct answers
  for name in sets:
    at = place[pairs[0][0][name][0]]
    count = pairs[0][0][name][1]
    queries[at] += count
    for i, (a, b) in enumerate(pairs):
      gain = [a[name][c] - b[name][c] for c in columns]
      gains[i, at] += 100 * count * np.mean(gain)
  if len(families) < 2:
    return None
  of_seeds = gains.sum(1) / queries.sum()
  gain, mean = gains.mean(0), float(of_seeds.mean())
  without_one = (gain.sum() - gain) / (queries.sum() - queries)
  degrees = np.array([len(families) - 1, len(pairs) - 1])
  variances = np.array(
    [degrees[0] * without_one.var(), of_seeds.var(ddof=1) / len(pairs)]
  )
  variance = variances.sum()
  if not variance:
    return mean, mean, mean
  half = variance**0.5 * float(
    stats.t.ppf(0.975, variance**2 / np.sum(variances**2 / degrees))
  )
  return mean, mean - half, mean + half


def _of_sets(rows: Rows, run: Run, split: str) -> Mapping[str, list]:
  return rows.get(run.key, {}).get("sets", {}).get(split, {})


def show(found: tuple[float, float, float] | None) -> str:
  """Formats a difference and its interval, with a star if 0 is outside.

  Example:
    >>> show((1.0, 0.5, 1.5)), show(None)
    ('+1.00 [+0.50, +1.50] *', '–')
  """
  if found is None or any(map(math.isnan, found)):
    return MISSING
  mean, low, high = found
  star = " *" if low > 0 or high < 0 else ""
  return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]{star}"


def seeds(runs: Sequence[Run], rows: Rows) -> str:
  """Formats the number of runs that are done, and of those that diverged."""
  found = [rows[run.key] for run in runs if run.key in rows]
  wrong = sum("diverged" in x for x in found)
  return f"{len(found)} ({wrong} diverged)" if wrong else str(len(found))


def against(
  groups: Mapping[str, Sequence[Run]], name: str, rows: Rows
) -> list[str]:
  """Formats an arm's differences to CLIP: R@10 of validation, R@1 and test."""
  if name == REFERENCE:
    return [""] * 3
  ours, theirs = groups.get(name, ()), groups.get(REFERENCE, ())
  return [
    show(difference(ours, theirs, rows, *x))
    for x in (("validation", 10), ("test", 1), ("test", 10))
  ]


AGAINST = ["− CLIP, validation R@10", "− CLIP, test R@1", "− CLIP, test R@10"]


def arm_table(
  groups: Mapping[str, Sequence[Run]],
  rows: Rows,
  scale: Scale,
) -> str:
  """Shows arms: their tuned number, recall, and differences to CLIP."""
  lines = []
  for name in begun(rows):
    runs, value = groups.get(name, ()), plan.tuned(scale, name, rows)
    number = MISSING if value is None else f"{value:g}"
    if value is not None and ARMS[name].tuned == RHO:
      number = f"ρ {number}"
    cells = [mean_of(runs, rows, x) for x in COLUMNS.values()]
    more = [*against(groups, name, rows), seeds(runs, rows)]
    lines.append([ARMS[name].label, number, *cells, *more])
  return markdown.table(["arm", "τ", *COLUMNS, *AGAINST, "seeds"], lines)


def query_table(
  groups: Mapping[str, Sequence[Run]], rows: Rows, scale: Scale
) -> str:
  """Shows test R@10 by kinds of queries and by direction."""
  metrics = {
    x.replace("_", " "): f"test/{x}/mean_recall@10" for x in PARTS_OF_QUERIES
  }
  metrics |= {
    "image → text": "test/natural/image_to_text/recall@10",
    "text → image": "test/natural/text_to_image/recall@10",
  }
  lines = [
    [
      ARMS[name].label,
      *(mean_of(groups.get(name, ()), rows, x) for x in metrics.values()),
    ]
    for name in begun(rows)
  ]
  return markdown.table(["arm", *metrics], lines)


def rate_table(scale: Scale, rows: Rows) -> str:
  """Shows the trials of the learning rate."""
  lines = []
  for rate, runs in plan.rate_runs(scale).items():
    cells = [mean_of([run], rows, CRITERION) for run in runs]
    found = [
      x for run in runs for x in of_runs([run], rows, CRITERION).values()
    ]
    mean = f"{np.mean(found):.2f}" if len(found) == len(runs) else MISSING
    lines.append([f"{rate:g}", *cells, mean])
  labels = [ARMS[x].label for x in plan.RATE_ARMS]
  return markdown.table(["learning rate", *labels, "mean"], lines)


def by_value(scale: Scale, name: str, rows: Rows) -> dict[float, float]:
  """Returns an arm's trials on the first tuning seed, in percent, by value."""
  return {
    value: x
    for value, runs in plan.trials(scale, name, rows).items()
    for x in of_runs(runs, rows, CRITERION).values()
  }


def temperature_table(scale: Scale, rows: Rows) -> str:
  """Shows all trials: validation R@10 on the first tuning seed."""
  lines = []
  for name in begun(rows):
    arm = ARMS[name]
    found, grid = by_value(scale, name, rows), GRIDS[arm.tuned]
    cells = [f"{found[x]:.2f}" if x in found else MISSING for x in grid]
    label = arm.label
    if arm.tuned == RHO:
      label += f" (ρ = {', '.join(f'{x:g}' for x in grid)})"
    lines.append([label, *cells, _range(found.values(), len(grid))])
  header = [f"τ {x:g}" for x in GRIDS["τ"]]
  return markdown.table(["arm", *header, "range"], lines)


def _range(values, count: int) -> str:
  """Formats the greatest less the smallest of `count` values."""
  values = list(values)
  return f"{max(values) - min(values):.2f}" if len(values) == count else MISSING


def choice_table(scale: Scale, rows: Rows) -> str:
  """Shows how much the choice of τ matters beside that of the arm.

  All numbers are of the trials: one seed, validation R@10.
  """
  lines = []
  for label, names, least in (
    ("the first five arms", scale.first, len(scale.first)),
    ("all arms with their trials", tuple(ARMS), 2),
  ):
    found = {x: by_value(scale, x, rows) for x in names}
    found = {k: x for k, x in found.items() if len(x) == scale.trials}
    if len(found) < least:
      lines.append([label, *[MISSING] * 4])
      continue
    whole = [list(x.values()) for x in found.values()]
    ranges = [max(x) - min(x) for x in whole]
    beside = [sorted(x)[-1] - sorted(x)[-2] for x in whole]
    best = [max(x) for x in whole]
    at_middle = [x[plan.MIDDLE] for x in found.values() if plan.MIDDLE in x]
    numbers = (
      *(np.mean(ranges), np.mean(beside), max(best) - min(best)),
      max(at_middle) - min(at_middle),
    )
    lines.append([label, *(f"{x:.2f}" for x in numbers)])
  header = ["τ: range in an arm", "τ: best − second", "arms: range, tuned"]
  return markdown.table(["", *header, "arms: range at τ 0.08"], lines)


def batch_sizes(scale: Scale) -> list[int]:
  """Returns all batch sizes that arms are trained with, sorted."""
  return sorted({scale.batch_size, *scale.other_batches})


def size_table(scale: Scale, rows: Rows) -> str:
  """Shows differences to CLIP of `Scale.table`, by batch size."""
  sizes = sorted((*scale.table_batches, scale.batch_size))
  groups = {size: plan.at_batch(scale, size, rows) for size in sizes}
  lines = []
  for name in scale.table:
    if plan.tuned(scale, name, rows) is None:
      continue
    found = {x: against(groups[x], name, rows)[1:] for x in sizes}
    line = [found[size][i] for i in range(2) for size in sizes]
    runs = [groups[size].get(name, ()) for size in sizes]
    counts = "/".join(seeds(x, rows) for x in runs)
    lines.append([ARMS[name].label, *line, counts])
  header = [f"R@{top} at {size}" for top in (1, 10) for size in sizes]
  return markdown.table(["arm", *header, "seeds"], lines)


def batch_table(scale: Scale, rows: Rows) -> str:
  """Shows arms at several batch sizes, with the learning rate of each."""
  lines = []
  for size in batch_sizes(scale):
    groups = plan.at_batch(scale, size, rows)
    of_size = _lines(groups, rows, plan.BATCH_ARMS, str(size))
    for line, name in zip(of_size, plan.BATCH_ARMS, strict=True):
      runs = groups.get(name, ())
      lines.append([*line[:2], _rate(runs), *line[2:]])
  return markdown.table(["batch", "arm", "rate", *HEADER[1:]], lines)


def _rate(runs: Sequence[Run]) -> str:
  return f"{dict(runs[0].values)['rate']:.3g}" if runs else MISSING


def batch_rate_table(scale: Scale, rows: Rows) -> str:
  """Shows the trials of the learning rate at other batch sizes."""
  trials = {
    (size, name): plan.batch_trials(scale, name, size, rows)
    for size in sorted(scale.other_batches)
    for name in plan.BATCH_ARMS
  }
  factors = sorted({*scale.factors}.union(*trials.values()))
  lines = [
    [str(size), ARMS[name].label]
    + [mean_of(found.get(x, ()), rows, CRITERION) for x in factors]
    for (size, name), found in trials.items()
  ]
  header = [f"{x:g} × the root" for x in factors]
  return markdown.table(["batch", "arm", *header], lines)


def averaged_groups(
  scale: Scale, rows: Rows
) -> dict[tuple[int, int, int], dict[str, list[Run]]]:
  """Returns runs by the pairs of a step, a denominator, a normalization."""
  small, count = scale.averaged
  large = small * count
  return {
    (small, small, small): plan.at_batch(scale, small, rows),
    (large, small, small): plan.at_batch(scale, small, rows, count),
    (large, large, small): plan.in_pieces(scale, rows),
    (large, large, large): plan.at_batch(scale, large, rows),
  }


def averaged_table(scale: Scale, rows: Rows) -> str:
  """Shows arms that step with the mean gradient of several batches."""
  groups, lines = averaged_groups(scale, rows), []
  small = groups[(scale.averaged[0],) * 3]
  for name in plan.AVERAGED_ARMS:
    for sizes, arms in groups.items():
      runs = arms.get(name, ())
      line = [ARMS[name].label, *map(str, sizes), _rate(runs)]
      line += [mean_of(runs, rows, COLUMNS[x]) for x in HEADER[1:4]]
      line += [
        show(difference(runs, small.get(name, ()), rows, "test", top))
        if arms is not small
        else ""
        for top in (1, 10)
      ]
      lines.append([*line, seeds(runs, rows)])
  header = ["arm", "pairs of a step", "of a denominator", "of a normalization"]
  header.append("rate")
  more = [f"− {scale.averaged[0]} of all, test R@{top}" for top in (1, 10)]
  return markdown.table([*header, *HEADER[1:4], *more, "seeds"], lines)


HEADER = ["arm", "validation R@10", "test R@1", "test R@10", *AGAINST, "seeds"]


def _lines(
  groups: Mapping[str, Sequence[Run]],
  rows: Rows,
  names: Sequence[str],
  *first: str,
) -> list[list[str]]:
  """Makes lines of arms with the columns `HEADER`."""
  return [
    [
      *(*first, ARMS[name].label),
      *(mean_of(groups.get(name, ()), rows, COLUMNS[x]) for x in HEADER[1:4]),
      *against(groups, name, rows),
      seeds(groups.get(name, ()), rows),
    ]
    for name in names
  ]


def part_table(scale: Scale, rows: Rows, part: str) -> str:
  """Shows arms in a part of the study: the first ones, and others if tuned."""
  groups = plan.comparison(scale, rows, part)
  first = scale.full if part == plan.FULL else scale.first
  names = [*first, *(x for x in groups if x not in first)]
  return markdown.table(HEADER, _lines(groups, rows, names))


def nested(runs: Sequence[Run], rows: Rows, *keys: str) -> list[float]:
  """Returns a number that lies deep in rows, of the runs that have it."""
  found = []
  for run in runs:
    x: Any = rows.get(run.key)
    for key in keys:
      x = None if x is None else x.get(key)
    if x is not None:
      found.append(x)
  return found


def show_mean(values: Sequence[float], digits: int = 2) -> str:
  """Formats the mean of values over seeds."""
  return statistics(values).show(digits) if values else MISSING


def follows_table(scale: Scale, rows: Rows) -> str:
  """Shows exact ζ of the looked-at models: spread, what it follows, learned."""
  columns = {
    "sd of ζ / τ, texts": ("sd", "text"),
    "images": ("sd", "image"),
    "learned, texts": ("agreement", "text", "pearson"),
    "learned, images": ("agreement", "image", "pearson"),
    "log counts, texts": ("follows", "text", "frequency"),
    "look-alikes, texts": ("follows", "text", "look-alikes"),
    "look-alikes, images": ("follows", "image", "look-alikes"),
    "steps of the solver": ("solve", "iterations"),
  }
  groups = plan.comparison(scale, rows, plan.LOOKS)
  lines = []
  for name in scale.first:
    runs = groups.get(name, ())
    cells = [
      show_mean(nested(runs, rows, "look", *x)) for x in columns.values()
    ]
    lines.append([ARMS[name].label, *cells, seeds(runs, rows)])
  return markdown.table(["arm", *columns, "seeds"], lines)


def gradient_table(scale: Scale, rows: Rows) -> str:
  """Shows errors of mean gradients: learned ζ, stored u, batches."""
  groups, lines = plan.comparison(scale, rows, plan.LOOKS), []
  size = str(scale.batch_size)
  for name in scale.first:
    runs, cells = groups.get(name, ()), []
    for side in SIDES:
      of_side = ("look", "gradient", side)
      cells += [
        show_mean(nested(runs, rows, *of_side, x))
        for x in ("zeta", "stored", "log u")
      ]
      cells.append(show_mean(nested(runs, rows, *of_side, "batch", size)))
    lines.append([ARMS[name].label, *cells])
  header = [
    f"{x}, {side}s"
    for side in SIDES
    for x in ("ζ", "ζ and u", "rms of log u", f"batch of {size}")
  ]
  return markdown.table(["arm", *header], lines)


def noise_table(scale: Scale, rows: Rows) -> str:
  """Shows the error and the noise of a batch's gradient, by its size."""
  groups, lines = plan.comparison(scale, rows, plan.LOOKS), []
  names = [x for x in plan.RATE_ARMS if x in scale.first]
  for size in map(str, BATCHES):
    cells = []
    for name in names:
      runs = groups.get(name, ())
      bias = ("batch", size) if name == REFERENCE else ("stored",)
      for keys in (bias, ("noise", size)):
        of_sides = [
          nested(runs, rows, "look", "gradient", side, *keys) for side in SIDES
        ]
        cells.append(show_mean(np.mean(of_sides, axis=0).tolist()))
    lines.append([size, *cells])
  header = [f"{ARMS[x].label}: {y}" for x in names for y in ("error", "noise")]
  return markdown.table(["batch", *header], lines)


CORRECTIONS = {
  "E": "",
  "E − ζ / 2": "hubs_zeta_0.5/",
  "CSLS": "hubs_csls/",
  "E + τ log p": "prior/",
}


def correction_table(scale: Scale, rows: Rows) -> str:
  """Shows test R@10 of the looked-at models, plain and corrected."""
  groups, lines = plan.comparison(scale, rows, plan.LOOKS), []
  for name in scale.first:
    runs = groups.get(name, ())
    cells = [
      show_mean(
        [
          100 * x
          for x in nested(
            runs, rows, "look", "retrieval", f"{way}{part}/mean_recall@10"
          )
        ]
      )
      for part in ("natural", "balanced")
      for way in CORRECTIONS.values()
    ]
    lines.append([ARMS[name].label, *cells])
  header = [f"{x}, {y}" for y in ("natural", "balanced") for x in CORRECTIONS]
  return markdown.table(["arm", *header], lines)


OF_SUSPECTS = {
  "area, ROC": "roc",
  "average precision": "average precision",
  "precision at 5 %": "precision",
}


def planted_table(scale: Scale, rows: Rows) -> str:
  """Shows how well scores find wrong names that were planted."""
  groups, lines = plan.comparison(scale, rows, plan.PLANTED), []
  for name in (x for x in plan.RATE_ARMS if x in scale.first):
    runs = groups.get(name, ())
    for score in SCORES:
      cells = [
        show_mean(nested(runs, rows, "suspects", score, x), 3)
        for x in OF_SUSPECTS.values()
      ]
      lines.append([ARMS[name].label, score, *cells, seeds(runs, rows)])
  header = ["trained with", "score", *OF_SUSPECTS, "seeds"]
  return markdown.table(header, lines)


def frozen_table(scale: Scale, rows: Rows) -> str:
  """Shows arms with the frozen encoder: seen and unseen names."""
  groups = plan.comparison(scale, rows, plan.FROZEN)
  scratch, lines = plan.comparison(scale, rows), []
  kinds = [f"test/{x}/mean_recall@10" for x in ("natural", "seen", "unseen")]
  for name in (x for x in plan.RATE_ARMS if x in scale.first):
    runs = groups.get(name, ())
    cells = [
      mean_of(x.get(name, ()), rows, kind)
      for kind in kinds
      for x in (scratch, groups)
    ]
    lines.append(
      [
        ARMS[name].label,
        *cells,
        *against(groups, name, rows),
        seeds(runs, rows),
      ]
    )
  header = [
    f"{x}{y}"
    for x in ("natural", "seen", "unseen")
    for y in (", from scratch", ", frozen")
  ]
  return markdown.table(["arm", *header, *AGAINST, "seeds"], lines)


def by_set(
  groups: Mapping[str, Sequence[Run]], name: str, rows: Mapping, split: str
) -> dict[str, tuple[int, float]]:
  """Returns queries and mean difference to CLIP in R@10 of each set."""
  found: dict[str, list[float]] = {}
  counts: dict[str, int] = {}
  columns = [2 + i for i, x in enumerate(OF_SETS) if x.endswith("@10")]
  theirs = {x.seed: x for x in groups.get(REFERENCE, ())}
  for run in groups.get(name, ()):
    ours = _of_sets(rows, run, split)
    if run.seed not in theirs:
      continue
    other = _of_sets(rows, theirs[run.seed], split)
    for x in ours.keys() & other.keys():
      gain = np.mean([ours[x][c] - other[x][c] for c in columns])
      found.setdefault(x, []).append(100 * float(gain))
      counts[x] = ours[x][1]
  return {x: (counts[x], float(np.mean(v))) for x, v in found.items()}

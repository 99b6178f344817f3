"""The tables of README.md.

They work on an unfinished study too; every table shows its numbers of seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import math

import numpy as np

from experiments.bimodal import plan
from experiments.bimodal.algorithms import ALGORITHMS
from experiments.bimodal.plan import CRITERION, Rows, Scale
from experiments.bimodal.summary import MEAN, diverged, seeds, values
from experiments.harness import Options, Results, Row, Run, markdown
from experiments.harness.statistics import MISSING, paired, statistics

REFERENCE = "NUCLR"  # all differences are this algorithm minus another
COLUMNS = {
  "image → text": "test/image_to_text/recall@1",
  "text → image": "test/text_to_image/recall@1",
  "mean R@1": MEAN,
  "script": "test/zero_shot_script/mean_per_class",
  "digits": "test/zero_shot_digits/top1",
}
COLUMNS["mean of the four"] = [x for x in COLUMNS.values() if x != MEAN]
BOTH_SPLITS = {"validation R@1": CRITERION, "test R@1": MEAN}
COMPARED = (  # by `numbers`
  *("CLIP", "CyCLIP", "SogCLR", "NUCLR", "NUCLR, queue"),
  "NUCLR-† (ζ fixed)",
)
MAIN = ("CLIP", "SogCLR", "NUCLR")
GAP = f"{REFERENCE} − it [95 %]"


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  scale, rows = plan.scale_of(options), results.rows
  return {
    "status": status(results),
    "tuning": tuning_table(scale, rows),
    "comparison": comparison_table(scale, rows),
    "differences": difference_table(scale, rows),
    "batch sizes": batch_size_table(scale, rows),
    **{
      f"comparison at {size}": comparison_table(scale, rows, size)
      for size in scale.batch_sizes
    },
    "regimes": regime_table(scale, rows),
    "ablations": ablation_table(scale, rows),
    "estimators": estimator_table(scale, rows),
  }


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns means and paired differences that the text states, by name.

  "128: NUCLR: digits" is a mean over seeds, and
  "τ = 0.03: SogCLR − CLIP: mean R@1" a difference with its interval. So are
  "running averages: SogCLR with γ = 1 − CLIP: digits", of rows from before
  batch statistics were recomputed, as those of γ = 1 all are, and
  "official, 0.0003 − paper, 0.0003: correlation, texts" of learned with exact
  ζ.
  """
  scale, rows = plan.scale_of(options), results.rows
  groups = {
    str(size): plan.comparison(scale, rows, size)
    for size in (plan.BATCH_SIZE, *scale.batch_sizes)
  } | plan.regimes(scale, rows)
  groups["ablations"] = plan.ablations(scale, rows)
  columns = COLUMNS | {"validation R@1": CRITERION}
  found = {}
  for group, by_label in groups.items():
    by_label = {k: x for k, x in by_label.items() if k in COMPARED}
    for column, metric in columns.items():
      scores = {k: values(x, rows, metric) for k, x in by_label.items()}
      for label, ours in scores.items():
        found[f"{group}: {label}: {column}"] = mean_of(ours)
        for other, theirs in scores.items():
          difference = paired(ours, theirs).show_interval()
          found[f"{group}: {label} − {other}: {column}"] = difference
    for label in by_label.keys() & {"NUCLR", "NUCLR, queue"}:
      for side in ("image", "text"):
        name = f"{group}: {label}: correlation, {side}s"
        found[name] = correlation(by_label[label], rows, side)
  if long := groups.get("24 epochs"):
    clip, plain = long["CLIP"], groups["24 epochs, γ = 1"]["SogCLR"]
    difference = paired(values(clip, rows, MEAN), values(plain, rows, MEAN))
    name = "24 epochs: CLIP − SogCLR with γ = 1: mean R@1"
    found[name] = difference.show_interval()
  tuned = groups[str(plan.BATCH_SIZE)]
  if main := [values(tuned[x], rows, MEAN) for x in MAIN if x in tuned]:
    pairs = [paired(*x) for x in itertools.combinations(main, 2)]
    bound = max((abs(x.mean) + x.half_width for x in pairs), default=math.nan)
    found["128: CLIP, SogCLR, NUCLR: farthest end of an interval"] = (
      f"{bound:.1f}"
    )
  cells = difference_table(scale, rows).splitlines()[2:]
  found["differences: cells"] = str(sum(x.count("[") for x in cells))
  old = plan.running_averages()
  new = {key: rows[key] for key in old if key in rows}
  if new:
    found["running averages: falls"] = _falls(old[key] for key in new)
    found["recomputed: falls"] = _falls(new.values())
    for name, metric in BOTH_SPLITS.items():
      moved = paired(
        *({k: 100 * x[k][metric] for k in new} for x in (new, old))
      )
      found[f"recomputed − running averages: {name}"] = moved.show_interval()
  found |= without_averages(groups, rows, old)
  found |= between_estimators(scale, rows | old)
  tuned = groups[str(plan.BATCH_SIZE)].get(REFERENCE, ())
  ablated = plan.ablations(scale, rows)
  for label, runs in ablated.items():
    ours, theirs = (values(x, old, MEAN) for x in (ablated["NUCLR"], runs))
    difference = paired(ours, theirs).show_interval()
    name = f"running averages: NUCLR − {label}: mean R@1"
    found[name] = difference
  for side in ("image", "text"):
    spread_of = values(tuned, rows, f"exact/exact_std_{side}").values()
    mean = statistics(spread_of).mean / 100
    found[f"exact ζ: std {side}s"] = f"{mean:.3f}"
  return found


def without_averages(
  groups: Mapping[str, Mapping[str, Sequence[Run]]], rows: Rows, old: Rows
) -> dict[str, str]:
  """Compares γ = 1 at batch 128 with CLIP and with the γ of all others.

  Args:
    groups: The runs, by regime and label.
    rows: All rows.
    old: The rows of `plan.running_averages`, which are those compared with.
  """
  differences = {}
  tuned = groups[str(plan.BATCH_SIZE)]
  for label, runs in groups.get("γ = 1", {}).items():
    name = f"{label} with γ = 1"
    for column, metric in COLUMNS.items():
      plain = values(runs, rows, metric)
      clip, averaged = (
        values(tuned.get(x, ()), old, metric) for x in ("CLIP", label)
      )
      for words, difference in (
        (f"{name} − CLIP", paired(plain, clip)),
        (f"{label} − {name}", paired(averaged, plain)),
      ):
        text = difference.show_interval()
        differences[f"running averages: {words}: {column}"] = text
  return differences


def between_estimators(scale: Scale, rows: Rows) -> dict[str, str]:
  """Compares how ζ of "official", at its largest rate, and others correlate.

  Args:
    scale: How much of the study is run.
    rows: All rows; with running averages where there are such, since the
      estimators' own rows have them.
  """
  differences, runs = {}, plan.estimators(scale, rows)
  ours, *others = (("official", 3e-4), ("paper", 3e-4), ("unbiased", 1e-2))
  for side in ("text", "image"):
    of = {
      (label, rate): {
        seed: percent / 100
        for seed, percent in values(
          runs.get(label, {}).get(rate, ()), rows, f"exact/pearson_{side}"
        ).items()
      }
      for label, rate in (ours, *others)
    }
    for other in others:
      names = " − ".join(f"{label}, {rate:g}" for label, rate in (ours, other))
      text = paired(of[ours], of[other]).show_interval(digits=2)
      differences[f"{names}: correlation, {side}s"] = text
  return differences


def _falls(rows: Iterable[Row]) -> str:
  """Formats the largest fall of a curve, and the curves that fall by 2 points.

  Falls are from one epoch to the next, in points of validation recall.
  """
  largest = [
    max(100 * (x - y) for x, y in itertools.pairwise(row["curve"][CRITERION]))
    for row in rows
  ]
  return f"{max(largest):.1f} {sum(x > 2 for x in largest)}"


def status(results: Results) -> str:
  """Summarizes how much was run, and by which commits."""
  done = list(results.rows.values())
  every = [*done, *results.earlier]
  about = "" if len(done) == results.planned else "about "
  hours = sum(row["seconds"] for row in every) / 3600
  wrong = sum("diverged" in row for row in done)
  commits = sorted({row["commit"] for row in done if "commit" in row})
  return (
    f"{len(done)} of {about}{results.planned} runs are done, "
    f"{wrong} of them diverged; {hours:.1f} process hours with the "
    f"{len(results.earlier)} of earlier plans; commits {', '.join(commits)}."
  )


def mean_of(by_seed: Mapping[int, float], digits: int = 1) -> str:
  """Formats the mean over seeds ± half of its 95 % interval."""
  return statistics(by_seed.values()).show(digits)


def tuning_table(scale: Scale, rows: Rows) -> str:
  """Shows what was tuned, what won, and how much it mattered."""
  lines = []
  for name in scale.algorithms:
    algorithm = ALGORITHMS[name]
    done = [run for run in plan.trials(scale, name) if run.key in rows]
    scores = [100 * plan.score(run, rows) for run in done]
    winner = plan.best(scale, name, rows)
    final = plan.finals(scale, name, rows).get(winner, ())
    fixed = plan.settings(algorithm.fixed)
    chosen = tuple(x for x in winner or () if x not in fixed)
    lines.append(
      [
        algorithm.label,
        f"`{plan.words(chosen)}`" if winner else MISSING,
        mean_of(values(final, rows, CRITERION)),
        f"{max(scores):.1f}" if scores else MISSING,
        f"{np.median(scores):.1f}" if scores else MISSING,
        f"{min(scores):.1f}" if scores else MISSING,
        str(len(done)),
      ]
    )
  header = "algorithm, best settings, final, best trial, median, worst, trials"
  return markdown.table(header.split(", "), lines)


def against_reference(
  groups: Mapping[str, Sequence[Run]], rows: Rows, columns: Mapping
) -> list[list[str]]:
  """Makes a line for each label: metrics, the paired difference, seeds."""
  lines = []
  for label, runs in groups.items():
    cells = [mean_of(values(runs, rows, name)) for name in columns.values()]
    cells.append(gap(groups, label, rows, MEAN))
    lines.append([label, *cells, seeds(runs, rows)])
  return lines


def gap(
  groups: Mapping[str, Sequence[Run]],
  label: str,
  rows: Rows,
  metric: str | Sequence[str],
) -> str:
  """Formats how far the reference is ahead; a dash if runs diverged."""
  ours = groups.get(REFERENCE, ())
  if label == REFERENCE:
    return ""
  if any(diverged([*ours, *groups[label]], rows)):
    return MISSING
  theirs = values(groups[label], rows, metric)
  return paired(values(ours, rows, metric), theirs).show_interval()


def comparison_table(
  scale: Scale, rows: Rows, batch_size: int = plan.BATCH_SIZE
) -> str:
  """Shows every algorithm on the test characters, at one batch size."""
  groups = plan.comparison(scale, rows, batch_size)
  lines = against_reference(groups, rows, COLUMNS)
  return markdown.table(["algorithm", *COLUMNS, GAP, "seeds"], lines)


def difference_table(scale: Scale, rows: Rows) -> str:
  """Shows paired differences at batch 128 in every metric."""
  groups = plan.comparison(scale, rows)
  lines = [
    [label, *(gap(groups, label, rows, x) for x in COLUMNS.values())]
    for label in groups
    if label != REFERENCE
  ]
  return markdown.table([f"{REFERENCE} −", *COLUMNS], lines)


def batch_size_table(scale: Scale, rows: Rows) -> str:
  """Shows mean R@1 at every batch size, over the seeds that all sizes have."""
  sizes = sorted((plan.BATCH_SIZE, *scale.batch_sizes))
  cells, gaps = {}, {}
  for size in sizes:
    groups = {
      label: [run for run in runs if run.seed in plan.SEEDS]
      for label, runs in plan.comparison(scale, rows, size).items()
    }
    column = {"test R@1": MEAN}
    for label, x, ahead, _ in against_reference(groups, rows, column):
      cells.setdefault(label, []).append(x)
      gaps.setdefault(label, []).append(ahead)
  header = ["algorithm", *(f"batch {size}" for size in sizes)]
  header += [f"{REFERENCE} − it at {size}" for size in sizes]
  lines = [
    [x, *cells[x], *gaps[x]] for x in cells if len(cells[x]) == len(sizes)
  ]
  return markdown.table(header, lines)


def regime_table(scale: Scale, rows: Rows) -> str:
  """Shows CLIP, SogCLR, NUCLR where stored denominators should matter."""
  lines = [
    [regime, *line]
    for regime, groups in plan.regimes(scale, rows).items()
    for line in against_reference(groups, rows, BOTH_SPLITS)
  ]
  return markdown.table(
    ["regime", "algorithm", *BOTH_SPLITS, GAP, "seeds"], lines
  )


def ablation_table(scale: Scale, rows: Rows) -> str:
  """Shows Figure 4 and Table 3 in numbers."""
  lines = against_reference(plan.ablations(scale, rows), rows, BOTH_SPLITS)
  return markdown.table(["variant", *BOTH_SPLITS, GAP, "seeds"], lines)


def estimator_table(scale: Scale, rows: Rows) -> str:
  """Shows estimators of the gradient of zeta, at every rate."""
  lines = []
  for label, rates in plan.estimators(scale, rows).items():
    for rate, runs in rates.items():
      cells = [mean_of(values(runs, rows, x)) for x in BOTH_SPLITS.values()]
      for side in ("text", "image"):
        cells += [correlation(runs, rows, side), spread(runs, rows, side)]
      lines.append([label, f"{rate:g}", *cells, seeds(runs, rows)])
  header = ["estimator", "ζ rate", *BOTH_SPLITS]
  for side in ("texts", "images"):
    header += [f"correlation, {side}", f"spread, {side}"]
  return markdown.table([*header, "seeds"], lines)


def correlation(runs: Sequence[Run], rows: Rows, side: str) -> str:
  """Formats Pearson's correlation of learned and exact zeta, over seeds."""
  percents = values(runs, rows, f"exact/pearson_{side}")
  return mean_of({seed: x / 100 for seed, x in percents.items()}, digits=2)


def spread(runs: Sequence[Run], rows: Rows, side: str) -> str:
  """Formats the ratio of the standard deviations of learned and exact zeta."""
  learned = values(runs, rows, f"exact/learned_std_{side}")
  exact = values(runs, rows, f"exact/exact_std_{side}")
  return mean_of({seed: x / exact[seed] for seed, x in learned.items()}, 2)

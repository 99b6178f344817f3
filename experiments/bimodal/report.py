"""Writes the tables and figures of README.md from runs.csv and curves.csv.

python experiments/bimodal/report.py

Works on an unfinished study too; every table says how many seeds it has.
"""

import pathlib

from algorithms import ALGORITHMS
import figures
import numpy as np
import study
from summary import MEAN, difference, diverged, mean_std, seeds, values
import tables

from nuclr_jax import markdown, records

HERE = pathlib.Path(__file__).resolve().parent
README = HERE / "README.md"
REFERENCE = "NUCLR"  # differences are taken against it
COLUMNS = {
  "image → text": "test/image_to_text/recall@1",
  "text → image": "test/text_to_image/recall@1",
  "mean R@1": MEAN,
  "script": "test/zero_shot_script/mean_per_class",
  "digits": "test/zero_shot_digits/top1",
}
COLUMNS["mean of the four"] = [x for x in COLUMNS.values() if x != MEAN]
BOTH_SPLITS = {"validation R@1": study.CRITERION, "test R@1": MEAN}
GAP = f"{REFERENCE} − it [95 %]"


def tuning_table(results) -> str:
  """What was tuned, what won, and how much it mattered."""
  rows = []
  for name, algorithm in ALGORITHMS.items():
    done = [run for run in study.trials(name) if run.key in results]
    scores = [100 * study.score(run, results) for run in done]
    winner = study.best(name, results)
    final = study.finals(name, results).get(winner, ())
    fixed = study.settings(algorithm.fixed)
    chosen = tuple(x for x in winner or () if x not in fixed)
    rows.append(
      [
        algorithm.label,
        f"`{study.Run(name, chosen).variant}`" if winner else "–",
        mean_std(values(final, results, study.CRITERION)),
        f"{max(scores):.1f}" if scores else "–",
        f"{np.median(scores):.1f}" if scores else "–",
        f"{min(scores):.1f}" if scores else "–",
        str(len(done)),
      ]
    )
  header = "algorithm, best settings, final, best trial, median, worst, trials"
  return markdown.table(header.split(", "), rows)


def against_reference(groups, results, columns) -> list[list[str]]:
  """A row for each label: metrics, the paired difference, seeds."""
  rows = []
  for label, runs in groups.items():
    cells = [mean_std(values(runs, results, name)) for name in columns.values()]
    cells.append(gap(groups, label, results, MEAN))
    rows.append([label, *cells, seeds(runs, results)])
  return rows


def gap(groups, label: str, results, metric) -> str:
  """How far the reference is ahead; nothing if runs diverged."""
  ours = groups.get(REFERENCE, ())
  if label == REFERENCE:
    return ""
  if any(diverged([*ours, *groups[label]], results)):
    return "–"
  theirs = values(groups[label], results, metric)
  return difference(values(ours, results, metric), theirs)


def comparison_table(results, batch_size: int = study.BATCH_SIZE) -> str:
  """Every algorithm at one batch size on the test characters."""
  groups = study.comparison(results, batch_size)
  rows = against_reference(groups, results, COLUMNS)
  return markdown.table(["algorithm", *COLUMNS, GAP, "seeds"], rows)


def difference_table(results) -> str:
  """Paired differences at batch 128 in every metric."""
  groups = study.comparison(results)
  rows = [
    [label, *(gap(groups, label, results, x) for x in COLUMNS.values())]
    for label in groups
    if label != REFERENCE
  ]
  return markdown.table([f"{REFERENCE} −", *COLUMNS], rows)


def batch_size_table(results) -> str:
  """Mean R@1 at every batch size, on the seeds that all sizes have."""
  sizes = sorted((study.BATCH_SIZE, *study.OTHER_BATCH_SIZES))
  cells, gaps = {}, {}
  for size in sizes:
    groups = {
      label: [run for run in runs if run.seed in study.SEEDS]
      for label, runs in study.comparison(results, size).items()
    }
    column = {"test R@1": MEAN}
    for label, x, ahead, _ in against_reference(groups, results, column):
      cells.setdefault(label, []).append(x)
      gaps.setdefault(label, []).append(ahead)
  header = ["algorithm", *(f"batch {size}" for size in sizes)]
  header += [f"{REFERENCE} − it at {size}" for size in sizes]
  return markdown.table(header, [[x, *cells[x], *gaps[x]] for x in cells])


def regime_table(results) -> str:
  """CLIP, SogCLR and NUCLR where stored denominators should matter."""
  rows = [
    [regime, *row]
    for regime, groups in study.regimes(results).items()
    for row in against_reference(groups, results, BOTH_SPLITS)
  ]
  return markdown.table(
    ["regime", "algorithm", *BOTH_SPLITS, GAP, "seeds"], rows
  )


def ablation_table(results) -> str:
  """Figure 4 and Table 3 in numbers."""
  rows = against_reference(study.ablations(results), results, BOTH_SPLITS)
  return markdown.table(["variant", *BOTH_SPLITS, GAP, "seeds"], rows)


def estimator_table(results) -> str:
  """Estimators of the gradient of zeta, at every rate."""
  rows = []
  for label, rates in study.estimators(results).items():
    for rate, runs in rates.items():
      cells = [mean_std(values(runs, results, x)) for x in BOTH_SPLITS.values()]
      for side in ("text", "image"):
        cells += [correlation(runs, results, side), spread(runs, results, side)]
      rows.append([label, f"{rate:g}", *cells, seeds(runs, results)])
  header = ["estimator", "ζ rate", *BOTH_SPLITS]
  for side in ("texts", "images"):
    header += [f"correlation, {side}", f"spread, {side}"]
  return markdown.table([*header, "seeds"], rows)


def correlation(runs, results, side: str) -> str:
  """Pearson's correlation of learned and exact zeta, over seeds."""
  found = values(runs, results, f"exact/pearson_{side}")
  return mean_std({seed: x / 100 for seed, x in found.items()}, digits=2)


def spread(runs, results, side: str) -> str:
  """Standard deviation of learned zeta over that of exact zeta."""
  learned = values(runs, results, f"exact/learned_std_{side}")
  exact = values(runs, results, f"exact/exact_std_{side}")
  return mean_std({seed: x / exact[seed] for seed, x in learned.items()}, 2)


def main() -> None:
  """Writes the figures, and the tables between their marks in README.md."""
  rows = tables.read(tables.RUNS)
  results = tables.index(rows)
  figures.draw_curves(results, tables.read(tables.CURVES))
  figures.draw_temperatures(results)
  figures.draw_ablations(results)
  figures.draw_rates(results)
  plan = study.plan(results)
  done = [results[run.key] for run in plan if run.key in results]
  total = len(plan) if len(done) == len(plan) else f"about {study.size()}"
  hours = sum(float(row["seconds"]) for row in rows) / 3600
  wrong = sum(bool(row.get("diverged")) for row in done)
  commits = sorted({row["commit"] for row in done})
  parts = {
    "status": f"{len(done)} of {total} runs are done, "
    f"{wrong} of them diverged; {hours:.1f} process hours with the "
    f"{len(rows) - len(done)} of earlier plans; commits {', '.join(commits)}.",
    "tuning": tuning_table(results),
    "comparison": comparison_table(results),
    "differences": difference_table(results),
    "batch sizes": batch_size_table(results),
    **{
      f"comparison at {size}": comparison_table(results, size)
      for size in study.OTHER_BATCH_SIZES
    },
    "regimes": regime_table(results),
    "ablations": ablation_table(results),
    "estimators": estimator_table(results),
  }
  text = markdown.insert(README.read_text(encoding="utf-8"), parts)
  records.write_atomically(README, text)
  print(f"{README}: {parts['status']}")


if __name__ == "__main__":
  main()

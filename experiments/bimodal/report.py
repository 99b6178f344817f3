"""Writes the tables and figures of README.md from runs.csv and curves.csv.

python experiments/bimodal/report.py

Works on an unfinished study too; every table says how many seeds it has.
"""

from collections.abc import Sequence
import pathlib
import re

from algorithms import ALGORITHMS
from matplotlib.figure import Figure
import numpy as np
from scipy import stats
import study
import tables

from nuclr_jax import records

HERE = pathlib.Path(__file__).resolve().parent
README = HERE / "README.md"
REFERENCE = "NUCLR"  # differences are taken against it
MEAN = "test/mean_recall@1"
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


def values(
  runs: Sequence[study.Run], results, metric: str | Sequence[str]
) -> dict[int, float]:
  """A metric, or the mean of several, in percent by seed, of the runs done."""
  names = [metric] if isinstance(metric, str) else metric
  found = {}
  for run in runs:
    row = results.get(run.key, {})
    if all(row.get(name) for name in names):
      found[run.seed] = 100 * float(np.mean([float(row[x]) for x in names]))
  return found


def mean_std(found: dict[int, float], digits: int = 1) -> str:
  """Mean and standard deviation over seeds in words."""
  x = list(found.values())
  if not x:
    return "–"
  spread = f" ± {np.std(x, ddof=1):.{digits}f}" if len(x) > 1 else ""
  return f"{np.mean(x):.{digits}f}{spread}"


def difference(ours: dict[int, float], theirs: dict[int, float]) -> str:
  """Paired difference over common seeds, with a 95 % confidence interval."""
  seeds = sorted(ours.keys() & theirs.keys())
  if len(seeds) < 2:
    return "–"
  d = np.array([ours[seed] - theirs[seed] for seed in seeds])
  half = stats.t.ppf(0.975, len(d) - 1) * np.std(d, ddof=1) / len(d) ** 0.5
  mark = " *" if abs(d.mean()) > half else ""
  return (
    f"{d.mean():+.1f} [{d.mean() - half:+.1f}, {d.mean() + half:+.1f}]{mark}"
  )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table."""
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
  return table(header.split(", "), rows)


def against_reference(groups, results, columns) -> list[list[str]]:
  """A row for each label: metrics, the paired difference, seeds."""
  ours = values(groups.get(REFERENCE, ()), results, MEAN)
  rows = []
  for label, runs in groups.items():
    cells = [mean_std(values(runs, results, name)) for name in columns.values()]
    mean = values(runs, results, MEAN)
    gap = "" if label == REFERENCE else difference(ours, mean)
    rows.append([label, *cells, gap, str(len(mean))])
  return rows


def comparison_table(results) -> str:
  """Every algorithm at batch 128 on the test characters."""
  rows = against_reference(study.comparison(results), results, COLUMNS)
  return table(["algorithm", *COLUMNS, GAP, "seeds"], rows)


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
    for label, x, gap, _ in against_reference(groups, results, column):
      cells.setdefault(label, []).append(x)
      gaps.setdefault(label, []).append(gap)
  header = ["algorithm", *(f"batch {size}" for size in sizes)]
  header += [f"{REFERENCE} − it at {size}" for size in sizes]
  return table(header, [[x, *cells[x], *gaps[x]] for x in cells])


def regime_table(results) -> str:
  """CLIP, SogCLR and NUCLR where stored denominators should matter."""
  rows = [
    [regime, *row]
    for regime, groups in study.regimes(results).items()
    for row in against_reference(groups, results, BOTH_SPLITS)
  ]
  return table(["regime", "algorithm", *BOTH_SPLITS, GAP, "seeds"], rows)


def ablation_table(results) -> str:
  """Figure 4 and Table 3 in numbers."""
  rows = against_reference(study.ablations(results), results, BOTH_SPLITS)
  return table(["variant", *BOTH_SPLITS, GAP, "seeds"], rows)


def estimator_table(results) -> str:
  """Estimators of the gradient of zeta, at every rate."""
  rows = []
  for label, rates in study.estimators(results).items():
    for rate, runs in rates.items():
      cells = [mean_std(values(runs, results, x)) for x in BOTH_SPLITS.values()]
      cells += [correlation(runs, results, side) for side in ("text", "image")]
      seeds = len(values(runs, results, MEAN))
      rows.append([label, f"{rate:g}", *cells, str(seeds)])
  correlations = ("correlation, texts", "correlation, images")
  header = ["estimator", "ζ rate", *BOTH_SPLITS, *correlations, "seeds"]
  return table(header, rows)


def correlation(runs, results, side: str) -> str:
  """Pearson's correlation of learned and exact zeta, over seeds."""
  found = values(runs, results, f"exact/pearson_{side}")
  return mean_std({seed: x / 100 for seed, x in found.items()}, digits=2)


def curves_figure(results, curves) -> None:
  """Figure 3: validation recall over epochs, with standard errors."""
  figure = Figure(figsize=(5, 3.5), layout="constrained")
  axes = figure.subplots()
  groups = study.comparison(results)
  for label in ("CLIP", "SogCLR", "NUCLR"):
    keys = {run.key for run in groups.get(label, ())}
    by_epoch = {}
    for point in curves:
      if tables.key_of(point) in keys:
        recall = 100 * float(point[study.CRITERION])
        by_epoch.setdefault(float(point["epoch"]), []).append(recall)
    x = sorted(by_epoch)
    y = np.array([np.mean(by_epoch[epoch]) for epoch in x])
    error = np.array([stats.sem(by_epoch[epoch]) for epoch in x])
    (line,) = axes.plot(x, y, label=label)
    color = line.get_color()
    axes.fill_between(x, y - error, y + error, alpha=0.2, color=color)
  axes.set(xlabel="epoch", ylabel="validation mean R@1, %")
  save(figure, axes, "curves.png")


def ablation_figure(results) -> None:
  """Figure 4: what each part of NUCLR does, with standard errors."""
  figure = Figure(figsize=(5, 3.5), layout="constrained")
  axes = figure.subplots()
  for i, (label, runs) in enumerate(study.ablations(results).items()):
    found = list(values(runs, results, MEAN).values())
    if len(found) > 1:
      axes.errorbar(i, np.mean(found), stats.sem(found), fmt="o", label=label)
  axes.set(xticks=[], ylabel="test mean R@1, %")
  save(figure, axes, "ablations.png")


def rate_figure(results) -> None:
  """Recall and agreement with the exact popularity over the rate of zeta."""
  figure = Figure(figsize=(11, 3.5), layout="constrained")
  panels = {
    MEAN: "test mean R@1, %",
    "exact/pearson_text": "correlation, texts",
    "exact/pearson_image": "correlation, images",
  }
  all_axes = figure.subplots(1, len(panels))
  for axes, (metric, title) in zip(all_axes, panels.items(), strict=True):
    factor = 1 if metric == MEAN else 100
    for label, rates in study.estimators(results).items():
      found = {
        rate: list(values(runs, results, metric).values())
        for rate, runs in rates.items()
      }
      found = {rate: x for rate, x in found.items() if x}
      larger = label in ("paper", "official")
      scale = study.NUM_PAIRS / study.BATCH_SIZE if larger else 1
      axes.plot(
        [rate * scale for rate in found],
        [np.mean(x) / factor for x in found.values()],
        "o-",
        label=label,
      )
    axes.set(xscale="log", title=title)
    axes.set_xlabel("ζ rate (paper, official: × n/B)")
  save(figure, all_axes[0], "rates.png")


def save(figure: Figure, axes, name: str) -> None:
  """Saves a figure beside this file, with a legend if there is anything."""
  if axes.get_legend_handles_labels()[0]:
    axes.legend(fontsize=8)
  figure.savefig(HERE / name, dpi=120)


def main() -> None:
  """Writes the figures, and the tables between their marks in README.md."""
  rows = tables.read(tables.RUNS)
  results = tables.index(rows)
  curves_figure(results, tables.read(tables.CURVES))
  ablation_figure(results)
  rate_figure(results)
  done = [results[x.key] for x in study.plan(results) if x.key in results]
  hours = sum(float(row["seconds"]) for row in done) / 3600
  diverged = sum(bool(row.get("diverged")) for row in done)
  commits = sorted({row["commit"] for row in done})
  parts = {
    "status": f"{len(done)} of about {study.size()} runs are done, "
    f"{diverged} of them diverged; {hours:.1f} process hours; "
    f"commits {', '.join(commits)}.",
    "tuning": tuning_table(results),
    "comparison": comparison_table(results),
    "batch sizes": batch_size_table(results),
    "regimes": regime_table(results),
    "ablations": ablation_table(results),
    "estimators": estimator_table(results),
  }
  text = README.read_text()
  for name, part in parts.items():
    mark = f"<!-- {name} -->"
    pattern = f"{mark}.*?<!-- end -->"
    if not re.search(pattern, text, re.DOTALL):
      raise ValueError(f"{README} lacks {mark} ... <!-- end -->")
    new = f"{mark}\n{part}\n<!-- end -->"
    text = re.sub(pattern, lambda _, new=new: new, text, flags=re.DOTALL)
  records.write_atomically(README, text)
  print(f"{README}: {parts['status']}")


if __name__ == "__main__":
  main()

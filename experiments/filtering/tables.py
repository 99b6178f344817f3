"""The tables and the figure of README.md."""

from collections.abc import Mapping

import numpy as np

from experiments.filtering import plan
from experiments.filtering.errors import KINDS
from experiments.filtering.scores import ONCE, SHARES
from experiments.harness import Options, Results, markdown, plots
from experiments.harness.statistics import paired, statistics

SCORES = (
  plan.SIMILARITY,
  f"{plan.LIKELIHOOD}, 1 small batch",
  f"{plan.LIKELIHOOD}, 10 small batches",
  plan.LIKELIHOOD,
  f"{plan.EXACT}, of a sample",
  plan.EXACT,
  f"{plan.SIMILARITY}, {ONCE}",
  f"{plan.EXACT}, {ONCE}",
)
FEW_SCORES = (  # of other data
  plan.SIMILARITY,
  plan.LIKELIHOOD,
  plan.EXACT,
  f"{plan.SIMILARITY}, {ONCE}",
  f"{plan.EXACT}, {ONCE}",
)
PRECISION, AVERAGE = "precision", "average precision"
OF_ERRORS = (PRECISION, AVERAGE, f"− {plan.SIMILARITY}, precision", "seeds")
OF_TRAININGS = ("wrong", "R@1", "R@10", f"− {plan.SIMILARITY}, R@1", "seeds")


def found(
  results: Results, kind: str, score: str, data: str | None = None
) -> dict[int, Mapping]:
  """Returns what a score finds of errors of a kind, by seed.

  Args:
    results: The rows.
    kind: One of `KINDS`.
    score: One of `SCORES`.
    data: One of `plan.OTHERS`; None = icons.
  """
  setting = (plan.OTHER, data) if data else (plan.SCORES, plan.SCORER)
  rows = results.by_seed(*setting)
  return {seed: row["found"][kind][score] for seed, row in rows.items()}


def percent(rows: Mapping[int, Mapping], name: str) -> dict[int, float]:
  """Returns a number of each row in percent, by seed."""
  return {seed: 100 * row[name] for seed, row in rows.items()}


def trained(
  results: Results, label: str, kind: str, name: str
) -> dict[int, Mapping]:
  """Returns the trainings on what a filter kept, by seed."""
  if name == plan.RIGHT:
    kind = KINDS[0]
  return results.by_seed(plan.TRAINING, f"{label}, {kind}, {name}")


def trained_elsewhere(
  results: Results, data: str, kind: str, name: str
) -> dict[int, Mapping]:
  """Returns the trainings on what a filter kept of other data, by seed."""
  if name == plan.RIGHT:
    kind = KINDS[0]
  key, rows = plan.kept_of(kind, name), results.by_seed(plan.OTHER, data)
  return {seed: row["trained"][key] for seed, row in rows.items()}


def tables(options: Options, results: Results) -> dict[str, str]:
  """Returns all tables, by mark."""
  del options
  return {
    "errors": error_table(results),
    "noise": noise_table(results),
    "training": training_table(results),
    "others": others_table(results),
    "others_training": others_training_table(results),
  }


def error_table(results: Results) -> str:
  """Says how well each score finds errors of each kind."""
  header = ["errors", "score", *OF_ERRORS]
  lines = [
    [kind, score, *of_errors(results, kind, score)]
    for kind in KINDS
    for score in SCORES
  ]
  return markdown.table(header, lines)


def others_table(results: Results) -> str:
  """Says how well scores find errors in other data."""
  header = ["data", "errors", "score", *OF_ERRORS]
  lines = [
    [data, kind, score, *of_errors(results, kind, score, data)]
    for data in plan.OTHERS
    for kind in KINDS
    for score in FEW_SCORES
  ]
  return markdown.table(header, lines)


def of_errors(
  results: Results, kind: str, score: str, data: str | None = None
) -> list[str]:
  """Returns the cells of `OF_ERRORS`."""
  rows = found(results, kind, score, data)
  first = found(results, kind, plan.SIMILARITY, data)
  of, others = (percent(x, PRECISION) for x in (rows, first))
  return [
    statistics(of.values()).show(),
    statistics(percent(rows, AVERAGE).values()).show(),
    "" if score == plan.SIMILARITY else paired(of, others).show_interval(),
    str(len(rows)),
  ]


def noise_table(results: Results) -> str:
  """Compares each score with exact weights."""
  header = ["score"]
  header += [f"{x}: {y}" for x in KINDS for y in ("overlap", "ranks")]
  lines = []
  for score in SCORES:
    line = [score]
    for kind in KINDS:
      rows = found(results, kind, score)
      line.append(statistics(percent(rows, "overlap").values()).show())
      of_ranks = [row["rank correlation"] for row in rows.values()]
      line.append(statistics(of_ranks).show(digits=3))
    lines.append(line)
  return markdown.table(header, lines)


def training_table(results: Results) -> str:
  """Compares trainings on what each filter kept."""
  header = ["errors", "trained on", "objective", *OF_TRAININGS]
  lines = []
  for kind in KINDS:
    for name in plan.FILTERS:
      for label in plan.OBJECTIVES.values():
        rows, first = (
          trained(results, label, kind, x) for x in (name, plan.SIMILARITY)
        )
        lines.append([kind, name, label, *of_trainings(rows, first, name)])
  return markdown.table(header, lines)


def others_training_table(results: Results) -> str:
  """Compares trainings on what each filter kept of other data."""
  header = ["data", "errors", "trained on", *OF_TRAININGS]
  lines = []
  for data in plan.OTHERS:
    rows = results.by_seed(plan.OTHER, data)
    scores = (statistics(x[k] for x in rows.values()) for k in ("R@1", "R@10"))
    shown = [x.show(digits=2) for x in scores]
    lines.append(
      [data, "–", "the model that scores", "", *shown, "", str(len(rows))]
    )
    for kind in KINDS:
      for name in plan.FILTERS:
        rows, first = (
          trained_elsewhere(results, data, kind, x)
          for x in (name, plan.SIMILARITY)
        )
        lines.append([data, kind, name, *of_trainings(rows, first, name)])
  return markdown.table(header, lines)


def of_trainings(
  rows: Mapping[int, Mapping], first: Mapping[int, Mapping], name: str
) -> list[str]:
  """Returns the cells of `OF_TRAININGS`; `first` are those by similarity."""
  top, others = (
    {seed: row["R@1"] for seed, row in x.items()} for x in (rows, first)
  )
  return [
    statistics(percent(rows, "wrong").values()).show(),
    statistics(top.values()).show(digits=2),
    statistics(x["R@10"] for x in rows.values()).show(digits=2),
    ""
    if name == plan.SIMILARITY
    else paired(top, others).show_interval(digits=2),
    str(len(rows)),
  ]


def figures(options: Options, results: Results):
  """Draws the share of errors among what is kept, over the kept share."""
  del options
  figure = plots.new_figure()
  axes = figure.subplots(1, len(KINDS), sharey=True)
  shown = (
    plan.SIMILARITY,
    plan.LIKELIHOOD,
    plan.EXACT,
    f"{plan.EXACT}, {ONCE}",
  )
  for axis, kind in zip(axes, KINDS, strict=True):
    for color, score in zip(plots.COLORS, shown, strict=False):
      curves = [x["wrong"] for x in found(results, kind, score).values()]
      if curves:
        share, mean = 100 * np.array(SHARES), 100 * np.mean(curves, axis=0)
        axis.plot(share, mean, color=color, label=score, marker=".")
    axis.set_title(kind)
    axis.set_xlabel("% kept")
  axes[0].set_ylabel("% of them wrong")
  axes[-1].legend(fontsize=7)
  return {"wrong.png": figure}

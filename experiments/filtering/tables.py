"""The tables, the figure and other numbers of README.md."""

from collections.abc import Mapping
import csv
import re

import numpy as np

from experiments.filtering import plan
from experiments.filtering.errors import KINDS, PHRASES
from experiments.filtering.scores import ONCE, SHARES
from experiments.harness import Options, Results, markdown, plots
from experiments.harness.statistics import Statistics, paired, statistics
from experiments.icons import judged

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
ICONS = "icons"
R1, R10 = "R@1", "R@10"
PRECISION, AVERAGE = "precision", "average precision"
OF_ERRORS = (PRECISION, AVERAGE, f"− {plan.SIMILARITY}, precision", "seeds")
OF_TRAININGS = ("wrong", R1, R10, f"− {plan.SIMILARITY}, R@1", "seeds")


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


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns means, paired differences and counts that the text states, by name.

  "letters, swapped: similarity: wrong at 50 %" says how many of the pairs that
  are kept are wrong, in percent, where half of the pairs are kept, and
  "letters, swapped: exact weight − similarity: wrong at 50 %" is a difference.
  "letters, unreadable: similarity, each text once − exact weight: precision" is
  one of a score that has each text once, to all scores that do not.
  "swapped, CLIP: exact weight − negCLIPLoss: R@1" compares trainings on what
  the two keep, and "swapped, everything: NUCLR − CLIP: R@10" the objectives;
  "swapped: NUCLR − CLIP, everything − all that is right: R@10" is the
  difference of two such differences.
  """
  del options
  return {
    **wrong_at_shares(results),
    **gains_by_once(results),
    **between_trainings(results),
    **score_gains(results),
    **counts(results),
  }


def wrong_at_shares(results: Results) -> dict[str, str]:
  """Says how many of the kept pairs are wrong, at each share that is kept."""
  numbers = {}
  for name, data in data_names().items():
    for kind in KINDS:
      first = found(results, kind, plan.SIMILARITY, data)
      for score in FEW_SCORES:
        rows = found(results, kind, score, data)
        for i, share in enumerate(SHARES):
          of, others = (
            {seed: 100 * row["wrong"][i] for seed, row in x.items()}
            for x in (rows, first)
          )
          at = f"wrong at {100 * share:.0f} %"
          cells = {score: statistics(of.values()).show()}
          if score != plan.SIMILARITY:
            difference = paired(of, others).show_interval()
            cells[f"{score} − {plan.SIMILARITY}"] = difference
          numbers |= {f"{name}, {kind}: {k}: {at}": x for k, x in cells.items()}
  return numbers


def gains_by_once(results: Results) -> dict[str, str]:
  """Compares scores that have each text once with those that do not."""
  numbers = {}
  for name, data in data_names().items():
    for kind in KINDS:
      of = {
        score: percent(found(results, kind, score, data), PRECISION)
        for score in FEW_SCORES
      }
      for score in (x for x in FEW_SCORES if ONCE in x):
        for other in plan.CHOSEN:
          gain = paired(of[score], of[other]).show_interval()
          numbers[f"{name}, {kind}: {score} − {other}: {PRECISION}"] = gain
  return numbers


def between_trainings(results: Results) -> dict[str, str]:
  """Compares two scores by what is trained on them, and two objectives."""
  labels = tuple(plan.OBJECTIVES.values())
  first, second = plan.EXACT, plan.LIKELIHOOD
  numbers = {}
  for kind in KINDS:
    for label in labels:
      difference = training_difference(results, label, kind, first, second)
      numbers[f"{kind}, {label}: {first} − {second}: {R1}"] = (
        difference.show_interval(digits=2)
      )
    for metric in (R1, R10):
      ahead = {}
      for name in plan.FILTERS:
        clip, nuclr = (
          {seed: row[metric] for seed, row in rows.items()}
          for rows in (trained(results, x, kind, name) for x in labels)
        )
        common = clip.keys() & nuclr.keys()
        ahead[name] = {seed: nuclr[seed] - clip[seed] for seed in common}
        numbers[f"{kind}, {name}: NUCLR − CLIP: {metric}"] = statistics(
          ahead[name].values()
        ).show_interval(digits=2)
      more = paired(ahead[plan.EVERYTHING], ahead[plan.RIGHT])
      words = f"{plan.EVERYTHING} − {plan.RIGHT}"
      numbers[f"{kind}: NUCLR − CLIP, {words}: {metric}"] = more.show_interval(
        digits=2
      )
  return numbers


def training_difference(
  results: Results, label: str, kind: str, name: str, other: str
) -> Statistics:
  """Compares the R@1 after trainings on what two filters kept of icons."""
  ours, theirs = (
    {seed: row[R1] for seed, row in rows.items()}
    for rows in (trained(results, label, kind, x) for x in (name, other))
  )
  return paired(ours, theirs)


def score_gains(results: Results) -> dict[str, str]:
  """Counts the differences of a score to similarity in R@1 after training."""
  differences = [
    training_difference(results, label, kind, score, plan.SIMILARITY)
    for kind in KINDS
    for label in plan.OBJECTIVES.values()
    for score in (plan.LIKELIHOOD, plan.EXACT)
  ]
  ends = [(x.mean - x.half_width, x.mean + x.half_width) for x in differences]
  return {
    "scores − similarity, R@1: all": str(len(differences)),
    "scores − similarity, R@1: above 0": str(sum(x > 0 for x, _ in ends)),
    "scores − similarity, R@1: below 0": str(sum(x < 0 for _, x in ends)),
  }


def counts(results: Results) -> dict[str, str]:
  """Counts pairs, and names of icons that have a phrase of `PHRASES` in them.

  The names are the random ones of experiments/icons/judged.csv.
  """
  rows = results.by_seed(plan.OTHER, plan.CLIP_ART).values()
  pairs = {
    name: {x["trained"][plan.kept_of(KINDS[0], name)]["pairs"] for x in rows}
    for name in (plan.EVERYTHING, plan.RANDOM)
  }
  with judged.TABLE.open(encoding="utf-8", newline="") as file:
    names = [x["name"] for x in csv.DictReader(file) if x["suspect"] == "0"]
  phrase = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b")
  return {
    f"{plan.CLIP_ART}: {name}: pairs": " ".join(f"{x:,}" for x in sorted(of))
    for name, of in pairs.items()
  } | {
    "random names of icons": str(len(names)),
    "random names of icons with a phrase": str(
      sum(bool(phrase.search(x)) for x in names)
    ),
    "random names of icons that are a phrase": str(
      sum(x in PHRASES for x in names)
    ),
  }


def data_names() -> dict[str, str | None]:
  """Returns the argument `data` of `found`, by the name of the data."""
  return {ICONS: None} | {x: x for x in plan.OTHERS}


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
    scores = (statistics(x[k] for x in rows.values()) for k in (R1, R10))
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
    {seed: row[R1] for seed, row in x.items()} for x in (rows, first)
  )
  return [
    statistics(percent(rows, "wrong").values()).show(),
    statistics(top.values()).show(digits=2),
    statistics(x[R10] for x in rows.values()).show(digits=2),
    ""
    if name == plan.SIMILARITY
    else paired(top, others).show_interval(digits=2),
    str(len(rows)),
  ]


def figures(options: Options, results: Results):
  """Draws the share of errors among the icons kept, over the kept share."""
  del options
  figure = plots.new_figure()
  axes = figure.subplots(1, len(KINDS), sharey=True)
  shown = (
    plan.SIMILARITY,
    plan.LIKELIHOOD,
    plan.EXACT,
    f"{plan.SIMILARITY}, {ONCE}",
    f"{plan.EXACT}, {ONCE}",
  )
  seeds = 0
  for axis, kind in zip(axes, KINDS, strict=True):
    for color, score in zip(plots.COLORS, shown, strict=False):
      curves = [x["wrong"] for x in found(results, kind, score).values()]
      seeds = max(seeds, len(curves))
      if curves:
        share, mean = 100 * np.array(SHARES), 100 * np.mean(curves, axis=0)
        axis.plot(share, mean, color=color, label=score, marker=".")
    axis.set_title(kind)
    axis.set_xlabel("% kept")
  axes[0].set_ylabel("% of them wrong")
  axes[-1].legend(fontsize=7)
  words = f"icons; means over {seeds} seeds, without their intervals"
  figure.supxlabel(words, fontsize=9)
  return {"wrong.png": figure}

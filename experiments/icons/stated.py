"""Differences that the text of README.md states, by name."""

from collections.abc import Mapping, Sequence
import itertools

import numpy as np

from experiments.harness import Options, Results, Run
from experiments.harness.statistics import paired
from experiments.icons import plan, tables
from experiments.icons.arms import ARMS
from experiments.icons.plan import MAIN, Rows
from experiments.icons.planted import SCORES

PARTS = (MAIN, plan.UNMARKED, plan.FROZEN, plan.FULL)
LARGE = 200  # queries of a set whose sign is counted
AT_ONE = "validation/natural/mean_recall@1"


def numbers(options: Options, results: Results) -> dict[str, str]:
  """Returns differences between arms in points.

  Such as "arms: SogCLR − CLIP: test R@10", or "batch 64: ..." for those at that
  size; with ", seeds alone" the interval is Student's t over seeds. "arms:
  SogCLR − CLIP: other sign" counts the test sets with at least `LARGE` queries
  whose difference has another sign than the mean. "arms: SogCLR − CLIP: test
  R@1, seen, seeds alone" is of a kind of queries, "zeta: CLIP: E + τ log p − E:
  natural R@1, seeds alone" of a correction, and "tuning: R@1: τ: range in an
  arm" is what `tables.choice_table` has of R@10. "averaged: CLIP: steps: test
  R@10" is what larger steps gain with the denominators of small batches, with
  "denominators" what larger ones add, and with "normalization" what batch
  normalization over larger batches adds to that.
  "unmarked − marked: CLIP: test R@10" is what an arm gains where equal captions
  are not marked; with ", balanced, seeds alone" for other queries.
  "planted: CLIP: neighbours: both − match probability: average precision, seeds
  alone" compares scores of suspects, not in points but from 0 to 1.
  """
  scale, rows, found = plan.scale_of(options), results.rows, {}
  compared = {part: plan.comparison(scale, rows, part) for part in PARTS}
  for size in tables.batch_sizes(scale):
    compared[f"batch {size}"] = plan.at_batch(scale, size, rows)
  for part, groups in compared.items():
    for ours, x in groups.items():
      for theirs, y in groups.items():
        if ours == theirs:
          continue
        name = f"{part}: {ARMS[ours].label} − {ARMS[theirs].label}: "
        for column, metric in tables.COLUMNS.items():
          split, top = column.split(" R@")
          shown = tables.show(tables.difference(x, y, rows, split, int(top)))
          found[f"{name}{column}"] = shown
          found[f"{name}{column}, seeds alone"] = _of_seeds(x, y, rows, metric)
        for kind in tables.PARTS_OF_QUERIES[1:]:
          metric = f"test/{kind}/mean_recall@1"
          shown = _of_seeds(x, y, rows, metric)
          found[f"{name}test R@1, {kind}, seeds alone"] = shown
        if theirs == tables.REFERENCE:
          found[f"{name}other sign"] = _other_sign(groups, ours, rows)
  found |= _unmarked(compared, rows)
  found |= _averaged(scale, rows)
  found |= _planted(scale, rows)
  return found | _corrections(scale, rows) | _tuning(scale, rows)


def _unmarked(
  compared: Mapping[str, Mapping[str, Sequence[Run]]], rows: Rows
) -> dict[str, str]:
  """Returns what arms gain if equal captions are not marked."""
  found = {}
  for name, ours in compared[plan.UNMARKED].items():
    theirs, label = compared[MAIN].get(name, ()), ARMS[name].label
    for top in (1, 10):
      key = f"unmarked − marked: {label}: test R@{top}"
      gain = tables.difference(ours, theirs, rows, "test", top)
      found[key] = tables.show(gain)
      for kind in tables.PARTS_OF_QUERIES:
        metric = f"test/{kind}/mean_recall@{top}"
        shown = _of_seeds(ours, theirs, rows, metric)
        found[f"{key}, {kind}, seeds alone"] = shown
  return found


def _averaged(scale: plan.Scale, rows: Rows) -> dict[str, str]:
  """Returns what larger steps gain, and what the rest of a batch adds."""
  small, steps, pieces, large = tables.averaged_groups(scale, rows).values()
  return {
    f"averaged: {ARMS[name].label}: {label}: test R@{top}": tables.show(
      tables.difference(
        ours.get(name, ()), theirs.get(name, ()), rows, "test", top
      )
    )
    for name in plan.AVERAGED_ARMS
    for label, ours, theirs in (
      ("steps", steps, small),
      ("denominators", pieces, steps),
      ("normalization", large, pieces),
    )
    for top in (1, 10)
  }


def _planted(scale: plan.Scale, rows: Rows) -> dict[str, str]:
  """Returns how much better one score finds planted names than another."""
  found = {}
  for name, runs in plan.comparison(scale, rows, plan.PLANTED).items():
    for ours, theirs in itertools.permutations(SCORES, 2):
      label = f"{plan.PLANTED}: {ARMS[name].label}: {ours} − {theirs}"
      for column, metric in tables.OF_SUSPECTS.items():
        of_scores = (
          {
            run.seed: x
            for run in runs
            for x in tables.nested([run], rows, "suspects", score, metric)
          }
          for score in (ours, theirs)
        )
        shown = paired(*of_scores).show_interval(4)
        found[f"{label}: {column}, seeds alone"] = shown
  return found


def _of_seeds(
  ours: Sequence[Run], theirs: Sequence[Run], rows: Rows, metric: str
) -> str:
  values = (tables.of_runs(x, rows, metric) for x in (ours, theirs))
  return paired(*values).show_interval(2)


# Ways to score that are compared, each with the arm that was trained; no arm is
# that of the line.
COMPARED = (
  (("E − ζ / 2", None), ("E", None)),
  (("CSLS", None), ("E", None)),
  (("E + τ log p", None), ("E", None)),
  (("E − ζ / 2", None), ("CSLS", None)),
  (("E", None), ("E + τ log p", tables.REFERENCE)),
)


def _corrections(scale: plan.Scale, rows: Rows) -> dict[str, str]:
  """Returns what corrections after training gain, by seeds alone."""
  found, looks = {}, plan.comparison(scale, rows, plan.LOOKS)

  def of(way: str, name: str, metric: str) -> dict[int, float]:
    key = tables.CORRECTIONS[way] + metric
    scores = {
      run.seed: tables.nested([run], rows, "look", "retrieval", key)
      for run in looks.get(name, ())
    }
    return {seed: 100 * x for seed, values in scores.items() for x in values}

  for name, (ours, theirs), part, top in itertools.product(
    looks, COMPARED, ("natural", "balanced"), (1, 10)
  ):
    metric = f"{part}/mean_recall@{top}"
    scores = [of(way, arm or name, metric) for way, arm in (ours, theirs)]
    other = f"{ARMS[theirs[1]].label}, " if theirs[1] else ""
    label = f"{ARMS[name].label}: {ours[0]} − {other}{theirs[0]}"
    shown = paired(*scores).show_interval(2)
    found[f"{plan.LOOKS}: {label}: {part} R@{top}, seeds alone"] = shown
  return found


def _tuning(scale: plan.Scale, rows: Rows) -> dict[str, str]:
  """Returns how much τ and the first arms matter in R@1: one seed's trials."""
  values = {
    name: {
      value: x
      for value, runs in plan.trials(scale, name, rows).items()
      for x in tables.of_runs(runs, rows, AT_ONE).values()
    }
    for name in scale.first
  }
  if any(len(x) < scale.trials for x in values.values()):
    return {}
  ranges = [max(x.values()) - min(x.values()) for x in values.values()]
  best = [max(x.values()) for x in values.values()]
  found = {
    "τ: range in an arm": np.mean(ranges),
    "arms: range, tuned": max(best) - min(best),
  }
  return {f"tuning: R@1: {k}": f"{x:.2f}" for k, x in found.items()}


def _other_sign(
  groups: Mapping[str, Sequence[Run]], name: str, rows: Rows
) -> str:
  sets = tables.by_set(groups, name, rows, "test").values()
  total = np.sign(sum(count * gain for count, gain in sets))
  signs = [np.sign(gain) for count, gain in sets if count >= LARGE]
  return f"{sum(x != total for x in signs)} of {len(signs)}"

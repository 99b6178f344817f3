"""The runs, decided from the results so far.

Every algorithm gets `TRIALS` settings on one tuning seed at batch 128. The best
of them, the finalists, run on the other tuning seeds too. The finalist with the
best mean validation recall over all tuning seeds is used everywhere else, on
seeds that tuning has not seen.
"""

from collections.abc import Mapping, Sequence
import itertools
import pathlib
from typing import Any, NamedTuple

import numpy as np

from experiments.bimodal.algorithms import (
  ALGORITHMS,
  FREEZE,
  KEYS,
  RATE,
  SHIPPED,
  TEMPERATURE,
)
from experiments.harness import Options, Row, Run
from experiments.harness import rows as rows_of_file

Settings = tuple[tuple[str, Any], ...]  # (word of `KEYS`, value), in its order
Rows = Mapping[tuple[str, str, int], Row]  # by `Run.key`

TRIALS = 9
BATCH_SIZE = 128
NUM_PAIRS = 43_173  # in the training split
NUM_EPOCHS = 8
PAIRED = ("clip", "sogclr", "nuclr")  # have eight seeds, all others three
PAIRED_SEEDS, SEEDS = range(8), range(3)
ABLATION_SEEDS, ESTIMATOR_SEEDS = range(4), range(2)
CRITERION = "validation/mean_recall@1"


class Scale(NamedTuple):
  """How much of the study is run."""

  algorithms: tuple[str, ...] = tuple(ALGORITHMS)
  trials: int = TRIALS
  finalists: int = 3
  tuning_seeds: tuple[int, ...] = (100, 101, 102)
  seeds: int = len(PAIRED_SEEDS)  # the most that a tuned setting gets
  batch_sizes: tuple[int, ...] = (64, 512)  # in addition to `BATCH_SIZE`
  changes: int | None = None  # regimes, ablations and estimators; None = all
  smoke: bool = False  # whether a run has only a few steps


SMOKE = Scale(
  algorithms=PAIRED,
  trials=2,
  finalists=1,
  tuning_seeds=(100, 101),
  batch_sizes=(64,),
  changes=1,
  smoke=True,
)


def scale_of(options: Options) -> Scale:
  """Returns how much a command runs."""
  scale = SMOKE if options.smoke else Scale()
  return scale._replace(seeds=options.seeds)


# The regimes where stored denominators or popularities should matter most, for
# `PAIRED`: small batches, a low temperature, long training, more or less
# averaging, and repeated captions that are not marked as such, which makes
# false negatives.
SMALL_BATCH, LOW_TEMPERATURE, LONG_EPOCHS = 16, 0.03, 24.0
LONG_TEMPERATURES, GAMMAS = (0.05, 0.12), (0.4, 1.0)

# Ablations of the tuned NUCLR: Figure 4, Table 3, then the update of ζ.
ABLATIONS = {
  "NUCLR-† (ζ fixed)": {RATE: 0.0},
  "NUCLR-♢ (positive by ζ)": {"positive": "zeta"},
  "NUCLR-♣ (no freeze)": {FREEZE: 0.0},
  "ζ₀ = -0.05": {"zeta_init": -0.05},
  "ζ momentum 0.9": {"zeta_momentum": 0.9},
  "ζ rate falls as a cosine": {"zeta_learning_rate.decay": "cosine"},
}
# Estimators of the gradient of ζ. The last two are n / B = 337 times as large,
# so their rates are smaller.
SENSITIVITY = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
ESTIMATORS = {
  "unbiased": ({"zeta_estimator": "unbiased"}, SENSITIVITY),
  "unbiased, not centred": (
    {"zeta_estimator": "unbiased", "zeta_center": False},
    (1e-4, 1e-3, 1e-2, 1e-1),
  ),
  "paper": ({"zeta_estimator": "paper"}, (3e-7, 3e-6, 3e-5, 3e-4)),
  "official": ({"zeta_estimator": "official"}, (3e-7, 3e-6, 3e-5, 3e-4)),
}


def settings(*parts: Mapping[str, Any]) -> Settings:
  """Joins settings; later parts take precedence.

  Example:
    >>> settings({"rho": 3.0}, {"temperature": 0.1}, {"rho": 6.0})
    (('rho', 6.0), ('temperature', 0.1))
  """
  joined = {word: value for part in parts for word, value in part.items()}
  order = list(KEYS)
  return tuple(sorted(joined.items(), key=lambda x: order.index(x[0])))


def words(chosen: Settings) -> str:
  """Formats settings in words, as rows and tables show them."""
  return " ".join(f"{word}={value}" for word, value in chosen)


def make_run(
  scale: Scale,
  name: str,
  chosen: Settings,
  seed: int,
  batch_size: int = BATCH_SIZE,
) -> Run:
  """Makes a run of an algorithm."""
  if batch_size != BATCH_SIZE:
    chosen = settings(dict(chosen), {"batch_size": batch_size})
  smoke = (("smoke", True),) if scale.smoke else ()
  return Run(name, words(chosen), seed, chosen + smoke)


def settings_of(run: Run) -> Settings:
  """Returns the settings of a run."""
  return tuple(x for x in run.values if x[0] != "smoke")


def trials(scale: Scale, name: str) -> list[Run]:
  """Plans an algorithm's grid of settings on the first tuning seed."""
  algorithm = ALGORITHMS[name]
  runs = []
  for values in itertools.product(*algorithm.grid.values()):
    chosen = {
      word: value
      for several, value in zip(algorithm.grid, values, strict=True)
      for word in several.split(", ")
    }
    chosen = settings(algorithm.fixed, chosen)
    runs.append(make_run(scale, name, chosen, scale.tuning_seeds[0]))
  assert len(runs) == TRIALS, name
  return runs[: scale.trials]


def finals(scale: Scale, name: str, rows: Rows) -> dict[Settings, list[Run]]:
  """Plans the best trials on all tuning seeds; {} while trials are missing."""
  runs = trials(scale, name)
  if any(run.key not in rows for run in runs):
    return {}
  runs = sorted(runs, key=lambda run: -score(run, rows))[: scale.finalists]
  return {
    settings_of(x): _seeds(scale, name, settings_of(x), scale.tuning_seeds)
    for x in runs
  }


def best(scale: Scale, name: str, rows: Rows) -> Settings | None:
  """Returns the settings that won the finals; None before the finals end."""
  means = {}
  for chosen, runs in finals(scale, name, rows).items():
    if any(run.key not in rows for run in runs):
      return None
    means[chosen] = np.mean([score(run, rows) for run in runs])
  return max(means, key=means.get, default=None)


def score(run: Run, rows: Rows) -> float:
  """Returns the validation recall of a run; the worst if it diverged."""
  value = rows[run.key].get(CRITERION)
  return -np.inf if value is None else value


def comparison(
  scale: Scale, rows: Rows, batch_size: int = BATCH_SIZE
) -> dict[str, list[Run]]:
  """Plans the tuned algorithms on fresh seeds, by label."""
  groups = {}
  for name in scale.algorithms:
    algorithm, tuned = ALGORITHMS[name], best(scale, name, rows)
    if tuned is None:
      continue
    paired = batch_size == BATCH_SIZE and name in PAIRED
    seeds = _fresh(scale, PAIRED_SEEDS if paired else SEEDS)
    groups[algorithm.label] = _seeds(scale, name, tuned, seeds, batch_size)
    if name in ("sogclr", "nuclr"):
      by_id = settings(dict(tuned), {"anchor_average": "id"})
      seeds = _fresh(scale, SEEDS)
      label = f"{algorithm.label}, u per id"
      groups[label] = _seeds(scale, name, by_id, seeds, batch_size)
    if name == "nuclr" and paired:
      seeds = _fresh(scale, PAIRED_SEEDS)
      groups["NUCLR, queue"] = _seeds(scale, name, settings(SHIPPED), seeds)
  return groups


def regimes(scale: Scale, rows: Rows) -> dict[str, dict[str, list[Run]]]:
  """Plans `PAIRED` where they should differ, by regime and label."""
  groups = {}

  def add(regime, name, change, seeds=SEEDS, batch_size=BATCH_SIZE):
    changed = settings(dict(tuned), change)
    runs = _seeds(scale, name, changed, _fresh(scale, seeds), batch_size)
    groups.setdefault(regime, {})[ALGORITHMS[name].label] = runs

  for name in PAIRED:
    tuned = best(scale, name, rows)
    if tuned is None:
      continue
    add("gradients not clipped", name, {"optimizer.clip_norm": 0.0})
    add(f"batch {SMALL_BATCH}", name, {}, PAIRED_SEEDS, SMALL_BATCH)
    add(f"τ = {LOW_TEMPERATURE:g}", name, {TEMPERATURE: LOW_TEMPERATURE})
    long = {"num_epochs": LONG_EPOCHS}
    add(f"{LONG_EPOCHS:g} epochs", name, long)
    for tau in LONG_TEMPERATURES:
      change = long | {TEMPERATURE: tau}
      add(f"{LONG_EPOCHS:g} epochs, τ = {tau:g}", name, change)
    if name != "clip":  # it has no gamma
      for gamma in GAMMAS:
        add(f"γ = {gamma:g}", name, {"gamma": gamma})
    add("repetitions hidden", name, {"data.share_texts": False})
    # With γ = 1 SogCLR has no average: it differs from CLIP only in leaving the
    # positive out of the denominator.
    if name == "sogclr":
      change = long | {"gamma": 1.0}
      add(f"{LONG_EPOCHS:g} epochs, γ = 1", name, change)
  return dict(list(groups.items())[: scale.changes])


def ablations(scale: Scale, rows: Rows) -> dict[str, list[Run]]:
  """Plans the tuned NUCLR with one change each, by label."""
  tuned = best(scale, "nuclr", rows)
  if tuned is None:
    return {}
  changes = {"NUCLR": {}} | dict(list(ABLATIONS.items())[: scale.changes])
  seeds = _fresh(scale, ABLATION_SEEDS)
  return {
    label: _seeds(scale, "nuclr", settings(dict(tuned), change), seeds)
    for label, change in changes.items()
  }


def estimators(scale: Scale, rows: Rows) -> dict[str, dict[float, list[Run]]]:
  """Plans the tuned NUCLR with other gradients of zeta, by label and rate."""
  best_settings = best(scale, "nuclr", rows)
  if best_settings is None:
    return {}
  tuned = dict(best_settings)
  seeds, groups = _fresh(scale, ESTIMATOR_SEEDS), {}
  for label, (change, rates) in list(ESTIMATORS.items())[: scale.changes]:
    if label == "unbiased":
      change = {}  # the default; so the comparison's runs are reused
      rates = sorted({*rates, tuned[RATE]})
    groups[label] = {
      rate: _seeds(scale, "nuclr", settings(tuned, change, {RATE: rate}), seeds)
      for rate in rates[: scale.changes]
    }
  return groups


def plan(options: Options, rows: Rows) -> list[Run]:
  """Plans all runs that are decided by now, in order and without repetition."""
  scale = scale_of(options)
  groups = [group for name in PAIRED for group in tuning(scale, name, rows)]
  groups += comparison(scale, rows).values()
  groups += ablations(scale, rows).values()
  groups += [
    group for name in scale.algorithms for group in tuning(scale, name, rows)
  ]
  for by_rate in estimators(scale, rows).values():
    groups += by_rate.values()
  for batch_size in scale.batch_sizes:
    groups += comparison(scale, rows, batch_size).values()
  for by_label in regimes(scale, rows).values():
    groups += by_label.values()
  return list(dict.fromkeys(run for group in groups for run in group))


def running_averages() -> dict[tuple[str, str, int], Row]:
  """Reads rows of runs that were scored with running averages, by `Run.key`.

  The same runs were done again with recomputed batch statistics; those rows are
  the study's.
  """
  path = pathlib.Path(__file__).with_name("running_averages.jsonl")
  return rows_of_file.index(rows_of_file.read(path))


def tuning(scale: Scale, name: str, rows: Rows) -> list[list[Run]]:
  """Plans the trials and, once they are run, the finals."""
  return [trials(scale, name), *finals(scale, name, rows).values()]


def _seeds(
  scale: Scale,
  name: str,
  chosen: Settings,
  seeds: Sequence[int],
  batch_size: int = BATCH_SIZE,
) -> list[Run]:
  return [make_run(scale, name, chosen, seed, batch_size) for seed in seeds]


def _fresh(scale: Scale, seeds: Sequence[int]) -> Sequence[int]:
  """Returns as many of the seeds as the command asks for."""
  return seeds[: scale.seeds]

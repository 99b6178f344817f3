"""What the study runs: plain values, decided from the results so far.

Every algorithm gets `TRIALS` settings on one tuning seed at batch 128. The best
`FINALISTS` of them run on the other tuning seeds too; the one with the best
mean validation recall over all tuning seeds is used everywhere else, on seeds
that tuning has not seen.
"""

from collections.abc import Mapping
import itertools
from typing import Any, NamedTuple

from algorithms import (
  ALGORITHMS,
  AVERAGE,
  CENTER,
  CLIP_NORM,
  ESTIMATOR,
  FREEZE,
  RATE,
  SHARE_TEXTS,
  TEMPERATURE,
)
import numpy as np

Settings = tuple[tuple[str, Any], ...]  # (dotted key of the config, value)

TRIALS, FINALISTS = 9, 3
TUNING_SEEDS = (100, 101, 102)
BATCH_SIZE = 128
NUM_PAIRS = 43_173  # of the training split
NUM_EPOCHS = 8
PAIRED = ("clip", "sogclr", "nuclr")  # eight seeds; the others three
PAIRED_SEEDS, SEEDS = range(8), range(3)
ABLATION_SEEDS, ESTIMATOR_SEEDS = range(4), range(2)
OTHER_BATCH_SIZES = (64, 512)
CRITERION = "validation/mean_recall@1"


class Run(NamedTuple):
  """One training run; also the key of its row in the table."""

  algorithm: str  # a key of ALGORITHMS
  settings: Settings
  batch_size: int = BATCH_SIZE
  seed: int = TUNING_SEEDS[0]

  @property
  def variant(self) -> str:
    """The settings in words, without the common prefix."""
    return " ".join(
      f"{key.removeprefix('objective.')}={value}"
      for key, value in self.settings
    )

  @property
  def key(self) -> tuple[str, str, int, int]:
    """What tells its row from all others."""
    return self.algorithm, self.variant, self.batch_size, self.seed


# Where stored denominators or popularities should matter most, for `PAIRED`:
# small batches, a low temperature, long training, more or less averaging, and
# captions whose repetitions nobody has marked, which makes false negatives.
SMALL_BATCH, LOW_TEMPERATURE, LONG_EPOCHS = 16, 0.03, 24.0
LONG_TEMPERATURES, GAMMAS = (0.05, 0.12), (0.4, 1.0)

# Ablations of the tuned NUCLR: Figure 4, Table 3, then how ζ moves.
ABLATIONS = {
  "NUCLR-† (ζ fixed)": {RATE: 0.0},
  "NUCLR-♢ (own pair by ζ)": {"objective.own_pair": "zeta"},
  "NUCLR-♣ (no freeze)": {FREEZE: 0.0},
  "ζ₀ = -0.05": {"objective.zeta_init": -0.05},
  "ζ momentum 0.9": {"objective.zeta_momentum": 0.9},
  "ζ rate falls as a cosine": {"objective.zeta_learning_rate.decay": "cosine"},
}
# Gradients of ζ; the last two are n / B = 337 times as large, their rates less.
SENSITIVITY = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
ESTIMATORS = {
  "unbiased": ({ESTIMATOR: "unbiased"}, SENSITIVITY),
  "unbiased, not centred": (
    {ESTIMATOR: "unbiased", CENTER: False},
    (1e-4, 1e-3, 1e-2, 1e-1),
  ),
  "paper": ({ESTIMATOR: "paper"}, (3e-7, 3e-6, 3e-5, 3e-4)),
  "official": ({ESTIMATOR: "official"}, (3e-7, 3e-6, 3e-5, 3e-4)),
}

Results = Mapping[tuple[str, str, int, int], Mapping[str, Any]]


def settings(*parts: Mapping[str, Any]) -> Settings:
  """Joins settings; later ones win."""
  return tuple(sorted({k: v for x in parts for k, v in x.items()}.items()))


def trials(name: str) -> list[Run]:
  """Every setting of an algorithm's grid on the first tuning seed."""
  algorithm = ALGORITHMS[name]
  runs = []
  for values in itertools.product(*algorithm.grid.values()):
    chosen = {
      key: value
      for keys, value in zip(algorithm.grid, values, strict=True)
      for key in keys.split(", ")
    }
    runs.append(Run(name, settings(algorithm.fixed, chosen)))
  assert len(runs) == TRIALS, name
  return runs


def finals(name: str, results: Results) -> dict[Settings, list[Run]]:
  """By settings: the best trials, on all tuning seeds; {} if trials miss."""
  runs = trials(name)
  if any(run.key not in results for run in runs):
    return {}
  runs = sorted(runs, key=lambda run: -score(run, results))[:FINALISTS]
  return {x.settings: _seeds(name, x.settings, TUNING_SEEDS) for x in runs}


def best(name: str, results: Results) -> Settings | None:
  """The settings with the best mean in the finals; None until they are run."""
  means = {}
  for found, runs in finals(name, results).items():
    if any(run.key not in results for run in runs):
      return None
    means[found] = np.mean([score(run, results) for run in runs])
  return max(means, key=means.get, default=None)


def score(run: Run, results: Results) -> float:
  """The validation recall of a run; a run that diverged is the worst."""
  value = results[run.key].get(CRITERION) or "-inf"
  return float(value)


def comparison(
  results: Results, batch_size: int = BATCH_SIZE
) -> dict[str, list[Run]]:
  """By label: the tuned algorithms on fresh seeds."""
  groups = {}
  for name, algorithm in ALGORITHMS.items():
    found = best(name, results)
    if found is None:
      continue
    paired = batch_size == BATCH_SIZE and name in PAIRED
    seeds = PAIRED_SEEDS if paired else SEEDS
    groups[algorithm.label] = _seeds(name, found, seeds, batch_size)
    if name in ("sogclr", "nuclr"):
      by_id = settings(dict(found), {AVERAGE: "id"})
      label = f"{algorithm.label}, u per id"
      groups[label] = _seeds(name, by_id, SEEDS, batch_size)
  return groups


def regimes(results: Results) -> dict[str, dict[str, list[Run]]]:
  """By regime and label: CLIP, SogCLR and NUCLR where they should differ."""
  groups = {}

  def add(regime, name, change, seeds=SEEDS, batch_size=BATCH_SIZE):
    changed = settings(dict(found), change)
    runs = _seeds(name, changed, seeds, batch_size)
    groups.setdefault(regime, {})[ALGORITHMS[name].label] = runs

  for name in PAIRED:
    found = best(name, results)
    if found is None:
      continue
    add("gradients not clipped", name, {CLIP_NORM: 0.0})
    add(f"batch {SMALL_BATCH}", name, {}, PAIRED_SEEDS, SMALL_BATCH)
    add(f"τ = {LOW_TEMPERATURE:g}", name, {TEMPERATURE: LOW_TEMPERATURE})
    long = {"num_epochs": LONG_EPOCHS}
    add(f"{LONG_EPOCHS:g} epochs", name, long)
    for tau in LONG_TEMPERATURES:
      change = long | {TEMPERATURE: tau}
      add(f"{LONG_EPOCHS:g} epochs, τ = {tau:g}", name, change)
    if name != "clip":  # it has no gamma
      for gamma in GAMMAS:
        add(f"γ = {gamma:g}", name, {"objective.gamma": gamma})
    add("repetitions hidden", name, {SHARE_TEXTS: False})
    if name == "sogclr":  # as CLIP, but for the own pair in the denominator
      change = long | {"objective.gamma": 1.0}
      add(f"{LONG_EPOCHS:g} epochs, γ = 1", name, change)
  return groups


def ablations(results: Results) -> dict[str, list[Run]]:
  """By label: the tuned NUCLR, changed in one way."""
  found = best("nuclr", results)
  if found is None:
    return {}
  changes = {"NUCLR": {}} | ABLATIONS
  return {
    label: _seeds("nuclr", settings(dict(found), change), ABLATION_SEEDS)
    for label, change in changes.items()
  }


def estimators(results: Results) -> dict[str, dict[float, list[Run]]]:
  """By label and rate: the tuned NUCLR with other gradients of zeta."""
  found = best("nuclr", results)
  if found is None:
    return {}
  tuned = dict(found)
  default = tuned[RATE]
  groups = {}
  for label, (change, rates) in ESTIMATORS.items():
    if label == "unbiased":
      change = {}  # so that its runs are those of the comparison
      rates = sorted({*rates, default})
    groups[label] = {
      rate: _seeds(
        "nuclr", settings(tuned, change, {RATE: rate}), ESTIMATOR_SEEDS
      )
      for rate in rates
    }
  return groups


def plan(results: Results) -> list[Run]:
  """All runs that are decided by now, each once, in the order to do them."""
  groups = [group for name in PAIRED for group in tuning(name, results)]
  groups += comparison(results).values()
  groups += ablations(results).values()
  groups += [group for name in ALGORITHMS for group in tuning(name, results)]
  for by_rate in estimators(results).values():
    groups += by_rate.values()
  for batch_size in OTHER_BATCH_SIZES:
    groups += comparison(results, batch_size).values()
  for by_label in regimes(results).values():
    groups += by_label.values()
  return list(dict.fromkeys(run for group in groups for run in group))


def tuning(name: str, results: Results) -> list[list[Run]]:
  """The trials and, once they are run, the finals."""
  return [trials(name), *finals(name, results).values()]


def size() -> int:
  """How many runs the whole study has, give or take a few that coincide."""
  results = {}
  for _ in ("trials", "finals"):
    for name in ALGORITHMS:
      for group in tuning(name, results):
        results |= {run.key: {} for run in group}
  return len(plan(results))


def _seeds(name, found, seeds, batch_size=BATCH_SIZE) -> list[Run]:
  return [Run(name, found, batch_size, seed) for seed in seeds]

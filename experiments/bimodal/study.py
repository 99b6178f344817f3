"""What the study runs: plain values, decided from the results so far.

Every algorithm gets `TRIALS` settings on one tuning seed at batch 128; the one
with the best validation recall is used everywhere else, on other seeds.
"""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any, NamedTuple

Settings = tuple[tuple[str, Any], ...]  # (dotted key of the config, value)

TRIALS = 9
TUNING_SEED = 100
BATCH_SIZE = 128
NUM_PAIRS = 43_173  # of the training split
NUM_EPOCHS = 8
PAIRED = ("clip", "sogclr", "nuclr")  # eight seeds; the others three
PAIRED_SEEDS, SEEDS, ABLATION_SEEDS = range(8), range(3), range(4)
OTHER_BATCH_SIZES = (64, 512)
CRITERION = "validation/mean_recall@1"

TEMPERATURE = "objective.temperature"
LEARN = "objective.learn_temperature"
RATE = "objective.zeta_learning_rate.value"
FREEZE = "objective.zeta_learning_rate.freeze_epochs"
ESTIMATOR, CENTER = "objective.zeta_estimator", "objective.zeta_center"
AVERAGE, CLIP_NORM = "objective.anchor_average", "optimizer.clip_norm"

TEMPERATURES = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15)


class Run(NamedTuple):
  """One training run; also the key of its row in the table."""

  algorithm: str  # a key of ALGORITHMS
  settings: Settings
  batch_size: int = BATCH_SIZE
  seed: int = TUNING_SEED

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


class Algorithm(NamedTuple):
  """A config of `configs/glyphs.py`, what is fixed in it and what is tuned."""

  config: str
  label: str
  grid: Mapping[str, Sequence[Any]]
  fixed: Mapping[str, Any] = {}


RATES = (3e-3, 1e-2, 3e-2)
MIDDLE = (0.05, 0.07, 0.1)  # where a second number is tuned
RHOS = (3.0, 4.5, 6.0)
ALGORITHMS = {
  "clip": Algorithm(
    "clip", "CLIP", {TEMPERATURE: TEMPERATURES}, {LEARN: False}
  ),
  "clip_learned": Algorithm(
    "clip", "CLIP, learned τ", {TEMPERATURE: TEMPERATURES}, {LEARN: True}
  ),
  "siglip": Algorithm(
    "siglip",
    "SigLIP",
    {
      "objective.init_scale": (5.0, 10.0, 20.0),
      "objective.init_bias": (-2.5, -5.0, -10.0),
    },
  ),
  "debiased": Algorithm(
    "debiased",
    "DCL (debiased)",
    {TEMPERATURE: MIDDLE, "objective.tau_plus": (0.001, 0.01, 0.1)},
  ),
  "cyclip": Algorithm(
    "cyclip",
    "CyCLIP",
    {
      TEMPERATURE: MIDDLE,
      "objective.in_modal, objective.cross_modal": (0.01, 0.05, 0.25),
    },
    {LEARN: False},
  ),
  "spectral": Algorithm(
    "spectral",
    "spectral",
    {
      "optimizer.learning_rate.value": (1e-3, 2e-3, 4e-3),
      "optimizer.weight_decay": (0.1, 0.5, 1.0),
    },
  ),
  "vicreg": Algorithm(
    "vicreg",
    "VICReg",
    {
      "objective.invariance, objective.variance": (5.0, 25.0, 100.0),
      "optimizer.learning_rate.value": (1e-3, 2e-3, 4e-3),
    },
  ),
  "sogclr": Algorithm("sogclr", "SogCLR", {TEMPERATURE: TEMPERATURES}),
  "fastclip_v1": Algorithm(
    "fastclip_v1",
    "FastCLIP-v1 (cosine γ)",
    {TEMPERATURE: MIDDLE, "objective.gamma.end_value": (0.2, 0.5, 0.8)},
  ),
  "fastclip_v3": Algorithm(
    "fastclip_v3",
    "FastCLIP-v3 (learned τ)",
    {"objective.rho": (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0)},
  ),
  "isogclr": Algorithm(
    "isogclr",
    "iSogCLR",
    {
      "objective.rho": RHOS,
      "objective.temperature_learning_rate": (1e-3, 3e-3, 1e-2),
    },
  ),
  "nuclr": Algorithm(
    "nuclr", "NUCLR", {TEMPERATURE: MIDDLE, RATE: RATES}, {FREEZE: 1.0}
  ),
  "nuclr_individual": Algorithm(
    "nuclr_individual",
    "NUCLR, individual τ",
    {"objective.rho": RHOS, RATE: RATES},
    {FREEZE: 1.0, "objective.temperature_learning_rate": 3e-3},
  ),
}

# Where stored denominators should matter most, for `PAIRED`: small batches,
# long training, and more or less averaging.
SMALL_BATCH, LONG_EPOCHS, GAMMAS = 16, 24.0, (0.4, 1.0)

# Ablations of the tuned NUCLR: Figure 4, then Table 3.
ABLATIONS = {
  "NUCLR-† (ζ fixed)": {RATE: 0.0},
  "NUCLR-♢ (own pair by ζ)": {"objective.own_pair": "zeta"},
  "NUCLR-♣ (no freeze)": {FREEZE: 0.0},
  "ζ₀ = -0.05": {"objective.zeta_init": -0.05},
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
  """The runs that tune an algorithm.

  A key of the grid may name several keys of the config, which get one value.
  """
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


def best(name: str, results: Results) -> Settings | None:
  """The settings of the best trial; None while trials are missing."""
  runs = trials(name)
  if any(run.key not in results for run in runs):
    return None
  return max(runs, key=lambda run: score(run, results)).settings


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
      groups[label] = _seeds(name, by_id, seeds, batch_size)
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
    add("gradients clipped to norm 1", name, {CLIP_NORM: 1.0})
    add(f"batch {SMALL_BATCH}", name, {}, PAIRED_SEEDS, SMALL_BATCH)
    add(f"{LONG_EPOCHS:g} epochs", name, {"num_epochs": LONG_EPOCHS})
    if name != "clip":  # it has no gamma
      for gamma in GAMMAS:
        add(f"γ = {gamma:g}", name, {"objective.gamma": gamma})
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
      rate: _seeds("nuclr", settings(tuned, change, {RATE: rate}), SEEDS)
      for rate in rates
    }
  return groups


def plan(results: Results) -> list[Run]:
  """All runs that are decided by now, each once, in the order to do them."""
  groups = [trials(name) for name in PAIRED]
  groups += comparison(results).values()
  for by_label in regimes(results).values():
    groups += by_label.values()
  groups += ablations(results).values()
  groups += [trials(name) for name in ALGORITHMS]
  for by_rate in estimators(results).values():
    groups += by_rate.values()
  for batch_size in OTHER_BATCH_SIZES:
    groups += comparison(results, batch_size).values()
  return list(dict.fromkeys(run for group in groups for run in group))


def size() -> int:
  """How many runs the whole study has, give or take a few that coincide."""
  tuned = {run.key: {} for name in ALGORITHMS for run in trials(name)}
  return len(plan(tuned))


def _seeds(name, found, seeds, batch_size=BATCH_SIZE) -> list[Run]:
  return [Run(name, found, batch_size, seed) for seed in seeds]

"""The runs: models that score pairs, then trainings on what scores kept."""

from collections.abc import Mapping
from typing import Any

from experiments.filtering.errors import KINDS
from experiments.harness import Options, Run

SCORES, TRAINING = "scores", "training"
SEEDS, FEW_SEEDS = 5, 3  # of scores, and of trainings
OBJECTIVES = {"clip": "CLIP", "nuclr": "NUCLR"}
# What is trained on; the first three take no score.
EVERYTHING, RIGHT, RANDOM = "everything", "all that is right", "random"
SIMILARITY, LIKELIHOOD, EXACT = "similarity", "negCLIPLoss", "exact weight"
CHOSEN = (SIMILARITY, LIKELIHOOD, EXACT)  # scores whose choice is stored
FILTERS = (EVERYTHING, RIGHT, RANDOM, *CHOSEN)
COMMON: Mapping[str, Any] = dict(
  scorer_pairs=64_000,  # that the model which scores was trained on
  scorer_epochs=4.0,
  candidates=25_600,
  wrong=0.2,  # of the candidates, and the share that filters leave out
  batch=128,  # in training
  small=1_024,  # a batch of negCLIPLoss
  sample=4_096,  # that exact weights are solved for, beside all candidates
  tau=0.08,
  rate=2e-3,
  samples=256_000,  # that a training on what was kept sees
)
SMOKE = dict(
  scorer_pairs=256,
  scorer_epochs=1.0,
  candidates=160,
  batch=16,
  small=32,
  sample=64,
  samples=320,
)


def kept_of(kind: str, name: str) -> str:
  """Names what a filter keeps of the candidates with errors of a kind."""
  return f"{kind}/{name}"


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans the scores, and the trainings of those seeds that have them."""
  common = COMMON | (SMOKE if options.smoke else {})
  scores = [
    Run(SCORES, "CLIP", seed, tuple(common.items()))
    for seed in range(options.seeds)
  ]
  runs = [*scores]
  for run in scores[: min(FEW_SEEDS, options.seeds)]:
    if run.key not in rows:
      continue
    for kind in KINDS:
      for name in FILTERS:
        # What is right is the same with errors of every kind.
        if name == RIGHT and kind != KINDS[0]:
          continue
        for objective, label in OBJECTIVES.items():
          setting = f"{label}, {kind}, {name}"
          words = dict(objective=objective, kind=kind, filter=name)
          values = (*common.items(), *words.items())
          runs.append(Run(TRAINING, setting, run.seed, values))
  return runs

"""The runs: models that score pairs, then trainings on what scores kept.

Those on icons are a row each; on other data, which are smaller, a row has a
model, what it finds, and all trainings.
"""

from collections.abc import Mapping
from typing import Any

from experiments.filtering.errors import KINDS
from experiments.harness import Options, Run

SCORES, TRAINING, OTHER = "scores", "training", "other data"
SEEDS, FEW_SEEDS = 5, 3  # of scores, and of trainings
OBJECTIVES = {"clip": "CLIP", "nuclr": "NUCLR"}
SCORER = OBJECTIVES["clip"]  # what the model that scores is trained with
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
LETTERS, CLIP_ART = "letters", "clip art"
# What differs from `COMMON`. A model of icons scores clip art, of which there
# is too little to train one, and is tuned on what is kept.
OTHERS: Mapping[str, Mapping[str, Any]] = {
  LETTERS: dict(
    scorer_pairs=20_000,
    scorer_epochs=8.0,
    candidates=20_000,
    samples=64_000,
  ),
  CLIP_ART: dict(tuning_rate=1e-3, samples=19_200),
}
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


def filters() -> list[tuple[str, str]]:
  """Lists what trainings see: a kind of errors, and a filter of `FILTERS`.

  What is right is the same with errors of every kind, and there once.
  """
  return [
    (kind, name)
    for kind in KINDS
    for name in FILTERS
    if name != RIGHT or kind == KINDS[0]
  ]


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans the scores, and the trainings of those seeds that have them."""
  smoke = SMOKE if options.smoke else {}
  common = COMMON | smoke
  scores = [
    Run(SCORES, SCORER, seed, tuple(common.items()))
    for seed in range(options.seeds)
  ]
  runs, few = [*scores], min(FEW_SEEDS, options.seeds)
  for run in scores[:few]:
    if run.key not in rows:
      continue
    for kind, name in filters():
      for objective, label in OBJECTIVES.items():
        setting = f"{label}, {kind}, {name}"
        words = dict(objective=objective, kind=kind, filter=name)
        values = (*common.items(), *words.items())
        runs.append(Run(TRAINING, setting, run.seed, values))
  for data, words in OTHERS.items():
    values = COMMON | words | smoke | {"data": data}
    runs += [
      Run(OTHER, data, seed, tuple(values.items())) for seed in range(few)
    ]
  return runs

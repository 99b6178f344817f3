"""The runs: models without errors, and models trained on each kind of error.

Two more models without errors, of few and of many dimensions, are for captions
that are names of classes.
"""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Options, Run, training
from experiments.when_it_pays.letters import SMOKE, make_config

CLEAN, ERRORS, CLASSES = "clean", "errors", "classes"
ARMS = {"CLIP": "CLIP", "SogCLR": "SogCLR", "NUCLR": "ζ learned, queue"}
TRAINED_ON_ERRORS = ("CLIP", "NUCLR")
EXPONENTS = (0.0, 1.2)
WRONG = (0.01, 0.05, 0.1)  # shares of wrong captions
DUPLICATES = 0.05  # share of copies
DIMS = (32, 512)  # of the embeddings; published models have 512 and more
VALUES = {
  "temperature": 0.08,
  "batch_size": 64,
  "num_epochs": 16.0,
  "num_items": 200,
  "num_pairs": 3200,
  "dim": 32,
}


def clean(arm: str, exponent: float) -> str:
  """Names the setting of a model trained without errors."""
  return f"{arm}, exponent {exponent}"


def with_errors(arm: str, errors: str) -> str:
  """Names the setting of a model trained on errors."""
  return f"{arm}, {errors}"


def of_dim(dim: int) -> str:
  """Names the setting of a model of this many dimensions."""
  return f"{dim} dimensions"


def kinds(smoke: bool = False) -> dict[str, dict[str, float]]:
  """Returns the kinds of errors: what is planted, and the exponent."""
  found = {f"{100 * x:g} % wrong": {"wrong": x} for x in WRONG}
  found |= {"duplicates": {"duplicates": DUPLICATES}}
  found |= {"5 % wrong, long tail": {"wrong": 0.05, "exponent": 1.2}}
  nothing = {"wrong": 0.0, "duplicates": 0.0, "exponent": 0.0}
  return {
    name: nothing | x
    for name, x in found.items()
    if not smoke or name in ("10 % wrong", "duplicates")
  }


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans all runs, seed by seed."""
  del rows
  smoke = options.smoke
  values = VALUES | (SMOKE if smoke else {})
  found = []
  for seed in range(1 if smoke else options.seeds):
    for arm in list(ARMS)[: 1 if smoke else None]:
      for exponent in EXPONENTS[-1 if smoke else 0 :]:
        setting = clean(arm, exponent)
        more = {"arm": ARMS[arm], "exponent": exponent}
        found.append((CLEAN, setting, seed, values | more))
    for errors, planted in kinds(smoke).items():
      for arm in TRAINED_ON_ERRORS[: 1 if smoke else None]:
        more = {"arm": ARMS[arm]} | planted
        found.append((ERRORS, with_errors(arm, errors), seed, values | more))
    for dim in DIMS[: 1 if smoke else None]:
      more = {"arm": "CLIP", "exponent": 0.0, "dim": dim}
      found.append((CLASSES, of_dim(dim), seed, values | more))
  return [Run(*x, tuple(values.items())) for *x, values in found]


def configs(options: Options) -> dict[str, dict[str, Any]]:
  """Returns the config of each way to train."""
  del options
  return {
    name: training.flat(make_config(VALUES | {"arm": arm}))
    for name, arm in ARMS.items()
  }

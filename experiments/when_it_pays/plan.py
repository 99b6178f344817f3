"""The runs: a table, letters with long tails, and weights of the own pair."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.harness import Options, Run, training
from experiments.when_it_pays import own_weight

TABLE, TUNING, TAILS = "table", "tuning", "tails"
ONE_TAU = "one temperature"  # added after the rows of `TAILS`
SCORES = ("natural", "balanced")

# Part "table": a fit to a known density; see `tabular`.
DIMS = (2, 3, 4, 6, 8, 16)
TABLE_VALUES = {"exponent": 1.2, "tau": 0.07}

# Parts "tuning" and "tails": letters; see `data`.
KEYS = {
  "batch_size": "batch_size",
  "dim": "model.dim",
  "num_epochs": "num_epochs",
  "temperature": "objective.temperature",
}
COMMON = {
  "batch_size": 32,
  "dim": 32,
  "exponent": 1.2,
  "num_epochs": 20.0,
  "num_items": 100,
  "num_pairs": 4000,
}
SMOKE = {"num_epochs": 2.0, "num_pairs": 320, "num_items": 20}


class Arm(NamedTuple):
  """A way to train."""

  objective: Mapping[str, Any]  # of a config, without the temperature
  oracle: str = ""  # "true" or "counted": zeta is tau log p from the start
  refresh: bool = False  # whether zeta is solved exactly after every epoch


NUCLR = dict(name="nuclr", gamma=0.8)
FIXED = NUCLR | dict(zeta=dict(name="fixed"))
ARMS = {
  "CLIP": Arm(dict(name="clip", learn_temperature=False)),
  "SogCLR": Arm(dict(name="sogclr", gamma=0.8)),
  "ζ = 0": Arm(FIXED),
  "ζ learned, batch": Arm(NUCLR | dict(zeta=dict(name="batch", rate=0.14))),
  "ζ learned, queue": Arm(
    NUCLR | dict(zeta=dict(name="queue", size=1024, rate=0.3))
  ),
  "ζ exact, each epoch": Arm(FIXED, refresh=True),
  "ζ = τ log p": Arm(FIXED, oracle="true"),
  "ζ = τ log p, counted": Arm(FIXED, oracle="counted"),
}
TAUS = (0.03, 0.05, 0.08, 0.13)
TUNING_SEEDS = (100, 101)
EXPONENTS = (0.0, 0.6, 1.2)
WIDTHS = (8, 32, 128)


def run_of(part: str, setting: str, seed: int, values: Mapping) -> Run:
  """Makes a run."""
  return Run(part, setting, seed, tuple(values.items()))


def tuning(smoke: bool = False) -> list[Run]:
  """Returns the runs that choose a temperature: equally many for each arm."""
  small = SMOKE if smoke else {}
  return [
    run_of(
      TUNING,
      f"{arm}, τ {tau}",
      seed,
      COMMON | {"arm": arm, "temperature": tau} | small,
    )
    for seed in TUNING_SEEDS[: 1 if smoke else None]
    for arm in ARMS
    for tau in TAUS[: 1 if smoke else None]
  ]


def criterion(row: Mapping) -> float:
  """Returns the mean over both kinds of queries, each by its best score."""
  scores = row.get("scores", {}).values()  # none, while runs are only counted
  best = [max((x[kind] for x in scores), default=0) for kind in SCORES]
  return float(np.mean(best))


def chosen_tau(rows: Mapping, arm: str, smoke: bool = False) -> float | None:
  """Returns an arm's best temperature; None until all its runs are done."""
  of_tau = {}
  for run in tuning(smoke):
    values = dict(run.values)
    if values["arm"] == arm:
      if run.key not in rows:
        return None
      found = of_tau.setdefault(values["temperature"], [])
      found.append(criterion(rows[run.key]))
  return max(of_tau, key=lambda tau: np.mean(of_tau[tau]))


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans the runs; those of an arm wait for its temperature."""
  smoke = options.smoke
  runs = [
    run_of(TABLE, f"d {dim}", seed, {"dim": dim} | TABLE_VALUES)
    for seed in range(options.seeds)
    for dim in DIMS[: 1 if smoke else None]
  ]
  runs += tuning(smoke)
  taus = {arm: chosen_tau(rows, arm, smoke) for arm in ARMS}
  for exponent, dim in settings(smoke):
    for seed in range(options.seeds):
      runs += [
        run_of(
          TAILS,
          f"{arm}, exponent {exponent}, d {dim}",
          seed,
          COMMON
          | {"arm": arm, "temperature": tau, "exponent": exponent, "dim": dim}
          | (SMOKE if smoke else {}),
        )
        for arm, tau in taus.items()
        if tau is not None
      ]
  if not smoke and None not in taus.values():
    runs += at_one_temperature(options, taus)
  return runs + own_weight.plan(options)


def at_one_temperature(options: Options, taus: Mapping) -> list[Run]:
  """Returns runs of arms with another temperature, at that of SogCLR."""
  tau, tails = taus["SogCLR"], max(EXPONENTS)
  return [
    run_of(
      ONE_TAU,
      f"{arm}, exponent {tails}, d {dim}",
      seed,
      COMMON | {"arm": arm, "temperature": tau, "exponent": tails, "dim": dim},
    )
    for dim in WIDTHS
    for seed in range(options.seeds)
    for arm in ARMS
    if taus[arm] != tau
  ]


def settings(smoke: bool = False) -> list[tuple[float, int]]:
  """Returns exponents and widths, the most telling ones first."""
  first = [(1.2, 32), (0.0, 32), (1.2, 8), (1.2, 128), (0.6, 32)]
  every = [(exponent, dim) for exponent in EXPONENTS for dim in WIDTHS]
  return list(dict.fromkeys(first + every))[: 1 if smoke else None]


def make_config(values: Mapping[str, Any]):
  """Makes the config of a run on letters: configs/glyphs.py, but smaller."""
  arm = ARMS[values["arm"]]
  config = training.get_config("glyphs")("sogclr")
  config.objective = dict(arm.objective)
  config.model.image_stages = ((2, 2, 32), (2, 1, 64))
  config.model.image_features = 128
  config.model.text_layers = 0
  config.optimizer.clip_norm = 0.1  # so that a loss's scale does not matter
  config.optimizer.learning_rate.warmup_epochs = 1.0
  training.change(config, {x: values[x] for x in KEYS}, KEYS)
  config.eval_every = config.checkpoint_every = 0
  if arm.refresh:
    config.refresh = dict(every_epochs=1.0)
  return config


def configs(options: Options) -> dict[str, dict[str, Any]]:
  """Returns the config of each arm."""
  of_letters = {
    dict(run.values)["arm"]: make_config(dict(run.values))
    for run in tuning(options.smoke)
  }
  return {
    arm: training.flat(config)
    for arm, config in (of_letters | own_weight.configs(options)).items()
  }

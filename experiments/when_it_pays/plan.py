"""The runs, decided from the results so far."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.harness import Options, Run, training
from experiments.when_it_pays import duplicates, positive_weight
from experiments.when_it_pays.letters import ARMS, COMMON, SMOKE, make_config

TABLE, TUNING, TAILS = "table", "tuning", "tails"
ONE_TAU = "one temperature"  # added after the rows of `TAILS`
# Added after a review: arms at many temperatures, and equal captions marked.
TEMPERATURES, MARKED = "temperatures", "marked"
SCORES = ("natural", "balanced")

# Part "table": a fit to a known density; see `tabular`.
DIMS = (2, 3, 4, 6, 8, 16)
TABLE_VALUES = {"exponent": 1.2, "tau": 0.07}

# Parts "tuning" and "tails".
TAUS = (0.03, 0.05, 0.08, 0.13)
TUNING_SEEDS = (100, 101)
EXPONENTS = (0.0, 0.6, 1.2)
WIDTHS = (8, 32, 128)
# Parts "temperatures" and "marked".
MORE_TAUS = (*TAUS, 0.2, 0.3)
MORE_ARMS = {
  TEMPERATURES: ("CLIP", "SogCLR", "ζ = τ log p"),
  MARKED: ("SogCLR", "ζ = τ log p"),
}


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
  runs += more_temperatures(options)
  return runs + duplicates.plan(options) + positive_weight.plan(options)


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


def more_temperatures(options: Options) -> list[Run]:
  """Returns runs of some arms at all temperatures, unmarked and marked."""
  smoke = options.smoke
  return [
    run_of(
      part,
      f"{arm}, τ {tau}",
      seed,
      COMMON
      | {"arm": arm, "temperature": tau}
      | ({"marked": True} if part == MARKED else {})
      | (SMOKE if smoke else {}),
    )
    for seed in range(1 if smoke else options.seeds)
    for part, arms in MORE_ARMS.items()
    for arm in arms[-1 if smoke else None :]
    for tau in MORE_TAUS[: 1 if smoke else None]
  ]


def settings(smoke: bool = False) -> list[tuple[float, int]]:
  """Returns exponents and widths, the most telling ones first."""
  first = [(1.2, 32), (0.0, 32), (1.2, 8), (1.2, 128), (0.6, 32)]
  every = [(exponent, dim) for exponent in EXPONENTS for dim in WIDTHS]
  return list(dict.fromkeys(first + every))[: 1 if smoke else None]


def configs(options: Options) -> dict[str, dict[str, Any]]:
  """Returns a config of each arm, that of letters at the lowest temperature."""
  of_letters = {
    run.setting: make_config(dict(run.values))
    for run in tuning(options.smoke)
    if dict(run.values)["temperature"] == min(TAUS)
  }
  return {
    arm: training.flat(config)
    for arm, config in (of_letters | positive_weight.configs(options)).items()
  }

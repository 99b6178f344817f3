"""One run of the study: trains, then asks for every denominator."""

import time
from typing import Any

import jax
import numpy as np

from experiments.harness import Options, Place, Row, Run, training
from experiments.icons.measure import subset
from experiments.normalizers import denominators
from experiments.normalizers.plan import (
  ALL_ARMS,
  ARMS,
  FIRST,
  PERIOD,
  RATE,
  RATE_BATCH,
  TAU,
  make_run,
)
from nuclr_jax.lab.evaluate.evaluators import embed_pairs
from nuclr_jax.lab.train import build, loop
from nuclr_jax.lab.train.hooks import exact_log_u
from nuclr_jax.types import Sides, State

# Small, so that encoders do not take most of a step.
TOWERS = {
  "dim": 64,
  "image_stages": ((4, 1, 32), (2, 1, 64)),
  "image_features": 128,
  "text_width": 64,
}
WARMUP = 1 / 8  # of the run
# What readers need of an objective's arguments.
SETTINGS = ("epsilon", "positive_weight")


def make_config(run: Run):
  """Makes the config of a run: configs/icons.py with the run's changes."""
  words = dict(run.values)
  arm = ALL_ARMS[words["arm"]]
  config = training.get_config("icons")(arm.config)
  with config.unlocked():
    for key in arm.objective.keys() & config.objective.keys():
      del config.objective[key]
    config.objective.update(arm.objective)
    if isinstance(config.objective.temperature, float):
      config.objective.temperature = TAU
    if arm.restarts:
      config.objective.restart_every = period_of(words["batch"])
    config.model.update(TOWERS)
  config.data.shift = 0.0  # the rows are of the drawings that are asked for
  config.batch_size = words["batch"]
  config.num_epochs = words["samples"] / words["pairs"]
  config.optimizer.clip_norm = 0.1
  rate = config.optimizer.learning_rate
  rate.value = round(RATE * (words["batch"] / RATE_BATCH) ** 0.5, 6)
  rate.warmup_epochs = WARMUP * config.num_epochs
  config.seed = run.seed
  config.log_every = max(1, words["samples"] // words["batch"] // 10)
  config.eval_every = config.checkpoint_every = 0
  config.eval_every_epochs = 0.0
  return config


def period_of(batch_size: int) -> int:
  """Returns the steps between restarts of prototypes and of networks."""
  return max(1, PERIOD // batch_size)


def configs(options: Options) -> dict[str, dict[str, Any]]:
  """Returns a config of each arm."""
  return {
    name: training.flat(
      make_config(make_run(FIRST[0], name, 0, smoke=options.smoke))
    )
    for name in ARMS
  }


def make_parts(config, pairs: int, data_dir: str | None) -> build.Experiment:
  """Builds a run on the first pairs of the permutation of experiments/icons.

  Networks that are for an epoch are for `PERIOD` samples, however few pairs
  there are.
  """
  data = training.load_data(config, data_dir)
  data = data._replace(train=subset(data.train, pairs), held_out={})
  parts = build.build(config, data=data)
  objective = build.make_objective(
    parts.settings,
    num_steps=parts.num_steps,
    steps_per_epoch=period_of(config.batch_size),
    dim=TOWERS["dim"],
    **data.train.sizes._asdict(),
  )
  return parts._replace(objective=objective, evaluators={})


def between_restarts(state: State, batch_size: int) -> State:
  """Moves the count of a state with prototypes to the middle of a period."""
  count = state.shared.count + period_of(batch_size) // 2
  return state._replace(shared=state.shared._replace(count=count))


def measure(run: Run, place: Place) -> Row:
  """Trains, and compares the denominators with the exact ones."""
  words, config = dict(run.values), make_config(run)
  arm = ARMS[words["arm"]]
  parts = make_parts(config, words["pairs"], place.data_dir)
  began = time.process_time()
  trained = training.train(config, place, parts)
  took, state = time.process_time() - began, trained.state
  mesh = build.mesh_of(parts.settings)
  with jax.set_mesh(mesh):
    embed = loop.embedder(parts, mesh)(state)
    pairs = embed_pairs(embed, parts.data.train)
    given = parts.settings.objective.values()
    settings = {k: given[k] for k in SETTINGS if k in given}
    if arm.reads == "network":
      settings["beta"] = config.objective.beta.end_value  # long since reached
    asked = state.objective
    if arm.restarts:  # not in the very step of a restart, which the last is
      asked = between_restarts(asked, words["batch"])
    found = denominators.ask(
      *(denominators.READERS[arm.reads], parts.objective),
      *(state.params["objective"], asked, pairs),
      sizes=parts.data.train.sizes,
      batch_size=words["batch"],
      seed=run.seed,
      temperature=TAU,
      **settings,
    )
    zeta = denominators.zeta_of(loop.readout(parts, state), pairs)
    right = exact_log_u(pairs, zeta, temperature=TAU)
  return {
    "steps": parts.num_steps,
    "loss": trained.history[-1].get("train/loss"),
    "training_cpu_seconds": round(took, 1),
    "exact": _by_side(
      lambda x: {"mean": float(np.mean(x)), "sd": float(np.std(x))}, right
    ),
    "errors": {
      what: _by_side(denominators.error, x, right) for what, x in found.items()
    },
  }


def _by_side(function, *sides: Sides) -> dict[str, Any]:
  return {
    side: function(*(getattr(x, side) for x in sides)) for side in Sides._fields
  }


def describe(row: Row) -> str:
  """Summarizes a row for progress lines."""
  of_image = row["errors"]["used"]["image"]
  return f"sd of the error {of_image['sd']:.3f}, mean {of_image['mean']:+.3f}"

"""The runs: ways to get zeta, on one data set and with the same seeds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.harness import Options, Run, training

PART = "glyphs"  # the data of all runs
STRENGTHS = (0.25, 0.5, 0.75, 1.0)  # strengths of the correction for hubs

# Maps the words of this study to the config keys that get their values.
KEYS = {
  "clip_norm": "optimizer.clip_norm",
  "image_features": "model.image_features",
  "image_size": "data.size",
  "num_epochs": "num_epochs",
  "refresh_every_epochs": "refresh.every_epochs",
  "text_layers": "model.text_layers",
  "warmup_epochs": "optimizer.learning_rate.warmup_epochs",
  "zeta_learning_rate": "objective.zeta.rate.value",
  "zeta_momentum": "objective.zeta.momentum",
}
# The values that say how a run is measured; these are not in its config.
MEASURED = {"tolerance": 1e-3, "network_steps": 3000}
COMMON = {
  "text_layers": 0,  # fast towers, as in experiments/bimodal
  "image_features": 256,
  "clip_norm": 0.1,
  "num_epochs": 8.0,
  "zeta_estimator": "unbiased",
  "zeta_learning_rate": 1e-2,
  "zeta_momentum": 0.1,
} | MEASURED
SMOKE = {
  "image_size": 16,
  "image_features": 16,
  "num_epochs": 0.03,
  "warmup_epochs": 0.01,
  "tolerance": 0.3,
  "network_steps": 30,
}


class Variant(NamedTuple):
  """A way to get zeta."""

  name: str
  values: dict[str, Any]  # what differs from `COMMON`, in the study's words
  starts_from: str | None = None  # the variant whose exact zeta it starts with


FROZEN = {"zeta_learning_rate": 0.0}
VARIANTS = (
  Variant("fixed at 0", FROZEN),
  Variant("unbiased", {}),
  Variant(
    "sinkhorn", {"zeta_estimator": "sinkhorn", "zeta_learning_rate": 0.3}
  ),
  Variant("refresh each epoch", FROZEN | {"refresh_every_epochs": 1.0}),
  Variant("refresh every 2, unbiased between", {"refresh_every_epochs": 2.0}),
  Variant("warm start, fixed", FROZEN, starts_from="fixed at 0"),
  Variant("warm start, unbiased", {}, starts_from="fixed at 0"),
)


def make_run(variant: Variant, seed: int, *, smoke: bool = False) -> Run:
  """Makes the run of a variant and a seed."""
  values = COMMON | variant.values | (SMOKE if smoke else {})
  if smoke and "refresh_every_epochs" in values:
    values["refresh_every_epochs"] *= 0.01
  if variant.starts_from is not None:
    values["starts_from"] = variant.starts_from
  return Run(PART, variant.name, seed, tuple(values.items()))


def plan(options: Options, rows: Mapping) -> list[Run]:
  """Plans the runs; a warm start waits for the run that it starts from."""
  return [
    make_run(variant, seed, smoke=options.smoke)
    for seed in range(options.seeds)
    for variant in VARIANTS
    if variant.starts_from is None or (PART, variant.starts_from, seed) in rows
  ]


def make_config(run: Run):
  """Makes the config of a run, without the file that a warm start reads."""
  values = dict(run.values)
  for word in ("starts_from", *MEASURED):
    values.pop(word, None)
  config = training.get_config("glyphs")("nuclr")
  objective = config.objective
  if values.pop("zeta_estimator") == "unbiased":
    objective.zeta = dict(name="batch", rate=objective.zeta.rate)
    # Rows have the rate in units of similarity, a config in units of the
    # temperature.
    values["zeta_learning_rate"] /= objective.temperature
  training.change(config, values, KEYS)
  config.seed = run.seed
  config.eval_every = config.checkpoint_every = 0
  return config


def configs(options: Options) -> dict[str, dict[str, Any]]:
  """Returns the config of each variant."""
  runs = [make_run(variant, 0, smoke=options.smoke) for variant in VARIANTS]
  return {run.setting: training.flat(make_config(run)) for run in runs}

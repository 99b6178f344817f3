"""The algorithms of the study: their configs and what is tuned in them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Maps the words of this study, in the order in which a setting lists them, to
# the config keys that get their values. Rows and README.md use the words.
KEYS = {
  "data.share_texts": "data.share_texts",
  "num_epochs": "num_epochs",
  "anchor_average": "objective.anchor_average",
  "cross_modal": "objective.cross_modal",
  "gamma": "objective.gamma",
  "gamma.end_value": "objective.gamma.end_value",
  "in_modal": "objective.in_modal",
  "init_bias": "objective.init_bias",
  "init_scale": "objective.init_scale",
  "invariance": "objective.invariance",
  "learn_temperature": "objective.learn_temperature",
  "positive": "objective.positive",
  "rho": "objective.rho",
  "tau_plus": "objective.tau_plus",
  "temperature": "objective.temperature",
  "temperature_learning_rate": "objective.rate",
  "variance": "objective.variance",
  "zeta_center": "objective.zeta.center",
  "zeta_estimator": "objective.zeta.estimator",
  "zeta_init": "objective.zeta.init",
  "zeta_learning_rate.decay": "objective.zeta.rate.decay",
  "zeta_learning_rate.freeze_epochs": "objective.zeta.rate.freeze_epochs",
  "zeta_learning_rate.value": "objective.zeta.rate.value",
  "zeta_momentum": "objective.zeta.momentum",
  "zeta_rule": "objective.zeta.name",
  "optimizer.clip_norm": "optimizer.clip_norm",
  "optimizer.learning_rate.value": "optimizer.learning_rate.value",
  "optimizer.weight_decay": "optimizer.weight_decay",
  "batch_size": "batch_size",
}
TEMPERATURE, RATE = "temperature", "zeta_learning_rate.value"
FREEZE = "zeta_learning_rate.freeze_epochs"
# These rates are in units of similarity; a config has them in units of the
# first temperature.
RATES_OF_SIMILARITY = (RATE, "temperature_learning_rate")
# NUCLR's rule for ζ in this study, which replaces the queue of
# configs/glyphs.py unless `SHIPPED` is set.
BATCH_RULE = {"zeta_estimator": "unbiased", RATE: 1e-2, "zeta_momentum": 0.1}
# What configs/glyphs.py ships: the queue and its rate as they are.
SHIPPED = {"temperature": 0.07, "zeta_rule": "queue"}

TEMPERATURES = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15)
MIDDLE = (0.05, 0.07, 0.1)  # temperatures if a second number is tuned too
RATES = (3e-3, 1e-2, 3e-2)
RHOS = (3.0, 4.5, 6.0)


class Algorithm(NamedTuple):
  """A config of `configs/glyphs.py`, what is fixed in it and what is tuned.

  Both are in the words of `KEYS`. A key of the grid may list several words,
  which get the same value.
  """

  config: str
  label: str
  grid: Mapping[str, Sequence[Any]]
  fixed: Mapping[str, Any] = {}


ALGORITHMS = {
  "clip": Algorithm(
    "clip", "CLIP", {TEMPERATURE: TEMPERATURES}, {"learn_temperature": False}
  ),
  "clip_learned": Algorithm(
    "clip",
    "CLIP, learned τ",
    {TEMPERATURE: TEMPERATURES},
    {"learn_temperature": True},
  ),
  "siglip": Algorithm(
    "siglip",
    "SigLIP",
    {
      "init_scale": (5.0, 10.0, 20.0),
      "init_bias": (-5.0, -10.0, -20.0),
    },
  ),
  "debiased": Algorithm(
    "debiased",
    "DCL (debiased)",
    {TEMPERATURE: MIDDLE, "tau_plus": (0.0, 0.001, 0.01)},
  ),
  "cyclip": Algorithm(
    "cyclip",
    "CyCLIP",
    {
      TEMPERATURE: MIDDLE,
      "in_modal, cross_modal": (0.01, 0.05, 0.25),
    },
    {"learn_temperature": False},
  ),
  "spectral": Algorithm(
    "spectral",
    "spectral",
    {
      "optimizer.learning_rate.value": (5e-4, 1e-3, 2e-3),
      "optimizer.weight_decay": (0.5, 1.0, 2.0),
    },
  ),
  "vicreg": Algorithm(
    "vicreg",
    "VICReg",
    {
      "invariance, variance": (1.0, 5.0, 25.0),
      "optimizer.learning_rate.value": (5e-4, 1e-3, 2e-3),
    },
  ),
  "sogclr": Algorithm("sogclr", "SogCLR", {TEMPERATURE: TEMPERATURES}),
  "fastclip_v1": Algorithm(
    "fastclip_v1",
    "FastCLIP-v1 (cosine γ)",
    {
      TEMPERATURE: (0.07, 0.1, 0.15),
      "gamma.end_value": (0.5, 0.8, 0.95),
    },
  ),
  "fastclip_v3": Algorithm(
    "fastclip_v3",
    "FastCLIP-v3 (learned τ)",
    {"rho": (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0)},
  ),
  "isogclr": Algorithm(
    "isogclr",
    "iSogCLR",
    {
      "rho": RHOS,
      "temperature_learning_rate": (1e-3, 3e-3, 1e-2),
    },
  ),
  "nuclr": Algorithm(
    "nuclr", "NUCLR", {TEMPERATURE: MIDDLE, RATE: RATES}, {FREEZE: 1.0}
  ),
  "nuclr_individual": Algorithm(
    "nuclr_individual",
    "NUCLR, individual τ",
    {"rho": RHOS, RATE: RATES},
    {FREEZE: 1.0, "temperature_learning_rate": 3e-3},
  ),
}


def keys_of(name: str) -> dict[str, str]:
  """Returns the keys of an algorithm's config, by word.

  Args:
    name: A name in `ALGORITHMS`. Two of these algorithms have a temperature
      rule that takes the numbers which all others take as keywords.

  Example:
    >>> keys_of("isogclr")["rho"], keys_of("fastclip_v3")["rho"]
    ('objective.rho', 'objective.temperature.rho')
  """
  if name not in ("fastclip_v3", "nuclr_individual"):
    return KEYS
  rule = {"rho": "rho", "temperature_learning_rate": "rate"}
  return KEYS | {x: f"objective.temperature.{y}" for x, y in rule.items()}


def translate(words: Mapping[str, Any], first: float) -> dict[str, Any]:
  """Translates values to those of a config.

  Args:
    words: The values, by word.
    first: The first temperature of the run.

  Example:
    >>> translate({"positive": "zeta", "rho": 3.0}, 0.05)
    {'positive': {'name': 'by_zeta'}, 'rho': 3.0}
    >>> translate({"zeta_learning_rate.value": 0.01}, 0.5)
    {'zeta_learning_rate.value': 0.02}
  """
  values = dict(words)
  for word in RATES_OF_SIMILARITY:
    if word in values:
      values[word] /= first
  if "positive" in values:
    values["positive"] = {"zeta": {"name": "by_zeta"}}[values["positive"]]
  return values

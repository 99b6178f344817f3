"""The algorithms of the study: the config of each and what is tuned in it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Keys of the config.
TEMPERATURE = "objective.temperature"
LEARN = "objective.learn_temperature"
RATE = "objective.zeta_learning_rate.value"
FREEZE = "objective.zeta_learning_rate.freeze_epochs"
ESTIMATOR, CENTER = "objective.zeta_estimator", "objective.zeta_center"
AVERAGE, CLIP_NORM = "objective.anchor_average", "optimizer.clip_norm"
SHARE_TEXTS = "data.share_texts"

TEMPERATURES = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15)
MIDDLE = (0.05, 0.07, 0.1)  # where a second number is tuned
RATES = (3e-3, 1e-2, 3e-2)
RHOS = (3.0, 4.5, 6.0)


class Algorithm(NamedTuple):
  """A config of `configs/glyphs.py`, what is fixed in it and what is tuned.

  A key of the grid may name several keys of the config, which get one value.
  """

  config: str
  label: str
  grid: Mapping[str, Sequence[Any]]
  fixed: Mapping[str, Any] = {}


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
      "objective.init_bias": (-5.0, -10.0, -20.0),
    },
  ),
  "debiased": Algorithm(
    "debiased",
    "DCL (debiased)",
    {TEMPERATURE: MIDDLE, "objective.tau_plus": (0.0, 0.001, 0.01)},
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
      "optimizer.learning_rate.value": (5e-4, 1e-3, 2e-3),
      "optimizer.weight_decay": (0.5, 1.0, 2.0),
    },
  ),
  "vicreg": Algorithm(
    "vicreg",
    "VICReg",
    {
      "objective.invariance, objective.variance": (1.0, 5.0, 25.0),
      "optimizer.learning_rate.value": (5e-4, 1e-3, 2e-3),
    },
  ),
  "sogclr": Algorithm("sogclr", "SogCLR", {TEMPERATURE: TEMPERATURES}),
  "fastclip_v1": Algorithm(
    "fastclip_v1",
    "FastCLIP-v1 (cosine γ)",
    {
      TEMPERATURE: (0.07, 0.1, 0.15),
      "objective.gamma.end_value": (0.5, 0.8, 0.95),
    },
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

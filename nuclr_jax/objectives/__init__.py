"""Contrastive objectives, by name.

Every factory returns an `Objective`. Arguments such as `num_pairs` and `dim`
describe the data and the model; a run fills these in. A config names the
factory, `config.objective.name`, by its key in `OBJECTIVES`, and sets its other
arguments. Those beyond the core, mostly for labels or blocks, are in
`nuclr_jax.contrib`.
"""

from nuclr_jax.objectives import temperature_rules
from nuclr_jax.objectives.base import (
  Objective,
  Readout,
  attach_gradient,
  stateless,
)
from nuclr_jax.objectives.clip import clip, ntxent
from nuclr_jax.objectives.combine import add, scale
from nuclr_jax.objectives.cyclip import cyclic_consistency, cyclip
from nuclr_jax.objectives.debiased import debiased
from nuclr_jax.objectives.nuclr import nuclr, nuclr_variant
from nuclr_jax.objectives.reference import relative_to
from nuclr_jax.objectives.siglip import siglip
from nuclr_jax.objectives.sogclr import isogclr, sogclr
from nuclr_jax.objectives.spectral import spectral
from nuclr_jax.objectives.whole_batch import whole_batch
from nuclr_jax.sample_state import denominator, zeta_rules
from nuclr_jax.types import State

OBJECTIVES = {
  "clip": clip,
  "cyclip": cyclip,
  "debiased": debiased,
  "isogclr": isogclr,
  "ntxent": ntxent,
  "nuclr": nuclr,
  "nuclr_variant": nuclr_variant,
  "siglip": siglip,
  "sogclr": sogclr,
  "spectral": spectral,
}

# Terms without params and state, which can be added to any objective.
TERMS = {
  "cyclic_consistency": cyclic_consistency,
}

# What a config may name as an argument of an objective: {"name": ..., ...}.
RULES = {
  "gamma": {
    "adaptive": denominator.Adaptive,
  },
  "positive": {
    "by_zeta": denominator.by_zeta,
    "released": denominator.released,
    "running_max": denominator.running_max,
  },
  "temperature": {
    "fixed": temperature_rules.fixed,
    "individual": temperature_rules.individual,
    "learned": temperature_rules.learned,
  },
  "zeta": {
    "batch": zeta_rules.batch,
    "fixed": zeta_rules.fixed,
    "queue": zeta_rules.queue,
  },
}

__all__ = [
  "OBJECTIVES",
  "RULES",
  "TERMS",
  "Objective",
  "Readout",
  "State",
  "add",
  "attach_gradient",
  "clip",
  "cyclic_consistency",
  "cyclip",
  "debiased",
  "denominator",
  "isogclr",
  "ntxent",
  "nuclr",
  "nuclr_variant",
  "relative_to",
  "scale",
  "siglip",
  "sogclr",
  "spectral",
  "stateless",
  "temperature_rules",
  "whole_batch",
  "zeta_rules",
]

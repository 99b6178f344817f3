"""Contrastive objectives, by name.

Every factory takes a `Spec` (or its numbers by name) and returns an
`Objective`. Those beyond the core, mostly for labels or blocks, are in
`nuclr_jax.contrib`.
"""

from nuclr_jax.objectives.base import (
  Objective,
  Readout,
  attach_gradient,
  make_spec,
  one_temperature,
  stateless,
)
from nuclr_jax.objectives.clip import clip, ntxent
from nuclr_jax.objectives.combine import add, scale
from nuclr_jax.objectives.cyclip import cyclic_consistency, cyclip
from nuclr_jax.objectives.debiased import debiased
from nuclr_jax.objectives.nuclr import nuclr, nuclr_variant
from nuclr_jax.objectives.siglip import siglip
from nuclr_jax.objectives.sogclr import isogclr, sogclr
from nuclr_jax.objectives.spectral import spectral
from nuclr_jax.objectives.vicreg import vicreg
from nuclr_jax.objectives.whole_batch import whole_batch
from nuclr_jax.sample_state import (
  own_pair_rules,
  temperature_rules,
  zeta_rules,
)
from nuclr_jax.types import Spec, State

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
  "vicreg": vicreg,
}

# Terms without params and state, which can be added to any objective.
TERMS = {
  "cyclic_consistency": cyclic_consistency,
}

# What a config may name as an argument of an objective: {"name": ..., ...}.
RULES = {
  "own_pair": {
    "by_zeta": own_pair_rules.by_zeta,
    "released": own_pair_rules.released,
    "running_max": own_pair_rules.running_max,
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
  "Spec",
  "State",
  "add",
  "attach_gradient",
  "clip",
  "cyclic_consistency",
  "cyclip",
  "debiased",
  "isogclr",
  "make_spec",
  "ntxent",
  "nuclr",
  "nuclr_variant",
  "one_temperature",
  "own_pair_rules",
  "scale",
  "siglip",
  "sogclr",
  "spectral",
  "stateless",
  "temperature_rules",
  "vicreg",
  "whole_batch",
  "zeta_rules",
]

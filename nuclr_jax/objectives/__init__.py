"""Contrastive objectives, by name."""

from nuclr_jax.objectives.base import (
  Objective,
  Rows,
  State,
  add,
  attach_gradient,
  scale,
  stateless,
)
from nuclr_jax.objectives.clip import clip, ntxent
from nuclr_jax.objectives.cyclip import cyclic_consistency, cyclip
from nuclr_jax.objectives.debiased import debiased
from nuclr_jax.objectives.isogclr import isogclr
from nuclr_jax.objectives.nuclr import nuclr
from nuclr_jax.objectives.siglip import siglip
from nuclr_jax.objectives.sogclr import sogclr
from nuclr_jax.objectives.spectral import spectral
from nuclr_jax.objectives.vicreg import vicreg

OBJECTIVES = {
  "clip": clip,
  "cyclip": cyclip,
  "debiased": debiased,
  "isogclr": isogclr,
  "ntxent": ntxent,
  "nuclr": nuclr,
  "siglip": siglip,
  "sogclr": sogclr,
  "spectral": spectral,
  "vicreg": vicreg,
}

__all__ = [
  "OBJECTIVES",
  "Objective",
  "Rows",
  "State",
  "add",
  "attach_gradient",
  "clip",
  "cyclic_consistency",
  "cyclip",
  "debiased",
  "isogclr",
  "ntxent",
  "nuclr",
  "scale",
  "siglip",
  "sogclr",
  "spectral",
  "stateless",
  "vicreg",
]

"""Contrastive objectives, by name."""

from nuclr_jax.objectives.base import (
  Objective,
  Rows,
  State,
  add,
  attach_gradient,
  regularize,
  scale,
  stateless,
)
from nuclr_jax.objectives.classification import arcface, softmax, sphereface
from nuclr_jax.objectives.clip import clip, ntxent
from nuclr_jax.objectives.cyclip import cyclic_consistency, cyclip
from nuclr_jax.objectives.debiased import debiased
from nuclr_jax.objectives.difference_alignment import difference_alignment
from nuclr_jax.objectives.isogclr import isogclr
from nuclr_jax.objectives.latent_class import (
  curl,
  latent_class,
  quick_thought,
)
from nuclr_jax.objectives.metric_learning import npair, proxy_anchor
from nuclr_jax.objectives.nuclr import nuclr
from nuclr_jax.objectives.siglip import siglip
from nuclr_jax.objectives.sogclr import sogclr
from nuclr_jax.objectives.spectral import spectral
from nuclr_jax.objectives.swav import swav
from nuclr_jax.objectives.vicreg import vicreg

OBJECTIVES = {
  "arcface": arcface,
  "clip": clip,
  "curl": curl,
  "cyclip": cyclip,
  "debiased": debiased,
  "isogclr": isogclr,
  "latent_class": latent_class,
  "npair": npair,
  "ntxent": ntxent,
  "nuclr": nuclr,
  "proxy_anchor": proxy_anchor,
  "quick_thought": quick_thought,
  "siglip": siglip,
  "softmax": softmax,
  "sogclr": sogclr,
  "spectral": spectral,
  "sphereface": sphereface,
  "swav": swav,
  "vicreg": vicreg,
}

# Without params and state, to be added to any of these.
TERMS = {
  "cyclic_consistency": cyclic_consistency,
  "difference_alignment": difference_alignment,
}

__all__ = [
  "OBJECTIVES",
  "Objective",
  "Rows",
  "State",
  "TERMS",
  "add",
  "arcface",
  "attach_gradient",
  "clip",
  "curl",
  "cyclic_consistency",
  "cyclip",
  "debiased",
  "difference_alignment",
  "isogclr",
  "latent_class",
  "npair",
  "ntxent",
  "nuclr",
  "proxy_anchor",
  "quick_thought",
  "regularize",
  "scale",
  "siglip",
  "softmax",
  "sogclr",
  "spectral",
  "sphereface",
  "stateless",
  "swav",
  "vicreg",
]

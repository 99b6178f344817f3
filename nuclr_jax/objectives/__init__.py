"""Contrastive objectives, by name."""

from nuclr_jax.objectives.base import (
  Objective,
  Rows,
  State,
  attach_gradient,
  stateless,
)
from nuclr_jax.objectives.clip import clip
from nuclr_jax.objectives.nuclr import nuclr
from nuclr_jax.objectives.sogclr import sogclr

OBJECTIVES = {"clip": clip, "nuclr": nuclr, "sogclr": sogclr}

__all__ = [
  "OBJECTIVES",
  "Objective",
  "Rows",
  "State",
  "attach_gradient",
  "clip",
  "nuclr",
  "sogclr",
  "stateless",
]

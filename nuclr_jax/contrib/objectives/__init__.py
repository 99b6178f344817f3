"""Objectives for labels and clusters, or with learned denominators; a term."""

from nuclr_jax.contrib.objectives.amorlip import amorlip
from nuclr_jax.contrib.objectives.classification import (
  arcface,
  softmax,
  sphereface,
)
from nuclr_jax.contrib.objectives.difference_alignment import (
  difference_alignment,
)
from nuclr_jax.contrib.objectives.fastclip_released import fastclip_released
from nuclr_jax.contrib.objectives.latent_class import (
  curl,
  latent_class,
  quick_thought,
)
from nuclr_jax.contrib.objectives.metric_learning import npair, proxy_anchor
from nuclr_jax.contrib.objectives.neuclip import neuclip
from nuclr_jax.contrib.objectives.swav import swav

__all__ = [
  "amorlip",
  "arcface",
  "curl",
  "difference_alignment",
  "fastclip_released",
  "latent_class",
  "neuclip",
  "npair",
  "proxy_anchor",
  "quick_thought",
  "softmax",
  "sphereface",
  "swav",
]

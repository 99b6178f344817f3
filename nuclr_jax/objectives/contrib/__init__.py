"""Objectives beyond the core, mostly for labels or blocks, and a term to add.

They pass the same tests as the core objectives; `nuclr_jax.objectives` exports
all of them by name.
"""

from nuclr_jax.objectives.contrib.classification import (
  arcface,
  softmax,
  sphereface,
)
from nuclr_jax.objectives.contrib.difference_alignment import (
  difference_alignment,
)
from nuclr_jax.objectives.contrib.latent_class import (
  curl,
  latent_class,
  quick_thought,
)
from nuclr_jax.objectives.contrib.metric_learning import npair, proxy_anchor
from nuclr_jax.objectives.contrib.swav import swav

__all__ = [
  "arcface",
  "curl",
  "difference_alignment",
  "latent_class",
  "npair",
  "proxy_anchor",
  "quick_thought",
  "softmax",
  "sphereface",
  "swav",
]

"""Objectives that need labels or blocks, and terms to add to any other.

They pass the same tests as those of `nuclr_jax.objectives`, which has all of
them by name.
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

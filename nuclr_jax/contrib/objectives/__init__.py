"""Objectives for labels and clusters, or with learned denominators; and parts.

`difference_alignment` and `token_prediction` are terms, `tempnet` is a rule for
the temperature.
"""

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
from nuclr_jax.contrib.objectives.tempnet import tempnet
from nuclr_jax.contrib.objectives.token_prediction import token_prediction
from nuclr_jax.contrib.objectives.vicreg import vicreg

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
  "tempnet",
  "token_prediction",
  "vicreg",
]

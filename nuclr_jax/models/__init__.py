"""Models, by name."""

from nuclr_jax.models.base import (
  Model,
  Tower,
  dual_encoder,
  from_nnx,
  unit_norm,
)
from nuclr_jax.models.heads import heads
from nuclr_jax.models.microbatch import microbatched
from nuclr_jax.models.small import small
from nuclr_jax.models.towers import IMAGE_TOWERS, TEXT_TOWERS, towers
from nuclr_jax.models.views import ENCODERS, one_encoder, views

MODELS = {"heads": heads, "small": small, "towers": towers, "views": views}

__all__ = [
  "ENCODERS",
  "IMAGE_TOWERS",
  "MODELS",
  "TEXT_TOWERS",
  "Model",
  "Tower",
  "dual_encoder",
  "from_nnx",
  "heads",
  "microbatched",
  "one_encoder",
  "small",
  "towers",
  "unit_norm",
  "views",
]

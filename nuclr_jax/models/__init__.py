"""Models, by name."""

from nuclr_jax.models.base import (
  Model,
  Tower,
  dual_encoder,
  from_nnx,
  unit_norm,
)
from nuclr_jax.models.microbatch import microbatched
from nuclr_jax.models.small import small

MODELS = {"small": small}

__all__ = [
  "MODELS",
  "Model",
  "Tower",
  "dual_encoder",
  "from_nnx",
  "microbatched",
  "small",
  "unit_norm",
]

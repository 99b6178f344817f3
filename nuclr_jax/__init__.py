"""Contrastive learning with learned popularities, in JAX."""

from nuclr_jax import objectives, popularity
from nuclr_jax.types import Batch, Pairs, Sides

__version__ = "0.1.0"

__all__ = ["Batch", "Pairs", "Sides", "objectives", "popularity"]

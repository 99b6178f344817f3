"""Contrastive learning with learned popularities, in JAX.

Objectives and popularities need nothing but JAX. `fit`, `load` and `build`
train by a config; they are imported when they are first used, because they
bring Flax, Orbax and the readers of data sets with them.
"""

import importlib
from typing import TYPE_CHECKING

from nuclr_jax import objectives, popularity
from nuclr_jax.types import Batch, Pairs, Sides

if TYPE_CHECKING:
  from nuclr_jax.train.build import build
  from nuclr_jax.train.loop import fit, load

__version__ = "0.1.0"

__all__ = [
  "Batch",
  "Pairs",
  "Sides",
  "build",
  "fit",
  "load",
  "objectives",
  "popularity",
]

_HOMES = {
  "build": "nuclr_jax.train.build",
  "fit": "nuclr_jax.train.loop",
  "load": "nuclr_jax.train.loop",
}


def __getattr__(name: str):
  """Imports a public name at its first use (PEP 562)."""
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})

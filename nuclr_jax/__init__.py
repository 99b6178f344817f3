"""Contrastive learning with learned popularities, in JAX.

Objectives and popularities need nothing but JAX, NumPy and jaxtyping. `fit`,
`load` and `build` work from a config, and bring in Flax, Orbax and the readers
of data sets. All are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from nuclr_jax import objectives, popularity
  from nuclr_jax.lab.train.build import build
  from nuclr_jax.lab.train.loop import fit, load
  from nuclr_jax.types import Batch, Pairs, Sides

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
  "Batch": "nuclr_jax.types",
  "Pairs": "nuclr_jax.types",
  "Sides": "nuclr_jax.types",
  "build": "nuclr_jax.lab.train.build",
  "fit": "nuclr_jax.lab.train.loop",
  "load": "nuclr_jax.lab.train.loop",
  "objectives": "nuclr_jax",
  "popularity": "nuclr_jax",
}


def __getattr__(name: str):
  """Imports a public name on first use (PEP 562)."""
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  if _HOMES[name] == __name__:
    return importlib.import_module(f"{__name__}.{name}")
  return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})

"""What studies need beyond the core: rivals, labels, latent classes, kernels.

Configs name these factories as they name a user's own: `contrib:swav`. Nothing
in the core or the lab imports this package.
"""

import importlib
from typing import Any

_OBJECTIVES = "nuclr_jax.contrib.objectives"
_HOMES = {
  "documents": "nuclr_jax.contrib.document_sentences",
  "labelled": "nuclr_jax.contrib.labelled_images",
  "amorlip": _OBJECTIVES,
  "arcface": _OBJECTIVES,
  "curl": _OBJECTIVES,
  "difference_alignment": _OBJECTIVES,
  "fastclip_released": _OBJECTIVES,
  "latent_class": _OBJECTIVES,
  "neuclip": _OBJECTIVES,
  "npair": _OBJECTIVES,
  "proxy_anchor": _OBJECTIVES,
  "quick_thought": _OBJECTIVES,
  "softmax": _OBJECTIVES,
  "sphereface": _OBJECTIVES,
  "swav": _OBJECTIVES,
  "tempnet": _OBJECTIVES,
  "token_prediction": _OBJECTIVES,
  "vicreg": _OBJECTIVES,
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
  """Imports a factory on first use (PEP 562)."""
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})

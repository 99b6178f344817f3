"""The mean and the std of images that weights were trained with.

A config decides how images are normalized, and the weights do not show it. The
files that libraries write beside them say it.
"""

from collections.abc import Mapping, Sequence
import logging
import os
from typing import Any

import numpy as np

from nuclr_jax.lab import files
from nuclr_jax.lab.models.pretrained import hub, inputs
from nuclr_jax.lab.models.pretrained.specs import read_spec

log = logging.getLogger(__name__)

NAMES = (  # of Hugging Face, OpenCLIP and timm
  "preprocessor_config.json",
  "open_clip_config.json",
  "config.json",
)
CLOSE = 1e-3  # files round


def check_normalization(
  source: str | os.PathLike, tower: Mapping[str, Any], key: str
) -> None:
  """Warns if a tower normalizes images otherwise than its weights expect.

  Args:
    source: Where the weights are, see `load.read_tensors`. Where no file beside
      them says how images are normalized, nothing is compared.
    tower: The arguments of the tower's factory, defaults included.
    key: The key of the tower in a config, for the message.

  Example:
    >>> _ = (tmp_path / "config.json").write_text('{"mean": 0.5, "std": 0.5}')
    >>> tower = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    >>> check_normalization(tmp_path, tower, "model.image")  # it warns
  """
  ours = [tower.get(name) for name in ("mean", "std")]
  if None in ours:
    return
  stated = _read(source)
  if stated is None or _are_close(ours, stated):
    return
  (mean, std), own = map(_shown, stated), tuple(map(_shown, ours))
  log.warning(
    "%s: the file beside these weights says that their images have the mean %s "
    "and the std %s, and the config's have %s and %s. Unless that is meant, "
    '--config.%s.mean="%s" --config.%s.std="%s" prepares images as the weights '
    "expect them",
    source,
    mean,
    std,
    *own,
    key,
    mean,
    key,
    std,
  )


def _read(source: str | os.PathLike) -> list[Sequence[float]] | None:
  """Reads the mean and the std; None if no file says them, or as others do."""
  place = files.remote.fetch(source).expanduser()
  path = hub.find_optional(place.parent if place.is_file() else source, *NAMES)
  if path is None:
    return None
  try:
    stated = inputs.normalization_of(read_spec(path))
  except ValueError:  # weights can be read without these files
    return None
  return None if stated is None else [stated["mean"], stated["std"]]


def _are_close(ours, stated) -> bool:
  return all(
    np.allclose(a, b, rtol=0, atol=CLOSE)
    for a, b in zip(ours, stated, strict=True)
  )


def _shown(numbers: Sequence[float]) -> str:
  """Shows numbers as a flag takes them."""
  return f"({', '.join(f'{x:.6g}' for x in numbers)})"

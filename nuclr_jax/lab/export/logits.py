"""The scale and the bias of the logits, which files of other libraries hold.

Such a file has one scale, log(1 / temperature). A run may have a temperature
for each sample, or none; what the file gets then is said in a warning.
"""

from collections.abc import Mapping
import logging
import math
from typing import Any

import numpy as np

from nuclr_jax.lab.models import pretrained
from nuclr_jax.types import Sides

log = logging.getLogger(__name__)

LOGIT_SCALE = 2.6592  # log(1 / 0.07), where Hugging Face's models start
LOGIT_BIAS = -10.0  # where SigLIP's starts


def mean_temperature(
  temperature: Sides, log_u: Sides | None, *, num_pairs: int
) -> float:
  """Returns the geometric mean of the temperatures of all anchors.

  Rows that no step has visited hold the first temperature, and are left out
  unless there are no others.

  Args:
    temperature: Those of both sides, [rows] each.
    log_u: The logarithm of u, of which unvisited rows hold -inf; None if the
      objective has none.
    num_pairs: The rows without padding.

  Example:
    >>> tau = Sides(np.array([0.01, 9.0, 9.0]), np.array([0.04, 9.0, 9.0]))
    >>> log_u = Sides(*np.array([[2.0, -np.inf, 0.0]] * 2))
    >>> round(mean_temperature(tau, log_u, num_pairs=2), 4)
    0.02
  """

  def rows(table):
    return np.array([np.asarray(x)[:num_pairs] for x in table], float)

  tau = rows(temperature)
  visited = np.ones(tau.shape, bool) if log_u is None else rows(log_u) > -np.inf
  tau = tau[visited] if visited.any() else tau
  return float(np.exp(np.log(tau).mean()))


def scalars(
  spec: Mapping[str, Any],
  temperature: float | None,
  logit_bias: float | None,
  *,
  mean: float | None = None,
  bias: bool,
) -> dict[str, np.ndarray]:
  """Returns the scale of the logits and, for SigLIP, their bias, [1] each.

  Without a temperature for all, the scale is that of the mean, or else that of
  the model that the run began from, or else a constant; a warning says which.

  Args:
    spec: What a config says of the model `towers`.
    temperature: The temperature of the run, if it has one for all.
    logit_bias: The bias of the run, if it has one.
    mean: What `mean_temperature` returned.
    bias: Whether the layout has a bias.

  Example:
    >>> scalars({}, 0.5, None, bias=True)
    {'logit_scale': array([0.6931472], dtype=float32), \
'logit_bias': array([-10.], dtype=float32)}
  """
  if temperature is not None:
    scale = math.log(1 / temperature)
  elif mean is not None:
    scale = math.log(1 / mean)
    log.warning(
      "each sample of this run has a temperature of its own, and an export has "
      "one for all: it gets their geometric mean, %.4g",
      mean,
    )
  else:
    source = _first_model(spec)
    scale, first_bias = _read(source)
    logit_bias = first_bias if logit_bias is None else logit_bias
    whose = f"that of {source}, from which the run began"
    if scale is None:
      scale, whose = LOGIT_SCALE, "at which CLIP's training begins"
    log.warning(
      "this run has no temperature, and an export has one: it gets %.4g, %s. "
      "It is not the run's; ranks do not depend on it, and to commands that "
      "take a model's temperature, give --temperature",
      math.exp(-scale),
      whose,
    )
  found = {"logit_scale": scale}
  if bias:
    found["logit_bias"] = LOGIT_BIAS if logit_bias is None else logit_bias
  return {name: np.array([x], np.float32) for name, x in found.items()}


def _first_model(spec: Mapping[str, Any]) -> Any:
  """Returns the model of both towers that a run began from; None if none."""
  if (whole := spec.get("pretrained")) is not None:
    return whole
  image, text = (spec.get(x, {}).get("pretrained") for x in Sides._fields)
  return image if image == text else None


def _read(source: Any) -> tuple[float | None, float | None]:
  """Reads the scale and the bias of a model; None for what it does not have."""
  if source is None:
    return None, None
  try:
    return (
      pretrained.read_logit_scale(source),
      pretrained.read_logit_bias(source),
    )
  except (OSError, ValueError) as error:  # it may not be here any more
    log.warning("%s, where the run began, cannot be read: %s", source, error)
    return None, None

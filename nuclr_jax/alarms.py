"""What numbers of a training warn of, in words."""

from collections.abc import Callable
from typing import NamedTuple

from nuclr_jax.types import Metrics, Sides


class Rule(NamedTuple):
  """When a number of `diagnostics.measure` is to be looked at."""

  name: str  # without the side
  wrong: Callable[[float, int], bool]  # of the number and the batch size
  text: str  # {side}, {value}


RULES = (
  Rule(
    "mean_cosine",
    lambda x, batch_size: x > 0.9,
    "the embeddings of {side}s are nearly all the same (mean cosine "
    "{value:.2f}): collapse; try a lower learning rate, or a lower weight of "
    "added terms",
  ),
  Rule(
    "dimensions",
    lambda x, batch_size: x < 2,
    "the embeddings of {side}s have {value:.1f} dimensions: collapse, or a "
    "model that has not learned yet",
  ),
  Rule(
    "effective_negatives",
    lambda x, batch_size: x < 1.5 < 0.9 * (batch_size - 1),
    "{side}s as anchors see {value:.1f} negatives of a batch: the temperature "
    "is very low, or batches have near-duplicates",
  ),
  Rule(
    "effective_negatives",
    lambda x, batch_size: x > 0.9 * (batch_size - 1) > 1.5,
    "{side}s as anchors see all negatives of a batch alike ({value:.1f}): the "
    "temperature is high, or the model has not learned yet",
  ),
  Rule(
    "temperature",
    lambda x, batch_size: not 0.005 <= x <= 1,
    "the temperature of {side}s as anchors is {value:.2g}, outside of "
    "[0.005, 1]: lower its learning rate, or fix it",
  ),
  Rule(
    "u_drift",
    lambda x, batch_size: abs(x) > 2,
    "u of {side}s as anchors is {value:+.1f} nats off the model: raise gamma, "
    "or wait for the learning rate to fall (until then BatchNorm's running "
    "statistics lag behind, too, and all scores with them)",
  ),
  Rule(
    "zeta_gain",
    lambda x, batch_size: x < -0.1,
    "zeta of {side}s is worse than none (gain {value:.2f}): lower "
    "zeta_learning_rate, or solve them with refresh.every_epochs",
  ),
)


def find(metrics: Metrics, *, batch_size: int) -> list[str]:
  """What numbers of `diagnostics.measure` warn of, in words.

  Args:
    metrics: By name, with or without a prefix ending in a slash; others are
      not looked at.
    batch_size: Of training.

  Example:
    >>> (found,) = find({"mean_cosine/text": 0.97}, batch_size=8)
    >>> found[:42]
    'the embeddings of texts are nearly all the'
  """
  return [
    rule.text.format(side=side, value=value)
    for rule in RULES
    for side in Sides._fields
    for name, value in metrics.items()
    if f"/{name}".endswith(f"/{rule.name}/{side}")
    and rule.wrong(value, batch_size)
  ]

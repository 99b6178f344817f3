"""How often images and texts occur: the popularity that one can count."""

from jaxtyping import Int
import numpy as np

from nuclr_jax import checks
from nuclr_jax.types import Sides, each

COUNTS = "counts"  # what asks for them, instead of a file


@checks.checked
def zeta_of_counts(
  ids: Sides, counts: Sides | None = None, *, temperature: checks.Temperature
) -> Sides:
  r"""Computes zeta = temperature log p of every image and text, p counted.

  With these zeta held fixed in training, similarities estimate
  temperature log p(text | image), which answers queries that ask for each text
  as often as it occurs. With zeta = 0 they estimate log p(text | image) /
  p(text), and adding zeta to them afterwards has the same effect. Both hold
  where equal texts have ids of their own, and are negatives of each other.

  Args:
    ids: The image id and the text id of every pair, [num_pairs] each.
    counts: How often each image and each text occurs, by id; None counts ids.
      Give the counts of captions where equal captions have several ids.
    temperature: The temperature of the objective, greater than 0.

  Returns:
    `Sides` with a number for each id up to the greatest, or for each count,
    with mean 0 over the pairs.

  Raises:
    ValueError: If the temperature is out of its range, or if all occur equally
      often, so that zeta would be 0.

  Example:
    >>> ids = Sides(np.arange(3), np.array([0, 1, 1]))
    >>> zeta = zeta_of_counts(ids, temperature=1.0)
    >>> zeta.image, zeta.text.round(3)
    (array([0., 0., 0.]), array([-0.462,  0.231]))

  Reference: Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021;
    derived for popularities in docs/what_zeta_is.md.
  """

  def side(ids: Int[np.ndarray, "pairs"], counts):
    zeta = temperature * np.log(np.maximum(counts, 1))
    return zeta - zeta[ids].mean()

  zeta = each(side, ids, counts or each(np.bincount, ids))
  if not (zeta.image.any() or zeta.text.any()):
    raise ValueError(
      "all images and all texts occur equally often, so that counts say "
      "nothing about popularity; use zeta = 0"
    )
  return zeta

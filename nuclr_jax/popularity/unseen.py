"""The zeta of samples that are not in the data."""

from jaxtyping import Float
import numpy as np

from nuclr_jax import checks
from nuclr_jax.popularity.problem import rounding_of_weights, row_log_sums
from nuclr_jax.types import AnyArray


@checks.checked
def zeta_of_unseen(
  unseen: Float[AnyArray, "unseen dim"],
  anchors: Float[AnyArray, "pairs dim"],
  log_denominator: Float[AnyArray, "pairs"],
  *,
  temperature: checks.Temperature,
) -> Float[np.ndarray, "unseen"]:
  r"""Computes zeta of new contrast data from the anchors of a solution.

    zeta_j = tau log sum_i exp(sim_ij / tau - D_i)

  This is eq. (9) read from left to right, with D_i the anchors' denominators in
  the solved data: it says how much of the anchors' weight a new sample would
  attract. A new image or text has no pair of its own among the anchors.
  Subtracting zeta from similarities corrects for hubs, samples that are near to
  all others.

  Args:
    unseen: Embeddings of new texts (or images).
    anchors: Embeddings of the solved pairs' images (or texts).
    log_denominator: The D_i, `Popularity.log_denominator.image` (or `.text`).
    temperature: The tau of the solution.

  Returns:
    zeta, up to a constant that all new samples share.

  Raises:
    ValueError: If an embedding is not finite, if the similarities are so large
      against the temperature that rounding hides the weights, or if
      `log_denominator` has not one number for each anchor.

  Example:
    >>> from nuclr_jax import popularity
    >>> eye = np.eye(3)
    >>> found = popularity.solve(eye, eye, temperature=0.5)
    >>> zeta = zeta_of_unseen(
    ...   np.array([[0.6, 0.8, 0.0], [0.0, 0.0, -1.0]]),
    ...   eye,
    ...   found.log_denominator.image,
    ...   temperature=0.5,
    ... )
    >>> bool(zeta[0] > zeta[1])  # the first is near to two of three
    True
  """
  unseen, anchors = np.asarray(unseen), np.asarray(anchors)
  dtype = np.result_type(np.float32, unseen, anchors)
  rounding_of_weights(temperature, unseen=unseen, anchors=anchors)
  weight = -np.asarray(log_denominator, dtype)
  if weight.shape != anchors.shape[:1] or np.isnan(weight).any():
    raise ValueError(
      f"log_denominator must be {len(anchors)} numbers, got {weight!r:.60}"
    )
  return temperature * row_log_sums(
    unseen.astype(dtype), anchors.astype(dtype), weight, temperature=temperature
  )

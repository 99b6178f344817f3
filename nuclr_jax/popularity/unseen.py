"""Popularities of samples that are no part of the data set."""

from jaxtyping import Float
import numpy as np

from nuclr_jax import checks, sharding, tiles
from nuclr_jax.types import AnyArray


def zeta_of_unseen(
  unseen: Float[AnyArray, "unseen dim"],
  anchors: Float[AnyArray, "pairs dim"],
  log_denominator: Float[AnyArray, "pairs"],
  *,
  temperature: float,
) -> Float[np.ndarray, "unseen"]:
  r"""Zeta of new contrast data against the anchors of a solution.

    zeta_j = tau log sum_i exp(sim_ij / tau - D_i)

  Equation (9) read from left to right, with D_i the anchors' denominators in
  the solved data: how much of all anchors' weight a newcomer would attract. A
  new image or text has no pair of its own among the anchors. Subtracted from
  similarities it corrects for hubs: samples near to everyone.

  Args:
    unseen: Embeddings of new texts (or images).
    anchors: Embeddings of the solved pairs' images (or texts).
    log_denominator: Theirs, `Popularity.log_denominator.image` (or `.text`).
    temperature: tau of the solution.

  Returns:
    zeta, up to a constant that all of them share.

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
  tau = checks.temperature(temperature)
  unseen, anchors = np.asarray(unseen), np.asarray(anchors)
  dtype = np.result_type(np.float32, unseen, anchors)
  weight = -np.asarray(log_denominator, dtype)
  found = tiles.log_sum_exp(
    unseen.astype(dtype), anchors.astype(dtype), weight, temperature=tau
  )
  return tau * np.asarray(sharding.fetch(found), float)

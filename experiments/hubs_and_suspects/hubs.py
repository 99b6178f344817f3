"""Corrections for hubs: what is subtracted from a candidate's similarities.

A querybank is a set of training queries; no correction sees a query of the
test. `bank` has the similarities of the bank's queries to the candidates. With
s_ij the similarity of bank query i to candidate j and t a temperature, scores
of a query q are sim_qj - penalty_j:

  CSLS              penalty_j = mean of the k largest s_ij over i, halved:
                    2 sim_qj - r_j ranks as sim_qj - r_j / 2
  inverted softmax  penalty_j = t log sum_i exp(s_ij / t)
  zeta              penalty_j = t log sum_i exp(s_ij / t - D_i)
  QB-Norm           the inverted softmax, but only for queries whose most
                    similar candidate is among the k most similar candidates of
                    some query of the bank; similarities for all others

The mean of CSLS is the library's (`local_scaling` of `lab.evaluate.hubness`).
D_i is the anchor's log denominator in the exact solution of the bank's pairs
(`nuclr_jax.popularity.solve`), and zeta is `popularity.zeta_of_unseen`. With
D_i = 0 it is the inverted softmax.

References: Conneau et al., Word Translation Without Parallel Data, ICLR 2018
(CSLS); Smith et al., Offline Bilingual Word Vectors, ICLR 2017 (inverted
softmax); Bogolin et al., Cross Modal Retrieval with Querybank Normalisation,
CVPR 2022 (QB-Norm; beta = 1 / t = 20 and k = 1 in its code).
"""

from jaxtyping import Bool, Float
import numpy as np
from scipy import special


def inverted_softmax(
  bank: Float[np.ndarray, "*galleries queries candidates"],
  *,
  temperature: float,
  log_denominator: Float[np.ndarray, "queries"] | float = 0.0,
) -> Float[np.ndarray, "*galleries candidates"]:
  """Returns the penalty of the inverted softmax, or zeta.

  Args:
    bank: Similarities of the bank.
    temperature: The temperature; the inverse of beta.
    log_denominator: D_i for zeta; 0 for the inverted softmax.

  Example:
    >>> inverted_softmax(np.zeros((3, 1)), temperature=0.5).round(
    ...   3
    ... )  # log 3 / 2
    array([0.549])
  """
  weight = np.broadcast_to(log_denominator, bank.shape[-2])[:, None]
  return temperature * special.logsumexp(bank / temperature - weight, axis=-2)


def activated(
  bank: Float[np.ndarray, "*galleries queries candidates"], *, k: int
) -> Bool[np.ndarray, "*galleries candidates"]:
  """Returns whether candidates are among the k best of a query of the bank.

  Example:
    >>> activated(np.array([[0.9, 0.1, 0.3], [0.5, 0.2, 0.3]]), k=2)
    array([ True, False,  True])
  """
  k = min(k, bank.shape[-1])
  best = np.argpartition(-bank, k - 1, axis=-1)[..., :k]
  found = np.zeros((*bank.shape[:-2], bank.shape[-1]), bool)
  places = best.reshape(*bank.shape[:-2], -1)
  np.put_along_axis(found, places, True, axis=-1)
  return found


def qb_norm(
  sim: Float[np.ndarray, "*galleries queries candidates"],
  penalty: Float[np.ndarray, "*galleries candidates"],
  active: Bool[np.ndarray, "*galleries candidates"],
) -> Float[np.ndarray, "*galleries queries candidates"]:
  """Corrects those queries whose most similar candidate is active.

  Example:
    >>> sim = np.array([[0.9, 0.8], [0.3, 0.4]])
    >>> qb_norm(sim, np.array([0.5, 0.0]), np.array([True, False]))
    array([[0.4, 0.8],
           [0.3, 0.4]])
  """
  top = sim.argmax(axis=-1)
  chosen = np.take_along_axis(active, top, axis=-1)[..., None]
  return sim - np.where(chosen, penalty[..., None, :], 0.0)

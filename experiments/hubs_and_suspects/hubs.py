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
  DBSN              as zeta, with D_i from ten steps of Sinkhorn's iteration on
                    the bank's queries against the bank's targets and the
                    candidates, all of which weigh the same

The mean of CSLS is the library's (`local_scaling` of `lab.evaluate.hubness`).
D_i is the anchor's log denominator in the exact solution of the bank's pairs
(`nuclr_jax.popularity.solve`), and zeta is `popularity.zeta_of_unseen`. With
D_i = 0 it is the inverted softmax.

References: Conneau et al., Word Translation Without Parallel Data, ICLR 2018
(CSLS); Smith et al., Offline Bilingual Word Vectors, ICLR 2017 (inverted
softmax); Bogolin et al., Cross Modal Retrieval with Querybank Normalisation,
CVPR 2022 (QB-Norm; beta = 1 / t = 20 and k = 1 in its code); Pan et al.,
Hubness Reduction with Dual Bank Sinkhorn Normalization for Cross-Modal
Retrieval, ACM MM 2025 (DBSN; t = 0.01 and 10 steps in its code).
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


def dual_bank(
  bank: Float[np.ndarray, "*galleries queries candidates"],
  targets: Float[np.ndarray, "queries targets"],
  *,
  temperature: float,
  steps: int = 10,
) -> Float[np.ndarray, "*galleries candidates"]:
  """Returns the penalty of dual-bank Sinkhorn normalization.

  Args:
    bank: Similarities of the bank's queries to the candidates.
    targets: Similarities of the bank's queries to the bank's own targets.
    temperature: The temperature.
    steps: The number of steps; a step normalizes queries, then targets.

  Example:
    >>> bank, targets = np.array([[0.5, 0.1]]), np.array([[0.3]])
    >>> dual_bank(bank, targets, temperature=1.0).round(3)
    array([1.285, 0.885])
  """
  of_candidates, of_targets = (
    np.exp((x.astype(np.float64) - 1) / temperature) for x in (bank, targets)
  )
  *galleries, queries, candidates = bank.shape
  total = candidates + targets.shape[1]
  u = np.full((*galleries, candidates), 1 / total)
  u_target = np.full((*galleries, targets.shape[1]), 1 / total)
  for _ in range(steps):
    sums = np.einsum("...qc,...c->...q", of_candidates, u)
    v = 1 / queries / (sums + u_target @ of_targets.T)
    u = 1 / total / np.einsum("...qc,...q->...c", of_candidates, v)
    u_target = 1 / total / (v @ of_targets)
  return -temperature * np.log(u)


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

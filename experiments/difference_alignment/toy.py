"""Figure 2 and Tables 6 and 7 of the paper: clusters, and what they promise.

Three Gaussian clusters in four cases. In (a) distances of the clusters differ,
in (b) they are alike; in (c) directions of the differences differ, in (d) they
are alike. The paper says that the consistent cases (b, d) generalise better.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist
from scipy.stats import multivariate_normal

TRAIN, TEST = 1_000, 200  # points of a cluster
NEIGHBOURS = (1, 8)
SPREADS = (1.0, 1.5, 2.0, 3.0, 4.0)  # of the clusters, times that of Table 6
KINDS = ("as in Table 6", "equal smallest distance", "equal mean distance")
SAMPLES = (3, 10, 100, 1_000)
PUBLISHED = {"a": (99.4, 80.3), "b": (98.8, 89.2), "c": (98.6, 81.5)}
PUBLISHED |= {"d": (98.4, 85.6)}


class Case(NamedTuple):
  """Means [3, 2] and covariances [3, 2, 2] of the clusters."""

  mean: np.ndarray
  covariance: np.ndarray


def _case(means, covariances) -> Case:
  return Case(np.array(means, float), np.array(covariances, float))


_ROUND = [[[4, 1], [1, 4]]] * 3
CASES = {  # Table 6
  "a": _case([[0, 9], [9, 0], [35, 35]], _ROUND),
  "b": _case([[0, 12], [12, 0], [20, 20]], _ROUND),
  "c": _case(
    [[0, -10], [8, 10], [20, 0]],
    [[[1, 0], [0, 6]], [[6, 0], [0, 1]], [[2, 0], [0, 24]]],
  ),
  "d": _case([[0, 0], [10, 10], [20, 20]], [[[1, 0.75], [0.75, 1]]] * 3),
}


def wider(case: Case, spread: float, kind: str) -> Case:
  """Clusters that are wider, as in Table 6 or made comparable before.

  Args:
    case: Of Table 6.
    spread: Factor of the standard deviations.
    kind: In `KINDS`. If distances are equal, covariances are 4 times the
      identity and means are scaled so that the smallest or the mean distance
      of two of them is 12: a case is then nothing but where its means lie.
  """
  mean, covariance = case
  if kind != KINDS[0]:
    covariance = np.broadcast_to(4 * np.eye(2), (3, 2, 2))
    distances = pdist(mean)
    size = distances.min() if kind == KINDS[1] else distances.mean()
    mean = mean * 12 / size
  return Case(mean, covariance * spread**2)


def draw(rng, case: Case, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Points and their clusters."""
  x = [rng.multivariate_normal(m, c, count) for m, c in zip(*case, strict=True)]
  return np.concatenate(x), np.repeat(np.arange(3), count)


def nearest_neighbours(x, label, test, k: int, *, own: bool = False):
  """The most frequent label of k neighbours; `own`: of others than itself."""
  _, near = cKDTree(x).query(test, k=np.arange(1, k + 1 + own))
  votes = label[near[:, own:]]
  counts = np.stack([(votes == c).sum(axis=1) for c in range(3)], axis=1)
  # Of equal counts the nearest decides.
  first = np.take_along_axis(counts, votes, axis=1).argmax(axis=1)
  return votes[np.arange(len(test)), first]


def best(case: Case, test) -> np.ndarray:
  """The most probable cluster, by the true densities."""
  parts = [
    multivariate_normal(m, c).logpdf(test) for m, c in zip(*case, strict=True)
  ]
  return np.argmax(parts, axis=0)


def measure_case(case: Case, *, seeds: int, train: int, k: int) -> dict:
  """Accuracies in percent, a list with an entry for each seed."""
  found = {"train": [], "test": [], "best": []}
  for seed in range(seeds):
    rng = np.random.default_rng(seed)
    x, label = draw(rng, case, train)
    test, test_label = draw(rng, case, TEST)
    guesses = {
      "train": nearest_neighbours(x, label, x, k, own=True) == label,
      "test": nearest_neighbours(x, label, test, k) == test_label,
      "best": best(case, test) == test_label,
    }
    for name, right in guesses.items():
      found[name].append(100 * float(np.mean(right)))
  return found


def measure(*, seeds: int) -> dict[str, Any]:
  """Table 7, then clusters that are wider, and fewer points."""
  table = {
    name: {
      str(k): measure_case(case, seeds=seeds, train=TRAIN, k=k)
      for k in NEIGHBOURS
    }
    for name, case in CASES.items()
  }
  wide = {
    kind: {
      name: [
        measure_case(wider(case, x, kind), seeds=seeds, train=TRAIN, k=8)
        for x in SPREADS
      ]
      for name, case in CASES.items()
    }
    for kind in KINDS
  }
  few = {
    kind: {
      name: [
        measure_case(wider(case, 2.0, kind), seeds=10 * seeds, train=x, k=1)
        for x in SAMPLES
      ]
      for name, case in CASES.items()
    }
    for kind in KINDS
  }
  return {"table 7": table, "wider": wide, "few": few}

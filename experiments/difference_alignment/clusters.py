"""Figure 2 and Tables 6 and 7 of the paper: clusters and nearest neighbours.

There are four cases of three Gaussian clusters. The distances of the clusters
differ in (a) and are equal in (b); the directions of their differences differ
in (c) and are equal in (d). The paper says that the consistent cases (b, d)
generalize better.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist
from scipy.stats import multivariate_normal

from experiments.harness import Run

TRAIN, TEST = 1_000, 200  # points per cluster
NEIGHBOURS = (1, 8)
SPREADS = (1.0, 1.5, 2.0, 3.0, 4.0)  # factors of the deviations of Table 6
KINDS = ("as in Table 6", "equal smallest distance", "equal mean distance")
SAMPLES = (3, 10, 100, 1_000)
PUBLISHED = {"a": (99.4, 80.3), "b": (98.8, 89.2), "c": (98.6, 81.5)}
PUBLISHED |= {"d": (98.4, 85.6)}
COMPARED = (("b", "a"), ("d", "c"))  # a consistent case, an inconsistent one


class Case(NamedTuple):
  """The means [3, 2] and covariances [3, 2, 2] of three clusters."""

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
  """Widens the clusters of a case, after making cases comparable if asked to.

  Args:
    case: A case of Table 6.
    spread: The factor of the standard deviations.
    kind: One of `KINDS`. For equal distances, covariances are 4 times the
      identity and means are scaled so that the smallest or the mean distance
      of two of them is 12: cases then differ only in where their means lie.
  """
  mean, covariance = case
  if kind != KINDS[0]:
    covariance = np.broadcast_to(4 * np.eye(2), (3, 2, 2))
    distances = pdist(mean)
    size = distances.min() if kind == KINDS[1] else distances.mean()
    mean = mean * 12 / size
  return Case(mean, covariance * spread**2)


def draw(rng, case: Case, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Draws `count` points of each cluster; returns points and cluster ids."""
  x = [rng.multivariate_normal(m, c, count) for m, c in zip(*case, strict=True)]
  return np.concatenate(x), np.repeat(np.arange(3), count)


def nearest_neighbours(x, label, test, k: int, *, leave_out: bool = False):
  """Predicts the most frequent label among the k nearest neighbours.

  Args:
    x: The labelled points [n, 2].
    label: The label of each point.
    test: The points to label.
    k: The number of neighbours.
    leave_out: Whether `test` is `x`; a point is then not its own neighbour.
  """
  _, near = cKDTree(x).query(test, k=np.arange(1, k + 1 + leave_out))
  votes = label[near[:, leave_out:]]
  counts = np.stack([(votes == c).sum(axis=1) for c in range(3)], axis=1)
  # argmax takes the first of equal counts, so the nearest point breaks ties.
  first = np.take_along_axis(counts, votes, axis=1).argmax(axis=1)
  return votes[np.arange(len(test)), first]


def best(case: Case, test) -> np.ndarray:
  """Predicts the cluster with the largest true density."""
  parts = [
    multivariate_normal(m, c).logpdf(test) for m, c in zip(*case, strict=True)
  ]
  return np.argmax(parts, axis=0)


def measure_case(case: Case, *, seed: int, train: int, k: int) -> dict:
  """Measures accuracies in percent.

  Args:
    case: The clusters.
    seed: The seed of the points.
    train: The number of training points per cluster.
    k: The number of neighbours.

  Returns:
    The accuracies "train" (where a point is not its own neighbour), "test", and
    "best", the test accuracy of the true densities.
  """
  rng = np.random.default_rng(seed)
  x, label = draw(rng, case, train)
  test, test_label = draw(rng, case, TEST)
  right = {
    "train": nearest_neighbours(x, label, x, k, leave_out=True) == label,
    "test": nearest_neighbours(x, label, test, k) == test_label,
    "best": best(case, test) == test_label,
  }
  return {name: 100 * float(np.mean(hits)) for name, hits in right.items()}


def measure_table_7(run: Run) -> dict[str, Any]:
  """Measures the cases of Table 6, by case and number of neighbours."""
  values = dict(run.values)
  cases = {
    name: {
      str(k): measure_case(case, seed=run.seed, train=values["points"], k=k)
      for k in values["neighbours"]
    }
    for name, case in CASES.items()
  }
  return {"cases": cases}


def measure_wider(run: Run) -> dict[str, Any]:
  """Measures clusters of several widths, by kind and case."""
  values = dict(run.values)

  def measure(case, kind, spread):
    return measure_case(
      wider(case, spread, kind),
      seed=run.seed,
      train=values["points"],
      k=values["neighbours"],
    )

  return {"cases": _over(measure, values["spreads"])}


def measure_few(run: Run) -> dict[str, Any]:
  """Measures several numbers of training points, by kind and case."""
  values = dict(run.values)

  def measure(case, kind, points):
    return measure_case(
      wider(case, values["spread"], kind),
      seed=run.seed,
      train=points,
      k=values["neighbours"],
    )

  return {"cases": _over(measure, values["points"])}


def _over(measure, numbers) -> dict[str, dict[str, list]]:
  """Measures every kind and case for each number."""
  return {
    kind: {
      name: [measure(case, kind, x) for x in numbers]
      for name, case in CASES.items()
    }
    for kind in KINDS
  }

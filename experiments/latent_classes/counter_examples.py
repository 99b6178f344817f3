"""Exact cases where contrastive learning picks the useless f_0 = 0 (paper 1).

Each example has two encoders, f_0 = 0 and f_1. The features of f_1 distinguish
classes (or clusters of classes). The loss is the hinge loss; f_0 always has
loss 1.
"""

from typing import Any, NamedTuple

import numpy as np

from experiments.harness import Run
from nuclr_jax.contrib import latent_classes
from nuclr_jax.lab.evaluate.ranking import class_means

NEGATIVES = (1, 2, 4, 8, 16, 32, 64)
RADII = (0.5, 1.0, 2.0, 4.0)
NUM_CLASSES = 8
RADIUS = 2.0


class Example(NamedTuple):
  """The features f_1 of all points, and their classes."""

  features: np.ndarray
  label: np.ndarray


def one_point(r: float) -> Example:
  """Makes Figure 1 (a): one point per class; the longest direction is useless.

  The paper does not give the figure's coordinates; these have its properties.
  The first coordinate separates the classes, so s(f_1) = 0 and the supervised
  loss of a linear classifier is 0, but f(x)^T f(x') grows with r^2.
  """
  return Example(np.array([[1.0, r], [-1.0, 2 * r]]), np.arange(2))


def two_points(r: float) -> Example:
  """Makes Figure 1 (b): two points per class, with class means far apart.

  The mean classifier is correct with a margin, but the two points of a class
  have distance 2 r.
  """
  x = np.array([[1.0, r], [1.0, -r], [-1.0, r], [-1.0, -r]])
  return Example(x, np.array([0, 0, 1, 1]))


def scaled_points(num_classes: int, r: float) -> Example:
  """Makes Appendix C, 1: class i has the points 3/2 r e_i and 1/2 r e_i."""
  basis = np.eye(num_classes)
  x = np.concatenate([1.5 * r * basis, 0.5 * r * basis])
  return Example(x, np.tile(np.arange(num_classes), 2))


def clusters(num_clusters: int, r: float) -> Example:
  """Makes Appendix C, 2: n clusters of n classes with the same features each.

  Class (i, j) has the points 3/2 r e_i and 1/2 r e_i, so f_1 distinguishes
  clusters, but not the classes within a cluster.
  """
  one = scaled_points(num_clusters, r)
  x = np.repeat(one.features, num_clusters, axis=0)
  label = one.label[:, None] * num_clusters + np.arange(num_clusters)[None]
  return Example(x, label.ravel())


FIGURE_1 = {"one point": one_point, "two points": two_points}
APPENDIX_C = {"scaled points": scaled_points, "clusters": clusters}


def measure_radii(run: Run) -> dict[str, Any]:
  """Measures the losses of f_1 over r, for Section 5.1."""
  make, radii = FIGURE_1[run.setting], dict(run.values)["radius"]
  return {
    "radius": radii,
    "unsupervised": [loss(make(r)) for r in radii],
    "mean classifier": [supervised(make(r)) for r in radii],
    "separable": [separable(make(r)) for r in radii],
  }


def measure_negatives(run: Run) -> dict[str, Any]:
  """Measures the losses of f_1 over the number of negatives: Appendix C."""
  values = dict(run.values)
  example = APPENDIX_C[run.setting](values["classes"], values["radius"])
  return {
    "negatives": values["negatives"],
    "classes": int(example.label.max()) + 1,
    "unsupervised": [loss(example, k) for k in values["negatives"]],
    "mean classifier": supervised(example),
  }


def loss(example: Example, num_negatives: int = 1) -> float:
  """Computes L_un of f_1."""
  return latent_classes.unsupervised_loss(
    *example, loss="hinge", num_negatives=num_negatives
  )


def supervised(example: Example) -> float:
  """Computes L_sup^mu of f_1, over tasks of two classes."""
  means = class_means(*example)
  scores = example.features @ means.T
  return latent_classes.average_loss(
    scores, example.label, ways=2, loss="hinge"
  )


def separable(example: Example) -> float:
  """Computes the loss of one linear classifier of f_1.

  Its rows (1, 0) and (-1, 0) use the first coordinate only.
  """
  scores = np.array([[1.0, 0.0], [-1.0, 0.0]]) @ example.features.T
  return latent_classes.average_loss(
    scores.T, example.label, ways=2, loss="hinge"
  )

"""Scores of suspects: the larger, the likelier is a caption wrong.

All take embeddings of unit norm, a row per pair. Sides are joined by the mean.

References: Zhang et al., LEMoN: Label Error Detection using Multimodal
Neighbors, ICML 2025; Northcutt et al., Confident Learning, JAIR 2021, as in
cleanlab 2.9.
"""

from jaxtyping import Bool, Float, Int
import numpy as np

from nuclr_jax.lab.evaluate.suspects import Neighbours, cross_validated

Rows = Float[np.ndarray, "pairs dim"]
PerPair = Float[np.ndarray, "pairs"]
Probabilities = Float[np.ndarray, "pairs classes"]

SHRINKAGE = 0.1  # of the covariance of a cross-validated classifier
CONFIDENT = 1e-6  # cleanlab's tolerance of thresholds


def margins(
  sim: Float[np.ndarray, "anchors contrasts"],
  zeta: Float[np.ndarray, "contrasts"] | float = 0.0,
) -> PerPair:
  """Returns how far the own contrast is below the best one of each anchor.

    max_j (sim_ij - zeta_j) - (sim_ii - zeta_i)

  Unlike a match probability, it does not depend on how many contrasts are as
  good as the own one.

  Example:
    >>> margins(np.array([[0.9, 0.1], [0.5, 0.3]]))
    array([0. , 0.2])
  """
  score = sim - zeta
  return score.max(axis=1) - np.diagonal(score)


def overlap(image: Neighbours, text: Neighbours) -> PerPair:
  """Returns 1 - the share of an image's neighbours that its text has, too.

  Example:
    >>> one = Neighbours(np.array([[1, 2]]), np.zeros((1, 2)))
    >>> other = Neighbours(np.array([[2, 3]]), np.zeros((1, 2)))
    >>> overlap(one, other)
    array([0.5])
  """
  both = (image.row[:, :, None] == text.row[:, None]).any(axis=2)
  return 1 - both.mean(axis=1)


def lemon(
  image: Rows,
  text: Rows,
  near_image: Neighbours,
  near_text: Neighbours,
  *,
  weight: float = 5.0,
  near: float = 0.1,
  trusted: float = 5.0,
) -> PerPair:
  """Returns the score of LEMoN.

    d(x_i, y_i) + weight (s_n + s_m),
    s_n = mean over the k nearest images j of
          d(y_i, y_j) exp(-near d(x_i, x_j) - trusted d(x_j, y_j))

  and s_m is the same with images and texts exchanged; d = 1 - cosine
  similarity. The defaults, with k = 30, are fixed parameters for data without a
  labelled validation set.

  Args:
    image: Embeddings x of the images.
    text: Embeddings y of the texts.
    near_image: The k nearest images of each image.
    near_text: The k nearest texts of each text.
    weight: The weight of neighbours, beta = gamma.
    near: tau_1, how much nearer neighbours count more.
    trusted: tau_2, how much neighbours count more that fit their own partner.
  """
  own = 1 - np.einsum("nd,nd->n", image, text)
  score = own.copy()
  for (row, distance), other in ((near_image, text), (near_text, image)):
    far = 1 - np.einsum("nd,nkd->nk", other, other[row])
    score += weight * np.mean(
      far * np.exp(-near * distance - trusted * own[row]), axis=1
    )
  return score


def class_probabilities(
  features: Rows, label: Int[np.ndarray, "pairs"], *, num_classes: int
) -> Probabilities:
  """Returns out-of-sample probabilities of classes, from a linear classifier.

  They are those of `nuclr_jax.lab.evaluate.suspects.cross_validated`.

  Args:
    features: What is classified.
    label: The given class of each row.
    num_classes: The number of classes; a class without rows has probability 0.
  """
  probabilities = np.zeros((len(label), num_classes))
  for rows, log_p in cross_validated(
    features, label, num_classes=num_classes, shrinkage=SHRINKAGE
  ):
    probabilities[rows] = np.exp(log_p)
  return probabilities


def confident_thresholds(
  probabilities: Probabilities, label: Int[np.ndarray, "pairs"]
) -> Float[np.ndarray, "classes"]:
  """Returns the mean probability of each class over the rows labelled with it.

  A class without rows has a threshold that nothing reaches.
  """
  count = np.bincount(label, minlength=probabilities.shape[1])
  own = probabilities[np.arange(len(label)), label]
  total = np.bincount(label, own, minlength=len(count))
  return np.where(count, total / np.maximum(count, 1), np.inf)


def confidently_other(
  probabilities: Probabilities, label: Int[np.ndarray, "pairs"]
) -> Bool[np.ndarray, "pairs"]:
  """Returns which rows count outside of the confident joint's diagonal.

  A row counts for the class that reaches its threshold, for the most probable
  class of all if several do, and not at all if none does. This is cleanlab's
  `find_label_issues(filter_by="confident_learning")` up to its last step, which
  keeps rows whose label is the most probable one.

  Example:
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9]])
    >>> confidently_other(p, np.array([0, 0, 1]))
    array([False, False, False])
    >>> p[1] = 0.05, 0.95
    >>> confidently_other(p, np.array([0, 0, 1]))
    array([False,  True, False])
  """
  thresholds = confident_thresholds(probabilities, label)
  confident = probabilities >= thresholds - CONFIDENT
  several = confident.sum(axis=1) > 1
  guess = np.where(
    several, probabilities.argmax(axis=1), confident.argmax(axis=1)
  )
  likeliest = probabilities.argmax(axis=1) == label
  return confident.any(axis=1) & (guess != label) & ~likeliest


def confident_learning(
  probabilities: Probabilities, label: Int[np.ndarray, "pairs"]
) -> dict[str, PerPair]:
  """Returns the rankings of cleanlab, by name.

  "self-confidence": 1 - the probability of the label. "adjusted margin": the
  largest probability of another class minus that of the label, after each
  class's threshold is subtracted and rows are scaled to sum 1. "flagged first":
  self-confidence, but the rows of `confidently_other` come before all others.
  """
  rows = np.arange(len(label))
  doubt = 1 - probabilities[rows, label]
  thresholds = confident_thresholds(probabilities, label)
  known = np.isfinite(thresholds)
  adjusted = probabilities[:, known] - thresholds[known]
  adjusted += thresholds[known].max()
  adjusted /= adjusted.sum(axis=1, keepdims=True)
  place = np.cumsum(known) - 1
  own = adjusted[rows, place[label]].copy()
  adjusted[rows, place[label]] = -np.inf
  return {
    "self-confidence": doubt,
    "adjusted margin": adjusted.max(axis=1) - own,
    "flagged first": doubt + 2 * confidently_other(probabilities, label),
  }


def duplicate_scores(
  image: Rows, text: Rows, zeta: PerPair, *, k: int = 10
) -> dict[str, PerPair]:
  """Returns how near the nearest other pair is, in several ways, by name.

  "image" is what the page of popularities links, and cleanlab's order by the
  distance to the nearest neighbour. "image − density" subtracts, as CSLS does
  within one side, the mean similarity of both images to their `k` nearest;
  "image − ζ" half of both zeta; "gap" is how much nearer the first neighbour
  is than the second; "image + text" adds the similarity of the texts.

  Args:
    image: Embeddings of the images.
    text: Embeddings of the texts.
    zeta: Exact popularities of the images.
    k: How many neighbours make a density.
  """
  sim = image @ image.T
  np.fill_diagonal(sim, -np.inf)
  top = -np.sort(-np.partition(sim, -k, axis=1)[:, -k:], axis=1)
  density = top.mean(axis=1)
  both = sim + text @ text.T
  return {
    "image": top[:, 0],
    "image + text": both.max(axis=1),
    "image − density": (2 * sim - density - density[:, None]).max(axis=1),
    "image − ζ": (sim - (zeta + zeta[:, None]) / 2).max(axis=1),
    "gap": top[:, 0] - top[:, 1],
  }

"""Scores of suspects: which pairs may have a wrong caption.

Which score is best depends on the model and on the captions
(experiments/hubs_and_suspects). A model that has not been trained on the pairs
gives wrong captions a low probability (`log_match_probability`). One that has
been may have memorized some of them, and depending on the data, the neighbours
find more (`neighbours_distance`).
Where captions are names of classes, a classifier of the images finds more than
either (`log_self_confidence`), but only if nearly all classes have enough
images to learn from (`learnable_share`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.popularity.exact import Popularity
from nuclr_jax.types import Pairs, Sides, each, swap

NEIGHBOURS = 10  # of a pair, on each side
FOLDS = 5  # of the images, for cross-validation
SHRINKAGE = 0.95  # of a classifier's covariance, for 32 to 512 dimensions
BLOCK = 2**22  # numbers at a time, at most 32 MiB
MIN_IMAGES = 8  # of a class that can be learned from
# Of the pairs, in such classes. A class with fewer images looks suspicious as a
# whole, so that a long tail of rare ones hides the wrong captions. In the
# study, self-confidence finds more than match probabilities do above 98 %, as
# much at 93 %, and far less below 90 %.
MIN_SHARE = 0.98


def log_match_probability(
  found: Popularity, pairs: Pairs, *, temperature: float
) -> Sides:
  """Returns the log of the probability that each anchor gives to its positive.

    log w_ii = (sim_ii - zeta_i) / tau - D_i

  w_ij is the weight of pair j in the normalized denominator of anchor i. The
  log is near 0 if the anchor picks its positive out of all data, and very
  negative if other pairs are far more likely: the text may then be wrong (label
  noise).

  Returns:
    `Sides` of [pairs] arrays, filed with the anchor.
  """
  own = np.einsum("nd,nd->n", pairs.image, pairs.text)
  rows = each(lambda ids, x: np.searchsorted(ids, x), found.ids, pairs.ids)
  zeta = each(lambda z, row: z[row], found.zeta, rows)
  # zeta is filed with the contrast, log_denominator with the anchor.
  return each(
    lambda z, d: (own - z) / temperature - d,
    swap(zeta),
    found.log_denominator,
  )


class Neighbours(NamedTuple):
  """The k nearest other rows of each row, the nearest first."""

  row: Int[np.ndarray, "pairs k"]
  distance: Float[np.ndarray, "pairs k"]  # 1 - cosine similarity

  def first(self, k: int) -> "Neighbours":
    """Returns the k nearest ones only."""
    return Neighbours(self.row[:, :k], self.distance[:, :k])


def neighbours_distance(
  neighbours: Neighbours, partner: Float[np.ndarray, "pairs dim"]
) -> Float[np.ndarray, "pairs"]:
  """Returns how far a pair's partner is from those of its nearest neighbours.

    d_i = 1 - (1 / k) sum_j <partner_i, partner_j>, over the neighbours j of i

  If the neighbours are those of images, d_i says how far a caption is from the
  captions of the nearest images. A model that was trained on wrong captions has
  memorized some of them: the positive then looks right, its neighbours do not.

  Args:
    neighbours: The neighbours on one side.
    partner: Unit-norm embeddings of the other side.

  Example:
    >>> image = np.float32([[1, 0], [1, 0], [1, 0], [0, 1]])
    >>> text = image[[0, 0, 3, 3]]  # the third text is that of another image
    >>> near = np.array([[1, 2], [0, 2], [0, 1], [0, 1]])
    >>> near = Neighbours(near, 1 - np.einsum("id,ikd->ik", image, image[near]))
    >>> neighbours_distance(near, text)[:3]
    array([0.5, 0.5, 1. ], dtype=float32)
  """
  n, dim = partner.shape
  distance = np.empty(n, partner.dtype)
  size = max(1, BLOCK // (dim * max(1, neighbours.row.shape[1])))
  for first in range(0, n, size):
    rows = slice(first, first + size)
    means = partner[neighbours.row[rows]].mean(axis=1)
    distance[rows] = 1 - np.einsum("nd,nd->n", partner[rows], means)
  return distance


class Classifier(NamedTuple):
  """A linear classifier, whose logits are `x @ kernel + bias`."""

  kernel: Float[np.ndarray, "dim classes"]
  bias: Float[np.ndarray, "classes"]  # -inf for classes without rows

  def log_probabilities(
    self, x: Float[np.ndarray, "rows dim"]
  ) -> Float[np.ndarray, "rows classes"]:
    """Returns the log of the softmax of the logits."""
    logits = x @ self.kernel + self.bias
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class Moments(NamedTuple):
  """Sums over rows that a classifier is fitted to; those of parts add up."""

  count: Int[np.ndarray, "classes"]
  total: Float[np.ndarray, "classes dim"]
  second: Float[np.ndarray, "dim dim"]  # sum of x x^T


def moments(
  features: Float[np.ndarray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  num_classes: int,
) -> Moments:
  """Adds up what `classifier_of` needs, in float64.

  Args:
    features: What is classified.
    label: The class of each row, in [0, num_classes).
    num_classes: The number of classes; they need not all have rows.
  """
  n, dim = features.shape
  count = np.bincount(label, minlength=num_classes)
  total, second = np.zeros((num_classes, dim)), np.zeros((dim, dim))
  size = max(1, BLOCK // dim)
  for first in range(0, n, size):
    x = features[first : first + size].astype(float)
    np.add.at(total, label[first : first + size], x)
    second += x.T @ x
  return Moments(count, total, second)


def classifier_of(sums: Moments, *, shrinkage: float = SHRINKAGE) -> Classifier:
  """Fits linear discriminant analysis with a shrunk covariance.

    logit_c(x) = m_c^T S^-1 x - m_c^T S^-1 m_c / 2 + log p_c,
    S = (1 - shrinkage) W + shrinkage tr(W) / dim I

  with the mean m_c of class c, its share p_c of the rows, and the covariance W
  within classes.

  Args:
    sums: Those of at least one row.
    shrinkage: How much the covariance is shrunk, in [0, 1].
  """
  count, total, second = sums
  n, dim = count.sum(), len(second)
  mean = total / np.maximum(count, 1)[:, None]
  within = (second - total.T @ mean) / n
  shrunk = (1 - shrinkage) * within
  shrunk[np.diag_indices(dim)] += shrinkage * np.trace(within) / dim
  # Where all images of each class are equal, there is no inverse.
  kernel = np.linalg.pinv(shrunk, hermitian=True) @ mean.T
  with np.errstate(divide="ignore"):
    log_share = np.log(count / n)
  return Classifier(kernel, log_share - np.sum(mean.T * kernel, axis=0) / 2)


def fit_classifier(
  features: Float[np.ndarray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  num_classes: int,
  shrinkage: float = SHRINKAGE,
) -> Classifier:
  """Fits `classifier_of` the `moments` of rows.

  Args:
    features: What is classified, at least one row.
    label: The class of each row, in [0, num_classes).
    num_classes: The number of classes; they need not all have rows.
    shrinkage: How much the covariance is shrunk, in [0, 1].

  Example:
    >>> x = np.array([[1.0, 0.2], [1.0, -0.2], [-1.0, 0.2], [-1.0, -0.2]])
    >>> fitted = fit_classifier(x, np.array([0, 0, 2, 2]), num_classes=3)
    >>> log_p = fitted.log_probabilities(np.array([[2.0, 0.0], [0.0, 5.0]]))
    >>> np.exp(log_p).round(2)
    array([[1. , 0. , 0. ],
           [0.5, 0. , 0.5]])
  """
  sums = moments(features, label, num_classes=num_classes)
  return classifier_of(sums, shrinkage=shrinkage)


def folds_of(image: Int[np.ndarray, "pairs"]) -> Int[np.ndarray, "pairs"]:
  """Deals images to `FOLDS` folds, the same in every call.

  Args:
    image: Numbers of the images from 0; pairs of one image are in one fold.

  Raises:
    ValueError: If there are fewer than two images.
  """
  num_images = int(image.max(initial=-1)) + 1
  if num_images < 2:
    raise ValueError(
      f"cross-validation needs at least two images, got {num_images}; find "
      "suspects by another score"
    )
  return np.random.default_rng(0).permutation(num_images)[image] % FOLDS


def cross_validated(
  features: Float[np.ndarray, "pairs dim"],
  label: Int[np.ndarray, "pairs"],
  image: Int[np.ndarray, "pairs"] | None = None,
  *,
  num_classes: int,
  shrinkage: float = SHRINKAGE,
) -> Iterator[
  tuple[Int[np.ndarray, "rows"], Float[np.ndarray, "rows classes"]]
]:
  """Yields the log of out-of-sample probabilities of classes, in blocks.

  The images are dealt to `FOLDS` folds, the same in every call. The
  probabilities of a row come from a classifier of the other folds. A class
  whose images are all in one fold, such as a class of a single image, has
  probability 0 in it.

  Args:
    features: Embeddings of the images.
    label: The given class of each row, in [0, num_classes).
    image: Numbers of the images from 0; rows of one image are in one fold. None
      means that all images differ.
    num_classes: The number of classes.
    shrinkage: That of `fit_classifier`.

  Yields:
    Indices of rows, and the log of their probabilities.

  Raises:
    ValueError: If there are fewer than two images.
  """
  fold = folds_of(np.arange(len(label)) if image is None else image)
  size = max(1, BLOCK // max(num_classes, features.shape[1]))
  for i in range(FOLDS):
    others, rows = np.flatnonzero(fold != i), np.flatnonzero(fold == i)
    classifier = fit_classifier(
      features[others],
      label[others],
      num_classes=num_classes,
      shrinkage=shrinkage,
    )
    for first in range(0, len(rows), size):
      block = rows[first : first + size]
      yield block, classifier.log_probabilities(features[block])


def log_self_confidence(
  features: Float[np.ndarray, "pairs dim"],
  label: Int[np.ndarray, "pairs"],
  image: Int[np.ndarray, "pairs"] | None = None,
  *,
  shrinkage: float = SHRINKAGE,
) -> Float[np.ndarray, "pairs"]:
  """Returns the log of the probability of each pair's given class.

    log p(label_i | image_i), cross-validated (see `cross_validated`)

  It is near 0 if the image looks like others of its class, and very negative if
  it looks like those of another class: the label may then be wrong. It is -inf
  if all images of the class are in one fold.

  Args:
    features: Embeddings of the images.
    label: The given class of each pair, numbered from 0.
    image: Numbers of the images from 0, equal for copies. None means that all
      images differ.
    shrinkage: That of `fit_classifier`.

  Raises:
    ValueError: If there are fewer than two images.

  Example:
    >>> label = np.arange(40) % 2
    >>> noise = np.random.default_rng(0).normal(size=(40, 2))
    >>> x = np.eye(2)[label] + 0.1 * noise
    >>> label[7] = 0  # it was 1
    >>> int(np.argmin(log_self_confidence(x, label)))
    7

  Reference: Northcutt et al., Confident Learning: Estimating Uncertainty in
    Dataset Labels, JAIR 2021.
  """
  confidence, done = np.empty(len(label)), 0
  show = progress.reporter("pairs classified", len(label), brief=True)
  for rows, log_p in cross_validated(
    features,
    label,
    image,
    num_classes=int(label.max(initial=-1)) + 1,
    shrinkage=shrinkage,
  ):
    confidence[rows] = log_p[np.arange(len(rows)), label[rows]]
    done += len(rows)
    show(done)
  return confidence


def learnable_share(
  label: Int[np.ndarray, "pairs"], image: Int[np.ndarray, "pairs"]
) -> float:
  """Returns the share of pairs from which names of classes can be learned.

  These are pairs whose class has at least `MIN_IMAGES` different images, and
  whose image has one class only. `log_self_confidence` is the better score
  from `MIN_SHARE` on.

  Args:
    label: The given class of each pair, numbered from 0.
    image: Numbers of the images from 0, equal for copies.

  Example:
    >>> learnable_share(np.array([0] * 9 + [1]), np.arange(10))
    0.9
  """
  num_images = int(image.max()) + 1
  distinct = np.unique(label * np.int64(num_images) + image)
  images_of_class = np.bincount(distinct // num_images)
  classes_of_image = np.bincount(distinct % num_images)
  learnable = images_of_class[label] >= MIN_IMAGES
  return float(np.mean(learnable & (classes_of_image[image] == 1)))

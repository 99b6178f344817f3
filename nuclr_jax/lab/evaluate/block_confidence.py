"""Self-confidence of pairs whose images are read in blocks."""

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab import progress
from nuclr_jax.lab.evaluate import suspects
from nuclr_jax.lab.evaluate.pair_scores import READ, Blocks

MOST = 2**29  # numbers of the classifiers of all folds, 4 GiB


def log_self_confidence_of_blocks(
  blocks: Blocks,
  label: Int[np.ndarray, "pairs"],
  image: Int[np.ndarray, "pairs"],
) -> Float[np.ndarray, "pairs"]:
  """Returns `suspects.log_self_confidence`, reading the images twice.

  Memory is that of a block, and of a mean for each class and fold.

  Args:
    blocks: Embeddings of the images.
    label: The given class of each pair, numbered from 0.
    image: Numbers of the images from 0, equal for copies.

  Raises:
    ValueError: If there are so many classes that their means fill the memory,
      or fewer than two images.
  """
  n, num_classes = len(blocks), int(label.max()) + 1
  fold, dim = suspects.folds_of(image), blocks.read(slice(0, 1)).shape[1]
  if num_classes * dim * suspects.FOLDS > MOST:
    raise ValueError(
      f"there are {num_classes:,} different captions; self-confidence is for "
      f"names of at most {MOST // (dim * suspects.FOLDS):,} classes"
    )
  zero = suspects.Moments(*np.zeros(3))
  sums = [zero] * suspects.FOLDS
  for rows in progress.slices("pairs added up", n, READ):
    x = blocks.unit(rows)
    for i in range(suspects.FOLDS):
      here = fold[rows] == i
      more = suspects.moments(
        x[here], label[rows][here], num_classes=num_classes
      )
      sums[i] = suspects.Moments(*map(np.add, sums[i], more))
  total = suspects.Moments(*(sum(x) for x in zip(*sums, strict=True)))
  classifiers = []
  for part in sums:
    others = suspects.Moments(*map(np.subtract, total, part))
    others = others._replace(count=others.count.astype(int))
    classifiers.append(suspects.classifier_of(others))
  confidence = np.empty(n)
  size = max(1, min(READ, suspects.BLOCK // num_classes))
  for rows in progress.slices("pairs classified", n, size):
    x, own = blocks.unit(rows), np.empty(rows.stop - rows.start)
    for i, classifier in enumerate(classifiers):
      here = np.flatnonzero(fold[rows] == i)
      log_p = classifier.log_probabilities(x[here])
      own[here] = log_p[np.arange(len(here)), label[rows][here]]
    confidence[rows] = own
  return confidence

"""Zero-shot classification by prompts, from embeddings."""

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.evaluate.chunks import unit_norm
from nuclr_jax.evaluate.ranks import ranks
from nuclr_jax.latent_classes import class_means
from nuclr_jax.types import Metrics


def class_embeddings(
  prompts: Float[np.ndarray, "prompts dim"],
  class_of_prompt: Int[np.ndarray, "prompts"],
) -> Float[np.ndarray, "classes dim"]:
  """Mean of each class's unit-norm prompt embeddings, normalised again.

  Example:
    >>> class_embeddings(np.eye(2), np.array([0, 0])).round(3)
    array([[0.707, 0.707]])
  """
  return unit_norm(class_means(prompts, class_of_prompt))


def accuracy(
  image: Float[np.ndarray, "images dim"],
  classes: Float[np.ndarray, "classes dim"],
  label: Int[np.ndarray, "images"],
  *,
  top: tuple[int, ...] = (1, 3, 5, 10),
) -> Metrics:
  """Accuracy of the most similar classes; ties count as errors.

  Returns:
    `top<k>`, the fraction of images whose class is among the k most similar
    (for k below the number of classes), and `mean_per_class`, the mean over
    classes of each class's top-1 fraction (insensitive to their sizes).

  Raises:
    ValueError: If a label is out of range.

  Example:
    >>> accuracy(np.eye(3)[[0, 1, 1]], np.eye(3), np.array([0, 1, 2]), top=(1,))
    {'top1': 0.6666666666666666, 'mean_per_class': 0.6666666666666666}
  """
  wrong = label[(label < 0) | (label >= len(classes))]
  if wrong.size:
    raise ValueError(f"labels must be in [0, {len(classes)}), found {wrong[0]}")
  rank = ranks(image, classes, label, np.arange(len(classes)))
  shares = {
    f"top{k}": float((rank < k).mean()) for k in top if k < len(classes)
  }
  per_class = [(rank[label == c] < 1).mean() for c in np.unique(label)]
  return shares | {"mean_per_class": float(np.mean(per_class))}

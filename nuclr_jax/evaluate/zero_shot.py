"""Zero-shot classification by prompts, from embeddings."""

from jaxtyping import Float, Int
import numpy as np

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
  num_classes = int(class_of_prompt.max()) + 1
  members = class_of_prompt == np.arange(num_classes)[:, None]
  mean = members @ prompts / members.sum(axis=1, keepdims=True)
  return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def accuracy(
  image: Float[np.ndarray, "images dim"],
  classes: Float[np.ndarray, "classes dim"],
  label: Int[np.ndarray, "images"],
) -> Metrics:
  """Accuracy of the most similar class.

  Returns:
    `top1`, the fraction of right images, and `mean_per_class`, the mean over
    classes of each class's fraction (insensitive to their sizes).

  Example:
    >>> accuracy(np.eye(3)[[0, 1, 1]], np.eye(3), np.array([0, 1, 2]))
    {'top1': 0.6666666666666666, 'mean_per_class': 0.6666666666666666}
  """
  right = np.argmax(image @ classes.T, axis=1) == label
  per_class = [right[label == c].mean() for c in np.unique(label)]
  return {
    "top1": float(right.mean()),
    "mean_per_class": float(np.mean(per_class)),
  }

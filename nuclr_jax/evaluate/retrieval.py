"""Retrieval between images and texts, from embeddings."""

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.evaluate.ranks import ranks
from nuclr_jax.types import Metrics, Sides

NO_ZETA = Sides(0.0, 0.0)


def recall(
  image: Float[np.ndarray, "images dim"],
  text: Float[np.ndarray, "texts dim"],
  image_group: Int[np.ndarray, "images"],
  text_group: Int[np.ndarray, "texts"],
  *,
  top: tuple[int, ...] = (1, 5, 10),
  zeta: Sides = NO_ZETA,
) -> Metrics:
  """Recall@k both ways; an image and a text belong together by their group.

  A query succeeds at k if *any* of what belongs to it is among the k candidates
  of greatest similarity. So on COCO, where a group is an image and its five
  captions, an image's query succeeds if one of its captions is found, and every
  caption is a query of its own. Ties count against the query.

  Args:
    image: Unit-norm embeddings of the images.
    text: Unit-norm embeddings of the texts.
    image_group: The group of each image.
    text_group: The group of each text; the same groups.
    top: The values of k.
    zeta: Popularity of each image and each text as a candidate, subtracted
      from its similarities to all queries.

  Returns:
    `image_to_text/recall@k`, `text_to_image/recall@k` as fractions,
    `mean_recall@k`, the mean of the two, and `mean_recall`, the mean over both
    ways and all k.

  Raises:
    ValueError: If a group has no image or no text.

  Example:
    >>> eye, ids = np.eye(3), np.arange(3)
    >>> scores = recall(eye, eye, ids, np.array([0, 2, 1]), top=(1,))
    >>> {name: round(value, 2) for name, value in scores.items()}
    {'image_to_text/recall@1': 0.33, 'text_to_image/recall@1': 0.33, \
'mean_recall@1': 0.33, 'mean_recall': 0.33}
  """
  alone = set(image_group.tolist()) ^ set(text_group.tolist())
  if alone:
    raise ValueError(
      "image_group and text_group must hold the same groups, these are in one "
      f"only: {sorted(alone)[:5]}"
    )
  forth = ranks(image, text, image_group, text_group, zeta.text)
  back = ranks(text, image, text_group, image_group, zeta.image)
  scores, means = {}, []
  for k in top:
    found = [float(np.mean(rank < k)) for rank in (forth, back)]
    scores[f"image_to_text/recall@{k}"] = found[0]
    scores[f"text_to_image/recall@{k}"] = found[1]
    scores[f"mean_recall@{k}"] = sum(found) / 2
    means += found
  return scores | {"mean_recall": float(np.mean(means))}


def same_class_recall(
  embedding: Float[np.ndarray, "rows dim"],
  label: Int[np.ndarray, "rows"],
  *,
  top: tuple[int, ...] = (1, 2, 4, 8),
) -> Metrics:
  """Recall@k among things of one kind, each of them a query for all others.

  A query succeeds at k if one of its k most similar others is of its class, as
  metric learning scores classes that were not trained on. Ties count against
  the query.

  Args:
    embedding: Unit-norm embeddings.
    label: Their classes, each with two rows or more.
    top: The values of k.

  Returns:
    `recall@k` as fractions.

  Raises:
    ValueError: If a class has one row only.

  Example:
    >>> x = np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [-1.0, 0.0]])
    >>> same_class_recall(x, np.array([0, 0, 1, 1]), top=(1, 2, 3))
    {'recall@1': 0.5, 'recall@2': 0.75, 'recall@3': 1.0}

  Reference: Oh Song et al., Deep Metric Learning via Lifted Structured Feature
    Embedding, CVPR 2016.
  """
  classes, counts = np.unique(label, return_counts=True)
  if (counts < 2).any():
    raise ValueError(
      "every class needs two rows or more, these have one: "
      f"{classes[counts < 2][:5].tolist()}"
    )
  rows = np.arange(len(label))
  found = ranks(embedding, embedding, label, label, left_out=rows)
  return {f"recall@{k}": float(np.mean(found < k)) for k in top}

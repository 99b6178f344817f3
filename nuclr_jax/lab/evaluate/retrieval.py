"""Retrieval between images and texts, and within classes, from embeddings."""

from jaxtyping import Float, Integer
import numpy as np

from nuclr_jax.lab.data.source import ImageTextSet
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.lab.evaluate.ranking import ranks
from nuclr_jax.types import Metrics, Sides

NO_ZETA = Sides(0.0, 0.0)


def recall(
  image: Float[np.ndarray, "images dim"],
  text: Float[np.ndarray, "texts dim"],
  image_group: Integer[np.ndarray, "images"],
  text_group: Integer[np.ndarray, "texts"],
  *,
  top: tuple[int, ...] = (1, 5, 10),
  zeta: Sides = NO_ZETA,
) -> Metrics:
  """Computes recall@k both ways, between images and texts of the same group.

  A query succeeds at k if *any* member of its group is among the k candidates
  of greatest similarity. On COCO, where a group is an image and its five
  captions, an image as the query succeeds if one of its captions is found, and
  every caption is a separate query. Ties count against the query.

  Args:
    image: Unit-norm embeddings of the images.
    text: Unit-norm embeddings of the texts.
    image_group: The group of each image.
    text_group: The group of each text; the images must have the same groups.
    top: The values of k.
    zeta: The popularity of each image and each text as a candidate, subtracted
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
      "image_group and text_group must hold the same groups; these are in one "
      f"only: {sorted(alone)[:5]}"
    )
  forth = ranks(image, text, image_group, text_group, zeta.text)
  back = ranks(text, image, text_group, image_group, zeta.image)
  scores, all_recalls = {}, []
  for k in top:
    recalls = [float(np.mean(rank < k)) for rank in (forth, back)]
    scores[f"image_to_text/recall@{k}"] = recalls[0]
    scores[f"text_to_image/recall@{k}"] = recalls[1]
    scores[f"mean_recall@{k}"] = sum(recalls) / 2
    all_recalls += recalls
  return scores | {"mean_recall": float(np.mean(all_recalls))}


def same_class_recall(
  embedding: Float[np.ndarray, "rows dim"],
  label: Integer[np.ndarray, "rows"],
  *,
  top: tuple[int, ...] = (1, 2, 4, 8),
) -> Metrics:
  """Computes recall@k within one set, where each row queries all other rows.

  A query succeeds at k if one of the k most similar other rows is of its class;
  metric learning evaluates classes that were not trained on in this way. Ties
  count against the query.

  Args:
    embedding: Unit-norm embeddings.
    label: The class of each row; every class has two rows or more.
    top: The values of k.

  Returns:
    `recall@k` as fractions.

  Raises:
    ValueError: If a class has only one row.

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
      "every class needs two rows or more; these have one: "
      f"{classes[counts < 2][:5].tolist()}"
    )
  rows = np.arange(len(label))
  rank = ranks(embedding, embedding, label, label, left_out=rows)
  return {f"recall@{k}": float(np.mean(rank < k)) for k in top}


def retrieval_evaluator(data: ImageTextSet, name: str = "") -> Evaluator:
  """Makes an evaluator of recall@1, 5 and 10 both ways (see `recall`).

  Args:
    data: The images and captions to retrieve.
    name: Metrics are called `<name>/...`; without a name they keep the names
      that `recall` gives.

  Example:
    >>> ids, eye = np.arange(2), lambda x: np.eye(2)
    >>> data = ImageTextSet(np.zeros((2, 8, 8, 1)), ids, ["a", "b"], ids)
    >>> retrieval_evaluator(data, "mine")(Embed(eye, eye))["mine/mean_recall@1"]
    1.0
  """

  def evaluate(embed: Embed) -> Metrics:
    scores = recall(
      embed.image(data.image),
      embed.text(data.captions),
      data.image_group,
      data.caption_group,
    )
    return {f"{name}/{k}" if name else k: x for k, x in scores.items()}

  return evaluate

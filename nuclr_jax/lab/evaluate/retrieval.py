"""Retrieval between images and texts, and within classes, from embeddings."""

from collections.abc import Callable, Mapping

from jaxtyping import Float, Integer
import numpy as np

from nuclr_jax.lab.data.source import ImageTextSet
from nuclr_jax.lab.evaluate.evaluators import Embed, Evaluator
from nuclr_jax.lab.evaluate.ranking import ranks, ranks_of_matches
from nuclr_jax.types import Metrics, Sides

NO_ZETA = Sides(0.0, 0.0)
EQUAL = Sides(None, None)  # weights
TOP = (1, 5, 10)


def recall(
  image: Float[np.ndarray, "images dim"],
  text: Float[np.ndarray, "texts dim"],
  image_group: Integer[np.ndarray, "images"],
  text_group: Integer[np.ndarray, "texts"],
  *,
  top: tuple[int, ...] = TOP,
  zeta: Sides = NO_ZETA,
  parts: Mapping[str, Sides] | None = None,
  same: Sides | None = None,
) -> Metrics:
  """Computes recall@k both ways, between images and texts of the same group.

  A query succeeds at k if *any* member of its group is among the k candidates
  of greatest similarity. On COCO, where a group is an image and its five
  captions, an image as the query succeeds if one of its captions is found, and
  every caption is a separate query. Ties count against the query.

  If images or captions repeat, `same` says so. Then any image is right for a
  caption that is equal to one of its captions, and the other way round, and
  equal captions are one candidate, as are equal images.

  Args:
    image: Unit-norm embeddings of the images.
    text: Unit-norm embeddings of the texts.
    image_group: The group of each image.
    text_group: The group of each text; the images must have the same groups.
    top: The values of k.
    zeta: The popularity of each image and each text as a candidate, subtracted
      from its similarities to all queries.
    parts: Weights, at least 0, of the images and of the texts as queries, by
      name; all of them stay candidates. A part without weight is left out.
    same: Ids of equal images and of equal texts, 0, 1, ...; None if all differ.

  Returns:
    `image_to_text/recall@k`, `text_to_image/recall@k` as fractions,
    `mean_recall@k`, the mean of the two, and `mean_recall`, the mean over both
    ways and all k; and the same as `<part>/...` for each part.

  Raises:
    ValueError: If a group has no image or no text.

  Example:
    >>> eye, ids = np.eye(3), np.arange(3)
    >>> scores = recall(eye, eye, ids, np.array([0, 2, 1]), top=(1,))
    >>> {name: round(value, 2) for name, value in scores.items()}
    {'image_to_text/recall@1': 0.33, 'text_to_image/recall@1': 0.33, \
'mean_recall@1': 0.33, 'mean_recall': 0.33}
  """
  rank = _ranks(image, text, image_group, text_group, zeta, same)
  scores = _recalls(rank, EQUAL, top)
  for name, weights in (parts or {}).items():
    if all(np.sum(x) > 0 for x in weights):
      of_part = _recalls(rank, weights, top)
      scores |= {f"{name}/{k}": x for k, x in of_part.items()}
  return scores


def _ranks(image, text, image_group, text_group, zeta, same=None) -> Sides:
  """Ranks the texts for each image, and the images for each text."""
  alone = set(image_group.tolist()) ^ set(text_group.tolist())
  if alone:
    raise ValueError(
      "image_group and text_group must hold the same groups; these are in one "
      f"only: {sorted(alone)[:5]}"
    )
  if same is None:
    return Sides(
      ranks(image, text, image_group, text_group, zeta.text),
      ranks(text, image, text_group, image_group, zeta.image),
    )
  right = right_ids(image_group, text_group, same)
  return Sides(
    ranks_of_matches(image, text, *same, right.image, zeta.text),
    ranks_of_matches(text, image, *same[::-1], right.text, zeta.image),
  )


def right_ids(
  image_group: Integer[np.ndarray, "images"],
  text_group: Integer[np.ndarray, "texts"],
  same: Sides,
) -> Sides:
  """Finds the right answers of each image id and of each text id.

  Args:
    image_group: The group of each image.
    text_group: The group of each text.
    same: Ids of equal images and of equal texts, 0, 1, ...

  Returns:
    The text ids that are right, by image id, and the image ids that are, by
    text id: lists of sets.

  Example:
    >>> same = Sides(image=np.array([0, 1, 2]), text=np.array([0, 1, 0]))
    >>> right_ids(np.arange(3), np.arange(3), same)
    Sides(image=[{0}, {1}, {0}], text=[{0, 2}, {1}])
  """
  texts_of: dict[int, set[int]] = {}
  for group, text in zip(text_group.tolist(), same.text.tolist(), strict=True):
    texts_of.setdefault(group, set()).add(text)
  right = Sides(*([set() for _ in range(int(x.max()) + 1)] for x in same))
  groups = zip(image_group.tolist(), same.image.tolist(), strict=True)
  for group, image in groups:
    for text in texts_of[group]:
      right.image[image].add(text)
      right.text[text].add(image)
  return right


def match_of(data: ImageTextSet) -> Callable[[int, int], bool]:
  """Returns a function that says whether an image and a caption match.

  Args:
    data: The set; the function takes a row of its images and one of its
      captions.

  Example:
    >>> ids, same = np.arange(2), Sides(np.arange(2), np.zeros(2, int))
    >>> data = ImageTextSet(np.eye(2), ids, ["a", "a"], ids)
    >>> match_of(data)(0, 1), match_of(data._replace(same=same))(0, 1)
    (False, True)
  """
  same, groups = data.same, (data.image_group, data.caption_group)
  if same is None:
    return lambda i, t: bool(groups[0][i] == groups[1][t])
  right = right_ids(*groups, same).image
  return lambda i, t: same.text[t] in right[same.image[i]]


def _recalls(
  rank: Sides, weights: Sides, top: tuple[int, ...] = TOP
) -> Metrics:
  """Averages over the queries whether their rank is below each k."""
  scores, all_recalls = {}, []
  for k in top:
    image, text = (
      float(np.average(x < k, weights=w))
      for x, w in zip(rank, weights, strict=True)
    )
    scores[f"image_to_text/recall@{k}"] = image
    scores[f"text_to_image/recall@{k}"] = text
    scores[f"mean_recall@{k}"] = (image + text) / 2
    all_recalls += [image, text]
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
  """Makes an evaluator of recall@1, 5 and 10 both ways (see `scores_of`).

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
    scores = scores_of(data, embed.image(data.image), embed.text(data.captions))
    return {f"{name}/{k}" if name else k: x for k, x in scores.items()}

  return evaluate


def scores_of(
  data: ImageTextSet,
  image: Float[np.ndarray, "images dim"],
  text: Float[np.ndarray, "texts dim"],
  zeta: Sides = NO_ZETA,
) -> Metrics:
  """Computes `recall` of a set, and of its parts.

  If images or captions repeat, `by_record/...` are the scores for which they do
  not count as equal, as in CLIP_benchmark: a caption's own image alone is
  right, and the same caption of another image is another candidate.

  Args:
    data: The set.
    image: Unit-norm embeddings of its images.
    text: Unit-norm embeddings of its captions.
    zeta: The popularities of its images and captions, see `recall`.
  """
  groups = data.image_group, data.caption_group
  how = {"zeta": zeta, "parts": data.parts}
  scores = recall(image, text, *groups, same=data.same, **how)
  if data.same is not None:
    by_record = recall(image, text, *groups, **how)
    scores |= {f"by_record/{k}": x for k, x in by_record.items()}
  return scores


def recall_by_origin(embed: Embed, data: ImageTextSet) -> dict[str, Metrics]:
  """Computes recall for the images of each origin, such as a designer.

  All images and captions are candidates, and any image of the same group is
  right. As a query, a caption counts for an origin as often as the origin has
  images of its group.

  Args:
    embed: The model.
    data: Images whose origins are known.

  Returns:
    What `recall` returns, by origin.

  Raises:
    ValueError: If the set does not say where its images are from.

  Example:
    >>> ids, eye = np.arange(2), lambda x: np.eye(2)
    >>> images = np.zeros((2, 8, 8, 1))
    >>> data = ImageTextSet(images, ids, ["a", "b"], ids, origin=["x", "y"])
    >>> recall_by_origin(Embed(eye, eye), data)["y"]["mean_recall@1"]
    1.0
  """
  weights = parts_by_origin(data)
  rank = _ranks(
    embed.image(data.image),
    embed.text(data.captions),
    data.image_group,
    data.caption_group,
    NO_ZETA,
  )
  return {origin: _recalls(rank, x) for origin, x in weights.items()}


def parts_by_origin(data: ImageTextSet) -> dict[str, Sides]:
  """Weighs the queries of each origin, for `recall_by_origin` or `recall`.

  Args:
    data: Images whose origins are known.

  Returns:
    The weights of images and captions as queries, by origin.

  Raises:
    ValueError: If the set does not say where its images are from.

  Example:
    >>> ids, images = np.array([0, 0, 1]), np.zeros((3, 8, 8, 1))
    >>> data = ImageTextSet(
    ...   images, ids, ["a", "b"], np.arange(2), origin=["x", "x", "y"]
    ... )
    >>> parts_by_origin(data)["x"].text.tolist()
    [2, 0]
  """
  if data.origin is None:
    raise ValueError("the set does not say where its images are from")
  origins, number = np.unique(data.origin, return_inverse=True)
  groups = np.unique([*data.image_group, *data.caption_group])
  image_group = np.searchsorted(groups, data.image_group)
  caption_group = np.searchsorted(groups, data.caption_group)
  parts = {}
  for i, origin in enumerate(origins.tolist()):
    count = np.bincount(image_group[number == i], minlength=len(groups))
    parts[origin] = Sides(number == i, count[caption_group])
  return parts

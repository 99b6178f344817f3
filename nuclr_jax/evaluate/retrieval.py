"""Retrieval between images and texts, from embeddings."""

from collections.abc import Iterator

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.types import Metrics, Sides

CHUNK = 1024  # queries scored at a time
NO_ZETA = Sides(0.0, 0.0)


def recall(
  image: Float[np.ndarray, "images dim"],
  text: Float[np.ndarray, "texts dim"],
  text_of_image: Int[np.ndarray, "images"],
  *,
  top: tuple[int, ...] = (1, 5, 10),
  zeta: Sides = NO_ZETA,
) -> Metrics:
  """Recall@k both ways; several images may belong to one text.

  An image's query succeeds at k if its own text is among the k texts of
  greatest similarity; a text's query if *any* of its images is among the k
  images. Ties count against the query.

  Args:
    image: Unit-norm embeddings of the images.
    text: Unit-norm embeddings of the texts.
    text_of_image: Index of each image's text; every text has an image.
    top: The values of k.
    zeta: Popularity of each image and each text as a candidate, subtracted
      from its similarities to all queries.

  Returns:
    `image_to_text/recall@k`, `text_to_image/recall@k` as fractions, and
    `mean_recall@k`, the mean of the two.

  Raises:
    ValueError: If an index is out of range or a text has no image.

  Example:
    >>> eye = np.eye(3)
    >>> scores = recall(eye, eye, np.array([0, 2, 1]), top=(1,))
    >>> {name: round(value, 2) for name, value in scores.items()}
    {'image_to_text/recall@1': 0.33, 'text_to_image/recall@1': 0.33, \
'mean_recall@1': 0.33}
  """
  texts = np.arange(len(text))
  if set(text_of_image.tolist()) != set(texts.tolist()):
    raise ValueError(
      f"text_of_image must hold every index in [0, {len(text)}) and no other"
    )
  image_ranks = np.concatenate(
    [
      _rank(sim, text_of_image[rows][:, None] == texts)
      for rows, sim in similarities(image, text, zeta.text)
    ]
  )
  text_ranks = np.concatenate(
    [
      _rank(sim, text_of_image[None] == texts[rows][:, None])
      for rows, sim in similarities(text, image, zeta.image)
    ]
  )
  scores = {}
  for k in top:
    forth = float(np.mean(image_ranks < k))
    back = float(np.mean(text_ranks < k))
    scores[f"image_to_text/recall@{k}"] = forth
    scores[f"text_to_image/recall@{k}"] = back
    scores[f"mean_recall@{k}"] = (forth + back) / 2
  return scores


def similarities(
  queries: Float[np.ndarray, "queries dim"],
  gallery: Float[np.ndarray, "gallery dim"],
  zeta: Float[np.ndarray, "gallery"] | float = 0.0,
) -> Iterator[tuple[slice, np.ndarray]]:
  """Yields `(rows, similarities of these queries to the gallery - zeta)`."""
  for start in range(0, len(queries), CHUNK):
    rows = slice(start, start + CHUNK)
    yield rows, queries[rows] @ gallery.T - zeta


def _rank(sim, correct) -> np.ndarray:
  """How many wrong candidates are at least as similar as the best right one.

  An embedding that is not finite ranks last.
  """
  sim = np.where(np.isfinite(sim), sim, -np.inf)
  best = np.max(np.where(correct, sim, -np.inf), axis=1, keepdims=True)
  return np.sum(~correct & (sim >= best), axis=1)

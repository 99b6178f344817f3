"""The scores of a split, as a whole and for each set of icons."""

from collections.abc import Collection, Hashable, Mapping

import numpy as np

from nuclr_jax.lab.data.source import ImageTextSet
from nuclr_jax.lab.evaluate.evaluators import Embed
from nuclr_jax.lab.evaluate.retrieval import parts_by_origin, recall
from nuclr_jax.types import Sides

TOP = (1, 10)
DIRECTIONS = ("image_to_text", "text_to_image")
# What a row has of each set, after its family and its number of queries.
OF_SETS = tuple(f"{x}/recall@{k}" for k in TOP for x in DIRECTIONS)


def split_by(data: ImageTextSet, known: Collection[Hashable]) -> ImageTextSet:
  """Decides anew which captions are seen.

  Args:
    data: A held-out set, whose captions may be rows of token ids.
    known: Captions that are trained on; rows are tuples.
  """
  natural = data.parts["natural"]
  captions = [x if isinstance(x, str) else tuple(x) for x in data.captions]
  seen = np.array([x in known for x in captions])
  of_images = seen[data.image_group]
  return data._replace(
    parts={
      **data.parts,
      "seen": Sides(natural.image * of_images, natural.text * seen),
      "unseen": Sides(natural.image * ~of_images, natural.text * ~seen),
    }
  )


def scores_of(
  embed: Embed, data: ImageTextSet, family: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, list]]:
  """Scores a split, as a whole and for each set.

  Returns:
    Recalls by the names that `retrieval.recall` gives; and, by set, its family,
    its number of queries and the recalls `OF_SETS`.
  """
  of_sets = parts_by_origin(data)
  scores = recall(
    *(embed.image(data.image), embed.text(data.captions)),
    *(data.image_group, data.caption_group),
    top=TOP,
    parts={**data.parts, **{f"set {x}": w for x, w in of_sets.items()}},
  )
  # Without the mean over all k, which is of other k than elsewhere.
  scores = {k: round(x, 6) for k, x in scores.items() if "@" in k}
  whole = {k: x for k, x in scores.items() if k.split("/")[0] in data.parts}
  by_set = {
    x: [
      *(family[x], int(weights.image.sum())),
      *(scores[f"set {x}/{name}"] for name in OF_SETS),
    ]
    for x, weights in of_sets.items()
  }
  return whole, by_set

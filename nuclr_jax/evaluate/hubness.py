"""Retrieval corrected for hubs, by the popularities of candidates."""

from functools import partial

import numpy as np

from nuclr_jax import popularity
from nuclr_jax.data.source import ImageTextSet, Source
from nuclr_jax.evaluate.evaluators import Embed, Evaluator, embed_pairs
from nuclr_jax.evaluate.retrieval import recall
from nuclr_jax.types import Metrics, Sides, each

QUERIES = 16_384  # training pairs used


def corrected_retrieval_evaluator(
  data: ImageTextSet,
  train: Source,
  *,
  temperature: float,
  strength: float,
) -> Evaluator:
  """Makes an evaluator of recall, corrected for hubs by training queries.

  Candidates are ranked by sim - strength * zeta. A candidate's zeta comes from
  `popularity.zeta_of_unseen` and training pairs of the other side, so the
  correction uses no test query. Metrics are called `hubs_corrected/...`.

  Args:
    data: The images and captions to retrieve.
    train: The training pairs; `QUERIES` of them are used, always the same ones.
    temperature: The temperature of the objective.
    strength: How much of zeta to subtract: 0 is no correction, 1 all of it.
  """

  def evaluate(embed: Embed) -> Metrics:
    n = train.sizes.num_pairs
    ids = np.random.default_rng(0).permutation(n)[:QUERIES]
    pairs = embed_pairs(embed, train, np.sort(ids))
    solved = popularity.solve(
      pairs.image,
      pairs.text,
      temperature=temperature,
      image_id=pairs.ids.image,
      text_id=pairs.ids.text,
      num_pairs=n,
    )
    image, text = embed.image(data.image), embed.text(data.captions)
    unseen = partial(popularity.zeta_of_unseen, temperature=temperature)
    zeta = Sides(
      image=unseen(image, pairs.text, solved.log_denominator.text),
      text=unseen(text, pairs.image, solved.log_denominator.image),
    )
    scores = recall(
      image,
      text,
      data.image_group,
      data.caption_group,
      zeta=each(lambda x: strength * x, zeta),
    )
    return {f"hubs_corrected/{name}": x for name, x in scores.items()}

  return evaluate

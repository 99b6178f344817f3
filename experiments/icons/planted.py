"""Wrong names that are planted in the training pairs, and who finds them."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from experiments.harness import Row
from experiments.icons import zeta
from nuclr_jax import Sides
from nuclr_jax.lab.data.source import Source
from nuclr_jax.lab.evaluate.evaluators import Embed, embed_pairs
from nuclr_jax.lab.evaluate.suspects import (
  log_match_probability,
  neighbours_distance,
)
from nuclr_jax.lab.report.neighbours import nearest

NEIGHBOURS = 10
SCORES = (
  "own similarity",
  "match probability",
  "neighbours: captions",
  "neighbours: images",
  "neighbours: both",
)


def donors(
  text_id: Int[np.ndarray, "pairs"], share: float, seed: int
) -> Int[np.ndarray, "pairs"]:
  """Draws the pair whose name each pair gets: its own, unless it is wrong.

  Wrong names are drawn as they occur, and differ from the right ones.

  Args:
    text_id: The name of each pair.
    share: The share of pairs with wrong names.
    seed: The seed.

  Example:
    >>> found = donors(np.array([0, 0, 1, 2]), 0.5, seed=0)
    >>> int((found != np.arange(4)).sum())
    2
  """
  n, random = len(text_id), np.random.default_rng([seed, 3])
  donor = np.arange(n)
  wrong = random.choice(n, round(share * n), replace=False)
  while len(wrong):
    donor[wrong] = random.integers(n, size=len(wrong))
    wrong = wrong[text_id[donor[wrong]] == text_id[wrong]]
  return donor


class Planted(NamedTuple):
  """Training pairs of which some have wrong names."""

  source: Source
  wrong: Bool[np.ndarray, "pairs"]


def plant(source: Source, share: float, seed: int) -> Planted:
  """Gives a share of the pairs the names of others; see `donors`."""
  everything = np.arange(source.sizes.num_pairs)
  donor = donors(source.ids(everything).text, share, seed)
  wrong = donor != everything

  def fetch(pair_ids, random=None):
    pair_ids = np.asarray(pair_ids)
    batch, at = source.fetch(pair_ids, random), np.flatnonzero(wrong[pair_ids])
    if not len(at):
      return batch
    other = source.fetch(donor[pair_ids[at]])
    text, text_id = np.array(batch.text), np.array(batch.text_id)
    text[at], text_id[at] = other.text, other.text_id
    return batch._replace(text=text, text_id=text_id)

  def ids(pair_ids):
    pair_ids = np.asarray(pair_ids)
    return Sides(source.ids(pair_ids).image, source.ids(donor[pair_ids]).text)

  fingerprint = f"{source.fingerprint}/{share} wrong by {seed}"
  return Planted(
    source._replace(fetch=fetch, ids=ids, fingerprint=fingerprint), wrong
  )


def rank(
  train: Source,
  embed: Embed,
  wrong: Bool[np.ndarray, "pairs"],
  *,
  temperature: float,
) -> dict[str, Row]:
  """Ranks the training pairs by each score, the most suspect ones first.

  Returns:
    For each of `SCORES`, see `scores`.
  """
  pairs = embed_pairs(embed, train)
  solved = zeta.solve(pairs, temperature)
  weight = log_match_probability(solved, pairs, temperature=temperature)
  near = Sides(*(nearest(x, NEIGHBOURS) for x in (pairs.image, pairs.text)))
  of_captions = neighbours_distance(near.image, pairs.text)
  of_images = neighbours_distance(near.text, pairs.image)
  found = (
    -np.einsum("nd,nd->n", pairs.image, pairs.text),
    -(weight.image + weight.text) / 2,
    of_captions,
    of_images,
    (of_captions + of_images) / 2,
  )
  return scores(dict(zip(SCORES, found, strict=True)), wrong)


def scores(
  suspicion: Mapping[str, Float[np.ndarray, "pairs"]],
  wrong: Bool[np.ndarray, "pairs"],
) -> dict[str, Row]:
  """Compares suspicions with the pairs that are wrong.

  Returns:
    For each, the areas under the curves of ROC and of precision and recall, and
    the precision of as many pairs as are wrong.

  Example:
    >>> suspicion = {"some": np.array([0.9, 0.1, 0.8, 0.2])}
    >>> scores(suspicion, np.array([True, False, False, True]))["some"]
    {'roc': 0.75, 'average precision': 0.83333, 'precision': 0.5}
  """
  count = int(wrong.sum())
  return {
    name: {
      "roc": round(float(roc_auc_score(wrong, x)), 5),
      "average precision": round(float(average_precision_score(wrong, x)), 5),
      "precision": round(
        float(wrong[np.argsort(-x, kind="stable")[:count]].mean()), 5
      ),
    }
    for name, x in suspicion.items()
  }

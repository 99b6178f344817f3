"""Suspected label noise: all pairs in the order of a score, and on a page.

The score is the one that found most planted wrong captions of drawn letters
(experiments/hubs_and_suspects): where captions are names of classes, the
self-confidence of a classifier of the images; else, the distance to neighbours
for a model that was trained on the pairs, and the match probability for any
other. Which of the last two is better for a trained model depends on the data
(experiments/icons), so the page has both orders.
"""

import logging
from typing import Any, NamedTuple

from jaxtyping import Float, Int
import numpy as np

from nuclr_jax.lab.evaluate.suspects import (
  MIN_IMAGES,
  MIN_SHARE,
  NEIGHBOURS,
  learnable_share,
  log_self_confidence,
  neighbours_distance,
)
from nuclr_jax.lab.report import browse, neighbours
from nuclr_jax.lab.report.browse import Listing
from nuclr_jax.lab.report.subject import Subject
from nuclr_jax.popularity import Popularity
from nuclr_jax.types import Sides

log = logging.getLogger(__name__)

# Standard deviation of log probabilities, or of similarities in units of the
# temperature: below, weights are equal up to 5 %.
INDISTINCT = 0.05
MATCH, DISTANCE = "match_probability", "neighbours_distance"
CONFIDENCE = "self_confidence"
WHY = {
  MATCH: "Pairs that are improbable matches by their images and captions.",
  DISTANCE: "Pairs that are far from the captions and images of their nearest "
  "neighbours: the model was trained on the pairs, and may have memorized "
  "wrong captions. Whether this finds more than match probabilities do depends "
  "on the data. It found more of the wrong captions that were planted among "
  "drawn letters, after CLIP (experiments/hubs_and_suspects). Of those among "
  "icons, match probabilities had slightly more at the top of the list "
  "(experiments/icons). For their order, choose <i>least probable match "
  "first</i>.",
  CONFIDENCE: "Pairs whose images look like those of other captions. The "
  f"captions are names of classes: nearly all of them have {MIN_IMAGES} images "
  "or more. So each fifth of the images is scored by a classifier that is "
  "fitted to the other four, which found more planted wrong captions than "
  "match probabilities did (experiments/hubs_and_suspects). The "
  "self-confidence is the probability of the given caption. It is 0 for a "
  "caption that the other four fifths do not have.",
}


class Suspects(NamedTuple):
  """Which pairs may be label noise."""

  pair: np.ndarray  # indices of all pairs, the most suspicious first
  by: str  # the score that orders them, one of `scores`
  scores: dict[str, np.ndarray]  # by name and pair
  recall: float | None  # of the neighbours; None if none were looked for
  spread: float  # of the score, where 1 changes a weight by the factor e

  @property
  def says_little(self) -> bool:
    """Whether the scores of all pairs are nearly equal."""
    return self.spread < INDISTINCT


def find(subject: Subject, log_own: Sides) -> Suspects:
  """Orders pairs by how suspicious they are.

  Args:
    subject: The pairs.
    log_own: What `log_match_probability` returned for them.

  Returns:
    All pairs, and the scores that are known. Pairs of equal score are in the
    order of their match probabilities.
  """
  pairs = subject.pairs
  # Where no id repeats, exact zeta gives both sides the same probabilities.
  log_own = np.mean(log_own, axis=0)
  by, order, scores = MATCH, log_own, {MATCH: np.exp(log_own)}
  recall, unit = None, 1.0
  if subject.trained:
    # Repeated pairs are one here: else a wrong one has itself as neighbours.
    _, first, row = np.unique(
      np.stack(pairs.ids, axis=1),
      axis=0,
      return_index=True,
      return_inverse=True,
    )
    row = row.ravel()
    if len(first) == len(row):  # none is repeated
      first = row = slice(None)
    distances, shares = [], []
    sides = pairs.image[first], pairs.text[first]
    for of, x, y in zip(("images", "texts"), sides, sides[::-1], strict=True):
      found = neighbours.nearest(x, NEIGHBOURS, of=of)
      shares.append(neighbours.share_of_nearest(x, found, of=of))
      distances.append(neighbours_distance(found, y))
    distance = np.mean(distances, axis=0)[row]
    recall = min(shares)
    by, order, unit = DISTANCE, -distance, subject.temperature
    scores[DISTANCE] = distance
  label, image = _classes(subject)
  if label.any() and learnable_share(label, image) >= MIN_SHARE:
    by, unit = CONFIDENCE, 1.0
    order = log_self_confidence(pairs.image, label, image)
    scores[CONFIDENCE] = np.exp(order)
  log.info("suspects are ordered by %s", by)
  finite = order[np.isfinite(order)]
  spread = float(np.std(finite) / unit) if len(finite) == len(order) else np.inf
  found = Suspects(np.lexsort((log_own, order)), by, scores, recall, spread)
  if found.says_little:
    log.warning(
      "all pairs have nearly the same %s: at temperature %g, this model hardly "
      "tells captions apart, and the order of suspects says little",
      by.replace("_", " "),
      subject.temperature,
    )
  return found


def _classes(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
  """Returns the numbers of the pairs' captions and images, from 0.

  Equal captions have one number, whatever their text ids.
  """
  ids = subject.pairs.ids
  texts, row = np.unique(ids.text, return_inverse=True)
  numbers = {}
  label = [numbers.setdefault(x, len(numbers)) for x in subject.captions(texts)]
  _, image = np.unique(ids.image, return_inverse=True)
  return np.array(label)[row], image


def columns(subject: Subject, suspects: Suspects) -> dict[str, Any]:
  """Returns the table of all pairs, the most suspicious first."""
  pairs, order = subject.pairs, suspects.pair
  own = np.einsum("nd,nd->n", pairs.image, pairs.text)
  return {
    **({"key": subject.keys(order)} if subject.photos.names else {}),
    "pair": pairs.pair_id[order],
    "image": pairs.ids.image[order],
    "text": pairs.ids.text[order],
    "caption": subject.captions(pairs.ids.text[order]),
    "own_similarity": own[order],
    **{name: x[order] for name, x in suspects.scores.items()},
  }


def listing(
  subject: Subject, solution: Popularity, suspects: Suspects
) -> Listing:
  """Returns all pairs as a list of the page, the most suspicious first.

  The most suspicious ones also have the caption that fits better, if any does.
  """
  pairs, names = subject.pairs, subject.photos.names
  worst = suspects.pair[: browse.THUMBNAILS]
  texts, first = np.unique(pairs.ids.text, return_index=True)
  best = texts[
    preferred(pairs.image[worst], pairs.text[first], solution.zeta.text)
  ]
  alike = np.isin(pairs.ids.image, pairs.ids.image[worst])
  own = set(zip(*(x[alike].tolist() for x in pairs.ids), strict=True))
  of_worst = zip(pairs.ids.image[worst].tolist(), best.tolist(), strict=True)
  rather = [
    "" if pair in own else caption
    for pair, caption in zip(of_worst, subject.captions(best), strict=True)
  ]
  rather += [""] * (len(suspects.pair) - len(rather))
  labels = dict.fromkeys((suspects.by, MATCH))
  return Listing(
    "suspects",
    "Suspected label noise",
    f"<p>{WHY[suspects.by]} Go through them in this order, mark the captions "
    "that are wrong, and stop where most are right. Then save the marked rows, "
    "and correct or remove them in your data. The match probability is the "
    "geometric mean of two: that of the caption among all captions, given the "
    "image, and that of the image among all images, given the caption. Where "
    "another caption fits better, it is shown as <i>rather</i>.</p>",
    "suspects.csv",
    {**columns(subject, suspects), "rather": rather},
    subject.photos.of_pairs[suspects.pair],
    {
      **({} if names else {"pair": "pair"}),
      "rather": "rather:",
      **{name: name.replace("_", " ") for name in labels},
    },
    [
      ("most suspicious first", None, False),
      ("least similar to its caption first", "own_similarity", False),
      ("least probable match first", MATCH, False),
      *([("by name", "key", False)] if names else []),
      ("by caption", "caption", False),
    ],
  )


def preferred(
  anchors: Float[np.ndarray, "anchors dim"],
  contrast: Float[np.ndarray, "contrast dim"],
  zeta: Float[np.ndarray, "contrast"],
) -> Int[np.ndarray, "anchors"]:
  """Returns the contrast to which each of a few anchors gives most weight.

  Example:
    >>> preferred(np.eye(2), np.eye(2), np.array([0.0, 2.0]))
    array([0, 0])
  """
  return np.argmax(anchors @ contrast.T - zeta, axis=1)

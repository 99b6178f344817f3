"""Generated embeddings of image-text pairs, with a structure that is known.

Pairs belong to topics whose sizes fall as a Zipf law; an image and its text lie
near the topic, each with noise of its own, and the two modalities are moved
apart. A share of the texts leans towards a few boilerplates.
"""

import functools
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

EXPONENT = 1.0  # of the sizes of topics
PAIRS_PER_TOPIC = 16  # on average
SPREAD = 1.0  # of a pair around its topic
NOISE = 0.7  # of each side around its pair
GAP = 0.3  # between the modalities
BOILERPLATES, SHARE, LEANING = 20, 0.1, 0.5  # of texts towards them


class Embeddings(NamedTuple):
  """Unit vectors of all pairs."""

  image: Float[np.ndarray, "pairs dim"]
  text: Float[np.ndarray, "pairs dim"]


@functools.lru_cache(maxsize=4)
def generate(*, num_pairs: int, dim: int, seed: int) -> Embeddings:
  """Generates the embeddings at the end of training."""
  rng = np.random.default_rng(seed)

  def direction(rows):
    return unit(rng.normal(size=(rows, dim)))

  topics = direction(num_pairs // PAIRS_PER_TOPIC)
  p = np.arange(1, len(topics) + 1.0) ** -EXPONENT
  topic = rng.choice(len(topics), num_pairs, p=p / p.sum())
  middle = unit(topics[topic] + SPREAD * direction(num_pairs))
  gap = GAP * direction(1)
  image = unit(middle + NOISE * direction(num_pairs) + gap)
  text = middle + NOISE * direction(num_pairs)
  stock = direction(BOILERPLATES)
  drawn = rng.choice(len(stock), num_pairs)
  is_stock = rng.uniform(size=num_pairs) < SHARE
  leaning = LEANING * stock[drawn] + (1 - LEANING) * text
  text = unit(np.where(is_stock[:, None], leaning, text) - gap)
  return Embeddings(image.astype(np.float32), text.astype(np.float32))


def early(final: Embeddings, *, seed: int) -> Embeddings:
  """Generates what the embeddings come from: all near each other, in a cone."""
  rng = np.random.default_rng([seed, 1])
  num_pairs, dim = final.image.shape
  cone = 2 * unit(rng.normal(size=(1, dim)))
  turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
  sides = (unit(cone + x @ turn) for x in final)
  return Embeddings(*(x.astype(np.float32) for x in sides))


def unit(x: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
  """Divides rows by their norms."""
  return x / np.linalg.norm(x, axis=1, keepdims=True)

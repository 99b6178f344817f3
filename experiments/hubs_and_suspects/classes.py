"""Wrong captions among captions that are names of classes.

A caption is the name of its letter, so that pairs of a letter share their text,
as photos in folders of classes do. Letters are few or many, rare or frequent.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from experiments.hubs_and_suspects import data
from nuclr_jax import Pairs, popularity
from nuclr_jax.lab.evaluate.suspects import (
  log_match_probability,
  log_self_confidence,
)

SHRINKAGES = (0.1, 0.5, 0.8, 0.95)
WRONG = 0.05
DRAW = 5  # of the pairs of a seed, see `measure`
SHARE, OURS = "share", "match probability"


class Case(NamedTuple):
  """How many letters and pairs there are, and how long the tail is."""

  num_letters: int
  num_pairs: int
  exponent: float

  @property
  def name(self) -> str:
    """The case's name in rows and tables."""
    return (
      f"{self.num_letters} letters, {self.num_pairs} pairs, exponent "
      f"{self.exponent}"
    )


CASES = (
  Case(10, 400, 0.0),
  Case(20, 800, 0.0),
  Case(50, 3200, 1.0),
  Case(50, 800, 0.0),
  Case(200, 3200, 0.0),
  Case(200, 3200, 0.3),
  Case(50, 3200, 1.4),
  Case(200, 3200, 0.6),
  Case(200, 3200, 1.2),
  Case(200, 1600, 0.0),
)


def confidence(shrinkage: float) -> str:
  """Names the self-confidence with a shrinkage."""
  return f"self-confidence, shrinkage {shrinkage}"


def draw(alphabet: data.Alphabet, case: Case, *, seed: int) -> data.Drawn:
  """Draws the pairs of a case, in fonts that no model was trained on.

  Example:
    >>> alphabet = data.make_alphabet(seed=0, exponent=0.0, num_items=20)
    >>> len(np.unique(draw(alphabet, CASES[0], seed=0).item))
    10
  """
  rng = np.random.default_rng((seed, DRAW))
  p = np.zeros(len(alphabet.p))
  frequency = np.arange(1, case.num_letters + 1.0) ** -case.exponent
  p[rng.permutation(len(p))[: case.num_letters]] = frequency / frequency.sum()
  return data.draw(
    alphabet._replace(p=p),
    case.num_pairs,
    seed=(seed, DRAW, CASES.index(case)),
    fonts=data.UNFAMILIAR,
    wrong=WRONG,
  )


def scores(
  image: np.ndarray,
  names: np.ndarray,
  named: np.ndarray,
  *,
  temperature: float,
) -> Mapping[str, np.ndarray]:
  """Returns the scores of pairs whose captions are names.

  Args:
    image: The embedding of each pair's image.
    names: The embeddings of all names.
    named: The index of each pair's name.
    temperature: The temperature of the model.
  """
  pairs = Pairs(image, names[named], np.arange(len(named)), text_id=named)
  solved = popularity.solve(
    pairs.image, pairs.text, temperature=temperature, text_id=named
  )
  log_own = log_match_probability(solved, pairs, temperature=temperature)
  found = {OURS: -(log_own.image + log_own.text) / 2}
  for x in SHRINKAGES:
    doubt = -log_self_confidence(image, named, shrinkage=x)
    found[confidence(x)] = np.nan_to_num(doubt)  # areas need finite scores
  return found

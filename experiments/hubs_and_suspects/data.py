"""Letters with planted wrong captions and duplicates.

The letters, fonts and noise are those of `experiments.when_it_pays`. Captions
have many wordings ("SIMPLE LATIN SMALL LETTER A ON WHITE"), so that they hardly
ever repeat, and every pair has ids of its own. A model may be trained on one
draw of the pairs and asked about another one of the same letters.
"""

import functools
from typing import NamedTuple
import unicodedata

from jaxtyping import Bool, Float, Int
import numpy as np

from experiments.when_it_pays.data import (
  ENDINGS,
  OPENINGS,
  SIZE,
  TEST_FONTS,
  TRAIN_FONTS,
  letters,
  noisy,
)
from nuclr_jax.lab.data import glyphs
from nuclr_jax.lab.data.augment import augment
from nuclr_jax.lab.data.source import Data, Records, in_memory
from nuclr_jax.lab.data.tokenizer import Tokenizer, build_tokenizer

VIEWS = 5  # noisy images of a letter in a font, for queries
LENGTH = 16  # tokens of a caption
COPY_NOISE = 0.05  # standard deviation that a duplicate adds
FAMILIAR, UNFAMILIAR = TRAIN_FONTS, TEST_FONTS


class Alphabet(NamedTuple):
  """The letters of a seed, how often each is drawn, and their vocabulary."""

  image: Int[np.ndarray, "fonts letters size size"]
  names: list[str]
  p: Float[np.ndarray, "letters"]
  tokenizer: Tokenizer


class Drawn(NamedTuple):
  """Pairs that were drawn; what was planted is known."""

  image: np.ndarray  # uint8 [pairs, size, size, 1]
  captions: list[str]
  item: Int[np.ndarray, "pairs"]  # the letter that the image shows
  named: Int[np.ndarray, "pairs"]  # the letter that the caption names
  duplicate: Bool[np.ndarray, "pairs"]  # whether it is a copy or was copied

  @property
  def wrong(self) -> Bool[np.ndarray, "pairs"]:
    """Whether the caption names another letter."""
    return self.item != self.named


@functools.lru_cache(maxsize=4)
def make_alphabet(*, seed: int, exponent: float, num_items: int) -> Alphabet:
  """Chooses letters, with frequencies that fall as rank^-exponent."""
  points, images = letters()
  rng = np.random.default_rng((seed, 0))
  chosen = rng.choice(len(points), num_items, replace=False)
  p = rng.permutation(np.arange(1, num_items + 1.0) ** -exponent)
  names = [unicodedata.name(chr(points[i])) for i in chosen]
  words = [x for x in (*OPENINGS, *ENDINGS) if x]
  tokenizer = build_tokenizer([*names, *words], length=LENGTH)
  return Alphabet(images[:, chosen], names, p / p.sum(), tokenizer)


def draw(
  alphabet: Alphabet,
  num_pairs: int,
  *,
  seed: tuple[int, ...],
  fonts: tuple[str, ...] = FAMILIAR,
  wrong: float = 0.0,
  duplicates: float = 0.0,
) -> Drawn:
  """Draws pairs, and plants errors.

  Args:
    alphabet: The letters.
    num_pairs: How many pairs there are, with duplicates.
    seed: Decides everything that is drawn.
    fonts: The fonts of the images.
    wrong: The share of pairs whose captions are exchanged among them.
    duplicates: The share of pairs that copy the image of another pair, with a
      little noise, and word its caption anew.
  """
  rng = np.random.default_rng(seed)
  rows = [glyphs.FONTS.index(x) for x in fonts]
  item = rng.choice(len(alphabet.p), num_pairs, p=alphabet.p)
  image = noisy(alphabet.image[rng.choice(rows, num_pairs), item], rng)
  duplicate = np.zeros(num_pairs, bool)
  copies = round(duplicates * num_pairs)
  if copies:
    both = rng.choice(num_pairs, 2 * copies, replace=False)
    duplicate[both] = True
    original, copy = both[:copies], both[copies:]
    item[copy] = item[original]
    noise = 255 * COPY_NOISE * rng.normal(size=image[copy].shape)
    image[copy] = np.clip(image[original] + noise, 0, 255).astype(np.uint8)
  chosen = rng.choice(num_pairs, round(wrong * num_pairs), replace=False)
  named = item.copy()
  named[chosen] = exchanged(item[chosen], rng)
  captions = [word(alphabet.names[i], rng) for i in named]
  return Drawn(image, captions, item, named, duplicate)


def exchanged(
  items: Int[np.ndarray, "chosen"], rng: np.random.Generator
) -> Int[np.ndarray, "chosen"]:
  """Permutes items so that every place gets another item than it had.

  Example:
    >>> exchanged(np.array([3, 5]), np.random.default_rng(0))
    array([5, 3])
  """
  new = rng.permutation(items)
  while len(same := np.flatnonzero(new == items)):
    i = same[0]
    free = np.flatnonzero((new != items[i]) & (items != new[i]))
    if not len(free):
      raise ValueError(f"no exchange gives all of {items} another item")
    j = rng.choice(free)
    new[[i, j]] = new[[j, i]]
  return new


def word(name: str, rng: np.random.Generator) -> str:
  """Returns one of many captions that name a letter."""
  parts = rng.choice(OPENINGS), name, rng.choice(ENDINGS)
  return " ".join(filter(None, parts))


def make_data(alphabet: Alphabet, drawn: Drawn, name: str) -> Data:
  """Makes the training data of pairs in which nothing is known to repeat.

  Args:
    alphabet: The letters.
    drawn: The pairs.
    name: What identifies the pairs in checkpoints.
  """
  ids = np.arange(len(drawn.item), dtype=np.int32)
  records = Records(drawn.image, ids, drawn.captions, name)
  tokens = alphabet.tokenizer.encode(drawn.captions)
  return Data(
    train=in_memory(records, tokens, augment(shift=1.0, scale=0.0)),
    tokenizer=alphabet.tokenizer,
    image_shape=(SIZE, SIZE, 1),
  )


def galleries(
  alphabet: Alphabet, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws galleries with one image of each letter, in fonts never trained on.

  Returns:
    Images [galleries, letters, size, size, 1] for validation, and for the test
    in the other half of the fonts.
  """
  rng = np.random.default_rng((seed, 1))
  halves = []
  for half in (0, 1):
    names = UNFAMILIAR[(seed + half) % 2 :: 2]
    clean = alphabet.image[[glyphs.FONTS.index(x) for x in names]]
    halves.append(noisy(np.tile(clean, (VIEWS, 1, 1, 1)), rng))
  return halves[0], halves[1]

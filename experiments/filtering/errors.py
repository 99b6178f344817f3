"""Errors that are planted in captions, of three kinds."""

from collections.abc import Sequence

from jaxtyping import Bool
import numpy as np

from experiments.icons.planted import donors

SWAPPED, BOILERPLATE, UNREADABLE = "swapped", "boilerplate", "unreadable"
KINDS = (SWAPPED, BOILERPLATE, UNREADABLE)
# Phrases that fit every icon, the most frequent first.
PHRASES = (
  "icon",
  "symbol",
  "outline",
  "vector icon",
  "sign",
  "line icon",
  "image",
  "logo",
  "picture",
  "user interface icon",
)
LETTER_PHRASES = (
  "LETTER",
  "SYMBOL",
  "SIGN",
  "CHARACTER",
  "CAPITAL LETTER",
  "SMALL LETTER",
  "MARK",
  "GLYPH",
  "FORM",
  "UNICODE CHARACTER",
)
# Of languages that the names are not in: "house", "arrow", "search", ...
FOREIGN = (
  "дом стрелка поиск письмо облако замок звезда сердце книга музыка "
  "σπίτι βέλος αναζήτηση γράμμα σύννεφο κλειδαριά αστέρι καρδιά βιβλίο μουσική "
  "家 矢印 検索 手紙 雲 錠 星 心 本 音楽"
).split()


def plant(
  captions: Sequence[str],
  kind: str,
  share: float,
  seed: int,
  phrases: Sequence[str] = PHRASES,
) -> tuple[list[str], Bool[np.ndarray, "pairs"]]:
  """Gives a share of pairs wrong captions; which ones, all kinds have alike.

  "swapped" has names of other pairs, drawn as they occur. "boilerplate" has
  `phrases`, drawn by Zipf's law. "unreadable" has, half each, no words and one
  to three `FOREIGN` words, which a tokenizer of English names does not know.

  Args:
    captions: The right caption of each pair.
    kind: One of `KINDS`.
    share: The share of pairs that get another one.
    seed: The seed.
    phrases: Captions that fit every image, the most frequent first.

  Returns:
    The captions, and which of them are wrong.

  Raises:
    ValueError: If there is no such kind.

  Example:
    >>> captions, wrong = plant(["a", "b", "c", "d"], "boilerplate", 0.5, 0)
    >>> int(wrong.sum()), sum(x in PHRASES for x in captions)
    (2, 2)
  """
  text_id = np.unique(captions, return_inverse=True)[1]
  donor = donors(text_id, share, seed)
  wrong = donor != np.arange(len(donor))
  found, random = list(captions), np.random.default_rng([seed, 4])
  zipf = 1 / np.arange(1, len(phrases) + 1)
  for i in np.flatnonzero(wrong):
    if kind == SWAPPED:
      found[i] = captions[donor[i]]
    elif kind == BOILERPLATE:
      found[i] = str(random.choice(phrases, p=zipf / zipf.sum()))
    elif kind == UNREADABLE:
      count = random.integers(1, 4) * random.integers(2)
      found[i] = " ".join(random.choice(FOREIGN, count, replace=False))
    else:
      raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
  return found, wrong

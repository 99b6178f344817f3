"""Vocabularies of captions: which words and characters get a token id.

They are built here and not by `tokenizers.trainers`, whose WordPiece trainer
gives a different vocabulary in every run.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
import logging
import re

import tokenizers
from tokenizers import (
  models,
  normalizers,
  pre_tokenizers,
)

from nuclr_jax.lab.data import tokenizer_file

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
# The characters of scripts that have no spaces between words. Korean has.
WITHOUT_SPACES = "".join(
  (
    "[\u0e00-\u0eff",  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",  # Myanmar
    "\u1780-\u17ff\u19e0-\u19ff",  # Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b",  # Han
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",  # Han
    "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f",  # Hiragana, Katakana
    "\U0001aff0-\U0001b16f]",  # the same, of names and old texts
  )
)
WORD = 100  # characters; longer words are unknown unless captions have some

log = logging.getLogger(__name__)


def build(
  captions: Sequence[str],
  *,
  min_count: int = 1,
  first_and_last: bool = False,
) -> tokenizers.Tokenizer:
  """Builds the vocabulary of captions, and what cuts captions into its words.

  See `tokenizer.build_tokenizer`, whose arguments these are. Only captions with
  a character of `WITHOUT_SPACES` are cut there, too.

  Example:
    >>> words = build(["\u72d7\u5728\u8dd1", "a dog"])
    >>> words.encode("A dog: \u72d7").tokens == ["a", "dog", "\u72d7"]
    True
  """
  normalizer = normalizers.Sequence(
    [normalizers.NFC(), normalizers.Lowercase()]
  )
  steps = [
    pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.Punctuation("removed"),
  ]
  split = pre_tokenizers.Sequence(steps)
  words = _count_words(captions, normalizer, split)
  alone, character = set(), re.compile(WITHOUT_SPACES)
  if any(map(character.search, words)):
    regex = tokenizers.Regex(WITHOUT_SPACES)
    steps.append(pre_tokenizers.Split(regex, "isolated"))
    split = pre_tokenizers.Sequence(steps)
    words = _count_words(captions, normalizer, split)
    alone = set(filter(character.fullmatch, words))
  characters = sorted({c for word in words for c in word})
  continuing = [c for c in characters if c not in alone]
  frequent = sorted(
    (w for w, count in words.items() if count >= min_count and len(w) > 1),
    key=lambda w: (-words[w], w),
  )
  special = [PAD, UNKNOWN, *((FIRST,) if first_and_last else ())]
  pieces = [*special, *characters, *(f"##{c}" for c in continuing), *frequent]
  if first_and_last:
    pieces.append(LAST)  # CLIP's text tower ends at the largest id
  tokenizer = tokenizers.Tokenizer(
    models.WordPiece(
      {piece: i for i, piece in enumerate(pieces)},
      unk_token=UNKNOWN,
      max_input_chars_per_word=_longest(words),
    )
  )
  tokenizer.normalizer = normalizer
  tokenizer.pre_tokenizer = split
  return tokenizer


def _count_words(captions, normalizer, split) -> Counter:
  """Counts in how many captions each word occurs."""
  words = Counter()
  for caption in captions:
    normal = normalizer.normalize_str(caption)
    words.update({word for word, _ in split.pre_tokenize_str(normal)})
  return words


def _longest(words: Iterable[str]) -> int:
  """Returns how long words may be; warns if some are longer than any may be."""
  most = tokenizer_file.MAX_WORD
  longer = sorted(word for word in words if len(word) > most)
  if longer:
    log.warning(
      "%d words of the training captions have more than %s characters; the "
      "tokenizer knows none of them and reads %s for each, such as %s...; put "
      "spaces into these captions, or leave them out",
      len(longer),
      f"{most:,}",
      UNKNOWN,
      longer[0][:40],
    )
  return min(most, max([WORD, *map(len, words)]))

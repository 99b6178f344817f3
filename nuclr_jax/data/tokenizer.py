"""WordPiece tokenizers: built from captions, saved with the data and model.

The vocabulary is made here, not by `tokenizers.trainers`: the WordPiece
trainer of that library gives other vocabularies on every run.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

PAD, UNKNOWN = "[PAD]", "[UNK]"


class Tokenizer(NamedTuple):
  """Turns captions into token ids; `text` is its whole definition."""

  text: str  # the JSON of the `tokenizers` library
  length: int  # token ids per caption; longer ones are cut

  @property
  def vocab_size(self) -> int:
    """Number of token ids; 0 is padding."""
    return tokenizers.Tokenizer.from_str(self.text).get_vocab_size()

  def encode(self, captions: Sequence[str]) -> np.ndarray:
    """Token ids int32 [captions, length], padded with 0.

    Example:
      >>> tokenizer = build(["DIGIT ONE", "DIGIT TWO"], length=4)
      >>> tokenizer.encode(["DIGIT TWO", "DIGIT"]).tolist()
      [[18, 20, 0, 0], [18, 0, 0, 0]]
    """
    encoder = tokenizers.Tokenizer.from_str(self.text)
    rows = encoder.encode_batch(list(captions), add_special_tokens=False)
    ids = np.zeros((len(rows), self.length), np.int32)
    for row, encoding in zip(ids, rows, strict=True):
      kept = encoding.ids[: self.length]
      row[: len(kept)] = kept
    return ids


def build(
  captions: Sequence[str], *, length: int, min_count: int = 1
) -> Tokenizer:
  """Makes the tokenizer of a set of captions.

  The vocabulary is padding, unknown, all characters (as first and as
  continuing pieces), and the words that occur in at least `min_count`
  captions, most frequent first; other words are spelled in characters.
  Captions are lower-cased and split at white space and punctuation.

  Args:
    captions: The training captions, each distinct caption once.
    length: Token ids per caption.
    min_count: How many captions a word must be in to be a token.

  Raises:
    ValueError: If there are no captions, or `length` is not positive.
  """
  if not captions or length < 1:
    raise ValueError(
      f"a tokenizer needs captions and a positive length, got {len(captions)} "
      f"captions and length {length}"
    )
  normalizer = normalizers.Sequence(
    [normalizers.NFC(), normalizers.Lowercase()]
  )
  split = pre_tokenizers.Sequence(
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("removed")]
  )
  words = Counter()
  for caption in captions:
    normal = normalizer.normalize_str(caption)
    words.update({word for word, _ in split.pre_tokenize_str(normal)})
  characters = sorted({c for word in words for c in word})
  frequent = sorted(
    (w for w, count in words.items() if count >= min_count and len(w) > 1),
    key=lambda w: (-words[w], w),
  )
  pieces = [PAD, UNKNOWN, *characters, *(f"##{c}" for c in characters)]
  vocabulary = {piece: i for i, piece in enumerate(pieces + frequent)}
  tokenizer = tokenizers.Tokenizer(
    models.WordPiece(
      vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100
    )
  )
  tokenizer.normalizer = normalizer
  tokenizer.pre_tokenizer = split
  return Tokenizer(tokenizer.to_str(), length)

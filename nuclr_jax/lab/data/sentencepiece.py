"""Reads vocabularies of sentencepiece, such as SigLIP's `spiece.model`.

Such a file is a message of protocol buffers, of which few fields matter; they
become a tokenizer of the library `tokenizers`.
"""

from collections.abc import Iterator
import struct
from typing import Any

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors

SPACE = "\u2581"  # what pieces have in place of a space
UNIGRAM, NORMAL, USER_DEFINED = 1, 1, 4  # a kind of model, and two of pieces
END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
NFKC = b"nfkc"  # in the name of a normalization
LONGEST = 10  # bytes of a number


def from_sentencepiece(
  data: bytes, *, of_t5: bool = False
) -> tokenizers.Tokenizer:
  """Makes the tokenizer of a file, which ends texts with `</s>`.

  Args:
    data: The bytes of a `spiece.model`.
    of_t5: Whether it is read as transformers' T5Tokenizer does, and not its
      SiglipTokenizer: `<pad>` in a caption is then a token, and letters are
      composed by the file's rules for single characters alone.

  Raises:
    ValueError: If it is none, or of a kind other than SigLIP's and T5's.
  """
  whole = list(_fields(data))
  pieces = [dict(_fields(x)) for number, x in whole if number == 1]
  trainer, normalizer = (
    dict(_fields(next((x for number, x in whole if number == n), b"")))
    for n in (2, 3)
  )
  if not all(isinstance(piece.get(1), bytes) for piece in pieces):
    raise ValueError("it has pieces without a text")
  vocabulary = [
    (piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0])
    for piece in pieces
  ]
  ids = {name: i for i, (name, _) in enumerate(vocabulary)}
  kinds = {piece.get(3, NORMAL) for piece in pieces}
  if trainer.get(3, UNIGRAM) != UNIGRAM or USER_DEFINED in kinds:
    raise ValueError("it is not a plain unigram model; give a tokenizer.json")
  if END not in ids or ids[END] != trainer.get(42, 2):
    raise ValueError(f"texts do not end with {END}; give a tokenizer.json")
  words = tokenizers.Tokenizer(models.Unigram(vocabulary, trainer.get(40, 0)))
  steps = []
  if charsmap := normalizer.get(2):
    steps.append(normalizers.Precompiled(charsmap))
    # The library looks up single characters, sentencepiece also what several
    # are composed to (half-width katakana, letters of hangul).
    if not of_t5 and NFKC in normalizer.get(1, b""):
      steps.append(normalizers.NFC())
  if normalizer.get(4, 1):  # surplus white space goes
    steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
  words.normalizer = normalizers.Sequence(steps)
  words.pre_tokenizer = pre_tokenizers.Metaspace(
    SPACE, "always" if normalizer.get(3, 1) else "never"
  )
  special = [END, UNKNOWN, *([PAD] if of_t5 else [])]
  words.add_special_tokens([x for x in special if x in ids])
  words.post_processor = processors.TemplateProcessing(
    single=f"$A {END}", special_tokens=[(END, ids[END])]
  )
  return words


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
  """Yields the number and the value of each field of a message."""
  at = 0
  while at < len(data):
    key, at = _varint(data, at)
    number, kind = key >> 3, key & 7
    if kind == 0:
      value, at = _varint(data, at)
    else:
      if kind == 2:
        size, at = _varint(data, at)
      else:
        size = {1: 8, 5: 4}.get(kind)
      if size is None or at + size > len(data):
        raise ValueError("it is not a file of sentencepiece")
      value, at = data[at : at + size], at + size
    yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
  value = 0
  for i, byte in enumerate(data[at : at + LONGEST]):
    value |= (byte & 127) << 7 * i
    if byte < 128:
      return value, at + i + 1
  raise ValueError("it is not a file of sentencepiece")

"""Tokenizers, built from captions or taken from published models.

A tokenizer, including the cleaning of captions, is one JSON text that the
library `tokenizers` reads. Only the repair of captions (`repaired`), which that
library cannot do, goes before it. `vocabulary` builds the vocabularies.
"""

from collections.abc import Callable, Iterable, Sequence
import os
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import (
  models,
  normalizers,
  pre_tokenizers,
)

from nuclr_jax import checks
from nuclr_jax.checks import Natural
from nuclr_jax.lab import files
from nuclr_jax.lab.data import tokenizer_file, vocabulary
from nuclr_jax.lab.data.cleaning import (
  Clean,
  cleaned,
  normalizer_of,
  repaired,
)
from nuclr_jax.lab.data.sentencepiece import from_sentencepiece
from nuclr_jax.lab.data.vocabulary import FIRST, LAST, PAD, UNKNOWN
from nuclr_jax.lab.models.pretrained import find_file
from nuclr_jax.lab.models.pretrained.specs import read_spec
from nuclr_jax.lab.ranges import Ids

FIRST_AND_LAST = f"{FIRST} $A {LAST}"
MASK = "[MASK]"  # which not every vocabulary of BERT has
PADS = (PAD, "<pad>")  # the padding of BERT, and of RoBERTa or T5
BUILD = "build"  # in a config, in place of the name of a published tokenizer
FILES = ("tokenizer.json", "vocab.txt")
SETTINGS = "tokenizer_config.json"  # beside them
SENTENCEPIECE, SIGLIP = "spiece.model", "SiglipTokenizer"
# What is wrong with a tokenizer shows in one of these: no words, some words,
# letters that no vocabulary has, and a long word of them.
PROBES = ("", "a", "A dog.\n", "\U0010fffd \u0378", "\U0010fffd" * 200)


class Tokenizer(NamedTuple):
  """Turns captions into token ids."""

  text: str  # the JSON of the `tokenizers` library
  length: int  # token ids per caption; longer captions are cut
  num_ids: int | None = None  # of the text tower; None = the vocabulary's
  repair: bool = False  # whether captions are `repaired` first
  # How whole captions are cleaned next. `text` cleans what is between special
  # tokens: in OpenCLIP, cleaning comes first and may leave none.
  clean: Clean = False

  @property
  def vocab_size(self) -> int:
    """Number of token ids that the text tower needs."""
    return self.largest_id + 1 if self.num_ids is None else self.num_ids

  @property
  def pad_id(self) -> int:
    """The id that follows the end of short captions."""
    return (tokenizer_file.encoder(self.text, self.length).padding or {}).get(
      "pad_id", 0
    )

  @property
  def largest_id(self) -> int:
    """The largest id in the vocabulary, added tokens included."""
    return tokenizer_file.largest_id(self.text, self.length)

  @property
  def end_id(self) -> int | None:
    """The id with which every caption ends, whole or cut; None if none does.

    Example:
      >>> build_tokenizer(["a"], length=4, first_and_last=True).end_id
      5
      >>> build_tokenizer(["a"], length=4).end_id  # None
    """
    ends = set()
    for row in self._rows(["", "a", "a " * self.length]):
      used = [
        x
        for x, is_text in zip(row.ids, row.attention_mask, strict=True)
        if is_text
      ]
      ends.add(used[-1] if used else None)
    return ends.pop() if len(ends) == 1 else None

  def encode(self, captions: Sequence[str]) -> np.ndarray:
    """Returns token ids int32 [captions, length], padded with `pad_id`.

    Example:
      >>> tokenizer = build_tokenizer(["DIGIT ONE", "DIGIT TWO"], length=4)
      >>> tokenizer.encode(["DIGIT TWO", "DIGIT"]).tolist()
      [[18, 20, 0, 0], [18, 0, 0, 0]]
    """
    rows = self._rows(captions)
    longest = max((len(x.ids) for x in rows), default=0)
    if longest > self.length:
      raise ValueError(
        f"a length of {self.length} leaves no room for text beside the tokens "
        "that the tokenizer adds; raise data.length"
      )
    ids = np.full((len(rows), self.length), self.pad_id, np.int64)
    for row, encoding in zip(ids, rows, strict=True):
      row[: len(encoding.ids)] = encoding.ids
    if ids.max(initial=0) >= self.vocab_size:
      raise ValueError(
        f"the tokenizer gave id {ids.max()}, and the text tower has "
        f"{self.vocab_size} ids; is it the tokenizer of this model?"
      )
    return ids.astype(np.int32)

  def is_cut(self, captions: Sequence[str]) -> np.ndarray:
    """Returns whether each caption has more tokens than a row, bool [captions].

    Example:
      >>> tokenizer = build_tokenizer(["DIGIT ONE", "DIGIT TWO"], length=2)
      >>> tokenizer.is_cut(["DIGIT TWO", "DIGIT ONE TWO"]).tolist()
      [False, True]
    """
    rows = self._rows(captions)
    return np.array([bool(row.overflowing) for row in rows], bool)

  def _rows(self, captions: Sequence[str]) -> list[tokenizers.Encoding]:
    texts = list(map(repaired, captions) if self.repair else captions)
    texts = [cleaned(text, self.clean) for text in texts]
    with tokenizer_file.calling("the captions cannot be encoded"):
      return tokenizer_file.encoder(self.text, self.length).encode_batch(texts)


def build_tokenizer(
  captions: Sequence[str],
  *,
  length: int,
  min_count: int = 1,
  first_and_last: bool = False,
) -> Tokenizer:
  """Builds the tokenizer of a set of captions.

  The vocabulary consists of padding, unknown, all characters (as first and as
  continuation pieces), and the words that occur in at least `min_count`
  captions, most frequent first; other words are spelled in characters.
  Captions are lower-cased and split at white space and punctuation. In scripts
  without spaces (`vocabulary.WITHOUT_SPACES`), every character is a word.

  Args:
    captions: The training captions, each distinct caption once.
    length: Token ids per caption.
    min_count: The number of captions in which a word must occur to become a
      token.
    first_and_last: Whether captions begin and end with special tokens, as
      BERT's do; towers that take the feature of the first token need them. The
      last one has the largest id, where CLIP's text tower takes its feature.

  Raises:
    ValueError: If there are no captions, or `length` is not positive.

  Example:
    >>> words = build_tokenizer(["\u72d7\u5728\u8dd1", "a dog"], length=4)
    >>> words.encode(["\u72d7\u8dd1", "a \u72d7"]).tolist()
    [[7, 8, 0, 0], [2, 7, 0, 0]]
  """
  if not captions or length < 1:
    raise ValueError(
      f"a tokenizer needs captions and a positive length, got {len(captions)} "
      f"captions and length {length}"
    )
  tokenizer = vocabulary.build(
    captions, min_count=min_count, first_and_last=first_and_last
  )
  if first_and_last:
    tokenizer_file.set_template(tokenizer, FIRST_AND_LAST, BUILD)
  return Tokenizer(tokenizer.to_str(), length)


@checks.checked
def pretrained_tokenizer(
  source: str | os.PathLike,
  *,
  length: int,
  clean: Clean = True,
  repair: bool = False,
  pad_id: Natural = 0,
  template: str | None = None,
  vocab_size: Ids | None = None,
) -> Tokenizer:
  r"""Reads the tokenizer of a published text tower.

  Args:
    source: A `vocab.txt` of BERT or DistilBERT (lower-cased), a
      `tokenizer.json`, the `spiece.model` of SigLIP's first models or of T5, or
      a folder or a hub name with one of them.
    length: Token ids per caption, including the first and the last token;
      longer captions are cut before the last token.
    clean: How captions are cleaned before the tokenizer's own normalization.
      True is the published CC3M recipe: lower case, the characters , . ' ! ? "
      ( ) * # : ; ~ removed, "-" and "/" replaced by spaces, "<person>" by
      "person", white space collapsed. (The recipe also keeps at most 30 words,
      which 30 tokens never exceed.) "canonicalize", as SigLIP expects: lower
      case, "_" replaced by a space, all other ASCII punctuation removed, white
      space collapsed. "remove_punctuation" is how transformers does it, which
      removes "_", too. "lower", as SigLIP 2 expects: lower case only. False
      changes nothing.
    repair: Whether captions are `repaired` before they are cleaned, as OpenCLIP
      and OpenAI's CLIP do; transformers does not.
    pad_id: The id that follows the end of short captions. Text towers that mask
      the padding, such as BERT, need 0; SigLIP attends to it, and takes 1, the
      id of `</s>`, whatever the id of `<pad>`.
    template: Which tokens go before and after a caption, $A, if they are not
      those that the tokenizer adds: "[CLS] $A [PAD]" for CLIPA, where padding
      takes the place of BERT's last token (if a caption spells it, it stays),
      and "eng_Latn $A </s>" for English in NLLB's vocabulary.
    vocab_size: The number of ids of a pretrained text tower, if it is not that
      of the tokenizer. Published towers may have ids that are never used.

  Raises:
    ValueError: If there is no such file, it is not a tokenizer, or `pad_id` is
      0 and that is not the id of the tokenizer's padding token.

  Example:
    >>> _ = (tmp_path / "vocab.txt").write_text(
    ...   "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\ndog\nrun\n##s"
    ... )
    >>> words = pretrained_tokenizer(tmp_path, length=8)
    >>> words.encode(["A dog-runs!"]).tolist()
    [[2, 4, 5, 6, 7, 3, 0, 0]]
  """
  path = _find(source)
  with files.reading(path):
    files.check_size(path)
  if path.suffix == ".json":
    tokenizer = tokenizer_file.open_json(path)
  elif path.name == SENTENCEPIECE:
    tokenizer = _from_sentencepiece(path)
  else:
    _check_lower_case(path)
    with files.reading(path):
      text = path.read_text(encoding="utf-8")
    # Not splitlines, which takes some characters that are tokens for line ends.
    tokenizer = _bert(text.removesuffix("\n").split("\n"), path)
  tokenizer_file.check_effort(tokenizer, path)
  _check_added(tokenizer, path)
  if length < 3:
    raise ValueError(f"length must be at least 3 tokens, got {length}")
  for name in PADS:
    if pad_id == 0 and (own_id := tokenizer.token_to_id(name)):
      raise ValueError(
        f"{path} pads with id {own_id}, {name}, not with 0; text towers that "
        "mask the padding, such as BERT, need 0: choose another tokenizer, or "
        f"set pad_id={own_id} for a tower that does not"
      )
  tokenizer.no_padding()
  tokenizer.no_truncation()
  if template is not None:
    tokenizer_file.set_template(tokenizer, template, path)
  if pad_id:
    pad_token = tokenizer.id_to_token(pad_id)
    if pad_token is None:
      raise ValueError(
        f"pad_id must be one of the {tokenizer.get_vocab_size()} ids of {path},"
        f" got {pad_id}"
      )
    tokenizer.enable_padding(pad_id=pad_id, pad_token=pad_token, length=length)
  if clean:
    steps = [normalizer_of(clean), tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([s for s in steps if s])
  whole = clean if repair else False
  with files.reading(path):
    words = Tokenizer(tokenizer.to_str(), length, vocab_size, repair, whole)
    _try_out(words)
  return words


def choose_tokenizer(
  source: str | os.PathLike,
  captions: Callable[[], Iterable[str]],
  *,
  length: int,
  clean: Clean = True,
  repair: bool = False,
  pad_id: Natural = 0,
  template: str | None = None,
  vocab_size: Ids | None = None,
  min_count: int = 1,
) -> Tokenizer:
  """Makes the tokenizer that a config names.

  Args:
    source: A file, a folder or a hub name for `pretrained_tokenizer`, or
      "build" to build a tokenizer from the training captions.
    captions: Returns the training captions; called only to build a tokenizer.
    length: Token ids per caption.
    clean: How a pretrained tokenizer cleans captions.
    repair: Whether captions are `repaired` first.
    pad_id: The id that a pretrained tokenizer pads with.
    template: Which tokens it adds to a caption.
    vocab_size: The number of ids of a pretrained text tower, if it is another
      than the tokenizer's.
    min_count: The number of captions in which a word must occur to become a
      token of a built tokenizer.

  Raises:
    ValueError: If the tokenizer cannot be read or built.

  Example:
    >>> words = choose_tokenizer("build", lambda: ["a dog", "a cat"], length=4)
    >>> words.encode(["a cat"]).shape
    (1, 4)
  """
  if source != BUILD:
    return pretrained_tokenizer(
      source,
      length=length,
      clean=clean,
      repair=repair,
      pad_id=pad_id,
      template=template,
      vocab_size=vocab_size,
    )
  distinct = set(map(repaired, captions()) if repair else captions())
  built = build_tokenizer(
    sorted(distinct),
    length=length,
    min_count=min_count,
    first_and_last=True,
  )
  return built._replace(repair=repair)


def _find(source: str | os.PathLike) -> pathlib.Path:
  """Returns the file of a tokenizer, the one that transformers takes."""
  names = (*FILES, SENTENCEPIECE)
  if not files.remote.fetch(source).expanduser().is_file():
    try:
      settings = read_spec(find_file(source, (SETTINGS,)))
    except ValueError:  # it has none, or it is damaged, which is found below
      settings = {}
    if settings.get("tokenizer_class") == SIGLIP:
      names = (SENTENCEPIECE, *FILES)
  return find_file(source, names)


def _settings(path: pathlib.Path) -> dict[str, Any]:
  """Reads the tokenizer_config.json beside a file, if there is one."""
  beside = path.with_name(SETTINGS)
  return read_spec(beside) if beside.is_file() else {}


def _check_added(tokenizer: tokenizers.Tokenizer, path: pathlib.Path) -> None:
  """Raises ValueError if a tokenizer lacks tokens that files beside it add."""
  if path.name not in (*FILES, SENTENCEPIECE):
    return
  added = {
    x.get("content"): int(number) if number.isdecimal() else None
    for number, x in (_settings(path).get("added_tokens_decoder") or {}).items()
  }
  beside = path.with_name("added_tokens.json")
  if beside.is_file():
    added |= files.read_json(beside)
  lost = [
    token
    for token, number in added.items()
    if token is None
    or tokenizer.token_to_id(token) != number
    and not re.fullmatch(r"<extra_id_\d+>", token)  # T5's, of no caption
  ]
  if lost:
    raise ValueError(
      f"{path} lacks tokens that were added to the tokenizer, with their ids: "
      f"{lost[:5]}; give a tokenizer.json that has them"
    )


def _check_lower_case(path: pathlib.Path) -> None:
  """Raises ValueError if a vocab.txt is of a BERT that has upper case."""
  if _settings(path).get("do_lower_case") is False:
    raise ValueError(
      f"{path} is of a tokenizer with upper case (do_lower_case is false), and "
      "a vocab.txt is read as one without; give its tokenizer.json"
    )


def _from_sentencepiece(path: pathlib.Path) -> tokenizers.Tokenizer:
  kind = _settings(path).get("tokenizer_class")
  if kind not in (SIGLIP, "T5Tokenizer", "T5TokenizerFast"):
    raise ValueError(
      f"{path} is read for the tokenizer_class SiglipTokenizer or T5Tokenizer "
      f"in tokenizer_config.json beside it, got {kind}; others differ in ids "
      "or ends: give a tokenizer.json"
    )
  with files.reading(path), tokenizer_file.without_messages():
    return from_sentencepiece(path.read_bytes(), of_t5=kind != SIGLIP)


def _try_out(words: Tokenizer) -> None:
  """Raises an error if some captions cannot be encoded, before all work."""
  with tokenizer_file.without_messages():
    rows = words._rows([*PROBES, "a " * words.length])
  for row in rows:
    if len(row.ids) > words.length:
      raise ValueError(
        f"it makes {len(row.ids)} tokens of a caption, and {words.length} are "
        "asked for (length); does it add tokens to the text twice?"
      )
    if not checks.fits(max(row.ids, default=0) + 1, Ids):
      raise ValueError(f"it gives the id {max(row.ids)}, which is too large")


def _bert(tokens: Sequence[str], path: os.PathLike) -> tokenizers.Tokenizer:
  """Makes the tokenizer of lower-cased BERT models from tokens by id."""
  ids = {token: i for i, token in enumerate(tokens)}
  missing = [x for x in (PAD, UNKNOWN, FIRST, LAST) if x not in ids]
  if missing:
    raise ValueError(
      f"{path} is not a vocabulary of BERT: it lacks the tokens {missing}"
    )
  tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
  special = [PAD, UNKNOWN, FIRST, LAST, *({MASK} & ids.keys())]
  tokenizer.add_special_tokens(special)
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer_file.set_template(tokenizer, FIRST_AND_LAST, path)
  return tokenizer

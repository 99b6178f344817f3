"""Captions that a tokenizer cuts, of which training and scores see a part."""

import logging

import numpy as np

from nuclr_jax.lab import distributed
from nuclr_jax.lab.data.source import Data, label_of

SAMPLE = 4_096  # training captions that are looked at, if there are more
# The share of a held-out set's captions above which a training run warns.
NOTED = 0.02

log = logging.getLogger(__name__)


def warn(data: Data, *, fresh: bool = True) -> None:
  """Warns, before a run trains, of captions that are cut.

  One process looks at them. Of held-out sets, those are named of which more
  than the share `NOTED` is cut; `nuclr evaluate` names all.

  Args:
    data: The data of the run.
    fresh: Whether the run begins, so that it may still have another length.
  """
  if distributed.is_first():
    warn_of_training(data, fresh=fresh)
    for split in data.held_out:
      warn_of_held_out(data, split, share=NOTED)


def warn_of_training(data: Data, *, fresh: bool = True) -> None:
  """Warns of training captions that are cut.

  Of more than `SAMPLE` distinct captions, as many are read, at equal distances
  from the first to the last. Nothing is said of a stream of tars, whose
  captions are not known, and of data without a vocabulary.

  Args:
    data: The data of a run.
    fresh: Whether the run begins, so that it may still have another length.

  Example:
    >>> from nuclr_jax.lab.data.sentences import twice
    >>> from nuclr_jax.lab.data.tokenizer import build_tokenizer
    >>> texts = ["a dog", "a dog and a cat"]
    >>> words = build_tokenizer(texts, length=3)
    >>> source = twice(texts, words.encode(texts), "mine")
    >>> warn_of_training(Data(source, words, (3,)))  # 1 of 2 ... are cut
  """
  source, tokenizer = data.train, data.tokenizer
  count = source.sizes.num_texts
  if not tokenizer.vocab_size or source.open_stream is not None:
    return
  looked_at = min(count, SAMPLE)
  text_ids = np.linspace(0, count - 1, looked_at).round().astype(np.int64)
  cut = int(tokenizer.is_cut(source.captions(text_ids)).sum())
  if not cut:
    return
  of = f"{count:,}"
  if looked_at < count:
    of = f"a sample of {looked_at:,} of the {count:,}"
  remedy = "raise it to learn from whole captions, or shorten them"
  if not fresh:
    remedy = "this run keeps its length, and a new one may have a larger one"
  log.warning(
    "%s of %s training captions are cut to %d tokens (config.data.length), and "
    "nothing is learned from what follows; %s. A pretrained text tower has a "
    "length of its own, see its max_length",
    f"{cut:,}",
    of,
    tokenizer.length,
    remedy,
  )


def warn_of_held_out(data: Data, split: str, *, share: float = 0.0) -> None:
  """Warns, for each captioned set of a split, of captions that are cut.

  Args:
    data: The data of a run.
    split: The name of the split.
    share: The share of a set's captions that may be cut without a warning.
  """
  tokenizer = data.tokenizer
  if not tokenizer.vocab_size:  # captions are not tokenized
    return
  for name, captioned in data.held_out[split].retrieval.items():
    count = len(captioned.captions)
    cut = int(tokenizer.is_cut(captioned.captions).sum())
    if cut > share * count:
      log.warning(
        "%s: %d of %d captions are cut to %d tokens",
        label_of(split, name),
        cut,
        count,
        tokenizer.length,
      )

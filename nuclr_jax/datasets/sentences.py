"""Sentences as a data set, for the model `views` with a text encoder."""

from collections.abc import Sequence
import pathlib

from nuclr_jax.data import tokenizer as tokenizers
from nuclr_jax.datasets.base import Data
from nuclr_jax.evaluate import sts


def sentences(
  *,
  train: str | None,
  validation: tuple[str, ...] = (),
  test: tuple[str, ...] = (),
  tokenizer: str = tokenizers.BUILD,
  length: int = 32,
  min_count: int = 1,
) -> Data:
  """Sentences without labels; dropout makes two views of each (SimCSE).

  Args:
    train: A text file with a sentence on each line; those that are there twice
      count once.
    validation: TSV files of rated pairs (score, sentence, sentence on each
      line), scored while training, see `evaluate.sts`.
    test: Likewise at the end.
    tokenizer: A file, a folder or a hub name, see `tokenizer.pretrained`; or
      "build", to make one of the sentences.
    length: Token ids per sentence.
    min_count: See `tokenizer.build`.

  Raises:
    ValueError: If a file cannot be read, or is not what is wanted.

  Reference: Gao et al., SimCSE: Simple Contrastive Learning of Sentence
    Embeddings, EMNLP 2021.
  """
  from nuclr_jax.data import sentences as texts

  if train is None:
    raise ValueError(
      "config.data.train is missing; it is a text file with a sentence on each "
      "line"
    )
  found = texts.read(train)
  words = tokenizers.choose(
    tokenizer, lambda: found, length=length, clean=False, min_count=min_count
  )
  return Data(
    train=texts.twice(found, words.encode(found), pathlib.Path(train).name),
    tokenizer=words,
    image_shape=(length,),
    evaluators={
      "validation": _evaluators(validation),
      "test": _evaluators(test),
    },
    sets={},
  )


def _evaluators(paths: Sequence[str]):
  from nuclr_jax.data import sentences as texts

  names = [pathlib.Path(path).stem for path in paths]
  if len(set(names)) < len(names):
    raise ValueError(f"files of rated pairs need different names, got {paths}")
  return [
    sts.evaluator(texts.read_rated(path), name)
    for path, name in zip(paths, names, strict=True)
  ]

"""Data sets by name, and what each of them provides to a run.

`DATASETS` holds the factories that a config's `data.name` names. Each makes a
`Data`: training pairs, whose stable ids let a run keep state for every sample;
a tokenizer; and held-out sets.
"""

from collections.abc import Mapping
from typing import Any

from nuclr_jax.lab.data import (
  embeddings,
  glyphs,
  icons,
  image_text,
  sentences,
)
from nuclr_jax.lab.data.source import (
  AnyTokenizer,
  Data,
  HeldOut,
  ImageTextSet,
  Inputs,
  LabelledSet,
  LazyImages,
  ProbeSets,
  RatedPairs,
  Records,
  Resize,
  Source,
  in_memory,
  random_numbers,
  source_of_samples,
  without_pairs,
)

DATASETS = {
  "embeddings": embeddings.embeddings,
  "glyphs": glyphs.glyphs,
  "icons": icons.icons,
  "image_text": image_text.image_text,
  "sentences": sentences.sentences,
}

__all__ = [
  "DATASETS",
  "AnyTokenizer",
  "Data",
  "HeldOut",
  "ImageTextSet",
  "Inputs",
  "LabelledSet",
  "LazyImages",
  "ProbeSets",
  "RatedPairs",
  "Records",
  "Resize",
  "Source",
  "in_memory",
  "inputs_of",
  "random_numbers",
  "source_of_samples",
  "without_pairs",
]


def inputs_of(spec: Mapping[str, Any]) -> Inputs | None:
  """Returns the model inputs of a `config.data`, if known without its data.

  They are not if the tokenizer is built from the training captions, for
  instance.

  Args:
    spec: The mapping `config.data`.

  Returns:
    The inputs, or None.
  """
  return image_text.inputs_of(spec) or sentences.inputs_of(spec)

"""Data sets by name, and what each of them provides to a run.

`DATASETS` holds the factories that a config's `data.name` names. Each makes a
`Data`: training pairs, whose stable ids let a run keep state for every sample;
a tokenizer; and held-out sets.
"""

from nuclr_jax.lab.data import (
  embeddings,
  glyphs,
  icons,
  image_text,
  sentences,
)
from nuclr_jax.lab.data.image_text import inputs_of
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

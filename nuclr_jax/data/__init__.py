"""Data sets by name, and what each of them provides to a run.

`DATASETS` holds the factories that a config's `data.name` names. Each makes a
`Data`: training pairs, whose stable ids let a run keep state for every sample;
a tokenizer; and held-out sets.
"""

from nuclr_jax.data import (
  documents,
  embeddings,
  glyphs,
  image_text,
  labelled,
  sentences,
)
from nuclr_jax.data.image_text import inputs_of
from nuclr_jax.data.source import (
  AnyTokenizer,
  ClassScores,
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
  "documents": documents.documents,
  "embeddings": embeddings.embeddings,
  "glyphs": glyphs.glyphs,
  "image_text": image_text.image_text,
  "labelled": labelled.labelled,
  "sentences": sentences.sentences,
}

__all__ = [
  "DATASETS",
  "AnyTokenizer",
  "ClassScores",
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

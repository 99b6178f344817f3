"""Data sets by name: what each brings to a run."""

from nuclr_jax.datasets.base import Data, Inputs, correct_hubs, without_pairs
from nuclr_jax.datasets.embeddings import embeddings
from nuclr_jax.datasets.glyphs import glyphs
from nuclr_jax.datasets.image_text import image_text, inputs_of
from nuclr_jax.datasets.labelled import labelled, with_classes
from nuclr_jax.datasets.sentences import sentences

DATASETS = {
  "embeddings": embeddings,
  "glyphs": glyphs,
  "image_text": image_text,
  "labelled": labelled,
  "sentences": sentences,
}

__all__ = [
  "DATASETS",
  "Data",
  "Inputs",
  "correct_hubs",
  "embeddings",
  "glyphs",
  "image_text",
  "inputs_of",
  "labelled",
  "sentences",
  "with_classes",
  "without_pairs",
]

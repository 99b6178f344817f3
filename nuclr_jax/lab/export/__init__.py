"""Exports of a run: its model for other libraries, and embeddings in files."""

from nuclr_jax.lab.export.embed import (
  Embedder,
  embedder_of,
  embedder_of_config,
  embedder_of_run,
  write_embeddings,
  write_texts,
)
from nuclr_jax.lab.export.model import (
  Exported,
  exported,
  model_of_run,
  write_model,
)
from nuclr_jax.lab.export.training_pairs import write_training_pairs

__all__ = [
  "Embedder",
  "Exported",
  "embedder_of",
  "embedder_of_config",
  "embedder_of_run",
  "exported",
  "model_of_run",
  "write_embeddings",
  "write_model",
  "write_texts",
  "write_training_pairs",
]

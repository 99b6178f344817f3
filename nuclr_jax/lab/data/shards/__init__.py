"""Embeddings of many pairs in the files of other programs, read in blocks."""

from nuclr_jax.lab.data.shards.layouts import (
  Images,
  Shards,
  open_images,
  open_shards,
)
from nuclr_jax.lab.data.shards.rows import (
  Blocks,
  InMemory,
  Rows,
  scaled,
  without_direction,
)
from nuclr_jax.lab.data.shards.tables import UID, Column, as_text, read_uids

__all__ = [
  "UID",
  "Blocks",
  "Column",
  "Images",
  "InMemory",
  "Rows",
  "Shards",
  "as_text",
  "open_images",
  "open_shards",
  "read_uids",
  "scaled",
  "without_direction",
]

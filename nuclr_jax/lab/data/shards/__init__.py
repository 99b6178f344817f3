"""Embeddings of many pairs in the files of other programs, read in blocks."""

from nuclr_jax.lab.data.shards.layouts import (
  Shards,
  check_order,
  open_shards,
)
from nuclr_jax.lab.data.shards.published_scores import check_scores
from nuclr_jax.lab.data.shards.rows import (
  Blocks,
  InMemory,
  Rows,
  scaled,
  without_direction,
)
from nuclr_jax.lab.data.shards.tables import UID, Column, as_text, read_uids
from nuclr_jax.lab.data.shards.targets import Images, open_images

__all__ = [
  "UID",
  "Blocks",
  "Column",
  "Images",
  "InMemory",
  "Rows",
  "Shards",
  "as_text",
  "check_order",
  "check_scores",
  "open_images",
  "open_shards",
  "read_uids",
  "scaled",
  "without_direction",
]

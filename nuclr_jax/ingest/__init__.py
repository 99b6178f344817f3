"""From files that users have to data sets of captioned images."""

from nuclr_jax.ingest.ingest import ingest

__all__ = ["ingest"]

"""From what users have to data sets of captioned images."""

from nuclr_jax.ingest.run import ingest

__all__ = ["ingest"]

"""Makes data sets of captioned images from users' files."""

from nuclr_jax.ingest.ingest import ingest

__all__ = ["ingest"]

"""Makes data sets of captioned images from users' files."""

from nuclr_jax.lab.ingest.ingest import ingest

__all__ = ["ingest"]

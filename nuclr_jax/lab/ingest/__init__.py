"""Makes data sets of captioned images from users' files."""

from nuclr_jax.lab.ingest.data_set import ingest

__all__ = ["ingest"]

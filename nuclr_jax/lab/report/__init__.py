"""Reports: what a run learned, and its popularities, as HTML pages."""

from nuclr_jax.lab.report.training import write

__all__ = ["write"]

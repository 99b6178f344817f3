"""Popularities: the exact zeta of given pairs, and what follows from it."""

from nuclr_jax.popularity.exact import Popularity, solve, solve_sampled
from nuclr_jax.popularity.frequency import zeta_of_counts
from nuclr_jax.popularity.unseen import zeta_of_unseen

__all__ = [
  "Popularity",
  "solve",
  "solve_sampled",
  "zeta_of_counts",
  "zeta_of_unseen",
]

"""Popularities: the integral behind the denominators, and its weights."""

from nuclr_jax.popularity.analysis import compare, zeta_of_unseen
from nuclr_jax.popularity.exact import Popularity, solve, solve_sampled
from nuclr_jax.popularity.frequency import zeta_of_counts
from nuclr_jax.popularity.gradient_descent import Descent, descend
from nuclr_jax.popularity.integral import (
  BilinearClass,
  RiskBound,
  balance_heuristic,
  empirical_risk,
  error_term,
  generalization_bound,
  log_partition,
  log_popularity,
)

__all__ = [
  "BilinearClass",
  "Descent",
  "Popularity",
  "RiskBound",
  "balance_heuristic",
  "compare",
  "descend",
  "empirical_risk",
  "error_term",
  "generalization_bound",
  "log_partition",
  "log_popularity",
  "solve",
  "solve_sampled",
  "zeta_of_counts",
  "zeta_of_unseen",
]

"""Popularities: the integral behind the denominators, and its weights."""

from nuclr_jax.popularity.compare import compare
from nuclr_jax.popularity.descent import Descent, descend
from nuclr_jax.popularity.exact import Popularity, solve, solve_sampled
from nuclr_jax.popularity.integral import (
  balance_heuristic,
  empirical_risk,
  error_term,
  log_partition,
  log_popularity,
)
from nuclr_jax.popularity.network import (
  Network,
  fit_network,
  predict_zeta,
  r_squared,
)
from nuclr_jax.popularity.unseen import zeta_of_unseen

__all__ = [
  "Descent",
  "Network",
  "Popularity",
  "balance_heuristic",
  "compare",
  "descend",
  "empirical_risk",
  "error_term",
  "fit_network",
  "log_partition",
  "log_popularity",
  "predict_zeta",
  "r_squared",
  "solve",
  "solve_sampled",
  "zeta_of_unseen",
]

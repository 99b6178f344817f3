"""Exact denominators after every epoch, while ζ stays 0.

`refresh` replaces ζ and u. An arm with this hook in its place tells which of
the two it is that helps.
"""

import numpy as np

from nuclr_jax.lab.evaluate.evaluators import embed_pairs
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.hooks import Hook
from nuclr_jax.popularity.problem import (
  checked_pairs,
  log_negatives,
  make_problem,
)
from nuclr_jax.types import Pairs, Popularities, Sides, each


def exact_u(pairs: Pairs, temperature: float) -> Popularities:
  """Returns log u_i = log sum_j exp((sim_ij - sim_ii) / τ) of all pairs.

  Args:
    pairs: All pairs that are trained on.
    temperature: The temperature τ.
  """
  checked = checked_pairs(pairs.image, pairs.text, *pairs.ids)
  problem = make_problem(checked, temperature=temperature)
  zero = np.zeros(len(problem.own))
  log_u = Sides(
    image=log_negatives(problem, zero) - problem.own,
    text=log_negatives(problem.swap(), zero) - problem.own,
  )
  zeta = each(lambda ids: np.zeros(len(ids)), checked.ids)
  return Popularities(checked.ids, zeta, pairs.pair_id, log_u)


def with_exact_u(parts: Experiment, temperature: float) -> Experiment:
  """Makes a run replace u by its exact values after every epoch.

  Args:
    parts: What `build` made of NUCLR with ζ = 0.
    temperature: Its temperature.
  """
  objective, source = parts.objective, parts.data.train

  def apply(train_state, embed):
    found = exact_u(embed_pairs(embed, source), temperature)
    state = objective.assign(train_state.objective, found)
    return train_state._replace(objective=state)

  every = source.sizes.num_pairs // parts.settings.batch_size
  return parts._replace(hooks=(Hook(every, apply),))

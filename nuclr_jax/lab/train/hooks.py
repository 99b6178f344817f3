"""Hooks: what a run does between steps, at regular intervals."""

from collections.abc import Callable
from functools import partial
import logging
import math
import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from nuclr_jax import checks, popularity, sharding
from nuclr_jax.checks import Count, NonNegative, Positive
from nuclr_jax.lab.data.source import Source
from nuclr_jax.lab.evaluate.evaluators import Embed, embed_pairs
from nuclr_jax.lab.evaluate.prior import counts_by_text
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.lab.train.warm_start import EXACT, load_zeta
from nuclr_jax.objectives import Objective, Readout
from nuclr_jax.popularity import exact
from nuclr_jax.popularity.frequency import COUNTS
from nuclr_jax.popularity.problem import (
  checked_pairs,
  log_negatives,
  make_problem,
)
from nuclr_jax.sample_state.denominator import PairRows, assign_log_u
from nuclr_jax.types import Pairs, Popularities, Sides, each

log = logging.getLogger(__name__)

# The share of the pairs below which a refresh warns. A queue of the same share
# is nearer to the exact zeta at every share up to a quarter; from a tenth on, a
# refresh has an R2 of at least 0.76 (experiments/popularity/at_scale).
SMALL_SAMPLE = 0.1


class Hook(NamedTuple):
  """`apply(train_state, embed) -> train_state` after every `every` steps.

  `apply` is a pure function, so that a resumed run does the same.
  """

  every: int
  apply: Callable[[TrainState, Embed], TrainState]


@checks.checked
def refresh_popularity(
  source: Source,
  objective: Objective,
  *,
  seed: int,
  steps_per_epoch: int,
  every_epochs: NonNegative,
  max_pairs: exact.AtLeastTwo = 16_384,
  tolerance: Positive = 1e-2,
  max_iterations: Count = 200,
) -> Hook:
  """Makes a hook that replaces zeta and log u by their exact values.

  All pairs are embedded without augmentation, and the popularities of these
  embeddings are solved at the objective's temperature, see
  `popularity.solve_sampled`. State that depends on the old popularities
  (momentum, a memory of pairs) is discarded, and xi is raised to the greatest
  |zeta|.

  Args:
    source: The training pairs.
    objective: An objective with popularities, such as `nuclr`.
    seed: The run's seed, which decides the samples together with the step.
    steps_per_epoch: Length of the run's epoch.
    every_epochs: Epochs between two refreshes, greater than 0.
    max_pairs: How many pairs are solved exactly; all others follow from them.
      With up to a quarter of all pairs, a queue of as many is nearer to the
      exact zeta (experiments/popularity/at_scale); below a tenth, a warning
      says so.
    tolerance: Largest residual, see `popularity.solve`.
    max_iterations: The largest number of iterations of either side.

  Raises:
    ValueError: If a number is out of its range, or if the objective has
      no popularities, has individual temperatures, or averages u by id.
  """
  if not every_epochs:
    raise ValueError("every_epochs must be greater than 0, got 0")
  check_has_zeta("refresh", objective)
  num_pairs = source.sizes.num_pairs
  if max_pairs < SMALL_SAMPLE * num_pairs:
    log.warning(
      "refresh solves for %d of %d pairs (%.1f %%): from so small a sample the "
      "popularities are further off than those of the zeta rule 'queue' with a "
      "memory of as many pairs; raise refresh.max_pairs to %d or more, or use "
      "that rule without refresh",
      max_pairs,
      num_pairs,
      100 * max_pairs / num_pairs,
      math.ceil(SMALL_SAMPLE * num_pairs),
    )
  if jax.eval_shape(partial(_first_readout, objective)).log_u_by_id is not None:
    raise ValueError("refresh needs anchor_average 'pair', got 'id'")

  def apply(train_state, embed):
    began = time.monotonic()
    state = train_state.objective
    readout = objective.readout(train_state.params["objective"], state)
    pairs = embed_pairs(embed, source)
    step = int(train_state.step)
    solution = popularity.solve_sampled(
      pairs.image,
      pairs.text,
      temperature=one_temperature(readout, "refresh"),
      image_id=pairs.ids.image,
      text_id=pairs.ids.text,
      max_pairs=max_pairs,
      key=jax.random.fold_in(jax.random.key(seed), step),
      tolerance=tolerance,
      max_iterations=max_iterations,
    )
    log.info(
      "step %d: popularities solved in %.0f s, residual %.2g",
      step,
      time.monotonic() - began,
      solution.residual,
    )
    popularities = Popularities(
      solution.ids, solution.zeta, pairs.pair_id, solution.log_u
    )
    return train_state._replace(objective=objective.assign(state, popularities))

  return Hook(max(1, round(every_epochs * steps_per_epoch)), apply)


def one_temperature(readout: Readout, what: str) -> float:
  """Returns an objective's single temperature, fixed or as learned so far.

  Args:
    readout: What the objective's `readout` returned.
    what: What needs the temperature, for the message.

  Raises:
    ValueError: If there is no temperature, or one per sample.

  Example:
    >>> print(one_temperature(Readout(temperature=0.5), "popularity"))
    0.5
  """
  tau = readout.temperature
  if tau is None or isinstance(tau, Sides):
    each_its_own = "" if tau is None else " (each sample has its own)"
    raise ValueError(
      f"{what} needs one temperature, which this objective does not have"
      f"{each_its_own}; choose one with --temperature (nuclr popularity, nuclr "
      "evaluate --hubs=zeta)"
    )
  return float(tau)


def check_has_zeta(what: str, objective: Objective) -> float:
  """Returns the first temperature of an objective with popularities.

  Args:
    what: What needs the popularities, for the message.
    objective: Any objective.

  Raises:
    ValueError: Unless the objective has popularities and one temperature.
  """
  shapes = jax.eval_shape(partial(_first_readout, objective))
  tau = shapes.temperature
  if objective.assign is None or tau is None or isinstance(tau, Sides):
    raise ValueError(
      f"{what} needs an objective with popularities and one temperature, such "
      "as nuclr with a number for its temperature, not the temperatures of "
      "anchors; choose that, or leave it out"
    )
  # Under jit, so that tables that are not read are never allocated.
  first = jax.jit(lambda: _first_readout(objective).temperature)
  return one_temperature(Readout(temperature=first()), what)


def first_popularities(
  warm_start: str | os.PathLike, source: Source, objective: Objective
) -> Popularities:
  """Returns the popularities that a run starts with.

  Args:
    warm_start: "counts" for `popularity.zeta_of_counts`, with images counted
      by id and texts by caption; otherwise the file
      that `popularity.files.save_popularity` wrote.
    source: The training pairs.
    objective: The objective of the run.

  Raises:
    ValueError: If the objective has no popularities, there is no such file, it
      belongs to other data, or counts of ids say nothing.
  """
  sizes = source.sizes
  temperature = check_has_zeta("warm_start", objective)
  if warm_start == COUNTS:
    ids = source.ids(np.arange(sizes.num_pairs))
    images = np.bincount(ids.image, minlength=sizes.num_images)
    counts = Sides(images, counts_by_text(source))
    zeta = popularity.zeta_of_counts(ids, counts, temperature=temperature)
  else:
    zeta = load_zeta(
      warm_start,
      sizes,
      temperature=temperature,
      fingerprint=source.fingerprint,
    )
  return Popularities(each(np.arange, sizes.ids), zeta)


def exact_start(
  rows: str, source: Source, objective: Objective, settings: Any
) -> Callable[[TrainState, Embed], TrainState]:
  """Makes the function that computes per-sample state from the first weights.

  Args:
    rows: `warm_start.EXACT` for u and, if the objective has popularities, zeta;
      `warm_start.EXACT_U` for u alone.
    source: The training pairs.
    objective: An objective with a u for each pair and one temperature, such as
      `sogclr` and `nuclr`.
    settings: The settings of the run; `refresh` says how zeta is solved.

  Raises:
    ValueError: If the objective is of another kind.
  """
  if rows == EXACT and objective.assign is not None:
    how = dict(settings.refresh.arguments) if settings.refresh else {}
    how |= dict(every_epochs=1.0, steps_per_epoch=1, seed=settings.seed)
    return refresh_popularity(source, objective, **how).apply
  shapes = jax.eval_shape(partial(_first_readout, objective))
  if shapes.log_u is None or isinstance(shapes.temperature, Sides):
    raise ValueError(
      f"warm_start={rows} needs an objective with one temperature that keeps u "
      "for each pair, such as sogclr or nuclr; with any objective, "
      "warm_start=moments estimates the optimizer's state"
    )
  return partial(_write_exact_u, source=source, objective=objective)


def check_has_u(objective: Objective) -> None:
  """Raises ValueError unless an objective keeps u, by pair or by id."""
  shapes = jax.eval_shape(partial(_first_readout, objective))
  if shapes.log_u is None and shapes.log_u_by_id is None:
    raise ValueError(
      "warm_start=pass_u needs an objective that keeps u, such as sogclr or "
      "nuclr; leave pass_u out, and give warm_start=moments"
    )


def _write_exact_u(
  train_state: TrainState, embed: Embed, *, source: Source, objective: Objective
) -> TrainState:
  """Replaces u by the sum over all pairs, at the zeta that the state has."""
  state = train_state.objective
  readout = objective.readout(train_state.params["objective"], state)
  tau = one_temperature(readout, "warm_start")
  pairs = embed_pairs(embed, source)
  zeta = readout.zeta or each(np.zeros, source.sizes.ids)
  zeta = each(
    lambda x, ids: np.asarray(sharding.fetch(x), float)[ids], zeta, pairs.ids
  )
  log_u = exact_log_u(pairs, zeta, temperature=tau)
  new = Popularities(None, None, pairs.pair_id, log_u)
  sample = jax.tree.map(
    lambda x: assign_log_u(x, new) if isinstance(x, PairRows) else x,
    state.sample,
    is_leaf=lambda x: isinstance(x, PairRows),
  )
  return train_state._replace(objective=state._replace(sample=sample))


def exact_log_u(pairs: Pairs, zeta: Sides, *, temperature: float) -> Sides:
  """Returns log u of all pairs, by the sums over all of their negatives.

    u_i = sum_j exp((sim_ij - sim_ii - zeta_j) / temperature)

  Args:
    pairs: The embeddings of all pairs of a data set.
    zeta: The popularity of each pair's image and text, [pairs].
    temperature: The temperature, greater than 0.

  Example:
    >>> eye, ids = np.eye(2, dtype=np.float32), np.arange(2)
    >>> pairs = Pairs(eye, eye, ids, ids, ids)
    >>> zeta = Sides(np.zeros(2), np.zeros(2))
    >>> exact_log_u(pairs, zeta, temperature=1.0).image.round(3)
    array([-1., -1.])
  """
  whole = make_problem(
    checked_pairs(pairs.image, pairs.text, *pairs.ids), temperature=temperature
  )
  potential = each(lambda x: x / temperature, zeta)
  rest = Sides(
    image=log_negatives(whole, potential.text),
    text=log_negatives(whole.swap(), potential.image),
  )
  return each(lambda x: x - whole.own, rest)


def _first_readout(objective: Objective) -> Readout:
  return objective.readout(*objective.init())

"""What a run does every so many steps, besides its steps."""

from collections.abc import Callable
from functools import partial
import logging
import time
from typing import NamedTuple

import jax

from nuclr_jax import checks, popularity
from nuclr_jax.data.source import Source
from nuclr_jax.evaluate.evaluators import Embed, embed_pairs
from nuclr_jax.objectives import Objective, Readout, one_temperature
from nuclr_jax.train.step import TrainState
from nuclr_jax.types import Popularities, Sides

log = logging.getLogger(__name__)


class Hook(NamedTuple):
  """`apply(train_state, embed) -> train_state` after every `every` steps.

  It is a pure function of its arguments, so that a resumed run does the same.
  """

  every: int
  apply: Callable[[TrainState, Embed], TrainState]


def refresh_popularity(
  source: Source,
  objective: Objective,
  *,
  seed: int,
  steps_per_epoch: int,
  every_epochs: float,
  max_pairs: int = 16_384,
  tolerance: float = 1e-2,
  max_iterations: int = 200,
) -> Hook:
  """Replaces zeta and log u by exact ones of the current embeddings.

  All pairs are embedded as they are (not augmented) and the popularities are
  solved, see `popularity.solve_sampled`, at the objective's temperature. What
  depends on the old ones (momentum, a memory of pairs) is forgotten, and xi is
  raised to the greatest |zeta|.

  Args:
    source: The training pairs.
    objective: An objective with popularities, such as `nuclr`.
    seed: The run's seed; with the step it decides the samples.
    steps_per_epoch: Length of the run's epoch.
    every_epochs: Epochs between two refreshes, greater than 0.
    max_pairs: Pairs that are solved exactly; the rest follow from them.
    tolerance: Largest residual, see `popularity.solve`.
    max_iterations: Most iterations of either side.

  Raises:
    ValueError: If `every_epochs` is not greater than 0, or the objective has no
      popularities, individual temperatures, or averages u by id.
  """
  checks.positive("every_epochs", every_epochs)
  check_has_zeta("refresh", objective)
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
      "step %d: popularities solved again in %.0f s, residual %.2g",
      step,
      time.monotonic() - began,
      solution.residual,
    )
    popularities = Popularities(
      solution.ids, solution.zeta, pairs.pair_id, solution.log_u
    )
    return train_state._replace(objective=objective.assign(state, popularities))

  return Hook(max(1, round(every_epochs * steps_per_epoch)), apply)


def check_has_zeta(what: str, objective: Objective) -> float:
  """The first temperature of an objective with popularities.

  Args:
    what: Needs them, for the message.
    objective: Any objective.

  Raises:
    ValueError: Unless there are popularities to write, at one temperature.
  """
  shapes = jax.eval_shape(partial(_first_readout, objective))
  if objective.assign is None or isinstance(shapes.temperature, Sides):
    raise ValueError(
      f"{what} needs an objective with popularities and one temperature, such "
      "as nuclr"
    )
  # Compiled, the tables that are not read are never made.
  first = jax.jit(lambda: _first_readout(objective).temperature)
  return one_temperature(Readout(temperature=first()), what)


def _first_readout(objective: Objective) -> Readout:
  return objective.readout(*objective.init())

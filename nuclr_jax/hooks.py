"""What a run does every so many steps, besides its steps."""

from collections.abc import Callable
import logging
import time
from typing import NamedTuple

import jax
import numpy as np

from nuclr_jax import checks, popularity, sharding
from nuclr_jax.data.sources import Source
from nuclr_jax.evaluate import driver
from nuclr_jax.objectives import Objective, Rows, State
from nuclr_jax.objectives.queues import emptied
from nuclr_jax.train_state import TrainState
from nuclr_jax.types import Sides, each

log = logging.getLogger(__name__)


class Hook(NamedTuple):
  """`apply(train_state, embed) -> train_state` after every `every` steps.

  It is a pure function of its arguments, so that a resumed run does the same.
  """

  every: int
  apply: Callable[[TrainState, driver.Embed], TrainState]


def refresh_popularity(
  source: Source,
  objective: Objective,
  *,
  temperature: float,
  seed: int,
  steps_per_epoch: int,
  every_epochs: float,
  max_pairs: int = 16_384,
  tolerance: float = 1e-2,
  max_iterations: int = 200,
) -> Hook:
  """Replaces zeta and log u of `nuclr` by exact ones of the current embeddings.

  All pairs are embedded as they are (not augmented) and the popularities are
  solved, see `popularity.solve_sampled`. The momentum of zeta and the queue of
  "sinkhorn" are forgotten, and xi is raised to the greatest |zeta|.

  Args:
    source: The training pairs.
    objective: An objective with popularities, such as `nuclr`.
    temperature: Of the objective.
    seed: Of the run; with the step it decides the samples.
    steps_per_epoch: Of the run.
    every_epochs: Epochs between two refreshes, greater than 0.
    max_pairs: Pairs that are solved exactly; the rest follow from them.
    tolerance: Of the residual, see `popularity.solve`.
    max_iterations: Likewise.

  Raises:
    ValueError: If `every_epochs` is not greater than 0, or the objective has no
      popularities, individual temperatures, or averages u by id.
  """
  checks.positive("every_epochs", every_epochs)
  check_has_zeta("refresh", objective)
  if jax.eval_shape(objective.init)[1].sample.image.log_u is not None:
    raise ValueError("refresh needs anchor_average 'pair', got 'id'")

  def apply(train_state, embed):
    began = time.monotonic()
    pairs = driver.embed_pairs(embed, source)
    step = int(train_state.step)
    found = popularity.solve_sampled(
      pairs.image,
      pairs.text,
      temperature=temperature,
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
      found.residual,
    )
    return train_state._replace(
      objective=_replaced(train_state.objective, found, pairs.pair_id)
    )

  return Hook(max(1, round(every_epochs * steps_per_epoch)), apply)


def _replaced(state: State, found: popularity.Popularity, pair_id) -> State:
  """The state of `nuclr` with the zeta and log u that were found."""

  def side(rows, ids, zeta):
    momentum = rows.momentum
    if momentum is not None:
      momentum = sharding.replace_rows(momentum, ids, 0.0)
    zeta = sharding.replace_rows(rows.zeta, ids, zeta)
    return rows._replace(zeta=zeta, momentum=momentum)

  old = Sides(state.sample.image, state.sample.text)
  new = each(side, old, found.ids, found.zeta)
  log_u = each(
    lambda table, x: sharding.replace_rows(table, pair_id, x),
    state.sample.pair.log_u,
    found.log_u,
  )
  xi = each(
    lambda x, zeta: _like(x, np.maximum(x, np.abs(zeta).max())),
    state.shared.xi,
    found.zeta,
  )
  pair = state.sample.pair._replace(log_u=log_u)
  shared = state.shared._replace(xi=xi)
  if shared.queue is not None:
    shared = shared._replace(queue=emptied(shared.queue))
  return state._replace(sample=Rows(pair, *new), shared=shared)


def check_has_zeta(what: str, objective: Objective) -> None:
  """Raises ValueError unless there are popularities, at one temperature.

  Args:
    what: Needs them, for the message.
    objective: Any.
  """
  sample = jax.eval_shape(objective.init)[1].sample
  sides = sample.image, sample.text
  one_temperature = getattr(sample.pair, "temperature", None) is None
  if not (one_temperature and all(hasattr(rows, "zeta") for rows in sides)):
    raise ValueError(
      f"{what} needs an objective with popularities and one temperature, such "
      "as nuclr"
    )


def _like(old, new):
  """`new` with the type and the place of `old`."""
  return jax.device_put(np.asarray(new, old.dtype), old.sharding)

"""Batch statistics of a state's own weights, before anything looks at it.

In training, batch normalization uses the statistics of each batch, and keeps
running averages of them for evaluation. While the learning rate is high, these
averages lag behind the weights, so far that a score can lose more than half and
recover a validation later (`experiments/bimodal`). A run therefore recomputes
the statistics from a fixed set of training batches whenever a state is
evaluated, diagnosed, handed to a hook, or saved. Training does not see the
difference: no step reads the averages, and the state of a model whose training
does read it stays as it is, which the log says.

The cost is reading up to `SAMPLE` training pairs and their forward pass, on a
signal, too, before the checkpoint is saved; nothing for a model without batch
statistics, and one batch if all of them are frozen.
"""

from collections.abc import Callable
import functools
from functools import partial
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.lab.models import batch_statistics
from nuclr_jax.lab.train.batches import fixed_batches, put_own
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import PyTree

SAMPLE = 4_096  # pairs at most, unless two batches are more

log = logging.getLogger(__name__)


class Seen(NamedTuple):
  """What some batches have shown; pytrees like the model's state."""

  total: PyTree  # the sum of their statistics
  first: PyTree  # the statistics of the first batch
  moves: PyTree  # bool: entries that some batch would move
  fits: PyTree  # bool scalars: arrays of which every batch would move something
  varies: PyTree  # bool scalars: arrays that two batches would move differently


def of_run(
  parts: Experiment, mesh: Mesh, *, sample: int | None = None
) -> Callable[[TrainState], TrainState]:
  """Makes a function that recomputes a run's batch statistics.

  The statistics are the mean of those of whole training batches, the same each
  time (see `batches.fixed_batches`). They are a function of the weights alone,
  so a resumed run has the same bits. The state before the first step is
  returned as it is: its statistics may be published ones. An array that every
  batch would move to the same values, as an average of weights, is not a
  statistic of batches and keeps its value.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, which must be entered when the function is
      called.
    sample: The number of pairs, rounded down to whole batches; None means
      `SAMPLE`. Two batches are the least, if there are so many.

  Example:
    >>> evaluated = of_run(parts, mesh)(train_state)  # doctest: +SKIP
  """
  batch_size = parts.settings.batch_size
  most = parts.data.train.sizes.num_pairs // batch_size
  count = min(most, max(2, (sample or SAMPLE) // batch_size))
  read_batches = fixed_batches(parts, count)
  say_once = functools.cache(log.info)
  # 0 makes the first parameters, 1 is for the steps.
  key = jax.random.fold_in(jax.random.key(parts.settings.seed), 2)
  rows = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)

  @partial(jax.jit, out_shardings=everywhere)
  def see(params, model_state, batch, number):
    batch_key = jax.random.fold_in(key, number)
    found, momentum = batch_statistics(
      parts.model, params, model_state, batch, key=batch_key
    )
    moves = jax.tree.map(lambda m: m < 1, momentum)
    some = jax.tree.map(jnp.any, moves)
    same = jax.tree.map(jnp.zeros_like, some)
    return Seen(found, found, moves, some, same)

  @partial(jax.jit, out_shardings=everywhere)
  def join(old, new):
    differs = jax.tree.map(lambda x, y: jnp.any(x != y), old.first, new.first)
    return Seen(
      jax.tree.map(jnp.add, old.total, new.total),
      old.first,
      jax.tree.map(jnp.logical_or, old.moves, new.moves),
      jax.tree.map(jnp.logical_and, old.fits, new.fits),
      jax.tree.map(jnp.logical_or, old.varies, differs),
    )

  @partial(jax.jit, out_shardings=everywhere)
  def mean(seen, old):
    def choose(total, moves, fits, varies, old):
      is_statistic = moves & fits & (varies | (count == 1))
      return jnp.where(is_statistic, total / count, old).astype(old.dtype)

    return jax.tree.map(
      choose, seen.total, seen.moves, seen.fits, seen.varies, old
    )

  def recalibrate(train_state):
    state, seen = train_state.model_state, None
    if not jax.tree.leaves(state) or not int(train_state.step):
      return train_state
    for number, batch in enumerate(read_batches()):
      new = see(
        train_state.params["model"],
        state,
        put_own(batch, rows),
        number,
      )
      if not number and not any(map(np.any, jax.tree.leaves(new.fits))):
        say_once(
          "the model's state is frozen, or read by training: it is used "
          "as it is"
        )
        return train_state
      seen = new if seen is None else join(seen, new)
    return train_state._replace(model_state=mean(seen, state))

  return recalibrate

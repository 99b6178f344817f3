"""Batch statistics of a state's own weights, before anything looks at it.

In training, batch normalization uses the statistics of each batch, and keeps
running averages of them for evaluation. While the learning rate is high, these
averages lag behind the weights, so far that a score can lose more than half and
recover a validation later (`experiments/bimodal`). A run therefore recomputes
the statistics from a fixed set of training batches whenever a state is
evaluated, diagnosed, handed to a hook, or saved. Training does not see the
difference: no step reads the averages.

The cost is reading up to `SAMPLE` training pairs and their forward pass, on a
signal, too, before the checkpoint is saved; nothing for a model without batch
statistics, and one batch if all of them are frozen.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import sharding
from nuclr_jax.data.source import random_numbers
from nuclr_jax.models import batch_statistics
from nuclr_jax.train.build import Experiment
from nuclr_jax.train.step import TrainState

SAMPLE = 4_096  # pairs at most, unless one batch is larger


def of_run(
  parts: Experiment, mesh: Mesh, *, sample: int | None = None
) -> Callable[[TrainState], TrainState]:
  """Makes a function that recomputes a run's batch statistics.

  The statistics are the mean of those of whole training batches: the same
  random pairs each time, chosen by the run's seed and augmented as in the first
  epoch. They are a function of the weights alone, so a resumed run has the same
  bits. The state before the first step is returned as it is: its statistics may
  be published ones.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, which must be entered when the function is
      called.
    sample: The number of pairs, rounded down to whole batches; None means
      `SAMPLE`. One batch is the least.

  Example:
    >>> evaluated = of_run(parts, mesh)(train_state)  # doctest: +SKIP
  """
  source, seed = parts.data.train, parts.config["seed"]
  batch_size = parts.config["batch_size"]
  num_pairs = source.sizes.num_pairs
  count = max(1, min(sample or SAMPLE, num_pairs) // batch_size)
  batches = np.random.default_rng(seed).choice(
    num_pairs, (count, batch_size), replace=False
  )
  # 0 makes the first parameters, 1 is for the steps.
  key = jax.random.fold_in(jax.random.key(seed), 2)
  rows = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)

  @partial(jax.jit, out_shardings=everywhere)
  def statistics_of(params, model_state, batch, number):
    batch_key = jax.random.fold_in(key, number)
    found, momentum = batch_statistics(
      parts.model, params, model_state, batch, key=batch_key
    )
    return found, jax.tree.map(lambda m: m < 1, momentum)

  @partial(jax.jit, out_shardings=everywhere)
  def add(total, found):
    return jax.tree.map(jnp.add, total, found)

  @partial(jax.jit, out_shardings=everywhere)
  def mean(total, moves, old):
    return jax.tree.map(
      lambda x, moves, old: jnp.where(moves, x / count, old).astype(old.dtype),
      *(total, moves, old),
    )

  def recalibrate(train_state):
    state, total = train_state.model_state, None
    if not jax.tree.leaves(state) or not int(train_state.step):
      return train_state
    for number, ids in enumerate(sharding.own_rows(batches)):
      batch = source.fetch(ids, random_numbers(seed, 0, ids))
      found, moves = statistics_of(
        train_state.params["model"],
        state,
        sharding.put_own(batch, rows),
        number,
      )
      total = found if total is None else add(total, found)
      if not number and not any(np.any(x) for x in jax.tree.leaves(moves)):
        return train_state  # everything is frozen
    return train_state._replace(model_state=mean(total, moves, state))

  return recalibrate

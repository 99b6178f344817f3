"""An exponential moving average of the weights, kept by the optimizer.

The average is part of the optimizer's state, so that checkpoints have it and
`shard_params` splits it as the parameters. Training does not read it. Whatever
looks at a run that keeps an average sees the averaged weights in their place:
validation, `keep_best`, diagnostics, the final scores, `load`, and with it
evaluation, export and embedding. Only hooks, which serve training itself, see
the weights as they are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from nuclr_jax import checks
from nuclr_jax.checks import Fraction
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import Params, PyTree


class AverageState(NamedTuple):
  """The state of `with_average`."""

  count: jax.Array  # updates done
  average: Params  # of the parameters after each update


def with_average(
  optimizer: optax.GradientTransformation, decay: Fraction
) -> optax.GradientTransformation:
  """Makes an optimizer that keeps an average of the parameters as well.

  After update t = 0, 1, ..., the average is moved towards the parameters,

    average <- average + (1 - d_t) (params - average),
    d_t = min(decay, (1 + t) / (10 + t)).

  The second value lets the average forget the first parameters soon: until the
  decay takes over, it covers about the last tenth of the updates, however many
  they are; with 0.9998, the decay takes over after 45,000 updates.

  Args:
    optimizer: The optimizer, whose updates stay as they are.
    decay: The decay d, in [0, 1). Dong et al. fine-tune CLIP with 0.9998.

  Raises:
    ValueError: If `decay` is out of range.

  Example:
    >>> kept = with_average(optax.sgd(1.0), 0.9)
    >>> params, state = jnp.float32(1.0), kept.init(jnp.float32(1.0))
    >>> updates, state = kept.update(jnp.float32(1.0), state, params)
    >>> print(f"{params + updates:.1f}, on average {averaged(state):.1f}")
    0.0, on average 0.1

  Reference: Dong et al., CLIP Itself is a Strong Fine-tuner, arXiv:2212.06138.
  """
  checks.argument("weight_average", decay, Fraction)

  def init(params):
    copy = jax.tree.map(jnp.copy, params)  # both buffers are donated
    return AverageState(jnp.zeros((), jnp.int32), copy)

  def update(updates, state, params):
    step = jnp.maximum(1 - decay, 9 / (10 + state.count))  # 1 - d_t
    # Unlike a weighted sum, this leaves frozen parameters exactly as they are.
    average = jax.tree.map(
      lambda old, new: old + (step * (new - old)).astype(old.dtype),
      state.average,
      optax.apply_updates(params, updates),
    )
    return updates, AverageState(state.count + 1, average)

  return optax.chain(optimizer, optax.GradientTransformation(init, update))


def averaged(opt_state: PyTree) -> Params | None:
  """Returns the averaged parameters in an optimizer's state, or None."""

  def is_average(x):
    return isinstance(x, AverageState)

  leaves = jax.tree.leaves(opt_state, is_leaf=is_average)
  return next((x.average for x in leaves if is_average(x)), None)


def to_look_at(train_state: TrainState) -> TrainState:
  """Returns the state with the averaged parameters, if it has an average.

  Args:
    train_state: A state with batch statistics of the averaged weights, as they
      are in checkpoints and after `loop.fit`.

  Returns:
    The state to evaluate, to export or to embed with; not one to train on.
  """
  average = averaged(train_state.opt_state)
  if average is None:
    return train_state
  return train_state._replace(params=average)

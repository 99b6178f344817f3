"""What the first weights say about u, zeta and Adam, before the first update.

A run that begins from a trained model has good weights, but its optimizer and
its per-sample state know nothing: Adam's first steps follow the signs of single
gradients, and the first u are those of single batches. Both can be estimated
while the weights are frozen. u and zeta are exact, since all pairs can be
embedded (`hooks.exact_start`). Adam's moments are those of a pass in which no
weight moves (`observing`); with `warm_start.PASS_U`, u moves in it, too, which
is the recovery of TuneCLIP.

Reference: Mehta et al., Breaking the Limits of Open-Weight CLIP,
arXiv:2601.09859.
"""

from collections.abc import Callable
import logging
import time

import jax
from jax.sharding import Mesh, NamedSharding
import optax

from nuclr_jax import sharding
from nuclr_jax.lab.evaluate.evaluators import make_embedder
from nuclr_jax.lab.train import records, warm_start
from nuclr_jax.lab.train.batches import fixed_batches, put_own
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.hooks import exact_start
from nuclr_jax.lab.train.step import TrainState, make_train_step
from nuclr_jax.types import Batch, Metrics, PyTree, Sample

log = logging.getLogger(__name__)

Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def of_run(parts: Experiment, mesh: Mesh, first: TrainState) -> TrainState:
  """Adds to a run's first state what `config.warm_start` estimates from it.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, which must be entered.
    first: What `resume.first_state` returned; it may be donated.

  Returns:
    The state before the first step. It depends on the seed alone: the pass is
    over fixed batches, see `batches.fixed_batches`.

  Raises:
    ValueError: If the objective keeps no u, or the optimizer is not Adam.
    FloatingPointError: If the moments are not finite.
  """
  wanted = warm_start.parse(parts.settings.warm_start)
  if wanted.is_exact:
    solve = exact_start(
      wanted.rows, parts.data.train, parts.objective, parts.settings
    )
    embed = make_embedder(parts.model, parts.data.tokenizer.encode, mesh)
    first = solve(first, embed(first.params["model"], first.model_state))
  if wanted.batches == 0:
    return first
  return _observed(parts, mesh, first, wanted)


def observing(
  step: Step, *, moves_u: bool = False
) -> Callable[[TrainState, Batch, int], TrainState]:
  """Makes a step that moves Adam's moments, but no weight.

  After batches k = 1, ..., K with gradients g_k at the frozen weights,

    m = (1 - b1) sum_k b1^(K - k) g_k,  v = (1 - b2) sum_k b2^(K - k) g_k^2,

  and Adam's count is K, so that its bias correction is that of K updates. What
  precedes Adam in the optimizer, such as clipping, is applied to g_k. All other
  state of the optimizer stays as it is: schedules begin with the training.

  Args:
    step: A train step, see `step.make_train_step`.
    moves_u: Whether u moves as in training. All other state of the objective,
      with its schedules, is frozen.

  Returns:
    `(train_state, batch, number) -> train_state`, a pure function, where the
    number of the batch decides dropout and the like.

  Raises:
    ValueError: From the function, if the optimizer has no Adam.

  Example:
    >>> from nuclr_jax.lab.train.step import TrainState
    >>> adam = optax.adam(0.1, b1=0.5)
    >>> def step(state, gradient):
    ...   updates, new = adam.update(gradient, state.opt_state)
    ...   params = optax.apply_updates(state.params, updates)
    ...   return state._replace(params=params, opt_state=new), {}
    >>> x = jnp.float32(3)
    >>> state = TrainState(0, x, None, adam.init(x), None)
    >>> for number in range(2):
    ...   state = observing(step)(state, jnp.float32(4), number)
    >>> moments = state.opt_state[0]
    >>> print(state.params, moments.mu, moments.count)
    3.0 3.0 2
  """

  def observe(train_state, batch, number):
    seen, _ = step(train_state._replace(step=number), batch)
    opt_state = _with_moments(train_state.opt_state, seen.opt_state)
    objective = train_state.objective
    if moves_u:
      sample = _with_u(objective.sample, seen.objective.sample)
      objective = objective._replace(sample=sample)
    return train_state._replace(opt_state=opt_state, objective=objective)

  return observe


def _with_moments(opt_state: PyTree, seen: PyTree) -> PyTree:
  """Takes the moments, and their count, from another state of an optimizer."""

  def is_adam(x):
    return isinstance(x, optax.ScaleByAdamState)

  if not any(map(is_adam, jax.tree.leaves(opt_state, is_leaf=is_adam))):
    raise ValueError(
      "warm_start=moments needs an optimizer with Adam's moments (a "
      "ScaleByAdamState of optax), which this one does not keep"
    )
  return jax.tree.map(
    lambda old, new: new if is_adam(old) else old,
    opt_state,
    seen,
    is_leaf=is_adam,
  )


def _with_u(sample: Sample, seen: Sample) -> Sample:
  """Takes u, of pairs or of ids, from other per-sample state."""

  def choose(path, old, new):
    names = (getattr(key, "name", None) for key in path)
    return new if "log_u" in names else old

  return jax.tree_util.tree_map_with_path(choose, sample, seen)


def _observed(parts, mesh, first, wanted) -> TrainState:
  """Passes over the data with frozen weights."""
  settings, began = parts.settings, time.monotonic()
  most = parts.data.train.sizes.num_pairs // settings.batch_size
  count = min(wanted.batches or most, most)
  # 0 makes the first parameters, 1 is for the steps, 2 for batch statistics.
  key = jax.random.fold_in(jax.random.key(settings.seed), 3)
  pieces = parts.model, parts.objective, parts.optimizer
  observe = jax.jit(
    observing(
      make_train_step(*pieces, key), moves_u=wanted.rows == warm_start.PASS_U
    ),
    out_shardings=jax.tree.map(lambda x: x.sharding, first),
    donate_argnums=0,
  )
  log.info("Adam's first moments: %d batches with frozen weights", count)
  rows = NamedSharding(mesh, sharding.ROWS)
  for number, batch in enumerate(fixed_batches(parts, count)()):
    first = observe(first, put_own(batch, rows), number)
  if not all(records.are_finite(jax.tree.leaves(first.opt_state))):
    raise FloatingPointError(
      "warm_start: Adam's moments at the first weights are not finite; check "
      "the model that the run begins from, and the temperature"
    )
  log.info("Adam's first moments took %.0f s", time.monotonic() - began)
  return first

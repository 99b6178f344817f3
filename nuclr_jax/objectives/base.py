"""The protocol of objectives: two pure functions and the state between them."""

from collections.abc import Callable, Mapping
import math
from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array, Float

from nuclr_jax import checks
from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Params,
  PyTree,
  flatten,
)

Scalar = Float[Array, ""]


class Rows(NamedTuple):
  """Per-sample state, grouped by the id space of its rows."""

  pair: PyTree = ()  # leaves [num_pairs, ...], read at `pair_id`
  image: PyTree = ()  # leaves [num_images, ...], read at `image_id`
  text: PyTree = ()  # leaves [num_texts, ...], read at `text_id`


class State(NamedTuple):
  """State of an objective; all of it is in the checkpoint."""

  sample: Rows = Rows()  # split over the mesh axis "data"
  shared: PyTree = ()  # counters and scalars, replicated


class InitFn(Protocol):
  """Makes learnable parameters and state."""

  def __call__(self) -> tuple[Params, State]:
    """Returns learnable parameters ({} if none) and the first state."""


class ApplyFn(Protocol):
  """Evaluates the objective on a global batch."""

  def __call__(
    self, params: Params, state: State, pairs: Pairs
  ) -> tuple[Scalar, tuple[State, Metrics]]:
    """Returns the loss of a global batch, the next state and metrics."""


class Objective(NamedTuple):
  """A contrastive objective: `init()` and `apply(params, state, pairs)`.

  `loss, (state, metrics) = apply(params, state, pairs)` is what
  `jax.value_and_grad(..., has_aux=True)` wants. The value of the loss is the
  objective's estimate; its gradient may be another function's (see
  `attach_gradient`).
  """

  init: InitFn
  apply: ApplyFn


def stateless(
  loss_fn: Callable[[Params, Pairs], tuple[Scalar, Metrics]],
  init_params: Callable[[], Params] = dict,
) -> Objective:
  """Lifts `loss_fn(params, pairs) -> (loss, metrics)` to an `Objective`.

  Args:
    loss_fn: A pure function of learnable parameters and a batch.
    init_params: Makes the parameters; the default makes none.

  Returns:
    An `Objective` without state.

  Example:
    >>> def align(params, pairs):
    ...   return -jnp.mean(jnp.sum(pairs.image * pairs.text, axis=1)), {}
    >>> objective = stateless(align)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(loss)
    -1.0
  """

  def apply(params, state, pairs):
    loss, metrics = loss_fn(params, pairs)
    return loss, (state, metrics)

  return Objective(lambda: (init_params(), State()), apply)


def attach_gradient(value: Scalar, surrogate: Scalar) -> Scalar:
  """Returns `value`, with the gradient of `surrogate`.

  Example:
    >>> loss = lambda x: attach_gradient(jnp.float32(7), x**2)
    >>> x = jnp.float32(3)
    >>> print(loss(x), jax.grad(loss)(x))
    7.0 6.0
  """
  stop = jax.lax.stop_gradient
  return stop(value) + (surrogate - stop(surrogate))


def add(**terms: Objective) -> Objective:
  """Sums objectives; params, state and metrics are keyed by the terms' names.

  Each term's own loss is the metric `<term>/loss`.

  Args:
    **terms: By name, an `Objective`.

  Raises:
    ValueError: If there is no term, or one is no `Objective`.

  Example:
    >>> from nuclr_jax.objectives import clip, cyclic_consistency, scale
    >>> objective = add(clip=clip(), cyclic=scale(cyclic_consistency(), 0.5))
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> loss, (_, metrics) = objective.apply(*objective.init(), pairs)
    >>> sorted(metrics)
    ['clip/loss', 'clip/temperature', 'cyclic/loss']
  """
  if not terms:
    raise ValueError("add needs at least one term, such as add(clip=clip())")
  _check_terms(terms)

  def init():
    firsts = {name: term.init() for name, term in terms.items()}
    params = {name: first[0] for name, first in firsts.items()}
    return params, _join({name: first[1] for name, first in firsts.items()})

  def apply(params, state, pairs):
    losses, states, metrics = {}, {}, {}
    for name, term in terms.items():
      losses[name], (states[name], found) = term.apply(
        params[name], _part(state, name), pairs
      )
      metrics |= flatten({name: {**found, "loss": losses[name]}})
    return sum(losses.values()), (_join(states), metrics)

  return Objective(init, apply)


def regularize(host: Objective, **terms: Objective) -> Objective:
  """Adds terms without params and state to an objective.

  Params and state stay the host's own: what reads its temperature or its
  popularities goes on doing so. `add` is for terms that have some. Metrics are
  the host's, its loss as `host/loss`, and the terms' as in `add`.

  Args:
    host: Any objective.
    **terms: By name, an `Objective` without params and state.

  Raises:
    ValueError: If a term has params or state, or is no `Objective`.

  Example:
    >>> from nuclr_jax.objectives import clip, difference_alignment, scale
    >>> objective = regularize(
    ...   clip(), alignment=scale(difference_alignment(), 0.5)
    ... )
    >>> sorted(objective.init()[0])
    ['log_scale']
  """
  _check_terms(terms)
  firsts = {
    name: jax.tree.leaves(jax.eval_shape(term.init))
    for name, term in terms.items()
  }
  if wrong := sorted(name for name, leaves in firsts.items() if leaves):
    raise ValueError(f"{wrong} have params or state; use add instead")

  def apply(params, state, pairs):
    loss, (state, metrics) = host.apply(params, state, pairs)
    losses = {"host": loss}
    for name, term in terms.items():
      losses[name], (_, found) = term.apply({}, State(), pairs)
      metrics |= flatten({name: found})
    metrics |= {f"{name}/loss": value for name, value in losses.items()}
    return sum(losses.values()), (state, metrics)

  return Objective(host.init, apply)


def scale(objective: Objective, weight: Number) -> Objective:
  """Multiplies the loss, and so its gradient, by a finite number.

  State that moves by itself (popularities, individual temperatures) moves as
  without the weight.

  Args:
    objective: Any objective.
    weight: Finite; may be negative.

  Raises:
    ValueError: If the weight is not finite.

  Example:
    >>> from nuclr_jax.objectives import clip
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> losses = [
    ...   x.apply(*x.init(), pairs)[0] for x in (clip(), scale(clip(), 2.0))
    ... ]
    >>> bool(losses[1] == 2 * losses[0])
    True
  """
  weight = checks.number("weight", weight, "a finite number", math.isfinite)

  def apply(params, state, pairs):
    loss, rest = objective.apply(params, state, pairs)
    return weight * loss, rest

  return Objective(objective.init, apply)


def _check_terms(terms: Mapping[str, Any]) -> None:
  for name, term in terms.items():
    if not isinstance(term, Objective):
      raise ValueError(
        f"{name} must be an Objective, such as clip(), got {term!r}"
      )


def _join(states: dict[str, State]) -> State:
  """One state whose groups of rows are dicts keyed by term."""
  groups = [
    {name: getattr(state.sample, group) for name, state in states.items()}
    for group in Rows._fields
  ]
  shared = {name: state.shared for name, state in states.items()}
  return State(Rows(*groups), shared)


def _part(state: State, name: str) -> State:
  """The state of one term, the inverse of `_join`."""
  return State(
    Rows(*(group[name] for group in state.sample)), state.shared[name]
  )

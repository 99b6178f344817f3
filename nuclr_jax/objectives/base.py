"""The protocol of objectives: two pure functions and the state between them."""

from collections.abc import Callable
import math
import operator
from typing import NamedTuple, Protocol, SupportsIndex

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Params,
  PyTree,
  Sizes,
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


def stateless(loss_fn, init_params=dict) -> Objective:
  """Lifts `loss_fn(params, pairs) -> (loss, metrics)` to an `Objective`.

  Args:
    loss_fn: A pure function of learnable parameters and a batch.
    init_params: Makes the parameters; the default makes none.

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

  Raises:
    ValueError: If there is no term.

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
      metrics |= flatten({name: {"loss": losses[name], **found}})
    return sum(losses.values()), (_join(states), metrics)

  return Objective(init, apply)


def scale(objective: Objective, weight: Number) -> Objective:
  """Multiplies the loss, and so its gradient, by a finite number.

  State that moves by itself (popularities, individual temperatures) moves as
  without the weight.

  Example:
    >>> from nuclr_jax.objectives import clip
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> losses = [
    ...   x.apply(*x.init(), pairs)[0] for x in (clip(), scale(clip(), 2.0))
    ... ]
    >>> bool(losses[1] == 2 * losses[0])
    True
  """
  weight = check_number("weight", weight, "a finite number", math.isfinite)

  def apply(params, state, pairs):
    loss, rest = objective.apply(params, state, pairs)
    return weight * loss, rest

  return Objective(objective.init, apply)


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


def check_number(name: str, value, allowed: str, is_allowed) -> float:
  """Returns a Python float, from any scalar that is allowed.

  Args:
    name: Of the argument, for the message.
    value: A number, a NumPy scalar or an array without axes.
    allowed: What is allowed, in words, for the message.
    is_allowed: Tells whether a float is.

  Raises:
    ValueError: If `value` is no number or not allowed.
  """
  try:
    number = math.nan if isinstance(value, bool | str) else float(value)
  except (TypeError, ValueError):
    number = math.nan
  if not is_allowed(number):  # nothing allows nan
    raise ValueError(f"{name} must be {allowed}, got {value!r}")
  return number


def check_temperature(temperature) -> float:
  """Returns the temperature; ValueError unless positive and finite."""
  return check_number(
    "temperature",
    temperature,
    "a number greater than 0 (it divides cosine similarities; 0.01 to 0.1 is "
    "usual)",
    lambda x: 0 < x < math.inf,
  )


def check_weight(name: str, weight) -> float:
  """Returns the weight of a term; ValueError unless finite and at least 0."""
  return check_number(
    name, weight, "a number of at least 0", lambda x: 0 <= x < math.inf
  )


def check_rho(rho) -> float:
  """Returns rho as a float; ValueError unless finite."""
  return check_number("rho", rho, "a finite number", math.isfinite)


def check_momentum(name: str, momentum) -> float:
  """Returns the weight of an old momentum; ValueError unless in [0, 1)."""
  return check_number(
    name,
    momentum,
    "in [0, 1) (it weights the old momentum; published codes often give the "
    "weight of the new gradient)",
    lambda x: 0 <= x < 1,
  )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
  """Raises ValueError unless `value` is one of `choices`."""
  if value not in choices:
    raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def check_sizes(
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None,
  num_texts: SupportsIndex | None,
) -> Sizes:
  """Fills in the defaults and checks the row counts of per-sample state."""
  given = dict(num_pairs=num_pairs, num_images=num_images, num_texts=num_texts)
  for name, value in given.items():
    if value is None and name != "num_pairs":
      continue
    if isinstance(value, bool) or not hasattr(value, "__index__"):
      raise ValueError(f"{name} must be a whole number, got {value!r}")
  n = operator.index(num_pairs)
  sizes = Sizes(
    n,
    n if num_images is None else operator.index(num_images),
    n if num_texts is None else operator.index(num_texts),
  )
  if sizes.num_pairs < 2:
    raise ValueError(
      f"num_pairs must be at least 2, got {num_pairs}; it is the number of "
      "pairs of the whole data set, not of a batch"
    )
  for name in ("num_images", "num_texts"):
    if not 1 <= getattr(sizes, name) <= num_pairs:
      raise ValueError(
        f"{name} must be in [1, num_pairs = {num_pairs}], got "
        f"{getattr(sizes, name)}; every id must occur in some pair"
      )
  return sizes


def check_schedule(
  name: str, value, *, low: float, high: float, low_allowed: bool = False
) -> Callable[[Array], Array]:
  """Makes a schedule of the step count from a number or a schedule.

  Numbers are checked against their range; the values of a schedule cannot be.
  """
  if callable(value):
    return value
  number = check_number(
    name,
    value,
    f"in {'[' if low_allowed else '('}{low:g}, {high:g}"
    f"{']' if high < math.inf else ')'} or a schedule of the step count",
    lambda x: low <= x <= high and x < math.inf and (low_allowed or x > low),
  )
  return lambda count: jnp.asarray(number)

"""The protocol of objectives: two pure functions and the state between them."""

from collections.abc import Callable
import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.types import Metrics, Pairs, Params, PyTree, Sizes

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


def check_temperature(temperature: float) -> None:
  """Raises ValueError unless `temperature` is a positive, finite number."""
  if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
    raise ValueError(
      f"temperature must be a number greater than 0, got {temperature!r}; "
      "it divides cosine similarities (0.01 to 0.1 is usual)"
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
  """Raises ValueError unless `value` is one of `choices`."""
  if value not in choices:
    raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def check_sizes(
  num_pairs: int, num_images: int | None, num_texts: int | None
) -> Sizes:
  """Fills in the defaults and checks the row counts of per-sample state."""
  sizes = Sizes(
    num_pairs,
    num_pairs if num_images is None else num_images,
    num_pairs if num_texts is None else num_texts,
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
  number = isinstance(value, int | float)
  if not (number and low <= value <= high and (low_allowed or value > low)):
    bracket = "[" if low_allowed else "("
    raise ValueError(
      f"{name} must be in {bracket}{low:g}, {high:g}] or a schedule of the "
      f"step count, got {value!r}"
    )
  return lambda count: jnp.asarray(value)

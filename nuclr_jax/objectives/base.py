"""The protocol of objectives: pure functions and the state between them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, SupportsIndex

import jax
import jax.numpy as jnp

from nuclr_jax import checks
from nuclr_jax.objectives.whole_batch import whole_batch
from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Params,
  Popularities,
  Scalar,
  Sides,
  Sizes,
  Spec,
  State,
)


class Readout(NamedTuple):
  """What can be read from any objective; None where it has no such value.

  Tables may be padded for sharding. The temperature and log u are filed under
  the anchors (`.image`: images as anchors), zeta under the contrast.
  """

  temperature: Scalar | Sides | None = None  # one for all, or [num_pairs] each
  log_u: Sides | None = None  # [num_pairs] each; -inf = never visited
  log_u_by_id: Sides | None = None  # [num_images], [num_texts]
  zeta: Sides | None = None  # [num_images], [num_texts]


class InitFn(Protocol):
  """Makes learnable parameters and state."""

  def __call__(self) -> tuple[Params, State]:
    """Returns learnable parameters ({} if none) and the first state."""


class ApplyFn(Protocol):
  """Evaluates the objective on a global batch.

  With the decorator `whole_batch`, it can be called from any training loop.
  """

  def __call__(
    self,
    params: Params,
    state: State,
    pairs: Pairs,
    *,
    axes: str | Sequence[str] | None = None,
  ) -> tuple[Scalar, tuple[State, Metrics]]:
    """Returns the loss of a global batch, the next state and metrics.

    Args:
      params: The learnable parameters.
      state: The state, from `init` or from the step before.
      pairs: The batch.
      axes: Within `jax.shard_map` or `jax.pmap`, the axes that split the batch,
        see `whole_batch`.
    """


class ReadoutFn(Protocol):
  """Reads temperature, log u and zeta."""

  def __call__(self, params: Params, state: State) -> Readout:
    """Returns those of temperature, log u and zeta that the objective has."""


class AssignFn(Protocol):
  """Writes external popularities: a refresh or a warm start."""

  def __call__(self, state: State, popularities: Popularities) -> State:
    """Returns the state with these rows; what depends on the old ones is reset.

    It runs on the host, on a state that may be split over devices.
    """


class Objective(NamedTuple):
  """A contrastive objective: pure functions, and the state between them.

  `loss, (state, metrics) = apply(params, state, pairs)` is what
  `jax.value_and_grad(..., has_aux=True)` expects. The value of the loss is the
  objective's estimate; its gradient may be that of a surrogate (see
  `attach_gradient`).
  """

  init: InitFn
  apply: ApplyFn
  readout: ReadoutFn = lambda params, state: Readout()
  assign: AssignFn | None = None  # None: it has no popularities


def make_spec(spec: Spec | None, **numbers: SupportsIndex | None) -> Spec:
  """Returns the spec, or makes one from numbers.

  Args:
    spec: The spec that `build` passes to every factory; None to make one.
    **numbers: `num_pairs`, `num_images`, `num_texts` or a field of `Spec`, in
      place of a spec: `nuclr(num_pairs=1797, temperature=0.1)`.

  Raises:
    TypeError: If both are given, or for any other keyword.
    ValueError: For numbers out of range.

  Example:
    >>> make_spec(None, num_pairs=8, num_texts=3).sizes
    Sizes(num_pairs=8, num_images=8, num_texts=3)
  """
  if spec is not None:
    if numbers:
      raise TypeError(
        f"give either a Spec or {', '.join(sorted(numbers))}, not both"
      )
    return spec
  counts = {name: numbers.pop(name, None) for name in Sizes._fields}
  if unknown := sorted(set(numbers) - set(Spec._fields[1:])):
    known = [*Sizes._fields, *Spec._fields[1:]]
    raise TypeError(
      f"unexpected argument(s) {', '.join(unknown)}; allowed besides the "
      f"objective's own arguments are {', '.join(known)}"
    )
  numbers = {
    name: None if x is None else checks.count(name, x)
    for name, x in numbers.items()
  }
  if all(x is None for x in counts.values()):
    return Spec(**numbers)
  return Spec(checks.sizes(**counts), **numbers)


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


def stateless(
  loss_fn: Callable[[Params, Pairs], tuple[Scalar, Metrics]],
  init_params: Callable[[], Params] = dict,
  *,
  temperature: Callable[[Params], Number] | None = None,
) -> Objective:
  """Lifts `loss_fn(params, pairs) -> (loss, metrics)` to an `Objective`.

  Args:
    loss_fn: A pure function of learnable parameters and a batch.
    init_params: Makes the parameters; the default makes none.
    temperature: Reads the temperature of the pairs' logits from the parameters,
      if there is one.

  Returns:
    An `Objective` without state; it checks the shapes of its batches.

  Example:
    >>> def align(params, pairs):
    ...   return -jnp.mean(jnp.sum(pairs.image * pairs.text, axis=1)), {}
    >>> objective = stateless(align)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> loss, _ = objective.apply(*objective.init(), pairs)
    >>> print(loss)
    -1.0
  """

  @whole_batch
  def apply(params, state, pairs):
    loss, metrics = loss_fn(params, pairs)
    return loss, (state, metrics)

  def readout(params, state):
    del state
    tau = None if temperature is None else jnp.asarray(temperature(params))
    return Readout(temperature=tau)

  return Objective(lambda: (init_params(), State()), apply, readout)


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

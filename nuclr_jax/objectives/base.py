"""The protocol of objectives: pure functions and the state between them."""

from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from nuclr_jax.objectives.whole_batch import whole_batch
from nuclr_jax.types import (
  Metrics,
  Number,
  Pairs,
  Params,
  Popularities,
  PyTree,
  Scalar,
  Sides,
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
  logit_bias: Scalar | None = None  # SigLIP's


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
  """Reads temperature, log u, zeta and the bias of the logits."""

  def __call__(self, params: Params, state: State) -> Readout:
    """Returns those of the fields of `Readout` that the objective has."""


class AssignFn(Protocol):
  """Writes external popularities: a refresh or a warm start."""

  def __call__(self, state: State, popularities: Popularities) -> State:
    """Returns the state with these rows, and without momentum of the old ones.

    log u, which depends on zeta, stays unless the popularities have it.
    It runs on the host, on a state that may be split over devices.
    """


class _Functions(NamedTuple):
  init: InitFn
  apply: ApplyFn
  readout: ReadoutFn = lambda params, state: Readout()
  assign: AssignFn | None = None  # None: it has no popularities
  call: str = "Objective(...)"  # how it prints


class Objective(_Functions):
  """A contrastive objective: pure functions, and the state between them.

  `loss, (state, metrics) = apply(params, state, pairs)` is what
  `jax.value_and_grad(..., has_aux=True)` expects. The value of the loss is the
  objective's estimate; its gradient may be that of a surrogate (see
  `attach_gradient`). Sums over all pairs of a batch are computed in two passes:
  the first gives the value of the loss, the second, `pairwise.weighted`, a
  surrogate whose gradient is that of the loss. An `apply` thus ends with
  `attach_gradient(value, surrogate)`.
  """

  __slots__ = ()

  def __new__(cls, init, apply, *others, **named):
    """Makes `apply` check that params and state are of this objective."""
    apply = _with_its_own(init, apply)
    return super().__new__(cls, init, apply, *others, **named)

  def __repr__(self) -> str:
    """Returns the call that made the objective."""
    return self.call


def _with_its_own(init: Callable, apply: Callable) -> Callable:
  """Checks params and state against what `init` makes; free under `jax.jit`."""

  @cache
  def expected():
    try:
      return jax.eval_shape(init)
    except TypeError:  # it cannot be traced, and may be expensive
      return None

  @wraps(apply)
  def checked(params, state, pairs, **axes):
    if (known := expected()) is not None:
      _check_tree("params", params, known[0])
      _check_tree("state", state, known[1])
    return apply(params, state, pairs, **axes)

  return checked


def _check_tree(name: str, tree: PyTree, expected: PyTree) -> None:
  """Raises ValueError unless a tree has the arrays, and state the structure."""

  def paths(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    to_text = partial(jax.tree_util.keystr, simple=True, separator="/")
    kind = _of_integers if name == "state" else lambda x: ""
    return {to_text(path) + kind(x) for path, x in leaves}

  found, wanted = paths(tree), paths(expected)
  lacks, has = (
    ", ".join(sorted(x)[:8]) for x in (wanted - found, found - wanted)
  )
  same = jax.tree.structure(tree) == jax.tree.structure(expected)
  if lacks or has or (name == "state" and wanted and not same):
    raise ValueError(
      f"{name} must have the arrays that init makes, in a "
      f"{type(expected).__name__}; this {type(tree).__name__} lacks "
      f"{lacks or 'nothing'}, and has {has or 'nothing'} beyond them; give "
      "apply(params, state, pairs) what this objective's init or the step "
      "before returned"
    )


def _of_integers(x: Any) -> str:
  return " of integers" * jnp.issubdtype(jnp.result_type(x), jnp.integer)


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

  The surrogate is usually that of `pairwise.weighted`: its gradient gives each
  pair the weight that follows from the first pass. Where a moving average
  replaces a sum of the batch, the two differ on purpose: the value is that of
  the average, whose gradient is estimated from the batch.

  Example:
    >>> loss = lambda x: attach_gradient(jnp.float32(7), x**2)
    >>> x = jnp.float32(3)
    >>> print(loss(x), jax.grad(loss)(x))
    7.0 6.0
  """
  stop = jax.lax.stop_gradient
  return stop(value) + (surrogate - stop(surrogate))

"""The training state and the step that updates it: pure functions."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import optax

from nuclr_jax import sharding
from nuclr_jax.lab.models import Model
from nuclr_jax.objectives import Objective, relative_to
from nuclr_jax.types import Batch, Metrics, Params, PyTree, State


class TrainState(NamedTuple):
  """Everything that a step changes."""

  step: jax.Array  # steps done
  params: Params  # {"model": ..., "objective": ...}
  model_state: PyTree
  opt_state: PyTree
  objective: State


# How a TrainState is laid out on the mesh: a pytree prefix, so that it fits any
# objective. Only per-sample state grows with the data, so only it is split.
LAYOUT = TrainState(
  step=sharding.REPLICATED,
  params=sharding.REPLICATED,
  model_state=sharding.REPLICATED,
  opt_state=sharding.REPLICATED,
  objective=State(
    sample=sharding.ROWS, memory=sharding.ROWS, shared=sharding.REPLICATED
  ),
)


def init_state(
  model: Model,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> TrainState:
  """Makes the state before the first step.

  Args:
    model: A model from `nuclr_jax.lab.models`, or your own.
    objective: An objective from `nuclr_jax.objectives`, or your own.
    optimizer: An optax optimizer such as `make_optimizer` makes; it sees the
      parameters `{"model": ..., "objective": ...}`.
    key: The random key of the initial parameters.

  Returns:
    A `TrainState`, with per-sample state padded so that it can be split over
    devices; `make_train_step` has an example.
  """
  model_params, model_state = model.init(key)
  objective_params, objective_state = objective.init()
  params = {"model": model_params, "objective": objective_params}
  sample = sharding.pad_rows(objective_state.sample)
  memory = sharding.pad_rows(objective_state.memory, sharding.padded_memory)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    model_state=model_state,
    opt_state=optimizer.init(params),
    objective=objective_state._replace(sample=sample, memory=memory),
  )


def make_train_step(
  model: Model,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
  """Makes the pure function `(train_state, batch) -> (train_state, metrics)`.

  Args:
    model: The model that `init_state` got.
    objective: The objective that `init_state` got.
    optimizer: The optimizer that `init_state` got.
    key: The random key of dropout and the like; each step folds its number in.

  Returns:
    The function, which is not jitted yet. The objective sees a batch with
    `reference` as `objectives.relative_to` makes it. If the state is donated,
    it is updated in place. The names of the metrics start with `train/`;
    "train/loss" and "train/gradient_norm" are among them.

  Example:
    >>> from nuclr_jax.lab import models
    >>> from nuclr_jax import objectives
    >>> model = models.small(
    ...   image_shape=(8, 8, 1),
    ...   vocab_size=9,
    ...   length=4,
    ...   image_stages=((2, 1, 8),),
    ... )
    >>> parts = model, objectives.nuclr(num_pairs=100), optax.adam(1e-3)
    >>> state = init_state(*parts, jax.random.key(0))
    >>> step = jax.jit(make_train_step(*parts, jax.random.key(1)))
    >>> image = jnp.zeros((4, 8, 8, 1), jnp.uint8)
    >>> batch = Batch(image, jnp.ones((4, 4), int), jnp.arange(4))
    >>> state, metrics = step(state, batch)
    >>> int(state.step), "train/loss" in metrics
    (1, True)
  """

  def train_step(train_state, batch):
    step_key = jax.random.fold_in(key, train_state.step)

    def loss_fn(params):
      pairs, model_state = model.apply(
        params["model"],
        train_state.model_state,
        batch,
        key=step_key,
        train=True,
      )
      if batch.reference is not None:
        pairs = relative_to(pairs, batch.reference)
      loss, (state, metrics) = objective.apply(
        params["objective"], train_state.objective, pairs
      )
      return loss, (model_state, state, metrics)

    (loss, (model_state, state, metrics)), gradient = jax.value_and_grad(
      loss_fn, has_aux=True
    )(train_state.params)
    updates, opt_state = optimizer.update(
      gradient, train_state.opt_state, train_state.params
    )
    metrics |= {"loss": loss, "gradient_norm": optax.tree.norm(gradient)}
    new_state = TrainState(
      step=train_state.step + 1,
      params=optax.apply_updates(train_state.params, updates),
      model_state=model_state,
      opt_state=opt_state,
      objective=state,
    )
    return new_state, {f"train/{name}": x for name, x in metrics.items()}

  return train_step


def shardings(
  mesh: Mesh,
  shapes: TrainState,
  *,
  shard_params: bool = False,
  offload_rows: bool = False,
) -> TrainState:
  """Lays a state out on a mesh: a `NamedSharding` for each of its leaves.

  Args:
    mesh: The mesh of the devices.
    shapes: The state, or its shapes.
    shard_params: Whether to split large parameters and their optimizer state as
      well, within a slice, by `sharding.split_largest_axis`.
    offload_rows: Whether to keep per-sample state in the host's memory, see
      `sample_state.table`.

  Raises:
    ValueError: If `offload_rows` is set and the devices cannot reach the
      host's memory, or a memory of pairs cannot be split over them.
  """

  def fill(spec, tree):
    return jax.tree.map(lambda _: NamedSharding(mesh, spec), tree)

  for x in jax.tree.leaves(shapes.objective.memory):
    if len(x) % mesh.size:
      raise ValueError(
        f"a memory of {len(x)} rows cannot be split over {mesh.size} devices; "
        f"make it larger ({8 * sharding.ROW_MULTIPLE} always fits; "
        "objective.zeta.size in a config), or use fewer devices"
      )
  layout = jax.tree.map(
    fill, LAYOUT, shapes, is_leaf=lambda x: isinstance(x, jax.P)
  )
  if offload_rows:
    objective = layout.objective._replace(
      sample=sharding.on_host(layout.objective.sample)
    )
    layout = layout._replace(objective=objective)
  if not shard_params:
    return layout
  params, opt_state = jax.tree.map(
    lambda x: NamedSharding(
      mesh, sharding.split_largest_axis(x.shape, mesh.shape["data"])
    ),
    (shapes.params, shapes.opt_state),
  )
  return layout._replace(params=params, opt_state=opt_state)

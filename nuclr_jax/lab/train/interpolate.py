"""Weights between those that a run began from and those that it ended with.

Fine-tuning gains on its own data and forgets elsewhere. Both change smoothly
along the line between the first weights and the last ones, and a point in
between often keeps most of the gain and loses little of the rest.

Reference: Wortsman et al., Robust Fine-Tuning of Zero-Shot Models (WiSE-FT),
CVPR 2022.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from nuclr_jax import checks
from nuclr_jax.lab.models import lora
from nuclr_jax.lab.train import loop, recalibrate
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.types import Metrics, Number, Params, PyTree

Share = Annotated[
  float, checks.Range("a number from 0 to 1", lambda x: 0 <= x <= 1)
]


def of_run(
  parts: Experiment, mesh: Mesh, tuned: TrainState
) -> Callable[[float], TrainState]:
  """Makes the function from a share to the state between both ends of a run.

  Share 0 is the model that the run began from, 1 the state that is given, and
  in between

    weights = (1 - share) first + share tuned

  for every parameter: of the towers, their projections and the objective, whose
  temperature is mixed as a logarithm. Batch statistics are mixed likewise, and
  then those of the mixed weights are computed from training batches, which
  `recalibrate` describes; at 0 and 1 they are those of the two states.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, which must be entered when the function is
      called.
    tuned: The state to mix with, such as `loop.load` returned.

  Raises:
    ValueError: If the run did not begin from a model, or only in part, if that
      model cannot be read or has other shapes; from the function, if the share
      is not in [0, 1].
  """
  first, blend = _first(parts), jax.jit(mix)
  # A product of adapters is not mixed where its factors are.
  model = lora.merged(tuned.params["model"])
  last = tuned.params | {"model": model}, tuned.model_state
  new_statistics = None
  if has_statistics(tuned):
    new_statistics = recalibrate.of_run(parts, mesh)

  def at(share):
    checks.argument("interpolate", share, Share)
    params, model_state = blend(first, last, share)
    mixed = tuned._replace(params=params, model_state=model_state)
    if new_statistics is None or share in (0, 1):
      return mixed
    return new_statistics(mixed)

  return at


def curve(
  parts: Experiment, mesh: Mesh, tuned: TrainState, shares: Sequence[float]
) -> dict[float, Metrics]:
  """Scores the weights at several shares, see `of_run` and `loop.evaluate`.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, entered by `jax.set_mesh`.
    tuned: The state to mix with.
    shares: The shares, in [0, 1].

  Returns:
    Metrics by name, by share.
  """
  at, make_embed = of_run(parts, mesh, tuned), loop.embedder(parts, mesh)
  return {x: loop.score(parts, make_embed(at(x))) for x in shares}


def has_statistics(state: TrainState) -> bool:
  """Returns whether a model has batch statistics, or other state."""
  return bool(jax.tree.leaves(state.model_state))


def mix(first: PyTree, last: PyTree, share: Number) -> PyTree:
  """Mixes weights; what is equal at both ends, if frozen, keeps its bits.

  Args:
    first: Arrays.
    last: The arrays at the other end.
    share: The share of the latter, in [0, 1].

  Example:
    >>> mix(jnp.array([0.0, 1.0]), jnp.array([1.0, 1.0]), 0.25)
    Array([0.25, 1.  ], dtype=float32)
  """

  def blend(a, b):
    mixed = ((1 - share) * a + share * b).astype(b.dtype)
    return jnp.where(a == b, b, mixed)

  return jax.tree.map(blend, first, last)


def _first(parts: Experiment) -> tuple[Params, PyTree]:
  """Reads the model that a run began from, and its objective's first params."""
  model = parts.model
  if model.load is None:
    raise ValueError(
      "this run began with random weights, and weights can only be mixed with "
      "those of a model that a run began from (config.model.pretrained); leave "
      "--interpolate out"
    )
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  params, state = model.load(*shapes)
  params = lora.without_adapters(params)  # which begin as zero
  left = [
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, x in jax.tree_util.tree_leaves_with_path((params, state))
    if isinstance(x, jax.ShapeDtypeStruct)
  ]
  if left:
    names = ", ".join(x.partition("/")[2] for x in left[:5])
    raise ValueError(
      f"this run began with random {names}, which the model that it began from "
      "does not have, so that there are no weights in between; leave "
      "--interpolate out"
    )
  objective = jax.jit(lambda: parts.objective.init()[0])()
  return {"model": params, "objective": objective}, state

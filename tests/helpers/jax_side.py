"""Computes with the towers of this library, by the keys of a published file.

The tests use it too.
"""

from collections.abc import Mapping
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nuclr_jax.lab import models
from nuclr_jax.lab.models import pretrained
from nuclr_jax.types import Batch

# The tower of the other side, if only one side is compared.
OTHER = {
  "image": dict(name="resnet50", stages=(1,), width=2),
  "text": dict(name="bert", width=8, layers=1, heads=1),
}


def load(
  towers: Mapping[str, Any],
  inputs: Mapping[str, np.ndarray],
  source: str | os.PathLike,
):
  """Makes a model and loads a file into it.

  Args:
    towers: The arguments of `models.towers`. If there is only one side, its
      embeddings are its features.
    inputs: "image" [batch, height, width, 3] or "text" [batch, length], or
      both.
    source: The path of the file.

  Returns:
    The model, its params and its state.
  """
  alone = len(inputs) == 1
  arguments = dict(image_shape=(8, 8, 3), length=4, vocab_size=9)
  if "image" in inputs:
    arguments["image_shape"] = inputs["image"].shape[1:]
  if "text" in inputs:
    arguments["length"] = inputs["text"].shape[1]
  if alone:
    arguments |= dict(normalize=False, projection_bias=False)
  arguments |= towers
  for side in ("image", "text"):
    arguments[side] = OTHER[side]
    if side in inputs:
      arguments[side] = dict(towers[side]) | {"pretrained": str(source)}
  model = models.towers(**arguments)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  params, state = model.load(*zeros)
  if alone:
    name = f"{next(iter(inputs))}_projection"
    params[name] = jnp.eye(*params[name].shape)
  return model, params, state


def outputs(model, params, state, inputs, *, train: bool = False):
  """Returns the embeddings by side, and the next state."""
  batch = Batch(inputs.get("image"), inputs.get("text"), None)
  pairs, state = model.apply(
    params, state, batch, key=jax.random.key(0), train=train
  )
  return {side: getattr(pairs, side) for side in inputs}, state


def compute(towers, inputs, source, *, layout: str, train: bool) -> dict:
  """Computes outputs and gradients; with `train` also batch statistics.

  Args:
    towers: The arguments of `models.towers`.
    inputs: "image" [batch, height, width, 3] or "text" [batch, length], or
      both.
    source: The path of the file with the weights.
    layout: The layout of the file, which names the gradients.
    train: Whether to compute in training mode as well.

  Returns:
    A dict of dicts of arrays: "outputs", "gradients" and, with `train`,
    "trained" (the outputs in training) and "statistics".
  """
  model, params, state = load(towers, inputs, source)
  sides = tuple(inputs)

  def loss(params):
    sides, _ = outputs(model, params, state, inputs)
    total = sum(jnp.sum(x * direction(x.shape)) for x in sides.values())
    return total, sides

  (_, embeddings), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(
    params
  )
  out = {
    "outputs": embeddings,
    "gradients": pretrained.to_layout(gradient, state, layout, sides=sides),
  }
  if train:
    forward = jax.jit(lambda x: outputs(model, x, state, inputs, train=True))
    out["trained"], state = forward(params)
    tensors = pretrained.to_layout(params, state, layout, sides=sides)
    out["statistics"] = {k: x for k, x in tensors.items() if "running" in k}
  return out


def direction(shape) -> np.ndarray:
  """Draws fixed weights; gradients are of the outputs' sum weighted by them."""
  return np.random.default_rng(1).normal(size=tuple(shape)).astype(np.float32)


def errors(
  computed: Mapping, expected: Mapping
) -> dict[str, tuple[float, str]]:
  """Returns the largest error of each part, and the array that has it.

  For outputs and statistics the error is the largest difference divided by the
  largest number of the array. For gradients it is the norm of the difference
  divided by the array's norm, since rounding may decide on which side of 0 the
  input of some ReLU lies. The divisor is at least 1e-3 of the largest norm of
  all arrays, since some gradients (of attention's key biases) are zero up to
  rounding.
  """
  worst = {}
  for part, arrays in computed.items():
    size = np.linalg.norm if part == "gradients" else _largest
    floor = 1e-12
    if part == "gradients":
      floor = 1e-3 * max(size(np.ravel(expected[part][x])) for x in arrays)
    worst[part] = max(
      (_error(np.ravel(x), np.ravel(expected[part][key]), size, floor), key)
      for key, x in arrays.items()
    )
  return worst


def _largest(x) -> float:
  return np.abs(x).max()


def _error(computed, expected, size, floor) -> float:
  if not np.all(np.isfinite(computed)):
    return np.inf
  return float(size(computed - expected) / max(size(expected), floor))

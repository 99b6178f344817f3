"""Theorem 1 of paper 2: gradient descent on fixed triplets, by width."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import Run
from experiments.latent_classes import triplets

WIDTHS = (16, 64, 256, 512)
NUM_TRIPLETS, INPUTS, OUTPUTS = 30, 10, 8
SEPARATION = 0.5  # the smallest distance of two inputs, which have norm 1
NUM_STEPS = 1_000
RATE = 0.02


def init(key, width: int):
  """Draws three layers with variances 2 / width, 2 / width, 1 / OUTPUTS."""
  sizes = (INPUTS, width, width, OUTPUTS)
  keys = jax.random.split(key, 3)
  scales = (2 / width, 2 / width, 1 / OUTPUTS)
  return [
    jax.random.normal(k, sizes[i : i + 2]) * scale**0.5
    for i, (k, scale) in enumerate(zip(keys, scales, strict=True))
  ]


def encode(params, x):
  """Applies a ReLU network."""
  first, second, last = params
  return jax.nn.relu(jax.nn.relu(x @ first) @ second) @ last


def separated(rng, count: int) -> np.ndarray:
  """Draws unit vectors with pairwise distances above `SEPARATION`."""
  vectors = np.zeros((0, INPUTS))
  while len(vectors) < count:
    x = rng.normal(size=INPUTS)
    x /= np.linalg.norm(x)
    if (np.linalg.norm(vectors - x, axis=1) > SEPARATION).all():
      vectors = np.concatenate([vectors, x[None]])
  return vectors


def measure(run: Run) -> dict[str, Any]:
  """Descends; returns the mean loss per triplet over steps, and the norms."""
  values = dict(run.values)
  num_steps = values["steps"]
  rng = np.random.default_rng(run.seed)
  x = jnp.asarray(separated(rng, 3 * NUM_TRIPLETS), jnp.float32)
  descent = triplets.descend(
    encode,
    jax.jit(partial(init, width=values["width"]))(jax.random.key(run.seed)),
    triplets.Triplets(*x.reshape(3, NUM_TRIPLETS, INPUTS)),
    learning_rate=RATE / NUM_TRIPLETS,
    num_steps=num_steps,
  )
  losses = np.array(descent.loss) / NUM_TRIPLETS
  return {
    "steps": num_steps,
    "loss": losses[:: max(num_steps // 300, 1)].tolist(),
    "last": losses[-1].item(),
    "min_norm": float(descent.min_norm.min()),
    "max_norm": float(descent.max_norm.max()),
  }

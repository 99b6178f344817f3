"""Theorem 1 of paper 2: gradient descent on fixed triplets, by width."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nuclr_jax import latent_classes
from nuclr_jax.latent_classes import Triplets

WIDTHS = (16, 64, 256, 512)
NUM_TRIPLETS, INPUTS, OUTPUTS = 30, 10, 8
SEPARATION = 0.5  # of all inputs, which have norm 1
NUM_STEPS = 1_000
RATE = 0.02


def init(key, width: int):
  """Three layers as in the paper: He's scale inside, 1 / OUTPUTS at the end."""
  sizes = (INPUTS, width, width, OUTPUTS)
  keys = jax.random.split(key, 3)
  scales = (2 / width, 2 / width, 1 / OUTPUTS)
  return [
    jax.random.normal(k, sizes[i : i + 2]) * scale**0.5
    for i, (k, scale) in enumerate(zip(keys, scales, strict=True))
  ]


def encode(params, x):
  """A ReLU network."""
  first, second, last = params
  return jax.nn.relu(jax.nn.relu(x @ first) @ second) @ last


def separated(rng, count: int) -> np.ndarray:
  """Unit vectors of which no two are closer than `SEPARATION`."""
  found = np.zeros((0, INPUTS))
  while len(found) < count:
    x = rng.normal(size=INPUTS)
    x /= np.linalg.norm(x)
    if (np.linalg.norm(found - x, axis=1) > SEPARATION).all():
      found = np.concatenate([found, x[None]])
  return found


def measure(*, seeds: int, num_steps: int = NUM_STEPS) -> dict[str, Any]:
  """Losses, a triplet, at every step, by width and seed; norms at the end."""
  results = {}
  for width in WIDTHS:
    runs = []
    for seed in range(seeds):
      rng = np.random.default_rng(seed)
      x = jnp.asarray(separated(rng, 3 * NUM_TRIPLETS), jnp.float32)
      triplets = Triplets(*x.reshape(3, NUM_TRIPLETS, INPUTS))
      found = latent_classes.descend(
        encode,
        jax.jit(partial(init, width=width))(jax.random.key(seed)),
        triplets,
        learning_rate=RATE / NUM_TRIPLETS,
        num_steps=num_steps,
      )
      runs.append(found)
    losses = np.array([x.loss for x in runs]) / NUM_TRIPLETS
    results[str(width)] = {
      "loss": losses[:, :: max(num_steps // 300, 1)].tolist(),
      "last": losses[:, -1].tolist(),
      "min_norm": [float(x.min_norm.min()) for x in runs],
      "max_norm": [float(x.max_norm.max()) for x in runs],
    }
  return {"steps": num_steps, "widths": results}

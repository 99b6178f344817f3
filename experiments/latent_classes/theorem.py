"""Theorem 1 of paper 2: gradient descent on fixed triplets, by width."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import Run
from experiments.latent_classes import triplets

WIDTHS = (16, 64, 256, 512)
LARGE_WIDTHS = (2048, 4096)  # one seed; minutes each on a core
NUM_TRIPLETS, INPUTS, OUTPUTS = 30, 10, 8
SEPARATION = 0.5  # the smallest distance of two inputs, which have norm 1
NUM_STEPS = 1_000
RATE = 0.02
RATE_WIDTH = 512  # where a rate that falls like 1 / width equals `RATE`
POWER = 24  # of n in the width that Allen-Zhu et al. ask for


def width_of_theorem(loss: float) -> float:
  r"""Returns the width that the theorem asks for, all constants set to 1.

    m >= poly(n, L, 1 / delta) d / epsilon

  Merad et al. take the polynomial from Allen-Zhu et al., 2019; Zou and Gu (An
  Improved Analysis of Training Over-parameterized Deep Neural Networks, 2019)
  quote it as n^24. Factors of L and delta, which are above 1, are left out.

  Args:
    loss: The mean loss of a triplet; epsilon is the sum over all n.

  Example:
    >>> print(f"{width_of_theorem(1e-3):.1e}")
    7.5e+37
  """
  return float(NUM_TRIPLETS) ** POWER * OUTPUTS / (loss * NUM_TRIPLETS)


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
  """Descends; returns the mean loss per triplet over steps, and the norms.

  `moved` is how far the weights move, as a fraction of their norm.
  """
  values = dict(run.values)
  num_steps = values["steps"]
  rng = np.random.default_rng(run.seed)
  x = jnp.asarray(separated(rng, 3 * NUM_TRIPLETS), jnp.float32)
  key = jax.random.key(run.seed)
  first = jax.jit(partial(init, width=values["width"]))(key)
  descent = triplets.descend(
    encode,
    first,
    triplets.Triplets(*x.reshape(3, NUM_TRIPLETS, INPUTS)),
    learning_rate=values.get("rate", RATE) / NUM_TRIPLETS,
    num_steps=num_steps,
  )
  losses = np.array(descent.loss) / NUM_TRIPLETS
  return {
    "steps": num_steps,
    "loss": losses[:: max(num_steps // 300, 1)].tolist(),
    "last": losses[-1].item(),
    "min_norm": float(descent.min_norm.min()),
    "max_norm": float(descent.max_norm.max()),
    "moved": optax.tree.norm(
      jax.tree.map(jnp.subtract, descent.params, first)
    ).item()
    / optax.tree.norm(first).item(),
  }

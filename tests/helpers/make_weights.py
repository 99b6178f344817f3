"""Random parameters for tests."""

import jax
import numpy as np


def numbers(init, seed=0):
  """Params and state for `init`, without compiling it."""
  rng = np.random.default_rng(seed)

  def fill(path, x):
    if path[-1].key in ("scale", "var"):
      return np.ones(x.shape, np.float32)
    return 0.2 * rng.normal(size=x.shape).astype(np.float32)

  shapes = jax.eval_shape(init, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(fill, shapes)

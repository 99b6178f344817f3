"""The golden numbers of newer denominators (golden/README.md)."""

import jax.numpy as jnp
import numpy as np
from repository import GOLDEN

from nuclr_jax import Pairs

with np.load(GOLDEN / "official_normalizers.npz") as file:
  GIVEN = dict(file)
NUM_PAIRS = int(GIVEN["inputs/n"])
BATCH, DIM = GIVEN["inputs/image"].shape[1:]
TAU = float(GIVEN["inputs/tau"])


def batch(step=0):
  """The embeddings of one of three batches, and their ids."""
  names = ("image", "text", "ids")
  return Pairs(*(jnp.asarray(GIVEN[f"inputs/{name}"][step]) for name in names))


def near(found, expected, tolerance=1e-9):
  """Relative to the largest number."""
  scale = np.max(np.abs(expected))
  np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)

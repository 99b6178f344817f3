"""The golden numbers of newer denominators (golden/README.md)."""

import math

import jax.numpy as jnp
import numpy as np
from repository import GOLDEN

from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.objectives import denominator

with np.load(GOLDEN / "official_normalizers.npz") as file:
  GIVEN = dict(file)
NUM_PAIRS = int(GIVEN["inputs/n"])
BATCH, DIM = GIVEN["inputs/image"].shape[1:]
TAU = float(GIVEN["inputs/tau"])
# The official mean over a batch's negatives divides by B instead of B - 1.
RATIO = BATCH / (BATCH - 1)
MOVING_AVERAGES = (
  "drrho drrho_eps1e-4 drrho_noref drrho_clip scent scent_alpha10 scent_small "
  "scent_sox"
).split()


def batch(step=0):
  """The embeddings of one of three batches, and their ids."""
  names = ("image", "text", "ids")
  return Pairs(*(jnp.asarray(GIVEN[f"inputs/{name}"][step]) for name in names))


def reference(step=0):
  """The embeddings of a batch by the reference model."""
  return Sides(*(GIVEN[f"inputs/ref_{x}"][step] for x in ("image", "text")))


def batch_of(case, step):
  """A batch of a case of `MOVING_AVERAGES`."""
  pairs = batch(step)
  if GIVEN[f"{case}/has_ref"]:
    return objectives.relative_to(pairs, reference(step))
  return pairs


def arguments_of(case):
  """What a case of `MOVING_AVERAGES` gives to `sogclr`."""
  gammas = [float(GIVEN[f"{case}/{step}/gamma"]) for step in range(3)]
  if case in ("scent", "scent_alpha10", "scent_small"):
    gamma = denominator.Adaptive(gammas[0] - math.log(RATIO))
  else:
    gamma = lambda count: jnp.asarray(gammas)[count]
  weight = (NUM_PAIRS - 1) * float(GIVEN[f"{case}/eps"]) * RATIO
  return dict(num_pairs=NUM_PAIRS, gamma=gamma, positive_weight=weight)


def near(found, expected, tolerance=1e-9):
  """Relative to the largest number."""
  scale = np.max(np.abs(expected))
  np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)

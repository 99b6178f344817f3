"""Bounds the loss of a large batch by the algorithm of its products; JSON.

python -m experiments.step_time.algorithms

The loss step (forward, backward, state) is compiled for a GPU that is not
available (see `not_at_hand`) with each algorithm in place of `library`, the
three passes of bfloat16 that it has as a single product. It takes at least the
time of its flops at the stated peak, or of its bytes at the memory's bandwidth;
see `roofline` for how both are counted.
"""

import functools
import json
import sys
from unittest import mock

from absl import app, flags
import jax
import jax.numpy as jnp

from experiments.harness import benchmark
from experiments.step_time import common, targets
from nuclr_jax import objectives
from nuclr_jax.pairwise import tiles
from nuclr_jax.sample_state import zeta_rules
from tests.helpers import hlo
from tests.helpers.make_step import trace_step

TARGET = flags.DEFINE_enum("target", "h100", ["h100", "h200"], "The GPU.")
BATCH = flags.DEFINE_integer("batch_size", 65_536, "Pairs.")
DIM = flags.DEFINE_integer("dim", 512, "Width of embeddings.")
NUM_PAIRS = 3 * 2**20  # rows of state


def bound(objective: objectives.Objective, algorithm: str) -> dict:
  """Bounds a loss step whose products all are of one algorithm."""
  mesh, memory = targets.mesh(TARGET.value), common.MEMORY[TARGET.value]
  product, rate = tiles.product, common.PEAKS["bf16"]
  if algorithm != "library":
    choice, rate = common.named(algorithm), common.peak(algorithm)
    product = functools.partial(jnp.matmul, precision=choice)
  with jax.set_mesh(mesh), mock.patch.object(tiles, "product", product):
    traced = trace_step(objective, mesh, BATCH.value, DIM.value)
    found = hlo.bound(traced, rate, memory, mesh.size)
  return found | {"ms_of_bytes": 1e12 * found["gb"] / memory}


def main(argv) -> None:
  """Bounds CLIP's and NUCLR's loss, and prints the JSON."""
  del argv
  targets.prepare()
  batch_mean = zeta_rules.batch(estimator="official")
  chosen = {
    "clip": objectives.clip(),
    "nuclr": objectives.nuclr(num_pairs=NUM_PAIRS, zeta=batch_mean),
  }
  rows = []
  for name, objective in chosen.items():
    for algorithm in (*common.ALGORITHMS, "library"):
      about = {"objective": name, "algorithm": algorithm}
      rows.append(about | bound(objective, algorithm))
      print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
  settings = {"jax": jax.__version__, "target": TARGET.value}
  settings |= {"batch_size": BATCH.value, "dim": DIM.value}
  benchmark.show(settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

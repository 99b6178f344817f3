"""Finds the loss step's memory on GPUs and TPUs without them; prints JSON.

python -m experiments.step_time.not_at_hand --targets=h200,8xh200,v5e:2x4

XLA can compile for a machine that is not available if its compiler is
installed: the extra `compilers`, best in a separate virtual environment. The
numbers are XLA's plan of buffers per device; times cannot be measured this way.
"""

import json
import sys
from unittest import mock

from absl import app, flags
import jax

from experiments.harness import benchmark
from experiments.step_time import targets
from nuclr_jax import objectives
from nuclr_jax.pairwise import tiles
from nuclr_jax.sample_state import zeta_rules
from tests.helpers.make_step import trace_step

TARGETS = flags.DEFINE_list(
  "targets", ["h200", "8xh200", "v5e:2x4"], "[count x] h200, or a TPU slice."
)
BATCHES = flags.DEFINE_list("batch_sizes", ["65536"], "Global batch sizes.")
DIMS = flags.DEFINE_list("dims", ["512"], "Widths of embeddings.")
TILE = flags.DEFINE_integer("tile", tiles.TILE, "Rows of a tile.")
NUM_PAIRS = flags.DEFINE_integer("num_pairs", 3 * 2**20, "Rows of state.")
OFFLOAD = flags.DEFINE_bool(
  "offload_rows", False, "Keeps rows in the host's memory; TPUs only."
)


def compile_for(target: str, batch: int, dim: int):
  """Compiles NUCLR's forward, backward and state update for a target."""
  mesh = targets.mesh(target)
  objective = objectives.nuclr(
    num_pairs=NUM_PAIRS.value, zeta=zeta_rules.batch(estimator="official")
  )
  with jax.set_mesh(mesh), mock.patch.object(tiles, "TILE", TILE.value):
    traced = trace_step(objective, mesh, batch, dim, on_host=OFFLOAD.value)
    return traced.lower().compile()


def main(argv) -> None:
  """Compiles for all targets and sizes, and prints the JSON."""
  del argv
  targets.prepare()
  rows = []
  for target in TARGETS.value:
    for batch in map(int, BATCHES.value):
      for dim in map(int, DIMS.value):
        memory = compile_for(target, batch, dim).memory_analysis()
        rows.append(
          {
            "target": target,
            "batch_size": batch,
            "dim": dim,
            "temporary_mib": memory.temp_size_in_bytes / 2**20,
            "arguments_mib": memory.argument_size_in_bytes / 2**20,
            "host_mib": memory.host_argument_size_in_bytes / 2**20,
            "matrix_of_all_pairs_mib": 4 * batch**2 / 2**20,
          }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
  settings = {"jax": jax.__version__, "tile": TILE.value}
  settings |= {"num_pairs": NUM_PAIRS.value, "offload_rows": OFFLOAD.value}
  benchmark.show(settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

"""Compiles NUCLR's loss step for a TPU with and without kernels; prints JSON.

python -m experiments.step_time.kernels > experiments/step_time/kernels.json

Mosaic and XLA compile for a TPU without having one (see `targets`), which needs
the extra `tpu`. Of each form's program, the JSON has

  mosaic         the calls of kernels of `contrib.pallas_passes`
  tiles          the instructions that make an array of the shape of a tile, in
                 the main memory, and in the core's own (VMEM)
  temporary_mib  what XLA allocates in the main memory besides arguments and
                 results

Calls and instructions within a loop count once.
"""

from absl import app, flags
import jax

from experiments.harness import benchmark
from experiments.step_time import common, targets
from nuclr_jax.contrib.pallas_passes import tpu_kernels
from nuclr_jax.pairwise import tiles
from tests.helpers import hlo
from tests.helpers.make_step import trace_step

TARGET = flags.DEFINE_string("target", "v5e", "A TPU, or a slice of them.")
BATCHES = flags.DEFINE_list("batch_sizes", ["8192"], "Batch sizes.")
DIMS = flags.DEFINE_list("dims", ["512", "1024"], "Widths of embeddings.")
NUM_PAIRS = flags.DEFINE_integer("num_pairs", 3_000_000, "Rows of state.")


def measure(objective, batch: int, dim: int) -> dict:
  """Compiles a step and counts what it consists of."""
  mesh = targets.mesh(TARGET.value)
  with jax.set_mesh(mesh):
    traced = trace_step(objective, mesh, batch, dim)
    compiled = traced.lower().compile()
  program, memory = compiled.as_text(), compiled.memory_analysis()
  return {
    "mosaic": program.count('custom_call_target="tpu_custom_call"'),
    "tiles": hlo.count_tiles(program, tiles.TILE),
    "temporary_mib": memory.temp_size_in_bytes / 2**20,
  }


def main(argv) -> None:
  """Compiles both forms for all sizes, and prints the JSON."""
  del argv
  targets.prepare()
  rows = []
  for dim in map(int, DIMS.value):
    objective = common.recipe(NUM_PAIRS.value, dim)
    forms = {"loops": objective, "kernels": tpu_kernels(objective)}
    for batch in map(int, BATCHES.value):
      found = {name: measure(x, batch, dim) for name, x in forms.items()}
      rows.append({"batch_size": batch, "dim": dim, "forms": found})
  settings = {"target": TARGET.value, "tile": tiles.TILE}
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

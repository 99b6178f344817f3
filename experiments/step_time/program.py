"""Counts what the loss step of every objective compiles to; prints JSON.

python -m experiments.step_time.program --targets=h200,8xh200,v5e:2x4

XLA compiles for the targets without having them (see `not_at_hand`), and the
program is read: kernels, collectives and their bytes, loops, and memory. The
flops of matrix products are counted before that, in the jaxpr, where library
calls are still visible.
"""

import functools
import json
import sys

from absl import app, flags
import jax
from jax.sharding import Mesh

from experiments.harness import benchmark
from experiments.step_time import targets
from nuclr_jax import contrib, objectives
from nuclr_jax.objectives import Objective, temperature_rules, zeta_rules
from tests.helpers import hlo
from tests.helpers.make_step import trace_step

TARGETS = flags.DEFINE_list(
  "targets",
  ["h200", "8xh200", "cpu", "8xcpu", "v5e", "v5e:2x4"],
  "[count x] h200 or cpu, v5e, or a TPU slice.",
)
BATCHES = flags.DEFINE_list("batch_sizes", ["512", "8192"], "Global sizes.")
DIM = flags.DEFINE_integer("dim", 512, "Width of embeddings.")
NAMES = flags.DEFINE_list("objectives", [], "Some objectives; none = all.")

NUM_PAIRS = 3 * 2**20
SIZES = dict(num_pairs=NUM_PAIRS, num_images=NUM_PAIRS, num_texts=NUM_PAIRS)


def all_objectives(dim: int) -> dict[str, Objective]:
  """Returns the objectives to count, by name."""
  nuclr = functools.partial(objectives.nuclr, **SIZES)
  queue = zeta_rules.queue(dim=dim, size=16_384)
  return {
    "clip": objectives.clip(),
    "ntxent": objectives.ntxent(),
    "siglip": objectives.siglip(),
    "cyclip": objectives.cyclip(),
    "debiased": objectives.debiased(),
    "spectral": objectives.spectral(),
    "vicreg": contrib.vicreg(),
    "sogclr": objectives.sogclr(**SIZES),
    "isogclr": objectives.isogclr(**SIZES),
    "nuclr": nuclr(),
    "nuclr_individual": nuclr(temperature=temperature_rules.individual()),
    "nuclr_queue": nuclr(zeta=queue),
  }


def measure(objective: Objective, mesh: Mesh, batch: int, dim: int) -> dict:
  """Compiles a loss step for a mesh and counts what it consists of."""
  traced = trace_step(objective, mesh, batch, dim)
  flops = hlo.count_products(traced.jaxpr.jaxpr)
  compiled = traced.lower().compile()
  memory = compiled.memory_analysis()
  return hlo.count(compiled.as_text()) | {
    "products": flops / (2 * batch**2 * dim),
    "temporary_mib": memory.temp_size_in_bytes / 2**20,
  }


def main(argv) -> None:
  """Counts for all targets, sizes and objectives, and prints the JSON."""
  del argv
  targets.prepare()
  rows, dim = [], DIM.value
  for target in TARGETS.value:
    mesh = targets.mesh(target)
    for batch in map(int, BATCHES.value):
      for name, objective in all_objectives(dim).items():
        if NAMES.value and name not in NAMES.value:
          continue
        with jax.set_mesh(mesh):
          row = measure(objective, mesh, batch, dim)
        where = {"target": target, "batch_size": batch, "objective": name}
        rows.append(where | row)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
  settings = {"jax": jax.__version__, "dim": dim, "num_pairs": NUM_PAIRS}
  benchmark.show(settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

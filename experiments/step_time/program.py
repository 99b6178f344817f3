"""Counts what the loss step of every objective compiles to; prints JSON.

python -m experiments.step_time.program --targets=h200,8xh200,v5e:1x1,v5e:2x4

XLA compiles for the targets without having them (see `not_at_hand`), and the
program is read: kernels, collectives and their bytes, loops, and memory. The
flops of matrix products are counted before that, in the jaxpr, where library
calls are still visible.
"""

from collections.abc import Iterator
import functools
import json
import math
import re
import sys

from absl import app, flags
import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh

from experiments.harness import benchmark
from experiments.step_time import targets
from experiments.step_time.common import trace_step
from nuclr_jax import objectives
from nuclr_jax.objectives import Objective, temperature_rules, zeta_rules

TARGETS = flags.DEFINE_list(
  "targets",
  ["h200", "8xh200", "v5e:1x1", "v5e:2x4", "cpu", "8xcpu"],
  "[count x] h200 or cpu, or a TPU slice.",
)
BATCHES = flags.DEFINE_list("batch_sizes", ["512", "8192"], "Global sizes.")
DIM = flags.DEFINE_integer("dim", 512, "Width of embeddings.")
NAMES = flags.DEFINE_list("objectives", [], "Some objectives; none = all.")

NUM_PAIRS = 3 * 2**20
SIZES = dict(num_pairs=NUM_PAIRS, num_images=NUM_PAIRS, num_texts=NUM_PAIRS)
COLLECTIVES = (
  "all-gather",
  "all-reduce",
  "all-to-all",
  "collective-permute",
  "reduce-scatter",
)
# Instructions that do no work of their own, or whose work is counted elsewhere:
# the second half of an asynchronous one, and calls.
FREE = frozenset(
  "parameter constant tuple get-tuple-element bitcast after-all partition-id "
  "replica-id call conditional async-done async-update opt-barrier domain "
  "add-dependency".split()
)
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "f64": 8}


def all_objectives(dim: int) -> dict[str, Objective]:
  """Returns the objectives to count, by name."""
  nuclr = functools.partial(objectives.nuclr, **SIZES)
  queue = zeta_rules.queue(size=16_384)
  return {
    "clip": objectives.clip(),
    "ntxent": objectives.ntxent(),
    "siglip": objectives.siglip(),
    "cyclip": objectives.cyclip(),
    "debiased": objectives.debiased(),
    "spectral": objectives.spectral(),
    "vicreg": objectives.vicreg(),
    "sogclr": objectives.sogclr(**SIZES),
    "isogclr": objectives.isogclr(**SIZES),
    "nuclr": nuclr(),
    "nuclr_individual": nuclr(temperature=temperature_rules.individual()),
    "nuclr_queue": nuclr(zeta=queue, dim=dim),
  }


def count_products(jaxpr, repeats: int = 1) -> int:
  """Returns the flops of all matrix products, on all devices together."""
  total = 0
  for eqn in jaxpr.eqns:
    times = repeats
    if eqn.primitive.name == "dot_general":
      (contracted, _), _ = eqn.params["dimension_numbers"]
      shape = eqn.invars[0].aval.shape
      inner = math.prod(shape[i] for i in contracted)
      total += 2 * repeats * inner * math.prod(eqn.outvars[0].aval.shape)
    elif eqn.primitive.name == "scan":
      times *= eqn.params["length"]
    elif eqn.primitive.name == "shard_map":
      times *= math.prod(eqn.params["mesh"].shape.values())
    for inner in jaxprs_in_params(eqn.params):
      total += count_products(getattr(inner, "jaxpr", inner), times)
  return total


def computations(hlo: str) -> dict[str, list[str]]:
  """Splits the text of a compiled program into its computations' lines."""
  found, name = {}, None
  for line in hlo.splitlines():
    if head := re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
      name = head[1]
      found[name] = []
      if line.startswith("ENTRY"):
        found["ENTRY"] = found[name]
    elif line.startswith("}"):
      name = None
    elif name:
      found[name].append(line.strip())
  return found


def instructions(
  parts: dict[str, list[str]], name: str = "ENTRY", repeats: int = 1
) -> Iterator[tuple[str, str, int]]:
  """Yields (opcode, line, executions) of all that a program runs."""
  for line in parts[name]:
    match = re.search(r"= (?:\(.*?\)|\S+) ([\w-]+)\(", line)
    if not match:
      continue
    kind, times = match[1], repeats
    yield kind, line, repeats
    if kind == "while":
      trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
      times *= int(trips[1]) if trips else 1
    if kind in ("while", "call", "conditional", "async-start"):
      for inner in re.findall(
        r"(?:body|to_apply|calls|true_computation|false_computation)="
        r"%?([\w.-]+)",
        line,
      ):
        yield from instructions(parts, inner, times)
      for some in re.findall(r"branch_computations=\{(.*?)\}", line):
        for inner in re.findall(r"[\w.-]+", some):
          yield from instructions(parts, inner, times)


def result_bytes(line: str) -> int:
  """Returns the bytes of an instruction's result."""
  shapes = re.search(r"= (\(.*?\)|\S+) [\w-]+\(", line)[1]
  arrays = [
    BYTES.get(kind, 4) * math.prod(int(x) for x in dims.split(",") if x)
    for kind, dims in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shapes)
  ]
  if "-start(" in line and len(arrays) > 1:  # operands, then results
    arrays = arrays[len(arrays) // 2 :]
  return sum(arrays)


def count(hlo: str) -> dict:
  """Counts kernels, loops, copies and collectives of a compiled program."""
  kernels = launches = loops = copies = sorts = 0
  collectives, bytes_sent = {}, 0
  for kind, line, times in instructions(computations(hlo)):
    base = kind.removesuffix("-start")
    if kind in FREE or kind.endswith("-done"):
      continue
    if base == "while":
      loops += 1
    elif base in COLLECTIVES:
      collectives[base] = collectives.get(base, 0) + 1
      bytes_sent += times * result_bytes(line)
    else:
      kernels += 1
      launches += times
      copies += base == "copy"
      sorts += base == "sort"
  return {
    "kernels": kernels,
    "launches": launches,
    "loops": loops,
    "copies": copies,
    "sorts": sorts,
    "num_collectives": sum(collectives.values()),
    "collectives": collectives,
    "collective_bytes": bytes_sent,
  }


def measure(objective: Objective, mesh: Mesh, batch: int, dim: int) -> dict:
  """Compiles a loss step for a mesh and counts what it consists of."""
  traced = trace_step(objective, mesh, batch, dim)
  flops = count_products(traced.jaxpr.jaxpr)
  compiled = traced.lower().compile()
  memory = compiled.memory_analysis()
  return count(compiled.as_text()) | {
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
        with targets.tiles_of(target), jax.set_mesh(mesh):
          row = measure(objective, mesh, batch, dim)
        where = {"target": target, "batch_size": batch, "objective": name}
        rows.append(where | row)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
  settings = {"jax": jax.__version__, "dim": dim, "num_pairs": NUM_PAIRS}
  benchmark.show(settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

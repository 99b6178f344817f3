"""Counts and times what every source of denominators costs; prints JSON.

python -m experiments.normalizers.costs --data_dir=DATA

All are at the first sizes of the study. Bytes of state are those of the
objective's pytree; `collective_bytes_per_sample` is what the collectives of a
loss step, compiled for 8 devices, put on each of them, by samples of the
global batch. A whole training step, on one device, is timed: all methods take
turns, and a ratio is the median of the rounds' ratios.
"""

import time

from absl import app, flags
import jax
import numpy as np

from experiments.harness import benchmark
from experiments.normalizers import plan
from experiments.normalizers.measure import TOWERS, make_config, make_parts
from nuclr_jax import sharding
from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import malloc
from nuclr_jax.lab.train import build
from nuclr_jax.lab.train.step import init_state, make_train_step
from nuclr_jax.types import Batch
from tests.helpers import hlo
from tests.helpers.make_step import trace_step

DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of prepared data.")
ROUNDS = flags.DEFINE_integer("rounds", 9, "Number of rounds.")
STEPS = flags.DEFINE_integer("steps", 3, "Steps per method and round.")
DEVICES = 8


def bytes_of(tree) -> int:
  """Counts the bytes of all arrays."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def count(parts: build.Experiment) -> dict[str, float]:
  """Counts bytes of state and of collectives."""
  n, batch = parts.data.train.sizes.num_pairs, parts.settings.batch_size
  _, state = jax.eval_shape(parts.objective.init)
  rows, whole = bytes_of(state.sample), bytes_of(state)
  mesh = sharding.make_mesh(DEVICES)
  with jax.set_mesh(mesh):
    traced = trace_step(parts.objective, mesh, batch, TOWERS["dim"])
    program = hlo.count(traced.lower().compile().as_text())
  return {
    "bytes_per_pair": rows / n,
    "other_bytes": whole - rows,
    "state_bytes_per_pair": whole / n,
    "collective_bytes_per_sample": program["collective_bytes"] / batch,
  }


def timer(parts: build.Experiment):
  """Returns a function that does some steps, and returns their seconds."""
  train, batch_size = parts.data.train, parts.settings.batch_size
  each = parts.model, parts.objective, parts.optimizer
  state = init_state(*each, jax.random.key(0))
  step = jax.jit(make_train_step(*each, jax.random.key(0)), donate_argnums=0)

  def batch_of(number: int) -> Batch:
    ids = np.arange(batch_size, dtype=np.int32) + number * batch_size
    found = train.fetch(ids)
    text = parts.data.tokenizer.encode(train.captions(found.text_id))
    return jax.device_put(Batch(found.image, text, *found[2:]))

  batches = [batch_of(i) for i in range(STEPS.value)]

  def run() -> float:
    nonlocal state
    began = time.perf_counter()
    for batch in batches:
      state, _ = step(state, batch)
    jax.block_until_ready(state)
    return time.perf_counter() - began

  run()  # compiles
  return run


def main(argv) -> None:
  """Measures all methods, and prints the JSON."""
  del argv
  malloc.keep_memory()
  jax.config.update("jax_num_cpu_devices", DEVICES)
  progress.log_to_stderr()
  cell, found, runs = plan.FIRST[0], {}, {}
  for name in plan.ALL_ARMS:
    config = make_config(plan.make_run(cell, name, 0))
    parts = make_parts(config, plan.CELLS[cell].pairs, DATA_DIR.value)
    found[name], runs[name] = count(parts), timer(parts)
  times = benchmark.take_turns(runs, ROUNDS.value)
  samples = STEPS.value * plan.CELLS[cell].batch
  for name, seconds in times.items():
    found[name] |= {
      "ratio_to_clip": benchmark.ratio(seconds, times["clip"]),
      "seconds_per_sample": float(np.median(seconds)) / samples,
    }
  settings = plan.CELLS[cell]._asdict() | {"devices": DEVICES}
  benchmark.show(benchmark.machine(), settings, {"arms": found})


if __name__ == "__main__":
  app.run(main)

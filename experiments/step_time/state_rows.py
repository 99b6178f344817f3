"""Times NUCLR's loss step against the size of the data set; prints JSON.

python -m experiments.step_time.state_rows --num_pairs=10000,100000000

The batch size is fixed, ids are random, and the state has n pairs (16 bytes
each). The sizes are timed in alternation in each round; `ratio_to_first` is the
median of the rounds' ratios.
"""

import time

from absl import app, flags
import jax
from jax.sharding import NamedSharding
import numpy as np

from experiments.harness import benchmark
from experiments.step_time.common import loss_step
from nuclr_jax import objectives, sharding
from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import malloc
from nuclr_jax.types import State

NUM_PAIRS = flags.DEFINE_list(
  "num_pairs", [str(10**k) for k in range(4, 9)], "Sizes of data sets."
)
BATCH = flags.DEFINE_integer("batch_size", 512, "Pairs per step.")
DIM = flags.DEFINE_integer("dim", 256, "Width of the embeddings.")
ROUNDS = flags.DEFINE_integer("rounds", 7, "Number of rounds.")
STEPS = flags.DEFINE_integer("steps", 200, "Steps per size and round.")
BYTES_PER_PAIR = 16
OFFLOAD = flags.DEFINE_bool(
  "offload_rows", False, "Keeps rows in the host's memory."
)


def make_run(num_pairs: int):
  """Compiles the step; returns a function that times `STEPS` steps."""
  objective = objectives.nuclr(num_pairs=num_pairs, temperature=0.05)
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(2, BATCH.value, DIM.value)).astype(np.float32)
  vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
  ids = [
    rng.integers(0, num_pairs, BATCH.value).astype(np.int32) for _ in range(64)
  ]

  state, vectors = objective.init()[1], jax.device_put(vectors)
  options = {}
  if OFFLOAD.value:
    whole = NamedSharding(sharding.make_mesh(1), sharding.REPLICATED)
    layout = State(sharding.on_host(whole), whole, whole)
    layout = jax.tree.broadcast(layout, state)
    state, options = (
      jax.device_put(state, layout),
      {"out_shardings": (layout, whole)},
    )
  step = loss_step(objective, **options)

  def run(steps: int = STEPS.value) -> float:
    nonlocal state
    start = time.perf_counter()
    for i in range(steps):
      state, _ = step(state, vectors, ids[i % len(ids)])
    jax.block_until_ready(state)
    return (time.perf_counter() - start) / steps * 1e3

  run(len(ids))  # touches the memory of these rows
  return run


def main(argv) -> None:
  """Times all sizes, and prints the JSON."""
  del argv
  malloc.keep_memory()
  progress.log_to_stderr()
  sizes = [int(float(n)) for n in NUM_PAIRS.value]
  times = benchmark.take_turns({n: make_run(n) for n in sizes}, ROUNDS.value)
  rows = [
    {
      "num_pairs": n,
      "ms": float(np.median(ms)),
      "ratio_to_first": benchmark.ratio(ms, times[sizes[0]]),
    }
    for n, ms in times.items()
  ]
  settings = {"batch_size": BATCH.value, "dim": DIM.value}
  settings["offload_rows"] = OFFLOAD.value
  settings["bytes_per_pair"] = BYTES_PER_PAIR
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

"""Times the exact popularity of a whole data set; prints JSON.

python -m experiments.step_time.exact_popularity --num_pairs=50000 --dim=256

The embeddings are clusters whose sizes follow Zipf's law, as captions do, with
noise around their centres. `first` is the time of the first round, which
compiles, and `seconds` that of the fastest one: the same if --rounds=1.
"""

import time

from absl import app, flags
import jax
import numpy as np

from experiments.harness import benchmark
from nuclr_jax import popularity
from nuclr_jax.lab import progress
from nuclr_jax.lab.cli import malloc

NUM_PAIRS = flags.DEFINE_integer("num_pairs", 50_000, "Pairs of the data set.")
DIM = flags.DEFINE_integer("dim", 256, "Width of the embeddings.")
TEMPERATURE = flags.DEFINE_float("temperature", 0.05, "Temperature.")
TOLERANCE = flags.DEFINE_float("tolerance", 1e-2, "Where the iteration ends.")
ITERATIONS = flags.DEFINE_integer("max_iterations", 200, "At most so many.")
ROUNDS = flags.DEFINE_integer("rounds", 2, "The first one compiles.")


def clustered(num_pairs: int, dim: int, clusters: int = 1000) -> np.ndarray:
  """Draws unit embeddings [2, num_pairs, dim] in clusters of Zipf's sizes."""
  rng = np.random.default_rng(0)
  share = 1 / np.arange(1, clusters + 1)
  which = rng.choice(clusters, num_pairs, p=share / share.sum())
  centres = rng.normal(size=(clusters, dim)).astype(np.float32)
  x = np.stack([centres[which]] * 2)
  x += rng.standard_normal(x.shape, np.float32)
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def main(argv) -> None:
  """Solves the problem several times, and prints the JSON."""
  del argv
  malloc.keep_memory()
  progress.log_to_stderr()
  image, text = clustered(NUM_PAIRS.value, DIM.value)
  seconds = []
  for _ in range(ROUNDS.value):
    start = time.perf_counter()
    found = popularity.solve(
      image,
      text,
      temperature=TEMPERATURE.value,
      tolerance=TOLERANCE.value,
      max_iterations=ITERATIONS.value,
    )
    seconds.append(time.perf_counter() - start)
  memory = jax.devices()[0].memory_stats() or {}
  names = ("num_pairs", "dim", "temperature", "tolerance", "max_iterations")
  settings = {name: flags.FLAGS[name].value for name in names}
  facts = {
    "seconds": min(seconds),
    "first": seconds[0],
    "iterations": found.iterations,
    "residual": found.residual,
    "converged": found.converged,
    "peak_bytes": memory.get("peak_bytes_in_use"),
  }
  benchmark.show(benchmark.machine(), settings, facts)


if __name__ == "__main__":
  app.run(main)

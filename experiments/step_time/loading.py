"""Pairs per second of the data pipeline against cores; JSON out.

python experiments/step_time/loading.py --data_dir=...

The training stream of configs/glyphs.py (in memory, shifted pictures), with as
many threads as cores, each number of cores in a process of its own.
"""

import json
import os
import subprocess
import sys
import time

from absl import app, flags
import common
import numpy as np

from nuclr_jax import experiment
from nuclr_jax.data import pipeline

DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of prepared data.")
BATCH = flags.DEFINE_integer("batch_size", 512, "Pairs per batch.")
SECONDS = flags.DEFINE_float("seconds", 5.0, "Per measurement.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "Measurements; the median counts.")
CORES = flags.DEFINE_integer("cores", None, "Only this many; used by itself.")


def measure() -> list[float]:
  """Pairs per second, once a round."""
  spec = dict(name="glyphs", shift=1.0)
  data = experiment.load_data(spec, data_dir=DATA_DIR.value)
  rates = []
  with pipeline.batches(
    data.train,
    batch_size=BATCH.value,
    seed=0,
    num_threads=CORES.value,
  ) as stream:
    for _ in range(10):
      next(stream)
    for _ in range(ROUNDS.value):
      start, count = time.perf_counter(), 0
      while time.perf_counter() < start + SECONDS.value:
        next(stream)
        count += 1
      rates.append(count * BATCH.value / (time.perf_counter() - start))
  return rates


def benchmark(argv) -> None:
  """Prints the JSON."""
  if CORES.value:
    print(json.dumps(measure()))
    return
  cores, rows = sorted(os.sched_getaffinity(0)), []
  counts = [2**k for k in range(len(cores)) if 2**k <= len(cores)]
  for count in counts:
    found = subprocess.run(
      [sys.executable, *argv, *sys.argv[1:], f"--cores={count}"],
      preexec_fn=lambda: os.sched_setaffinity(0, cores[:count]),  # noqa: B023
      stdout=subprocess.PIPE,
      check=True,
    )
    rates = json.loads(found.stdout)
    rows.append({"cores": count, "pairs_per_s": float(np.median(rates))})
  settings = {"batch_size": BATCH.value, "data": "glyphs, in memory"}
  print(json.dumps(common.machine() | settings | {"rows": rows}, indent=2))


if __name__ == "__main__":
  app.run(benchmark)

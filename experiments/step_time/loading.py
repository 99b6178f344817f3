"""Measures pairs per second of the data pipeline against cores; prints JSON.

python -m experiments.step_time.loading --data_dir=...

The data are the training stream of configs/glyphs.py (in memory, shifted
images), read with as many threads as cores. Each number of cores is measured in
a separate process.
"""

import json
import os
import subprocess
import sys
import time

from absl import app, flags
import numpy as np

from experiments.harness import benchmark
from nuclr_jax.lab.data import loader
from nuclr_jax.lab.train import build

DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of prepared data.")
BATCH = flags.DEFINE_integer("batch_size", 512, "Pairs per batch.")
SECONDS = flags.DEFINE_float("seconds", 5.0, "Seconds per measurement.")
ROUNDS = flags.DEFINE_integer(
  "rounds", 3, "Number of measurements; their median counts."
)
CORES = flags.DEFINE_integer(
  "cores", None, "Number of cores to measure with; set by the command itself."
)


def measure() -> list[float]:
  """Measures pairs per second, once per round."""
  spec = dict(name="glyphs", shift=1.0)
  data = build.load_data(spec, data_dir=DATA_DIR.value)
  rates = []
  with loader.batches(
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


def main(argv) -> None:
  """Measures each number of cores in a subprocess, and prints the JSON."""
  if CORES.value:
    print(json.dumps(measure()))
    return
  if not hasattr(os, "sched_setaffinity"):
    raise app.UsageError(
      f"{sys.platform} cannot tie a process to some of its cores, as this "
      "measurement does; run it on Linux"
    )
  cores, rows = sorted(os.sched_getaffinity(0)), []
  counts = [2**k for k in range(len(cores)) if 2**k <= len(cores)]
  for count in counts:
    done = subprocess.run(
      [
        sys.executable,
        *("-m", "experiments.step_time.loading"),
        *sys.argv[1:],
        f"--cores={count}",
      ],
      preexec_fn=lambda: os.sched_setaffinity(0, cores[:count]),  # noqa: B023
      stdout=subprocess.PIPE,
      check=True,
    )
    rates = json.loads(done.stdout)
    rows.append({"cores": count, "pairs_per_s": float(np.median(rates))})
  settings = {"batch_size": BATCH.value, "data": "glyphs, in memory"}
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

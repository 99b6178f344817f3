"""Table 8: the time of a training step with and without difference alignment.

Both are timed in alternation in one process, since machines are noisy.
"""

import functools
import time
from typing import Any

import jax
import numpy as np

from experiments.harness import Run, benchmark
from nuclr_jax import Batch, contrib, objectives
from nuclr_jax.lab import models
from nuclr_jax.lab.train.optimizer import make_optimizer
from nuclr_jax.lab.train.step import init_state, make_train_step

BATCHES = (128, 512, 1024, 2048)
REPETITIONS = 15
SIZE, DIM = 16, 128  # pixels along a side; width of the embeddings


def hosts() -> dict[str, objectives.Objective]:
  """Makes the hosts, SimCLR and SwAV."""
  return {
    "ntxent": objectives.ntxent(temperature=0.2),
    "swav": contrib.swav(dim=DIM),
  }


def measure(run: Run) -> dict[str, Any]:
  """Measures milliseconds per step, and the median of the rounds' ratios."""
  values = dict(run.values)
  model = models.views(
    image_shape=(SIZE, SIZE, 1),
    vocab_size=0,
    length=0,
    encoder=dict(name="convnet", stages=((2, 2, 32), (2, 2, 64))),
    dim=DIM,
  )
  optimizer, results = make_optimizer(learning_rate=1e-3), {}
  for name, host in hosts().items():
    term = objectives.scale(contrib.difference_alignment(), 0.5)
    both = {"host": host, "with": objectives.add(host=host, alignment=term)}
    for size in values["batches"]:
      images = np.random.default_rng(0).integers(
        0, 256, (2, size, SIZE, SIZE, 1), np.uint8
      )
      batch = jax.device_put(Batch(*images, np.arange(size, dtype=np.int32)))
      steps = {}
      for key, objective in both.items():
        state = init_state(model, objective, optimizer, jax.random.key(0))
        step = jax.jit(
          make_train_step(model, objective, optimizer, jax.random.key(0))
        )
        steps[key] = (step.lower(state, batch).compile(), state)

      def time_of(step, state, batch=batch):
        began = time.perf_counter()
        jax.block_until_ready(step(state, batch))
        return 1e3 * (time.perf_counter() - began)

      runs = {key: functools.partial(time_of, *x) for key, x in steps.items()}
      times = benchmark.take_turns(runs, values["repetitions"] + 2)
      times = {key: ms[2:] for key, ms in times.items()}  # drops the warm-up
      results.setdefault(name, {})[str(size)] = {
        "host_ms": float(np.median(times["host"])),
        "with_ms": float(np.median(times["with"])),
        "ratio": benchmark.ratio(times["with"], times["host"]),
      }
  return {"device": jax.devices()[0].device_kind, "hosts": results}

"""Times a training step with each objective; prints JSON.

python -m experiments.step_time.full_step [--steps=60] [--rounds=5]

The objectives are timed in alternation in each round, so that a noisy machine
slows all of them alike; `ms` is the median over rounds, `ratio_to_clip` the
median of the rounds' ratios.
"""

import time

from absl import app, flags
import jax
import numpy as np

from experiments.harness import benchmark
from nuclr_jax import Batch, contrib, objectives
from nuclr_jax.lab import models, progress
from nuclr_jax.lab.cli import malloc
from nuclr_jax.lab.train import optimizer
from nuclr_jax.lab.train.step import init_state, make_train_step
from nuclr_jax.objectives import temperature_rules, zeta_rules

STEPS = flags.DEFINE_integer("steps", 60, "Steps per objective and round.")
CHOSEN = flags.DEFINE_list(
  "towers", ["prototype", "glyphs"], "Which of `TOWERS`."
)
ONLY = flags.DEFINE_list(
  "objectives", None, "Which of `OBJECTIVES`; all by default."
)
ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of rounds.")
BATCH = flags.DEFINE_integer("batch_size", 128, "Pairs per step.")
NUM_PAIRS = flags.DEFINE_integer("num_pairs", 43_000, "Rows of state.")

TOWERS = {
  # As many multiplications as towers of realistic size, on small images.
  "large": dict(
    image_stages=((2, 2, 128), (2, 1, 512), (2, 1, 1024)),
    image_features=1024,
    text_layers=4,
    text_width=512,
  ),
  # Three strided convolutions and a bag of words.
  "prototype": dict(
    image_stages=((2, 2, 32), (2, 1, 64), (2, 1, 128)), text_layers=0
  ),
  # The size of configs/glyphs.py.
  "glyphs": dict(
    image_stages=((2, 2, 32), (2, 1, 64), (2, 1, 128)),
    image_features=384,
    text_layers=1,
  ),
}
OBJECTIVES = {
  "clip": lambda n: objectives.clip(),
  "ntxent": lambda n: objectives.ntxent(),
  "siglip": lambda n: objectives.siglip(),
  "debiased": lambda n: objectives.debiased(),
  "cyclip": lambda n: objectives.cyclip(),
  "spectral": lambda n: objectives.spectral(),
  "vicreg": lambda n: contrib.vicreg(),
  "sogclr": lambda n: objectives.sogclr(num_pairs=n),
  "isogclr": lambda n: objectives.isogclr(num_pairs=n),
  "nuclr": lambda n: objectives.nuclr(num_pairs=n),
  "nuclr_sinkhorn": lambda n: objectives.nuclr(
    num_pairs=n, zeta=zeta_rules.queue(dim=128, size=4096)
  ),
  "nuclr_individual": lambda n: objectives.nuclr(
    num_pairs=n, temperature=temperature_rules.individual()
  ),
}
benchmark.one_of("towers", TOWERS)
benchmark.one_of("objectives", OBJECTIVES, first="clip")


def random_batch(key: int) -> Batch:
  """Draws images and captions shaped like glyphs; half of a caption is padding.

  Args:
    key: The seed.
  """
  rng = np.random.default_rng(key)
  text = rng.integers(1, 1900, (BATCH.value, 12)).astype(np.int32)
  text[:, 6:] = 0
  return Batch(
    image=rng.integers(0, 256, (BATCH.value, 32, 32, 1)).astype(np.uint8),
    text=text,
    pair_id=rng.choice(NUM_PAIRS.value, BATCH.value, replace=False),
  )


def make_run(tower: dict, objective: objectives.Objective):
  """Compiles the step; returns a function that times `STEPS` steps."""
  model = models.small(
    image_shape=(32, 32, 1), vocab_size=1900, length=12, **tower
  )
  parts = (model, objective, optimizer.make_optimizer(1e-3, weight_decay=0.1))
  key = jax.random.key(0)
  step = jax.jit(make_train_step(*parts, key), donate_argnums=0)
  state = init_state(*parts, key)
  batches = [random_batch(i) for i in range(8)]

  def run(steps: int = STEPS.value) -> float:
    nonlocal state
    start = time.perf_counter()
    for i in range(steps):
      state, _ = step(state, batches[i % len(batches)])
    jax.block_until_ready(state)
    return (time.perf_counter() - start) / steps * 1e3

  run(3)
  return run


def main(argv) -> None:
  """Times all towers and objectives, and prints the JSON."""
  del argv
  malloc.keep_memory()
  progress.log_to_stderr()
  results = {}
  for tower_name in CHOSEN.value:
    runs = {
      name: make_run(TOWERS[tower_name], OBJECTIVES[name](NUM_PAIRS.value))
      for name in ONLY.value or OBJECTIVES
    }
    times = benchmark.take_turns(runs, ROUNDS.value)
    results[tower_name] = {
      name: {
        "ms": float(np.median(ms)),
        "pairs_per_s": BATCH.value / float(np.median(ms)) * 1e3,
        "ratio_to_clip": benchmark.ratio(ms, times["clip"]),
      }
      for name, ms in times.items()
    }
  settings = {"batch_size": BATCH.value, "num_pairs": NUM_PAIRS.value}
  benchmark.show(benchmark.machine(), settings, results)


if __name__ == "__main__":
  app.run(main)

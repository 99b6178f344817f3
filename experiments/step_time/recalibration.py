"""Measures what recomputed batch statistics change and cost; prints JSON.

python -m experiments.step_time.recalibration

Trains a config for some steps of its schedule. At each of `--at`, validation
recall is measured with the running averages of batch normalization, and with
statistics recomputed from samples of several sizes; their time is the median of
`--rounds`.
"""

import time

from absl import app, flags
import jax
from ml_collections import config_flags
import numpy as np

from experiments.harness import benchmark
from nuclr_jax.lab import progress
from nuclr_jax.lab.config import folder
from nuclr_jax.lab.data import loader
from nuclr_jax.lab.evaluate.evaluators import run_evaluators
from nuclr_jax.lab.train import build, loop, recalibrate, resume
from nuclr_jax.lab.train.settings import resolve
from nuclr_jax.lab.train.step import make_train_step

CONFIG = config_flags.DEFINE_config_file(
  "config", str(folder() / "glyphs.py"), "The run."
)
DATA_DIR = flags.DEFINE_string(
  "data_dir", None, "Folder of prepared data sets."
)
AT = flags.DEFINE_list(
  "at", ["1000", "2000", "3000", "5392"], "Steps to look at; the last ends it."
)
SAMPLES = flags.DEFINE_list(
  "samples", ["128", "512", "1024", "4096", "16384"], "Numbers of pairs."
)
ROUNDS = flags.DEFINE_integer("rounds", 5, "Times that each sample is timed.")
SCORE = "validation/mean_recall@1"


def look(parts, mesh, state) -> dict:
  """Returns the scores of a state by the number of pairs, with the times."""
  embed, evaluators = loop.embedder(parts, mesh), parts.evaluators["validation"]

  def score(state):
    return run_evaluators(evaluators, embed(state), "validation")[SCORE]

  row = {"step": int(state.step), "running": {"score": score(state)}}
  for sample in map(int, SAMPLES.value):
    recompute = recalibrate.of_run(parts, mesh, sample=sample)
    recomputed = recompute(state)  # compiles
    seconds = []
    for _ in range(ROUNDS.value):
      start = time.perf_counter()
      jax.block_until_ready(recompute(state))
      seconds.append(time.perf_counter() - start)
    row[str(sample)] = {
      "score": score(recomputed),
      "seconds": float(np.median(seconds)),
    }
  return row


def main(argv) -> None:
  """Trains, looks at the state now and then, and prints the JSON."""
  del argv
  progress.log_to_stderr()
  config = resolve(CONFIG.value)
  parts = build.build(config, data_dir=DATA_DIR.value)
  mesh, steps = build.mesh_of(config), sorted(map(int, AT.value))
  key = jax.random.fold_in(jax.random.key(config.seed), 1)  # as in `fit`
  step = jax.jit(
    make_train_step(parts.model, parts.objective, parts.optimizer, key),
    donate_argnums=0,
  )
  rows = []
  with (
    jax.set_mesh(mesh),
    loader.batches(
      parts.data.train, batch_size=config.batch_size, seed=config.seed
    ) as batches,
  ):
    state = resume.first_state(parts, mesh)
    show_progress = progress.reporter("steps", steps[-1])
    for done in range(1, steps[-1] + 1):
      state, _ = step(state, next(batches))
      show_progress(done)
      if done in steps:
        rows.append(look(parts, mesh, state))
  settings = {"batch_size": config.batch_size, "score": SCORE}
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

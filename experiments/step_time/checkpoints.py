"""Measures what the digests of a checkpoint cost; prints JSON.

python -m experiments.step_time.checkpoints

Saves and restores a state of `--gib` of random numbers. Times are medians of
`--rounds`. A save is timed until its files are complete; a run waits only for
the copy of its state, and goes on meanwhile.
"""

import pathlib
import tempfile
import time
from unittest import mock

from absl import app, flags
import jax
import numpy as np

from experiments.harness import benchmark
from nuclr_jax import sharding
from nuclr_jax.lab import files, progress
from nuclr_jax.lab.train import checkpoint

GIB = flags.DEFINE_float("gib", 1.0, "Size of the state.")
ARRAYS = flags.DEFINE_integer("arrays", 64, "Number of its arrays.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Times that everything is done.")


def measure(state) -> dict[str, float]:
  """Returns the seconds of the parts of saving and restoring a state."""
  everywhere = sharding.NamedSharding(
    sharding.make_mesh(1), sharding.REPLICATED
  )
  layout = jax.tree.map(lambda x: everywhere, state)
  abstract = checkpoint.abstract_state(state, layout)
  seconds = {}

  def timed(name, function):
    def call(*args, **kwargs):
      start = time.perf_counter()
      result = jax.block_until_ready(function(*args, **kwargs))
      seconds[name] = time.perf_counter() - start
      return result

    return call

  def save(workdir):
    manager = checkpoint.open_to_write(workdir)
    timed("wait", checkpoint.save)(manager, 1, state, {})
    manager.close()

  write = timed("digests", files.write_digests)
  verify = timed("verify", files.damage)
  with (
    tempfile.TemporaryDirectory() as folder,
    mock.patch.object(files, "write_digests", write),
    mock.patch.object(files, "damage", verify),
  ):
    workdir = pathlib.Path(folder)
    timed("save", save)(workdir)
    manager, step = checkpoint.open_to_read(workdir)
    timed("restore", checkpoint.restore)(manager, step, abstract)
    manager.close()
  return seconds


def main(argv) -> None:
  """Prints the median times."""
  del argv
  progress.log_to_stderr()
  rng, count = np.random.default_rng(0), ARRAYS.value
  length = int(GIB.value * 2**30 / 4 / count)
  state = {
    str(i): jax.numpy.asarray(rng.normal(size=length).astype(np.float32))
    for i in range(count)
  }
  rounds, show_progress = [], progress.reporter("rounds", ROUNDS.value)
  for i in range(ROUNDS.value):
    rounds.append(measure(state))
    show_progress(i + 1)
  seconds = {
    name: float(np.median([x[name] for x in rounds])) for name in rounds[0]
  }
  benchmark.show(benchmark.machine(), {"gib": GIB.value, "seconds": seconds})


if __name__ == "__main__":
  app.run(main)

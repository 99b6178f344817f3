"""Compares the released training of NUCLR with `cc3m:nuclr_official`; JSON.

python -m experiments.parity.recipe > experiments/parity/recipe.json

The released schedules and constants are written down here as its code has them
(github.com/bokun-wang/NUCLR, `clip.py`, `scheduler/` and `optim/`).
"""

import math

from absl import app
import numpy as np

from experiments.harness import benchmark
from nuclr_jax.config import load_config
from nuclr_jax.models.layers import MEAN, STD
from nuclr_jax.train.optimizer import make_schedule

NUM_PAIRS = 2_798_889  # of CC3M, in the released log
BATCH, EPOCHS = 512, 30
WARM_UP, STRIDE = 5, 100  # steps of the rise, each of so many batches
DECAY = 0.02
CIFAR_MEAN = np.array([0.5071, 0.4867, 0.4408])  # of its zero-shot images
CIFAR_STD = np.array([0.2675, 0.2565, 0.2761])


def released_rate(step: int, per_epoch: int) -> float:
  """Returns the learning rate: a staircase in epoch 0, and one by epochs."""
  epoch, batch = divmod(step, per_epoch)
  if epoch == 0:
    return 1e-5 + min(batch // STRIDE, WARM_UP) * (2e-4 - 1e-5) / WARM_UP
  share = (1 + math.cos(math.pi * epoch / EPOCHS)) / 2
  return 1e-6 + share * (2e-4 - 1e-6)


def compare_rates() -> dict[str, float]:
  """Compares both schedules at every step."""
  per_epoch = NUM_PAIRS // BATCH
  steps = np.arange(per_epoch * EPOCHS)
  spec = load_config("cc3m:nuclr_official").to_dict()["optimizer"]
  schedule = make_schedule(
    **spec["learning_rate"], num_steps=len(steps), steps_per_epoch=per_epoch
  )
  ours = np.asarray(schedule(steps), float)
  theirs = np.array([released_rate(int(step), per_epoch) for step in steps])
  off = np.abs(ours - theirs) / theirs.max()
  after = off[WARM_UP * STRIDE :]
  return {
    "largest_difference_in_warm_up": 100 * off.max(),  # % of the highest rate
    "largest_difference_after": 100 * after.max(),
    "sum_of_ours_to_theirs": ours.sum() / theirs.sum(),
    # What is left of a scalar that weight decay pulls on and nothing else.
    "decayed_scalar": float(np.prod(1 - DECAY * theirs)),
  }


def compare_pixels() -> float:
  """Returns the largest difference of a pixel after both normalizations."""
  pixels = np.array([[0.0], [1.0]])
  ours = (pixels - np.array(MEAN)) / np.array(STD)
  theirs = (pixels - CIFAR_MEAN) / CIFAR_STD
  return float(np.abs(ours - theirs).max())


def main(argv) -> None:
  """Prints the JSON."""
  del argv
  facts = compare_rates() | {"cifar_pixel": compare_pixels()}
  benchmark.show(benchmark.machine(), facts)


if __name__ == "__main__":
  app.run(main)

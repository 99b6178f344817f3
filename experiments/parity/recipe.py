"""Compares the released training of NUCLR with `cc3m:nuclr_official`; JSON.

python -m experiments.parity.recipe > experiments/parity/recipe.json

The released schedules and constants are written down here as its code has them
(github.com/bokun-wang/NUCLR, `clip.py`, `scheduler/`, `optim/` and `models/`).
"""

from collections.abc import Iterator
import math

from absl import app
import numpy as np

from experiments.harness import benchmark
from nuclr_jax.lab.config import load_config
from nuclr_jax.lab.models.layers import MEAN, STD
from nuclr_jax.lab.train.optimizer import make_schedule

NUM_PAIRS = 2_798_889  # of CC3M, in the released log
BATCH, EPOCHS = 512, 30
WARM_UP, STRIDE = 5, 100  # steps of the rise, each of so many batches
DECAY = 0.02
CIFAR_MEAN = np.array([0.5071, 0.4867, 0.4408])  # of its zero-shot images
CIFAR_STD = np.array([0.2675, 0.2565, 0.2761])
ANGLE, HALF = 21.0, (0.5, 0.5)  # of rotations; how far their centres are apart
ZETA_RATE, FREEZE = 5e-6, 5  # of texts, after so many epochs
TAU, GAMMA, ZETA = 0.01, 0.8, -0.05
ROUNDS, PAIRS, ROWS, DIM = 10, 2048, 256, 64  # of `compare_gradients`


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


def released_zeta_rate(epoch: int) -> float:
  """Returns the rate of the texts' zeta, which changes between epochs."""
  if epoch < FREEZE:
    return 0.0
  share = (epoch - FREEZE) / (EPOCHS - 1 - FREEZE)
  half, three_quarters = EPOCHS // 2, int(0.75 * EPOCHS)
  drop = 0.1 ** ((epoch >= half) + (epoch >= three_quarters))
  return ZETA_RATE * drop * (1 + math.cos(math.pi * share)) / 2


def compare_zeta_rates() -> dict[str, float]:
  """Compares both rates of zeta, the released ones by epochs."""
  per_epoch = NUM_PAIRS // BATCH
  steps = np.arange(per_epoch * EPOCHS)
  spec = load_config("cc3m:nuclr_official").to_dict()["objective"]
  schedule = make_schedule(
    **spec["zeta"]["rate"]["text"],
    num_steps=len(steps),
    steps_per_epoch=per_epoch,
  )
  ours = spec["temperature"] * np.asarray(schedule(steps), float)
  theirs = np.repeat([released_zeta_rate(x) for x in range(EPOCHS)], per_epoch)
  return {
    "largest_difference_of_zeta_rate": (  # % of the highest rate
      100 * np.abs(ours - theirs).max() / ZETA_RATE
    ),
    "sum_of_our_zeta_rate_to_theirs": ours.sum() / theirs.sum(),
  }


def embeddings(generator: np.random.Generator) -> Iterator[np.ndarray]:
  """Yields generated embeddings [2, PAIRS, DIM] that align from 0.35 to 0.6."""

  def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)

  shape = (PAIRS, DIM)
  shared = unit(generator.standard_normal(shape))
  alone = unit(generator.standard_normal((2, *shape)))
  common = unit(generator.standard_normal(DIM))  # all embeddings have it
  for i in range(ROUNDS):
    share = 0.35 + 0.25 * i / (ROUNDS - 1)
    yield unit(share * shared + 0.6 * alone + 0.3 * common)


def compare_gradients(*, zeta: float, floor: float, unit: float) -> np.ndarray:
  """Compares gradients of images for a released u and for an exact one.

  The released u is a sum s of exp(L - b), with L the logits and b their running
  maximum. In the exact one, b is 0.

  Args:
    zeta: The zeta of all texts, which stays.
    floor: What is added to s.
    unit: What the change of b is divided by when s is rescaled; it should be 1.

  Returns:
    The relative difference in every epoch, with images as anchors.
  """
  generator = np.random.default_rng(0)
  s, b, u = np.zeros(PAIRS), np.zeros(PAIRS), np.zeros(PAIRS)
  off_diagonal, errors = 1 - np.eye(ROWS), []
  for epoch, (image, text) in enumerate(embeddings(generator)):
    kept = 1 - GAMMA if epoch else 0.0
    differences = []
    for rows in generator.permutation(PAIRS).reshape(-1, ROWS):
      sims = image[rows] @ text[rows].T
      logits = (sims - np.diag(sims)[:, None]) / TAU
      old, b[rows] = b[rows], np.maximum(b[rows], logits.max(1))
      terms = np.exp(logits - zeta / TAU) * off_diagonal
      scaled = terms * np.exp(-b[rows])[:, None]
      new = 1 - kept
      s[rows] *= kept * np.exp((old - b[rows]) / unit)
      s[rows] += new * scaled.sum(1)
      u[rows] = kept * u[rows] + new * terms.sum(1)
      # The gradient of an anchor, up to a factor that is the same in both.
      pair = []
      for weights in (
        scaled / (s[rows] + floor)[:, None],
        terms / u[rows][:, None],
      ):
        own = weights.sum(1, keepdims=True) * text[rows]
        pair.append(weights @ text[rows] - own)
      theirs, ours = pair
      differences.append(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    errors.append(np.mean(differences))
  return 100 * np.array(errors)


def compare_pixels() -> float:
  """Returns the largest difference of a pixel after both normalizations."""
  pixels = np.array([[0.0], [1.0]])
  ours = (pixels - np.array(MEAN)) / np.array(STD)
  theirs = (pixels - CIFAR_MEAN) / CIFAR_STD
  return float(np.abs(ours - theirs).max())


def main(argv) -> None:
  """Prints the JSON."""
  del argv
  floored = compare_gradients(zeta=0.0, floor=1e-10, unit=1.0)
  # NUCLR's b is not divided by the temperature, and its change neither.
  rescaled = compare_gradients(zeta=ZETA, floor=0.0, unit=1 / TAU)
  facts = compare_rates() | compare_zeta_rates()
  facts |= {
    "cifar_pixel": compare_pixels(),
    "rotation_shift": 2 * math.sin(math.radians(ANGLE) / 2) * math.hypot(*HALF),
    "sogclr_floor_last_epoch": floored[-1],  # % of the gradient
    "nuclr_rescaling_second_epoch": rescaled[1],
    "nuclr_rescaling_last_epoch": rescaled[-1],
  }
  benchmark.show(benchmark.machine(), facts)


if __name__ == "__main__":
  app.run(main)

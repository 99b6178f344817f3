"""Draws docs/figures/concepts.png: an integral, weighted equally and by 1 / q.

python docs/concepts_figure.py   # from the root of the repository
"""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

TAU, ANCHOR, SEEDS = 0.15, 0.45, 200
SIZES = (10, 30, 100, 300, 1_000, 3_000)
OUTPUT = pathlib.Path(__file__).parent / "figures" / "concepts.png"


def density(y):
  """Returns the density of the samples: a crowd near 0.75, few elsewhere."""
  # 0.1253 = sqrt(0.005 pi), the integral of the bump.
  return 0.4 + 0.6 * np.exp(-((y - 0.75) ** 2) / 0.005) / 0.1253


def draw(rng, count):
  """Draws samples from the density, by rejection."""
  samples = np.zeros(0)
  while len(samples) < count:
    y, height = rng.random((2, 4 * count))
    # The density is below 6 everywhere.
    samples = np.r_[samples, y[height * 6 < density(y)]]
  return samples[:count]


def integrand(y):
  """Returns exp(sim / tau); the similarity falls with the distance."""
  return np.exp(-np.abs(y - ANCHOR) / TAU)


def main() -> None:
  """Draws the figure."""
  grid = np.linspace(0, 1, 20_001)
  weight = density(grid)
  weight /= weight.mean()
  truth = integrand(grid).mean()
  rng = np.random.default_rng(0)
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.4), layout="constrained"
  )
  y = np.sort(draw(rng, 40))
  left.plot(grid, integrand(grid), color="#0072B2", label="exp(sim / τ)")
  left.plot(grid, weight / 6, color="#999", label="density q of the samples")
  q = np.interp(y, grid, weight)
  left.scatter(
    y, 0 * y - 0.06, 25 / q, color="#D55E00", label="samples, size 1 / q"
  )
  left.set(xlabel="y", title="One anchor, 40 samples")
  left.set_ylim(-0.15, 1.5)
  left.legend(frameon=False, fontsize=9, loc="upper left")
  for name, color, power in (
    ("equal weights", "#999", 0),
    ("weights 1 / q", "#D55E00", 1),
  ):
    errors = []
    for count in SIZES:
      draws = [draw(rng, count) for _ in range(SEEDS)]
      estimates = [
        np.mean(integrand(x) / np.interp(x, grid, weight) ** power)
        for x in draws
      ]
      errors.append(np.abs(np.log(np.array(estimates) / truth)).mean())
    right.loglog(SIZES, errors, "o-", color=color, label=name)
  right.set(
    xlabel="samples",
    ylabel="mean |log(estimate / integral)|",
    title="Error of the denominator",
  )
  right.legend(frameon=False, fontsize=9)
  right.grid(alpha=0.3)
  OUTPUT.parent.mkdir(exist_ok=True)
  figure.savefig(OUTPUT, dpi=110)


if __name__ == "__main__":
  main()

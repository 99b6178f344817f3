"""Measures how product precision affects exp(similarity / temperature).

python -m experiments.step_time.precision  # prints JSON

The vectors have unit norm and a common direction. CPUs have none of these
precisions, so their rounding is emulated: `bf16` and `tf32` round both
operands, `bf16 x 3` and `bf16 x 6` add the products of their leading parts.
Sums are float32. Errors are against float64.
"""

from absl import app, flags
import ml_dtypes
import numpy as np

from experiments.harness import benchmark

DIMS = flags.DEFINE_list("dims", ["256", "512"], "Widths of embeddings.")
ROWS = flags.DEFINE_integer("rows", 2048, "Vectors on each side.")
TEMPERATURE = 0.01


def bf16(x: np.ndarray) -> np.ndarray:
  """Rounds to a significand of 8 bits."""
  return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def tf32(x: np.ndarray) -> np.ndarray:
  """Rounds to a significand of 11 bits (halves away from zero)."""
  bits = x.view(np.uint32) + np.uint32(0x1000)
  return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def parts(x: np.ndarray) -> list[np.ndarray]:
  """Splits each float32 into three bf16 numbers that add up to it."""
  split = []
  for _ in range(3):
    split.append(bf16(x))
    x = x - split[-1]
  return split


def passes(a: np.ndarray, b: np.ndarray, depth: int) -> np.ndarray:
  """Sums the products of parts i and j with i + j < depth, smallest first.

  Depth 2 has three products, depth 3 has six.
  """
  a, b = parts(a), parts(b)
  pairs = [(i, j) for i in range(depth) for j in range(depth) if i + j < depth]
  return sum(a[i] @ b[j].T for i, j in sorted(pairs, key=sum, reverse=True))


FORMS = {
  "float32": lambda a, b: a @ b.T,
  "bf16 x 6": lambda a, b: passes(a, b, 3),
  "bf16 x 3": lambda a, b: passes(a, b, 2),
  "tf32": lambda a, b: tf32(a) @ tf32(b).T,
  "bf16": lambda a, b: bf16(a) @ bf16(b).T,
}


def errors(dim: int) -> list[dict]:
  """Measures the errors of every precision; returns a row for each."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, ROWS.value, dim)) + rng.normal(size=dim)
  x /= np.linalg.norm(x, axis=-1, keepdims=True)
  a, b = x.astype(np.float32)
  exact = a.astype(np.float64) @ b.astype(np.float64).T
  rows = []
  for name, product in FORMS.items():
    error = np.abs(product(a, b) - exact).max()
    factor = float(np.expm1(error / TEMPERATURE))
    rows.append(
      {
        "dim": dim,
        "precision": name,
        "error": float(error),
        "relative_error_of_exp": factor,
      }
    )
  return rows


def main(argv) -> None:
  """Measures all widths, and prints the JSON."""
  del argv
  rows = [row for dim in map(int, DIMS.value) for row in errors(dim)]
  settings = {"temperature": TEMPERATURE, "rows_a_side": ROWS.value}
  benchmark.show(benchmark.machine(), settings, {"rows": rows})


if __name__ == "__main__":
  app.run(main)

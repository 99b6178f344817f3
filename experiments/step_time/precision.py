"""Measures how product precision affects exp(similarity / temperature).

python -m experiments.step_time.precision  # prints JSON

The vectors have unit norm and a common direction. CPUs have none of these
precisions, so their rounding is emulated: `bf16` and `tf32` round both
operands, `bf16 x 3` and others add the products of their leading parts. Sums
are float32. Errors are against float64. On a GPU, --on_device measures the
products that it has, and `library`, that of the losses.
"""

import functools

from absl import app, flags
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from experiments.harness import benchmark
from experiments.step_time import common
from nuclr_jax.pairwise import tiles

DIMS = flags.DEFINE_list("dims", ["256", "512"], "Widths of embeddings.")
ROWS = flags.DEFINE_integer("rows", 2048, "Vectors on each side.")
ON_DEVICE = flags.DEFINE_bool("on_device", False, "Products of the device.")
TEMPERATURE = 0.01


def bf16(x: np.ndarray) -> np.ndarray:
  """Rounds to a significand of 8 bits."""
  return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def tf32(x: np.ndarray) -> np.ndarray:
  """Rounds to a significand of 11 bits (halves away from zero)."""
  bits = x.view(np.uint32) + np.uint32(0x1000)
  return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def parts(x: np.ndarray, rounded=bf16) -> list[np.ndarray]:
  """Splits each float32 into three rounded numbers that add up to it."""
  split = []
  for _ in range(3):
    split.append(rounded(x))
    x = x - split[-1]
  return split


def passes(
  a: np.ndarray, b: np.ndarray, depth: int, rounded=bf16
) -> np.ndarray:
  """Sums the products of parts i and j with i + j < depth, smallest first.

  Depth 2 has three products, depth 3 has six.
  """
  a, b = parts(a, rounded), parts(b, rounded)
  pairs = [(i, j) for i in range(depth) for j in range(depth) if i + j < depth]
  return sum(a[i] @ b[j].T for i, j in sorted(pairs, key=sum, reverse=True))


FORMS = {
  "float32": lambda a, b: a @ b.T,
  "bf16 x 6": lambda a, b: passes(a, b, 3),
  "tf32 x 3": lambda a, b: passes(a, b, 2, tf32),
  "bf16 x 3": lambda a, b: passes(a, b, 2),
  "tf32": lambda a, b: tf32(a) @ tf32(b).T,
  "bf16": lambda a, b: bf16(a) @ bf16(b).T,
}


def on_device(a: np.ndarray, b: np.ndarray, *, product) -> np.ndarray:
  """Computes a product on JAX's device."""
  return np.asarray(jax.jit(product)(a, b.T))


def forms() -> dict:
  """Returns the products that are measured, by name."""
  if not ON_DEVICE.value:
    return FORMS
  products = {
    name: functools.partial(jnp.matmul, precision=common.named(name))
    for name in common.ALGORITHMS
  } | {"library": tiles.product}
  return {
    name: functools.partial(on_device, product=product)
    for name, product in products.items()
  }


def errors(dim: int) -> list[dict]:
  """Measures the errors of every precision; returns a row for each."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, ROWS.value, dim)) + rng.normal(size=dim)
  x /= np.linalg.norm(x, axis=-1, keepdims=True)
  a, b = x.astype(np.float32)
  exact = a.astype(np.float64) @ b.astype(np.float64).T
  rows = []
  for name, product in forms().items():
    try:
      error = np.abs(product(a, b) - exact).max()
    except (ValueError, jax.errors.JaxRuntimeError) as refused:
      rows.append(dict(dim=dim, precision=name, refused=str(refused)[:500]))
      continue
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

"""Runs the examples of the core, with no libraries but its own.

python tests/core.py

`make test_core` starts it in an environment with JAX, jaxtyping and NumPy,
which has no pytest either. Each module of the core is imported, and the
examples in its docstrings, losses among them, must print what they say.
"""

import doctest
import importlib
import importlib.util
import math
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
OUTSIDE = ("lab", "contrib")
NOT_HERE = ("optax", "flax", "orbax", "absl", "grain", "cv2", "pytest")


def modules() -> list[str]:
  """Lists the modules of the core by name."""
  names = []
  for path in sorted((ROOT / "nuclr_jax").rglob("*.py")):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if not set(parts[1:2]) & set(OUTSIDE):
      names.append(".".join(parts))
  return names


def main() -> None:
  if installed := [x for x in NOT_HERE if importlib.util.find_spec(x)]:
    sys.exit(
      f"{', '.join(installed)} must not be installed; run make test_core"
    )
  jax.config.update("jax_num_cpu_devices", 8)
  sys.path.insert(0, str(ROOT))
  types = importlib.import_module("nuclr_jax.types")
  known = {"jax": jax, "jnp": jnp, "math": math, "np": np}  # as in conftest.py
  known |= {x: getattr(types, x) for x in ("Batch", "Pairs", "Sides", "Sizes")}
  options = {"optionflags": doctest.NORMALIZE_WHITESPACE, "extraglobs": known}
  failed, tried, names = 0, 0, modules()
  for name in names:
    result = doctest.testmod(importlib.import_module(name), **options)
    failed, tried = failed + result.failed, tried + result.attempted
  print(f"{len(names)} modules of the core, {tried} examples: {failed} fail")
  if failed or not tried:
    sys.exit(1)


if __name__ == "__main__":
  main()

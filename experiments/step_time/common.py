"""The loss step that several benchmarks time or compile, and its products."""

import jax

from nuclr_jax import Pairs, objectives
from nuclr_jax.objectives import Objective, zeta_rules

RECIPE = dict(temperature=0.01, gamma=0.8)  # of configs/cc3m.py
QUEUE = dict(size=16_384, rate=0.3)
# As stated by the maker, of an H100 and an H200 alike: dense flop/s. And of
# each algorithm its unit, its passes, and its name in precision.json.
PEAKS = {"float32": 67e12, "tf32": 494.5e12, "bf16": 989e12}
ALGORITHMS = {
  "F32": ("float32", 1, "float32"),
  "BF16_BF16_F32_X6": ("bf16", 6, "bf16 x 6"),
  "TF32_TF32_F32_X3": ("tf32", 3, "tf32 x 3"),
  "BF16_BF16_F32_X3": ("bf16", 3, "bf16 x 3"),
  "TF32_TF32_F32": ("tf32", 1, "tf32"),
  "BF16_BF16_F32": ("bf16", 1, "bf16"),
}
MEMORY = {"h100": 3.35e12, "h200": 4.8e12}  # bytes/s, as stated


def peak(algorithm: str) -> float:
  """Returns the flop/s of products, of which each takes all passes."""
  unit, passes, _ = ALGORITHMS[algorithm]
  return PEAKS[unit] / passes


def named(algorithm: str) -> jax.lax.Precision | jax.lax.DotAlgorithmPreset:
  """Returns what JAX calls an algorithm."""
  highest = jax.lax.Precision.HIGHEST
  return (
    highest if algorithm == "F32" else jax.lax.DotAlgorithmPreset[algorithm]
  )


def recipe(num_pairs: int, dim: int) -> Objective:
  """Makes NUCLR as in configs/cc3m.py, which needs more libraries to read."""
  queue = zeta_rules.queue(dim=dim, **QUEUE)
  return objectives.nuclr(num_pairs=num_pairs, zeta=queue, **RECIPE)


def loss_step(objective: Objective, **options):
  """Makes a jitted `(state, [image, text], ids) -> (state, gradient)`.

  The state is donated.

  Args:
    objective: An objective without params.
    **options: Options of `jax.jit`.
  """

  def step(state, vectors, ids):
    def loss(vectors):
      return objective.apply({}, state, Pairs(*vectors, ids))

    gradient, (state, _) = jax.grad(loss, has_aux=True)(vectors)
    return state, gradient

  return jax.jit(step, donate_argnums=0, **options)

"""The gradients that steps take, and how far they are from the right ones.

All gradients are the library's own: those of `objective.apply`, with respect to
vectors of any length that the loss sees at unit length, as encoders give them.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from experiments.harness import Place, Row
from experiments.popularity.at_scale.data import Embeddings
from nuclr_jax import Pairs, Sides, objectives
from nuclr_jax.objectives import Objective, zeta_rules
from nuclr_jax.types import State, each

NUM_EPOCHS = 8  # of random batches, twice


@functools.partial(jax.jit, static_argnums=0)
def mean_gradient(
  objective: Objective,
  params,
  state: State,
  vectors: Sides,
  ids: Int[Array, "steps batch"],
) -> Sides:
  """Averages the gradients of steps that all begin with this state.

  Returns:
    The gradient with respect to all images and texts; that of a step is 0 for
    those that are not in its batch.
  """

  def loss(rows, ids):
    unit = each(lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), rows)
    return objective.apply(params, state, Pairs(*unit, ids))[0]

  def step(total, ids):
    found = jax.grad(loss)(each(lambda x: x[ids], vectors), ids)
    return each(lambda x, g: x.at[ids].add(g), total, found), None

  zeros = each(jnp.zeros_like, vectors)
  total, _ = jax.lax.scan(step, zeros, ids)
  return each(lambda x: x / len(ids), total)


@functools.partial(jax.jit, static_argnums=0)
def with_exact_u(
  objective: Objective, params, state: State, vectors: Sides
) -> State:
  """Replaces u by the sums over all pairs, with the state's zeta."""
  pair = state.sample.pair
  never = each(lambda x: jnp.full_like(x, -jnp.inf), pair.log_u)
  unvisited = state._replace(
    sample=state.sample._replace(pair=pair._replace(log_u=never))
  )
  ids = jnp.arange(len(vectors.image))
  _, (new, _) = objective.apply(params, unvisited, Pairs(*vectors, ids))
  log_u = new.sample.pair.log_u
  sample = state.sample._replace(pair=pair._replace(log_u=log_u))
  return state._replace(sample=sample)


def of_all_pairs(
  vectors: Sides, temperature: float, zeta: Sides, xi: Sides
) -> Sides:
  """Computes the gradient of one batch of all pairs, in which u is exact."""
  n = len(vectors.image)
  objective = objectives.nuclr(
    num_pairs=n, temperature=temperature, zeta=zeta_rules.fixed(init=zeta)
  )
  params, state = objective.init()
  xi = each(lambda x: jnp.asarray(x, float), xi)
  state = state._replace(shared=state.shared._replace(xi=xi))
  state = with_exact_u(objective, params, state, vectors)
  return mean_gradient(objective, params, state, vectors, jnp.arange(n)[None])


def reference(
  final: Embeddings, temperature: float, exact: Sides, place: Place, seed: int
) -> Sides:
  """Computes the gradient with exact zeta, u and xi once, and keeps it."""
  n, dim = final.image.shape
  path = place.shared / f"gradient_{n}_{dim}_{temperature}_{seed}.npz"
  if not path.exists():
    vectors = Sides(*map(jnp.asarray, final))
    xi = each(lambda x: np.abs(x).max(), exact)
    found = of_all_pairs(vectors, temperature, exact, xi)
    part = path.with_suffix(f".{seed}.{id(found)}.npz")
    np.savez(part, **each(np.asarray, found)._asdict())
    part.replace(path)
  with np.load(path) as file:
    return Sides(file["image"], file["text"])


def scores(
  objective: Objective,
  params,
  state: State,
  final: Embeddings,
  target: Sides,
  *,
  batch_size: int,
  seed: int,
) -> Row:
  """Compares the steps from a state with the target.

  `step` is the relative error of the mean gradient of steps over random
  batches; `angle` is the sine of the angle between the two. Both are
  estimated from two halves whose noises are independent.
  """
  rng = np.random.default_rng([seed, 4])
  vectors = Sides(*map(jnp.asarray, final))
  n = len(final.image)
  steps = n // batch_size

  def half() -> Sides:
    epochs = [
      rng.permutation(n)[: steps * batch_size] for _ in range(NUM_EPOCHS)
    ]
    ids = jnp.asarray(np.concatenate(epochs), jnp.int32)
    ids = ids.reshape(-1, batch_size)
    return mean_gradient(objective, params, state, vectors, ids)

  return compare(half(), half(), target)


def compare(one: Sides, other: Sides, target: Sides) -> Row:
  """Returns the error and the sine of the angle, for each side's vectors."""
  row: Row = {"step": {}, "angle": {}}
  for side in Sides._fields:
    a, b, right = (
      np.asarray(getattr(x, side), np.float64) for x in (one, other, target)
    )
    row["step"][side] = relative(a - right, b - right, right)
    row["angle"][side] = sine(a, b, right)
  return row


def relative(
  one: Float[np.ndarray, "*shape"],
  other: Float[np.ndarray, "*shape"],
  target: Float[np.ndarray, "*shape"],
) -> float:
  """Returns the relative error.

  The product of two errors whose noises are independent has the noise's
  expectation in it only once: none.
  """
  square = max(float(np.sum(one * other)), 0.0)
  return square**0.5 / float(np.linalg.norm(target))


def sine(
  one: Float[np.ndarray, "*shape"],
  other: Float[np.ndarray, "*shape"],
  target: Float[np.ndarray, "*shape"],
) -> float:
  """Returns the sine of the angle between a mean of two and the target."""
  square = float(np.sum(one * other) * np.sum(target * target))
  along = float(np.sum(one * target) * np.sum(other * target))
  return max(1 - along / square, 0.0) ** 0.5

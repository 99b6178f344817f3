"""log u of every pair: as a method has it, and exactly.

u_i is the sum of exp((sim_ij - sim_ii - zeta_j) / temperature) over all
negatives j of the data, zeta being 0 but for NUCLR. Every method is asked
twice, of the final model:

  stored  without a batch: a row, the prototypes, or the network
  used    by the step that comes next, if the pair is in its batch

Each batch meets the same final state, so that none of them changes what the
others find.
"""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from nuclr_jax import Pairs, Sides, pairwise
from nuclr_jax.contrib.objectives.amorlip import network
from nuclr_jax.objectives import Objective, Readout
from nuclr_jax.sample_state import denominator
from nuclr_jax.types import Params, Sizes, State, both, each, swap

Stored, Used = Sides, Sides
# (state before and after the step, batch, log phi, settings) -> log u
Reader = Callable[..., tuple[Stored, Used]]


def of_batch(before, after, batch, log_phi, settings):
  """CLIP's: the batch with the positive, which counts as any other term."""
  del before, after
  positive = denominator.log_ratio(settings["sizes"], len(batch.pair_id))
  used = each(lambda x: jnp.logaddexp(x, positive), log_phi)
  return both(jnp.full_like(log_phi.image, jnp.nan)), used


def of_rows(before, after, batch, log_phi, settings):
  """A row for each pair."""
  del log_phi, settings

  def rows(state):
    return each(lambda x: x[batch.pair_id], state.sample.pair.log_u)

  return rows(before), rows(after)


def of_prototypes(before, after, batch, log_phi, settings):
  """NeuCLIP's alpha, of a mean over n - 1."""
  del log_phi
  tau, epsilon = settings["temperature"], settings["epsilon"]
  own = pairwise.own_similarity(batch)
  log_terms = math.log(settings["sizes"].num_pairs - 1)

  def log_u(state):
    def side(x, vector):
      cosine = x @ pairwise.unit_norm(vector).T
      log_sum = jax.nn.logsumexp((cosine - own[:, None]) / tau, axis=1)
      log_mean = log_sum - math.log(len(vector))
      return jnp.logaddexp(log_mean, math.log(epsilon)) + log_terms

    anchors = Sides(batch.image, batch.text)
    return each(side, anchors, swap(state.shared.vector))

  return log_u(before), log_u(after)


def of_network(before, after, batch, log_phi, settings):
  """AmorLIP's lambda, of a sum over the batch."""
  del after
  beta = settings["beta"]
  own = pairwise.own_similarity(batch) / settings["temperature"]
  ratio = denominator.log_ratio(settings["sizes"], len(batch.pair_id))
  log_positive = math.log(settings["positive_weight"]) + ratio

  def side(x, params):
    return network(params, x) - own + ratio

  def mixed(stored, log_phi):
    log_z = jnp.logaddexp(log_phi, log_positive)
    return jnp.logaddexp(math.log(beta) + stored, math.log1p(-beta) + log_z)

  anchors = Sides(batch.image, batch.text)
  stored = each(side, anchors, before.shared.previous)
  return stored, each(mixed, stored, log_phi)


READERS: dict[str, Reader] = {
  "batch": of_batch,
  "rows": of_rows,
  "prototypes": of_prototypes,
  "network": of_network,
}


def ask(
  reader: Reader,
  objective: Objective,
  params: Params,
  state: State,
  pairs: Pairs,
  *,
  sizes: Sizes,
  batch_size: int,
  seed: int,
  **settings,
) -> dict[str, Sides]:
  """Returns log u of all pairs: stored, used, and of batches alone.

  Args:
    reader: One of `READERS`.
    objective: The objective.
    params: Its parameters.
    state: Its state after training.
    pairs: The embeddings of all pairs by the final model.
    sizes: The sizes of the data.
    batch_size: The pairs in a batch; it divides their number.
    seed: Of the order of the pairs.
    **settings: `temperature`, and what else the reader needs.
  """
  settings |= {"sizes": sizes}
  zeta = zeta_of(objective.readout(params, state), pairs)

  @jax.jit
  def one(state, batch, zeta):
    logits = pairwise.logits(
      batch, temperature=settings["temperature"], bias=zeta
    )
    log_phi = denominator.estimate(logits, sizes)
    _, (after, _) = objective.apply(params, state, batch)
    stored, used = reader(state, after, batch, log_phi, settings)
    return {"stored": stored, "used": used, "batch": log_phi}

  n = len(pairs.pair_id)
  order = np.random.default_rng([seed, 1]).permutation(n)
  found = [
    one(state, *jax.tree.map(lambda x, r=rows: x[r], (pairs, zeta)))
    for rows in order.reshape(-1, batch_size)
  ]
  back = np.argsort(order)
  return jax.tree.map(lambda *x: np.concatenate(x)[back], *found)


def zeta_of(readout: Readout, pairs: Pairs) -> Sides:
  """Returns zeta of each pair's image and text; 0 where none is learned."""
  if readout.zeta is None:
    return both(np.zeros(len(pairs.pair_id), np.float32))
  return each(lambda x, i: np.asarray(x)[i], readout.zeta, pairs.ids)


def error(
  found: Float[Array, "pairs"], right: Float[Array, "pairs"]
) -> dict[str, float] | None:
  """Returns the mean of the error, its rms, and the rms without the mean.

  None if there is nothing to compare.

  Example:
    >>> error(np.array([1.0, 4.0]), np.array([0.0, 1.0]))
    {'mean': 2.0, 'rms': 2.2361, 'sd': 1.0}
  """
  difference = np.asarray(found, float) - right
  if np.isnan(difference).all():
    return None
  return {
    "mean": round(float(difference.mean()), 4),
    "rms": round(float(np.sqrt(np.mean(difference**2))), 4),
    "sd": round(float(difference.std()), 4),
  }

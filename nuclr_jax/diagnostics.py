"""How a training is doing, besides its loss.

All are of a fixed random sample of the training pairs, augmented as in
training and embedded by the model as it is evaluated.
"""

from collections.abc import Callable
from functools import partial
import logging

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float
import numpy as np

from nuclr_jax import alarms, pairwise, processes, sharding, tiles
from nuclr_jax.data.transforms import random_numbers
from nuclr_jax.experiment import Experiment, temperature_of
from nuclr_jax.models import unit_norm
from nuclr_jax.objectives import (
  State,
  denominator,
  rows,
  temperatures,
  zetas,
)
from nuclr_jax.objectives.denominator import mean_where
from nuclr_jax.train_state import TrainState
from nuclr_jax.types import Metrics, Pairs, Sides, Sizes, both, each, swap

log = logging.getLogger(__name__)

SAMPLE = 4_096  # pairs at most, unless a batch is larger
SETTLED = 1_000  # steps, or an epoch, before which nothing is alarming


def measure(
  pairs: Pairs,
  state: State,
  *,
  sizes: Sizes,
  batch_size: int,
  temperature: Float[Array, ""] | float | None,
) -> Metrics:
  r"""Numbers of a sample of m training pairs; a pure function.

  For images (texts likewise), with L_ij = (sim_ij - sim_ii - zeta_j) / tau and
  sums over the negatives of an anchor,

    alignment            mean_i sim_ii
    mean_cosine          of two different images' embeddings; 1 = collapsed
    dimensions           (tr C)^2 / tr C^2 of their covariance C
    effective_negatives  mean_i (sum_j e^{L_ij})^2 / sum_j e^{2 L_ij}, of
                         batches; in [1, batch_size - 1]
    u_drift              mean_i log u_i - log[(n - 1) / (m - 1) sum_j e^{L_ij}]
                         in nats: how far u is behind the model
    zeta_residual        root mean square over contrasts j of 1 - sum_i w_ij,
                         see `popularity.solve`; 0 at the exact zeta
    zeta_gain            1 - zeta_residual / (the residual of zeta = 0)
    temperature          mean tau

  u_drift and what is of zeta are there if the state has u of pairs, and zeta.
  Residuals have the noise of a sample: of 43,173 glyphs the exact zeta have a
  gain of 0.5 (images) and 0.6 (texts) with 4,096 pairs, 0.3 and 0.4 with 1,024.

  Args:
    pairs: The sample, of any norm; m is a multiple of `batch_size`.
    state: Of the objective.
    sizes: Of the training pairs.
    batch_size: Of training.
    temperature: Of the objective; None = it has none, and then there is nothing
      but alignment, mean_cosine and dimensions.

  Example:
    >>> pairs = Pairs(jnp.eye(4), jnp.eye(4), jnp.arange(4))
    >>> sizes = Sizes(100, 100, 100)
    >>> kind = dict(sizes=sizes, batch_size=4, temperature=0.5)
    >>> found = measure(pairs, State(), **kind)
    >>> print(found["effective_negatives/image"], found["dimensions/image"])
    3.0 3.0
  """
  pairs = pairs._replace(
    image=unit_norm(jnp.asarray(pairs.image, float)),
    text=unit_norm(jnp.asarray(pairs.text, float)),
  )
  sides = Sides(pairs.image, pairs.text)
  found = {
    "mean_cosine": each(_mean_cosine, sides),
    "dimensions": each(_dimensions, sides),
  }
  tau = _temperatures(state, pairs, temperature, sizes)
  if tau is not None:
    found |= _of_negatives(pairs, state, tau, sizes, batch_size)
  return {"alignment": jnp.mean(jnp.sum(sides.image * sides.text, axis=1))} | {
    f"{name}/{side}": value
    for name, both in found.items()
    for side, value in zip(Sides._fields, both, strict=True)
  }


def _mean_cosine(x):
  count = len(x)
  total = jnp.sum(jnp.square(jnp.sum(x, axis=0))) - jnp.sum(jnp.square(x))
  return total / max(count * (count - 1), 1)


def _dimensions(x):
  x = x - jnp.mean(x, axis=0, keepdims=True)
  gram = tiles.matmul(x.T, x)
  norm = jnp.sum(jnp.square(gram))
  return jnp.square(jnp.trace(gram)) / jnp.where(norm > 0, norm, 1.0)


def _temperatures(state, pairs, temperature, sizes) -> Sides | None:
  """Of each anchor, or one for all, or None."""
  if getattr(state.sample.pair, "temperature", None) is not None:
    return temperatures.read(state.sample.pair, pairs, sizes)
  return None if temperature is None else both(temperature)


def _of_negatives(pairs, state, tau, sizes, batch_size) -> dict[str, Sides]:
  """The numbers that look at negatives."""
  of_pairs, *id_rows = state.sample
  zeta = None
  if hasattr(id_rows[0], "zeta"):
    zeta = zetas.read(Sides(*id_rows), pairs, sizes)
  kind = dict(temperature=tau, bias=zeta)
  found = {
    "temperature": each(jnp.mean, tau),
    "effective_negatives": _effective(pairs, batch_size, **kind),
  }
  if hasattr(of_pairs, "log_u"):
    n = sizes.num_pairs
    log_u = each(lambda x: rows.read(x, pairs.pair_id, n), of_pairs.log_u)
    log_phi = denominator.estimate(pairs, sizes, **kind)
    found["u_drift"] = each(_mean_difference, log_u, log_phi)
  if zeta is not None:
    nothing = each(jnp.zeros_like, zeta)
    off, uniform = (_residual(pairs, x, tau, sizes) for x in (zeta, nothing))
    found["zeta_residual"] = off
    found["zeta_gain"] = each(
      lambda x, y: jnp.where(y > 0, 1 - x / y, 0.0), off, uniform
    )
  return found


def _effective(pairs, batch_size, *, temperature, bias) -> Sides:
  """Of each batch of the sample, on average."""
  count = len(pairs.pair_id) // batch_size

  def of_batch(batch):
    pairs, tau, bias = batch
    once = pairwise.log_sum_exp(pairs, temperature=tau, bias=bias)
    half = each(lambda x: x / 2, tau)
    twice = pairwise.log_sum_exp(pairs, temperature=half, bias=bias)
    return each(lambda a, b: 2 * a - b, once, twice)

  def split(x):
    return x.reshape(count, batch_size, *x.shape[1:])

  everyone = each(
    lambda x: jnp.broadcast_to(x, pairs.pair_id.shape), temperature
  )
  logs = jax.lax.map(of_batch, jax.tree.map(split, (pairs, everyone, bias)))
  return each(lambda x: mean_where(jnp.exp(x), jnp.isfinite(x)), logs)


def _mean_difference(log_u, log_phi):
  known = jnp.isfinite(log_u) & jnp.isfinite(log_phi)
  return mean_where(log_u - log_phi, known)


def _residual(pairs, zeta, tau, sizes) -> Sides:
  """Root mean square of 1 - sum_i w_ij over the contrasts, per side."""
  log_phi = denominator.estimate(pairs, sizes, temperature=tau, bias=zeta)
  # By anchor: the zeta of its own contrast, which is of the other side.
  log_own = each(lambda x, t: -x / t, swap(zeta), tau)
  total = each(jnp.logaddexp, log_own, log_phi)
  out = pairwise.weighted(
    pairs,
    temperature=tau,
    bias=zeta,
    row_log_weight=each(lambda x: -x, total),
  )
  gradient = zetas.gradient(
    "unbiased", out.contrast_sums, log_own, log_phi, sizes.num_pairs
  )
  there = denominator.has_negative(log_phi)

  def side(gradient, ids):
    off, known = rows.mean_by_id(gradient, ids, there)
    return jnp.sqrt(mean_where(jnp.square(off), known))

  return each(side, gradient, pairs.ids)


def of_run(parts: Experiment, mesh: Mesh) -> Callable[[TrainState], Metrics]:
  """Makes `measure` of a run's state, as `diagnostics/...`.

  Alarms are logged as warnings, after the first epoch or `SETTLED` steps.

  Args:
    parts: Of the run.
    mesh: Where it trains; to be entered when the result is called.
  """
  config, source, model = parts.config, parts.data.train, parts.model
  batch_size, seed, sizes = config["batch_size"], config["seed"], source.sizes
  count = max(1, min(SAMPLE, sizes.num_pairs) // batch_size)
  settled = min(sizes.num_pairs // batch_size, SETTLED)
  some = np.random.default_rng(seed).choice(
    sizes.num_pairs, count * batch_size, replace=False, shuffle=False
  )
  batches = np.sort(some).reshape(count, batch_size)
  layout = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)

  def put(x):
    return jax.make_array_from_callback(x.shape, layout, lambda at: x[at])

  @jax.jit
  def embed(params, model_state, batch):
    return model.apply(params, model_state, batch, key=None, train=False)[0]

  @partial(jax.jit, out_shardings=everywhere)
  def score(batches, state, temperature):
    pairs = jax.tree.map(lambda *x: jnp.concatenate(x), *batches)
    return measure(
      pairs,
      state,
      sizes=sizes,
      batch_size=batch_size,
      temperature=temperature,
    )

  def run(train_state):
    found = []
    for ids in batches:
      batch = source.fetch(ids, random_numbers(seed, 0, ids))
      batch = jax.tree.map(put, batch)
      model_params = train_state.params["model"]
      found.append(embed(model_params, train_state.model_state, batch))
    try:
      temperature = temperature_of(config, train_state.params)
    except ValueError:  # none, or one for each sample
      temperature = None
    scores = jax.device_get(score(found, train_state.objective, temperature))
    scores = {name: float(x) for name, x in scores.items()}
    step = int(train_state.step)
    if step >= settled and processes.is_first():
      for message in alarms.find(scores, batch_size=batch_size):
        log.warning("step %d: %s", step, message)
    return {f"diagnostics/{name}": x for name, x in scores.items()}

  return run

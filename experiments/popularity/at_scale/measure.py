"""Measures one way to zeta and u on embeddings that are given."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
from scipy.special import logsumexp

from experiments.harness import Place, Row, Run
from experiments.popularity.at_scale import data
from experiments.popularity.at_scale.ways import WAYS, make_objective
from experiments.step_time import hlo
from nuclr_jax import Pairs, Sides, popularity
from nuclr_jax.types import each, swap

TOLERANCE = 1e-4  # of the exact solution, unless a run says otherwise
NUM_ANCHORS = 512  # fresh ones, whose gradients are compared
NUM_TERMS = 2**14  # of each in random batches, twice


def measure(run: Run, place: Place) -> Row:
  """Follows a way over all epochs and compares it with the exact solution."""
  values = dict(run.values)
  n, tau = values["num_pairs"], values["temperature"]
  final = data.generate(num_pairs=n, dim=values["dim"], seed=run.seed)
  tolerance = values.get("tolerance", TOLERANCE)
  exact = exact_of(final, tau, place, run.seed, tolerance)
  way = WAYS[values["way"]]
  began = time.monotonic()
  if way.sample:
    zeta = popularity.solve_sampled(
      *final,
      temperature=tau,
      max_pairs=round(way.sample * n),
      key=jax.random.key(run.seed),
    ).zeta
    log_u, state, flops = None, (), None
  else:
    state, flops = follow(values, final, exact, run.seed)
    rows = state.sample
    zeta = Sides(*(np.asarray(x.zeta)[:n] for x in (rows.image, rows.text)))
    log_u = each(lambda x: np.asarray(x)[:n], rows.pair.log_u)
  row = {
    "num_pairs": n,
    "follow_seconds": round(time.monotonic() - began, 1),
  }
  row |= scores(final, values, zeta, log_u, exact, run.seed)
  row["flops"] = flops
  row["bytes"] = {
    name: sum(x.nbytes for x in jax.tree.leaves(part))
    for name, part in getattr(state, "_asdict", dict)().items()
  }
  return row


def exact_of(
  final: data.Embeddings,
  tau: float,
  place: Place,
  seed: int,
  tolerance: float,
) -> Sides:
  """Solves for the exact zeta once for all ways, and keeps it."""
  n, dim = final.image.shape
  path = place.shared / f"exact_{n}_{dim}_{tau}_{seed}.npz"
  if not path.exists():
    found = popularity.solve(*final, temperature=tau, tolerance=tolerance)
    if not found.converged:
      raise RuntimeError(f"no exact zeta: residual {found.residual:.1e}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{time.monotonic_ns()}.npz")
    np.savez(part, **found.zeta._asdict())
    part.replace(path)
  with np.load(path) as file:
    return Sides(file["image"], file["text"])


def follow(values, final: data.Embeddings, exact: Sides, seed: int):
  """Runs an objective over all epochs; returns its last state.

  The second result are the flops of a step's products.
  """
  n, batch = values["num_pairs"], values["batch_size"]
  num_epochs, steps = values["num_epochs"], n // batch
  objective = make_objective(
    values["way"],
    num_pairs=n,
    dim=values["dim"],
    temperature=values["temperature"],
    batch_size=batch,
    num_steps=num_epochs * steps,
    exact=exact,
  )
  params, state = objective.init()
  rows = jnp.zeros((batch, values["dim"]))
  some = Pairs(rows, rows, jnp.arange(batch))
  traced = jax.jit(objective.apply).trace(params, state, some)
  flops = hlo.count_products(traced.jaxpr.jaxpr)
  first = data.early(final, seed=seed) if values["drift"] else final
  ends = [jnp.asarray(x) for x in (*first, *final)]

  @functools.partial(jax.jit, donate_argnums=0)
  def epoch(state, ids, done):
    def step(state, row):
      i, ids = row
      share = (done + i / steps) / num_epochs  # of the way to the final ones
      share = jnp.where(values["drift"], 1 - (1 - share) ** 3, 1.0)
      mixed = [
        (1 - share) * old[ids] + share * new[ids]
        for old, new in zip(ends[:2], ends[2:], strict=True)
      ]
      image, text = (
        x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in mixed
      )
      _, (state, _) = objective.apply(params, state, Pairs(image, text, ids))
      return state, None

    return jax.lax.scan(step, state, (jnp.arange(steps), ids))[0]

  rng = np.random.default_rng([seed, 2])
  for done in range(num_epochs):
    ids = rng.permutation(n)[: steps * batch].reshape(steps, batch)
    state = epoch(state, jnp.asarray(ids, jnp.int32), jnp.float32(done))
  return state, flops


def scores(
  final: data.Embeddings,
  values,
  zeta: Sides,
  log_u: Sides | None,
  exact: Sides,
  seed: int,
) -> Row:
  """Compares zeta and log u with the exact ones; "text" is zeta of texts.

  `gradient` is the relative error of the encoders' gradient of fresh anchors
  with this zeta and its exact denominators, `step` that of the mean over
  batches, as a step takes it with its average u. `log_u` is the root mean
  square error of log u, given this zeta.
  """
  tau = values["temperature"]
  rng = np.random.default_rng([seed, 3])
  n = len(final.image)
  anchors = np.sort(rng.choice(n, min(NUM_ANCHORS, n), replace=False))
  row: Row = {"r2": {}, "spread": {}, "exact_sd": {}, "gradient": {}}
  row |= {} if log_u is None else {"log_u": {}, "step": {}}
  for side in Sides._fields:
    raw, best = (
      np.asarray(getattr(x, side), np.float64) for x in (zeta, exact)
    )
    mean, best = np.mean(raw), best - best.mean()
    z = raw - mean
    row["r2"][side] = float(1 - np.mean((z - best) ** 2) / np.var(best))
    row["spread"][side] = float(np.std(z) / np.std(best))
    row["exact_sd"][side] = float(np.std(best) / tau)
    contrast, others = (
      np.asarray(getattr(x, side), np.float64)
      for x in (Sides(*final), swap(Sides(*final)))
    )
    sim = others[anchors] @ contrast.T
    target, _ = gradient_of(contrast, weigh(sim, best, tau, anchors), anchors)
    terms = weigh(sim, z, tau, anchors)
    found, log_sum = gradient_of(contrast, terms, anchors)
    row["gradient"][side] = relative(found - target, found - target, target)
    if log_u is not None:
      # u has the weights of the rule's own zeta, which is not centred.
      u = np.asarray(getattr(swap(log_u), side), np.float64)[anchors]
      u = u + mean / tau
      row["log_u"][side] = float(np.sqrt(np.mean((u - log_sum) ** 2)))
      halves = (
        step_gradient(contrast, terms, anchors, u, values, rng) - target
        for _ in range(2)
      )
      row["step"][side] = relative(*halves, target)
  return row


class Terms(NamedTuple):
  """Logarithms of an anchor's terms, divided by exp(sim_ii / tau)."""

  others: Float[np.ndarray, "anchors pairs"]  # -inf for the own pair
  own: Float[np.ndarray, "anchors"]


def weigh(sim, zeta, tau: float, anchors) -> Terms:
  """Returns the terms of anchors: (sim_ij - sim_ii - zeta_j) / tau."""
  rows = np.arange(len(anchors))
  logits = (sim - sim[rows, anchors][:, None] - zeta) / tau
  logits[rows, anchors] = -np.inf
  return Terms(logits, -zeta[anchors] / tau)


def gradient_of(contrast, terms: Terms, anchors):
  """Returns sum_j w_ij (y_j - y_i) over all pairs, and log u."""
  log_u = logsumexp(terms.others, axis=1)
  log_total = np.logaddexp(log_u, terms.own)
  weights = np.exp(terms.others - log_total[:, None])
  return difference(contrast, weights, anchors), log_u


def step_gradient(contrast, terms: Terms, anchors, log_u, values, rng):
  """Returns the mean gradient of steps that begin with averages u."""
  batch_size, gamma = values["batch_size"], WAYS[values["way"]].gamma
  num_anchors, n = terms.others.shape
  num_draws = max(NUM_TERMS // batch_size, 4)
  weights = np.zeros_like(terms.others)
  scale = np.log((n - 1) / (batch_size - 1))
  for i in range(num_anchors):
    ids = rng.integers(n, size=(num_draws, batch_size - 1))
    logits = scale + terms.others[i, ids]
    estimate = logsumexp(logits, axis=1)
    new = np.logaddexp(np.log1p(-gamma) + log_u[i], np.log(gamma) + estimate)
    log_total = np.logaddexp(new, terms.own[i])
    each_weight = np.exp(logits - log_total[:, None]) / num_draws
    weights[i] = np.bincount(ids.ravel(), each_weight.ravel(), minlength=n)
  return difference(contrast, weights, anchors)


def difference(contrast, weights, anchors):
  """Returns sum_j weights_ij (y_j - y_i)."""
  return weights @ contrast - weights.sum(1)[:, None] * contrast[anchors]


def relative(one, other, target) -> float:
  """Returns the relative error, over all anchors together.

  The product of two errors whose noises are independent has the noise's
  expectation in it only once: none.
  """
  square = max(float(np.sum(one * other)), 0.0)
  return square**0.5 / float(np.linalg.norm(target))

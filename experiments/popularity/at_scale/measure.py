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
from experiments.popularity.at_scale import data, steps
from experiments.popularity.at_scale.ways import WAYS, make_objective
from nuclr_jax import Pairs, Sides, popularity
from nuclr_jax.lab import files
from nuclr_jax.lab.train import diagnostics
from nuclr_jax.objectives import Readout
from nuclr_jax.types import Sizes, State, both, each, swap
from tests.helpers import hlo

TOLERANCE = 1e-4  # of the exact solution, unless a run says otherwise
NUM_ANCHORS = 512  # fresh ones, whose gradients are compared


def measure(run: Run, place: Place) -> Row:
  """Follows a way over all epochs and compares it with the exact solution."""
  values = dict(run.values)
  if values.get("trace"):
    return costs(values)
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
    log_u, state = None, ()
  else:
    objective, params, state = follow(values, final, exact, run.seed)
    zeta = zeta_of(state, n)
    log_u = each(lambda x: np.asarray(x)[:n], state.sample.pair.log_u)
  row = {
    "num_pairs": n,
    "follow_seconds": round(time.monotonic() - began, 1),
  }
  row |= scores(final, values, zeta, log_u, exact, run.seed)
  if values.get("steps"):
    row |= of_steps(objective, params, state, final, values, exact, run, place)
  if values.get("gains"):
    row["gain"] = gains(final, values, zeta, run.seed)
  return row | {"bytes": bytes_of(state)}


def exact_of(
  final: data.Embeddings,
  tau: float,
  place: Place,
  seed: int,
  tolerance: float,
) -> Sides:
  """Solves for the exact zeta once for all ways, and keeps it."""
  n, dim = final.image.shape
  path = place.shared / f"exact_{n}_{dim}_{tau}_{seed}" / "zeta.npz"
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.locked(path.parent, wait=True):  # else all workers solve it
    if not path.exists():
      found = popularity.solve(*final, temperature=tau, tolerance=tolerance)
      if not found.converged:
        raise RuntimeError(f"no exact zeta: residual {found.residual:.1e}")
      part = path.with_suffix(".part.npz")
      np.savez(part, **found.zeta._asdict())
      part.replace(path)
  with np.load(path) as file:
    return Sides(file["image"], file["text"])


def zeta_of(state: State, n: int) -> Sides:
  """Returns the rows of zeta; 0 if the objective has none."""
  tables = Sides(state.sample.image, state.sample.text)
  if not jax.tree.leaves(tables):
    return both(np.zeros(n, np.float32))
  return each(lambda x: np.asarray(x.zeta)[:n], tables)


def follow(values, final: data.Embeddings, exact: Sides, seed: int):
  """Runs an objective over all epochs; returns it, params and last state."""
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
  first = data.early(final, seed=seed) if values["drift"] else final
  ends = [jnp.asarray(x) for x in (*first, *final)]

  @functools.partial(jax.jit, donate_argnums=0)
  def epoch(state, ends, ids, done):
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
    ids = jnp.asarray(ids, jnp.int32)
    state = epoch(state, ends, ids, jnp.float32(done))
  return objective, params, state


def of_steps(objective, params, state, final, values, exact, run, place) -> Row:
  """Scores the steps from a state against those with exact zeta, u and xi.

  `whole` is the relative error of a batch of all pairs, which has no noise of
  u: what is wrong with zeta and xi alone.
  """
  tau, n = values["temperature"], values["num_pairs"]
  target = steps.reference(final, tau, exact, place, run.seed)
  vectors = Sides(*map(jnp.asarray, final))
  if WAYS[values["way"]].exact_u:
    state = steps.with_exact_u(objective, params, state, vectors)
  row = steps.scores(
    objective,
    params,
    state,
    final,
    target,
    batch_size=values["batch_size"],
    seed=run.seed,
  )
  xi = getattr(state.shared, "xi", both(np.inf))  # SogCLR has no positive
  if values["whole"]:
    found = steps.of_all_pairs(vectors, tau, zeta_of(state, n), xi)
    row["whole"] = steps.compare(found, found, target)["step"]
  return row


def gains(final: data.Embeddings, values, zeta: Sides, seed: int) -> Row:
  """Returns `zeta_gain` with all pairs and, with its interval, a quarter."""
  n, batch_size = values["num_pairs"], values["batch_size"]
  readout = Readout(
    temperature=jnp.float32(values["temperature"]),
    zeta=each(jnp.asarray, zeta),
  )
  ids = np.random.default_rng([seed, 5]).permutation(n)
  row: Row = {}
  for name, rows in (("all", ids), ("quarter", ids[: n // 4])):
    pairs = Pairs(final.image[rows], final.text[rows], jnp.asarray(rows))
    run = functools.partial(
      diagnostics.measure, sizes=Sizes(n, n, n), batch_size=batch_size
    )
    found = jax.jit(run)(pairs, readout)
    for end in ("", "_low", "_high"):
      row[name + end] = {
        x: float(found[f"zeta_gain{end}/{x}"]) for x in Sides._fields
      }
  return row


def costs(values) -> Row:
  """Counts what an objective keeps, and the products of a step, by a trace."""
  n, batch, dim = (values[x] for x in ("num_pairs", "batch_size", "dim"))
  objective = make_objective(
    values["way"],
    num_pairs=n,
    dim=dim,
    temperature=values["temperature"],
    batch_size=batch,
    num_steps=1,
    exact=both(np.zeros(n)),
  )
  params, state = objective.init()
  vectors = jnp.zeros((batch, dim))
  pairs = Pairs(vectors, vectors, jnp.arange(batch))
  traced = jax.jit(objective.apply).trace(params, state, pairs)
  return {
    "num_pairs": n,
    "bytes": bytes_of(state),
    "flops": hlo.count_products(traced.jaxpr.jaxpr),
  }


def bytes_of(state) -> Row:
  """Returns the bytes of each part of a state."""
  return {
    name: sum(x.nbytes for x in jax.tree.leaves(part))
    for name, part in getattr(state, "_asdict", dict)().items()
  }


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
  with this zeta and its exact denominators. `log_u` is the root mean square
  error of log u, given this zeta.
  """
  tau = values["temperature"]
  rng = np.random.default_rng([seed, 3])
  n = len(final.image)
  anchors = np.sort(rng.choice(n, min(NUM_ANCHORS, n), replace=False))
  row: Row = {"r2": {}, "spread": {}, "exact_sd": {}, "gradient": {}}
  row |= {} if log_u is None else {"log_u": {}}
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
    error = found - target
    row["gradient"][side] = steps.relative(error, error, target)
    if log_u is not None:
      # u has the weights of the rule's own zeta, which is not centred.
      u = np.asarray(getattr(swap(log_u), side), np.float64)[anchors]
      u = u + mean / tau
      row["log_u"][side] = float(np.sqrt(np.mean((u - log_sum) ** 2)))
  return row


class Terms(NamedTuple):
  """Logarithms of an anchor's terms, divided by exp(sim_ii / tau)."""

  others: Float[np.ndarray, "anchors pairs"]  # -inf for the positive
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


def difference(contrast, weights, anchors, rows=slice(None)):
  """Returns sum_j weights_ij (y_j - y_i) over all pairs j, or some rows."""
  own = weights.sum(1)[:, None] * contrast[anchors]
  return weights @ contrast[rows] - own

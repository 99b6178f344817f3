"""SogCLR: the global contrastive loss with a moving average per anchor."""

from functools import partial
import math
from typing import NamedTuple, SupportsIndex

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import pairwise
from nuclr_jax.objectives import base, rows
from nuclr_jax.types import Number, Pairs, ScalarOrSchedule, Sides, Sizes, each

NO_OWN_PAIR = Sides(-jnp.inf, -jnp.inf)  # log epsilon = log 0


class PairRows(NamedTuple):
  """State of a pair, one row per `pair_id`."""

  log_u: Sides  # [num_pairs] each; .image: images as anchors


class IdRows(NamedTuple):
  """State of an anchor id when `anchor_average="id"`."""

  log_u: Float[Array, "ids"]


class Shared(NamedTuple):
  """Scalars."""

  count: Int[Array, ""]


def sogclr(
  *,
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None = None,
  num_texts: SupportsIndex | None = None,
  temperature: Number = 0.07,
  gamma: ScalarOrSchedule = 0.8,
  anchor_average: str = "pair",
) -> base.Objective:
  r"""Global contrastive loss with a moving average of each denominator.

  With h_ij = (sim_ij - sim_ii) / temperature, the loss of anchor i is
  temperature * log u_i, where u_i tracks sum_{j != i} exp(h_ij) over all
  pairs, not over the batch: u_i <- (1 - gamma) u_i + gamma * batch estimate.
  Rows never visited hold -inf and take the batch estimate. Images and texts
  are anchors in turn; the loss is the sum of both means.

  Args:
    num_pairs: Rows of state, four bytes each and side; `pair_id` is in
      [0, num_pairs).
    num_images: Distinct images (default `num_pairs`); pairs that share one are
      not negatives of each other.
    num_texts: Likewise for texts.
    temperature: Divides cosine similarities; greater than 0.
    gamma: Weight of the new estimate, in (0, 1], or a schedule of the step.
    anchor_average: "pair" (the paper's) keeps one u per pair; "id" one u per
      image id for images as anchors and one per text id for texts.

  Returns:
    An `Objective` without params; `State.sample.pair.log_u` has leaves `image`
    and `text`, each [num_pairs] (with "id": `State.sample.image.log_u`
    [num_images] and `State.sample.text.log_u` [num_texts]).

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> objective = sogclr(num_pairs=4, temperature=0.1)
    >>> params, state = objective.init()
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> loss, (state, _) = objective.apply(params, state, pairs)
    >>> print(f"{loss:.3f}", state.sample.pair.log_u.image)
    -1.780 [-8.901388      -inf      -inf -8.901388]

  Reference: Yuan et al., Provable Stochastic Optimization for Global
    Contrastive Learning, ICML 2022.
  """
  temperature = base.check_temperature(temperature)
  base.check_choice("anchor_average", anchor_average, ("pair", "id"))
  sizes = base.check_sizes(num_pairs, num_images, num_texts)
  gamma = base.check_schedule("gamma", gamma, low=0.0, high=1.0)

  def init():
    if anchor_average == "pair":
      log_u = unvisited(Sides(sizes.num_pairs, sizes.num_pairs))
      sample = base.Rows(pair=PairRows(log_u))
    else:
      log_u = unvisited(sizes.ids)
      sample = base.Rows(image=IdRows(log_u.image), text=IdRows(log_u.text))
    return {}, base.State(sample, Shared(count=jnp.zeros((), jnp.int32)))

  def apply(params, state, pairs):
    del params
    log_phi = estimate(pairs, sizes, temperature=temperature)
    gamma_now = gamma(state.shared.count)
    if anchor_average == "pair":
      tables = state.sample.pair.log_u
      tables, log_u = track_pairs(tables, pairs, log_phi, gamma_now, sizes)
      sample = base.Rows(pair=PairRows(tables))
    else:
      tables = Sides(state.sample.image.log_u, state.sample.text.log_u)
      tables, log_u = track_ids(tables, pairs, log_phi, gamma_now, sizes)
      sample = base.Rows(image=IdRows(tables.image), text=IdRows(tables.text))
    value, row_log_weight = anchor_loss(
      log_phi, log_u, sizes, temperature=temperature
    )
    out = pairwise.weighted(
      pairs, temperature=temperature, row_log_weight=row_log_weight
    )
    loss = base.attach_gradient(value, out.surrogate)
    state = base.State(sample, Shared(count=state.shared.count + 1))
    return loss, (state, log_u_metrics(log_u))

  return base.Objective(init, apply)


def unvisited(num_rows: Sides) -> Sides:
  """The first log_u of both sides: -inf, never visited."""
  return each(lambda n: jnp.full(n, -jnp.inf, float), num_rows)


def log_negatives(sizes: Sizes, batch: int) -> float:
  """log((n - 1) / (B - 1)): from a sum over the batch to one over the data."""
  return math.log((sizes.num_pairs - 1) / max(batch - 1, 1))


def estimate(
  pairs: Pairs, sizes: Sizes, *, temperature, bias: Sides | None = None
) -> Sides:
  """Estimates log phi_i of every anchor; -inf where it has no negative."""
  factor = log_negatives(sizes, len(pairs.pair_id))
  lse = pairwise.log_sum_exp(pairs, temperature=temperature, bias=bias)
  return each(lambda x: x + factor, lse)


def track_pairs(
  log_u: Sides, pairs: Pairs, log_phi: Sides, gamma, sizes: Sizes
) -> tuple[Sides, Sides]:
  """Moves each pair's averages; returns the tables and the batch's new rows."""
  ids = Sides(pairs.pair_id, pairs.pair_id)
  num_rows = Sides(sizes.num_pairs, sizes.num_pairs)
  return _track(log_u, ids, log_phi, gamma, num_rows)


def track_ids(
  log_u: Sides, pairs: Pairs, log_phi: Sides, gamma, sizes: Sizes
) -> tuple[Sides, Sides]:
  """As `track_pairs`, with one average per anchor id instead of per pair."""
  return _track(log_u, pairs.ids, log_phi, gamma, sizes.ids)


def _track(log_u, ids, log_phi, gamma, num_rows) -> tuple[Sides, Sides]:
  """Moves both sides; returns the tables and the batch's new rows."""
  tracked = each(partial(_track_side, gamma), log_u, ids, log_phi, num_rows)
  return tuple(Sides(*x) for x in zip(*tracked, strict=True))


def _track_side(gamma, table, ids, log_phi, num_rows):
  """Moves u <- (1 - gamma) u + gamma phi, in log space.

  phi is averaged (in linear space) over rows of the batch with equal ids.
  A row never visited takes phi; a row without negatives stays as it was.
  """
  old = rows.read(table, ids, num_rows).astype(log_phi.dtype)
  phi = rows.log_mean_exp_by_id(log_phi, ids)
  moved = jnp.logaddexp(jnp.log1p(-gamma) + old, jnp.log(gamma) + phi)
  new = jnp.where(old == -jnp.inf, phi, moved)
  new = jnp.where(phi == -jnp.inf, old, new)
  return rows.write(table, ids, new, num_rows), new


def anchor_loss(
  log_phi: Sides,
  log_u: Sides,
  sizes: Sizes,
  *,
  temperature,
  log_epsilon: Sides = NO_OWN_PAIR,
) -> tuple[base.Scalar, Sides]:
  """The loss, and the weight of each anchor in its gradient.

  The loss is mean_i temperature log(epsilon_i + u_i), summed over both sides;
  its gradient (1 / B) sum_i temperature / (epsilon_i + u_i) grad phi_i, with
  u and epsilon held constant. Anchors without negatives add nothing.

  Returns:
    The loss and `row_log_weight` for `pairwise.weighted`.
  """

  def side(log_phi, log_u, log_epsilon):
    batch = len(log_phi)
    lonely = log_phi == -jnp.inf
    log_denominator = jnp.logaddexp(log_epsilon, log_u)
    loss = jnp.where(lonely, 0.0, temperature * log_denominator)
    factor = math.log(temperature / batch) + log_negatives(sizes, batch)
    return jnp.mean(loss), jnp.where(lonely, -jnp.inf, factor - log_denominator)

  image, text = each(side, log_phi, log_u, log_epsilon)
  return image[0] + text[0], Sides(image[1], text[1])


def log_u_metrics(log_u: Sides) -> dict[str, base.Scalar]:
  """Mean log u of the batch's visited rows, per side."""

  def mean(x):
    visited = x != -jnp.inf
    return jnp.sum(x, where=visited) / jnp.maximum(jnp.sum(visited), 1)

  return {"log_u/image": mean(log_u.image), "log_u/text": mean(log_u.text)}

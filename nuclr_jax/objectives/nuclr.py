"""NUCLR: the global contrastive loss with learned popularities."""

from functools import partial
import math
from typing import NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import pairwise
from nuclr_jax.objectives import base, rows, sogclr
from nuclr_jax.types import Number, ScalarOrSchedule, Sides, each, swap

ESTIMATORS = ("unbiased", "paper", "official")


class IdRows(NamedTuple):
  """State of a contrast id, one row per `image_id` or `text_id`."""

  zeta: Float[Array, "ids"]
  momentum: Float[Array, "ids"]  # of the gradient of zeta; 0 = untouched
  log_u: Float[Array, "ids"] | None = None  # only if anchor_average = "id"


class Shared(NamedTuple):
  """Scalars."""

  xi: Sides  # running max of |zeta|; .text is used with images as anchors
  count: Int[Array, ""]  # steps done; schedules read it


def nuclr(
  *,
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None = None,
  num_texts: SupportsIndex | None = None,
  temperature: Number = 0.05,
  gamma: ScalarOrSchedule = 0.8,
  zeta_init: Number = 0.0,
  xi_init: Number | None = None,
  zeta_estimator: str = "unbiased",
  zeta_center: bool | None = None,
  own_pair: str = "xi",
  anchor_average: str = "pair",
  zeta_learning_rate: ScalarOrSchedule | Sides = 1e-3,
  zeta_momentum: Number = 0.1,
) -> base.Objective:
  r"""Non-uniform contrastive loss with a learned popularity per sample.

  For images as anchors (texts likewise, with their own state), with
  L_ij = (sim_ij - sim_ii - zeta_j) / temperature for i != j:

    phi_i   = (n - 1) / (B - 1) sum_{j != i} exp(L_ij)
    u_i    <- (1 - gamma) u_i + gamma phi_i            (kept as log_u)
    loss    = mean_i temperature log(epsilon_i + u_i)
    zeta_j <- zeta_j - zeta_learning_rate * momentum of g_j

  The denominator is a Monte Carlo integral over texts and exp(zeta_j /
  temperature) is, up to a factor, the popularity that makes it right. The
  encoders' gradient is (1 / B) sum_i temperature / (epsilon_i + u_i)
  grad phi_i with u and epsilon constant. epsilon_i = exp(-xi / temperature)
  with xi the running maximum of |zeta|. The three estimators of the gradient
  of zeta, with w_ij = exp(L_ij) / (epsilon'_i + u_i),
  w_jj = epsilon'_j / (epsilon'_j + u_j), epsilon'_i = exp(-zeta_i /
  temperature):

    unbiased  1 - w_jj - (n - 1) / (B - 1) sum_{i in B, i != j} w_ij
    paper     1 - (n / B) [w_jj + (n - 1) / (B - 1) sum w_ij]   (eq. 14)
    official  1 - (n / B) [w_jj + sum w_ij]               (the released code)

  Pairs that share an image or a text are not negatives of each other. Rows
  without any negative change nothing. Several pairs of a batch with one id
  move its row once, by the mean of their gradients (of their phi for u).

  Args:
    num_pairs: Pairs of the whole data set, n; `pair_id` is in [0, num_pairs).
    num_images: Distinct images (default `num_pairs`); rows of zeta of images.
    num_texts: Likewise for texts.
    temperature: Divides cosine similarities; greater than 0.
    gamma: Weight of the new estimate in u, in (0, 1], or a schedule of the
      step count.
    zeta_init: First zeta of every row, in units of similarity.
    xi_init: First xi; None means |zeta_init|; `math.inf` removes the own pair
      (as SogCLR does).
    zeta_estimator: "unbiased", "paper" or "official", see above.
    zeta_center: Whether to subtract the batch mean of the gradients of zeta,
      per side (the exact ones sum to 0; with u a moving average their mean is
      a drift). None means True for "unbiased" and False for the other two.
    own_pair: "xi" as above; "zeta" takes epsilon_i = exp(-zeta_i /
      temperature), the ablation of the paper (NUCLR-diamond).
    anchor_average: "pair" (the paper's) weights the encoders' gradient by one
      u per pair; "id" by one u per image id (text id for texts as anchors).
    zeta_learning_rate: Absolute, in units of similarity per step, 1e-3 by
      default (zeta acts through zeta / temperature, so 0.01 to 0.1 times the
      temperature is usual): a number, a schedule of the step count, or `Sides`
      of them for zeta of images and of texts. While it is 0, zeta and its
      momentum rest.
    zeta_momentum: In [0, 1): m <- zeta_momentum m + (1 - zeta_momentum) g;
      the first touch of a row sets m = g.

  Returns:
    An `Objective` without params. `State.sample.pair.log_u.image` and `.text`
    are [num_pairs], -inf = never visited; `State.sample.image` and `.text`
    hold `zeta` and `momentum` of that side as contrast; `State.shared` holds
    `xi` and `count`.

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> objective = nuclr(num_pairs=4, temperature=0.1)
    >>> params, state = objective.init()
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> loss, (state, _) = objective.apply(params, state, pairs)
    >>> print(f"{loss:.6f}", state.sample.pair.log_u.image)
    0.000027 [-8.901388      -inf      -inf -8.901388]
    >>> state.sample.text.zeta.shape, int(state.shared.count)
    ((4,), 1)

  Reference: Wang, Lei, Ying, Yang, On Discriminative Probabilistic Modeling
    for Self-Supervised Representation Learning, ICLR 2025, Algorithm 1;
    "unbiased" is derived in this library: given that j is in the batch, its
    own pair is always there, any other anchor with (B - 1) / (n - 1).
  """
  temperature = base.check_temperature(temperature)
  base.check_choice("zeta_estimator", zeta_estimator, ESTIMATORS)
  base.check_choice("own_pair", own_pair, ("xi", "zeta"))
  base.check_choice("anchor_average", anchor_average, ("pair", "id"))
  zeta_init = base.check_number(
    "zeta_init", zeta_init, "a finite number", math.isfinite
  )
  xi_init = base.check_number(
    "xi_init",
    abs(zeta_init) if xi_init is None else xi_init,
    "a number, `math.inf` or None",
    lambda x: x > -math.inf,
  )
  zeta_momentum = base.check_number(
    "zeta_momentum",
    zeta_momentum,
    "in [0, 1) (it weights the old momentum; the official theta = 0.9 is 0.1)",
    lambda x: 0 <= x < 1,
  )
  sizes = base.check_sizes(num_pairs, num_images, num_texts)
  gamma = base.check_schedule("gamma", gamma, low=0.0, high=1.0)
  rates = _check_rates(zeta_learning_rate)
  if zeta_center is None:
    zeta_center = zeta_estimator == "unbiased"

  def init():
    def id_rows(n):
      log_u = jnp.full(n, -jnp.inf, float) if anchor_average == "id" else None
      zeta = jnp.full(n, zeta_init, float)
      return IdRows(zeta, jnp.zeros(n), log_u)

    n = sizes.num_pairs
    log_u = sogclr.unvisited(Sides(n, n))
    sample = base.Rows(sogclr.PairRows(log_u), *each(id_rows, sizes.ids))
    xi = Sides(jnp.full((), xi_init, float), jnp.full((), xi_init, float))
    return {}, base.State(sample, Shared(xi, jnp.int32(0)))

  def apply(params, state, pairs):
    del params
    count, xi = state.shared.count, state.shared.xi
    id_rows = Sides(state.sample.image, state.sample.text)
    zeta = each(_read_zeta, id_rows, pairs.ids, sizes.ids)
    log_phi = sogclr.estimate(pairs, sizes, temperature=temperature, bias=zeta)

    tables = state.sample.pair.log_u
    tables, log_u = sogclr.track_pairs(
      tables, pairs, log_phi, gamma(count), sizes
    )
    pair_rows, encoder_log_u = sogclr.PairRows(tables), log_u
    if anchor_average == "id":
      tables = each(lambda x: x.log_u, id_rows)
      tables, encoder_log_u = sogclr.track_ids(
        tables, pairs, log_phi, gamma(count), sizes
      )
      id_rows = each(lambda x, u: x._replace(log_u=u), id_rows, tables)

    # An anchor's own pair: the zeta (or xi) of its contrast, the other side.
    log_own = each(lambda x: -x / temperature, swap(zeta))
    log_xi = each(lambda x: -x / temperature, swap(xi))
    value, row_log_weight = sogclr.anchor_loss(
      log_phi,
      encoder_log_u,
      sizes,
      temperature=temperature,
      log_epsilon=log_xi if own_pair == "xi" else log_own,
    )
    out = pairwise.weighted(
      pairs,
      temperature=temperature,
      bias=zeta,
      row_log_weight=row_log_weight,
      contrast_log_weight=each(_zeta_log_weight, log_phi, log_u, log_own),
    )

    gradient = partial(_gradient, zeta_estimator, zeta_center, sizes.num_pairs)
    w_own = each(lambda own, u: jax.nn.sigmoid(own - u), log_own, log_u)
    has_negative = each(lambda x: x != -jnp.inf, swap(log_phi))
    moved = each(
      partial(_move, zeta_momentum),
      id_rows,
      pairs.ids,
      each(gradient, out.contrast_sums, swap(w_own), has_negative),
      has_negative,
      each(lambda rate: rate(count), rates),
      sizes.ids,
    )
    zeta = each(_read_zeta, moved, pairs.ids, sizes.ids)
    xi = each(lambda x, z: jnp.maximum(x, jnp.max(jnp.abs(z))), xi, zeta)
    state = base.State(base.Rows(pair_rows, *moved), Shared(xi, count + 1))
    metrics = sogclr.log_u_metrics(log_u) | _zeta_metrics(zeta, xi)
    return base.attach_gradient(value, out.surrogate), (state, metrics)

  return base.Objective(init, apply)


def _check_rates(rate) -> Sides:
  """Makes a schedule of the rate of each side."""
  check = partial(
    base.check_schedule,
    "zeta_learning_rate",
    low=0.0,
    high=math.inf,
    low_allowed=True,
  )
  return each(check, rate if isinstance(rate, Sides) else Sides(rate, rate))


def _read_zeta(id_rows: IdRows, ids, num_rows):
  return rows.read(id_rows.zeta, ids, num_rows)


def _zeta_log_weight(log_phi, log_u, log_own):
  """-log(epsilon' + u): the weight of an anchor in the gradient of zeta."""
  lonely = log_phi == -jnp.inf
  return jnp.where(lonely, -jnp.inf, -jnp.logaddexp(log_own, log_u))


def _gradient(estimator, center, n, sums, own, has_negative):
  """The gradient of zeta of one side's contrast rows, see `nuclr`.

  Args:
    estimator: One of `ESTIMATORS`.
    center: Whether to subtract the batch mean.
    n: Pairs of the data set.
    sums: sum_{i != j} w_ij over the anchors of the batch, [batch].
    own: w_jj, [batch].
    has_negative: Rows without a negative neither count nor move, [batch].
  """
  batch = len(sums)
  all_anchors = (n - 1) / max(batch - 1, 1) * sums
  if estimator == "unbiased":
    gradient = 1 - own - all_anchors
  elif estimator == "paper":
    gradient = 1 - n / batch * (own + all_anchors)
  else:
    gradient = 1 - n / batch * (own + sums)
  if center:
    count = jnp.maximum(jnp.sum(has_negative), 1)
    gradient -= jnp.sum(gradient, where=has_negative) / count
  return gradient


def _move(beta, id_rows: IdRows, ids, gradient, valid, rate, num_rows):
  """One step of momentum descent on the rows of the batch, once per id."""
  gradient, touched = rows.mean_by_id(gradient, ids, valid)
  old = rows.read(id_rows.momentum, ids, num_rows)
  momentum = jnp.where(old == 0, gradient, beta * old + (1 - beta) * gradient)
  momentum = jnp.where(touched & (rate != 0), momentum, old)
  zeta = _read_zeta(id_rows, ids, num_rows)
  zeta = jnp.where(touched & (rate != 0), zeta - rate * momentum, zeta)
  return id_rows._replace(
    zeta=rows.write(id_rows.zeta, ids, zeta, num_rows),
    momentum=rows.write(id_rows.momentum, ids, momentum, num_rows),
  )


def _zeta_metrics(zeta: Sides, xi: Sides):
  """Spread of zeta over the batch's rows, and xi, per side."""
  return {
    "zeta/image_std": jnp.std(zeta.image),
    "zeta/text_std": jnp.std(zeta.text),
    "xi/image": xi.image,
    "xi/text": xi.text,
  }

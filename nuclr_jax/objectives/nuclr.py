"""NUCLR: the global contrastive loss with learned popularities."""

from typing import NamedTuple, SupportsIndex

import jax.numpy as jnp
from jaxtyping import Array, Int
import numpy as np

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base, denominator, queues, temperatures, zetas
from nuclr_jax.types import (
  Number,
  ScalarOrSchedule,
  Sides,
  both,
  check_pairs,
  each,
  swap,
)


class Shared(NamedTuple):
  """Scalars."""

  xi: Sides  # running max of |zeta|; .text is used with images as anchors
  count: Int[Array, ""]  # steps done; schedules read it
  queue: queues.Queue | None = None  # only if zeta_estimator = "sinkhorn"


def nuclr(
  *,
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None = None,
  num_texts: SupportsIndex | None = None,
  temperature: Number = 0.05,
  gamma: ScalarOrSchedule = 0.8,
  zeta_init: Number | Sides = 0.0,
  xi_init: Number | None = None,
  zeta_estimator: str = "unbiased",
  zeta_center: bool | None = None,
  own_pair: str = "xi",
  anchor_average: str = "pair",
  zeta_learning_rate: ScalarOrSchedule | Sides | None = None,
  zeta_momentum: Number = 0.1,
  zeta_queue: int = 4096,
  dim: int | None = None,
  temperature_learning_rate: ScalarOrSchedule | None = None,
  temperature_range: tuple[float, float] = (0.005, 0.5),
  temperature_momentum: Number = 0.5,
  rho: Number = 8.0,
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
  with xi the running maximum of |zeta|. The estimators of the gradient of
  zeta, with w_ij = exp(L_ij) / (epsilon'_i + u_i),
  w_jj = epsilon'_j / (epsilon'_j + u_j), epsilon'_i = exp(-zeta_i /
  temperature):

    unbiased  1 - w_jj - (n - 1) / (B - 1) sum_{i in B, i != j} w_ij
    paper     1 - (n / B) [w_jj + (n - 1) / (B - 1) sum w_ij]   (eq. 14)
    official  1 - (n / B) [w_jj + sum w_ij]               (the released code)
    sinkhorn  -temperature log(w_jj + sum over all anchors of w_ij)

  "sinkhorn" takes both sums over the last `zeta_queue` pairs (see `queues`): on
  glyphs its zeta correlate 0.87 (images) and 0.92 (texts) with the exact ones,
  those of "unbiased" 0.25 and 0.42.

  With `temperature_learning_rate` every pair has its own temperature on each
  side, as in `isogclr`: temperature_i replaces temperature above, the loss is
  mean_i temperature_i (log((epsilon_i + u_i) / n) + rho), and with
  w_ii = epsilon_i / (epsilon_i + u_i) the gradient of temperature_i is

    log((epsilon_i + u_i) / n) + rho - sum_j w_ij L_ij - w_ii log(epsilon_i).

  Pairs that share an image or a text are not negatives of each other. Rows
  without any negative change nothing. Several pairs of a batch with one id
  move its row once, by the mean of their gradients (of their phi for u). A NaN
  (a bad id or embedding) gives a NaN loss and stays in xi: stop, and go back to
  a state from before.

  Args:
    num_pairs: Pairs of the whole data set, n; `pair_id` is in [0, num_pairs).
    num_images: Distinct images (default `num_pairs`); rows of zeta of images.
    num_texts: Likewise for texts.
    temperature: Divides cosine similarities; greater than 0.
    gamma: Weight of the new estimate in u, in (0, 1], or a schedule of the
      step count.
    zeta_init: First zeta of every row, in units of similarity: a number, or
      `Sides` of arrays with one for each image id and text id (of an exact
      solution, see `popularity.solve`).
    xi_init: First xi; None means the greatest |zeta_init| of each side;
      `math.inf` removes the own pair (as SogCLR does).
    zeta_estimator: "unbiased", "paper", "official" or "sinkhorn", see above.
    zeta_center: Whether to subtract the batch mean of the gradients of zeta,
      per side (the exact ones sum to 0; with u a moving average their mean is
      a drift). None means False for "paper" and "official", else True.
    own_pair: "xi" as above; "zeta" takes epsilon_i = exp(-zeta_i /
      temperature), the ablation of the paper (NUCLR-diamond).
    anchor_average: "pair" (the paper's) weights the encoders' gradient by one
      u per pair; "id" by one u per image id (text id for texts as anchors).
    zeta_learning_rate: Absolute, in units of similarity per step, 1e-3 by
      default (zeta acts through zeta / temperature, so 0.01 to 0.1 times the
      temperature is usual); for "sinkhorn" the fraction of the way to its
      estimate, 0.3 by default. A number, a schedule of the step count, or
      `Sides` of them for zeta of images and of texts. While it is 0, zeta and
      its momentum rest.
    zeta_momentum: In [0, 1): m <- zeta_momentum m + (1 - zeta_momentum) g;
      the first touch of a row sets m = g. 0 saves four bytes a row.
    zeta_queue: Only for "sinkhorn": how many of the latest pairs it looks at,
      at least the batch size. 8 dim + 20 bytes each on every device.
    dim: Only for "sinkhorn": width of the embeddings.
    temperature_learning_rate: None for one fixed temperature; else, as the
      three arguments that follow, see `isogclr`.
    temperature_range: See `isogclr`.
    temperature_momentum: See `isogclr`.
    rho: See `isogclr`.

  Returns:
    An `Objective` without params. `State.sample.pair.log_u.image` and `.text`
    are [num_pairs], -inf = never visited; `State.sample.image` and `.text`
    hold `zeta` and `momentum` of that side as contrast; `State.shared` holds
    `xi`, `count` and the queue. Individual temperatures are
    `State.sample.pair.temperature`.

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
  temperature = checks.temperature(temperature)
  checks.choice("own_pair", own_pair, ("xi", "zeta"))
  checks.choice("anchor_average", anchor_average, ("pair", "id"))
  sizes = checks.sizes(num_pairs, num_images, num_texts)
  settings = zetas.check_settings(
    sizes,
    zeta_init=zeta_init,
    zeta_estimator=zeta_estimator,
    zeta_center=zeta_center,
    zeta_learning_rate=zeta_learning_rate,
    zeta_momentum=zeta_momentum,
  )
  first_xi = each(lambda zeta: float(np.max(np.abs(zeta))), settings.init)
  if xi_init is not None:
    allowed = "a number of at least 0, `math.inf` or None"
    xi_init = checks.number("xi_init", xi_init, allowed, lambda x: x >= 0)
    first_xi = both(xi_init)
  gamma = checks.schedule("gamma", gamma, low=0.0, high=1.0)
  sinkhorn = zeta_estimator == "sinkhorn"
  if sinkhorn:
    queues.check_queue(
      zeta_queue, dim, individual=temperature_learning_rate is not None
    )
  individual, offset = None, 0.0
  if temperature_learning_rate is not None:
    if anchor_average == "id":
      raise ValueError(
        "anchor_average must be 'pair' with temperature_learning_rate, got "
        "'id': a u per id would mix the temperatures of its pairs"
      )
    individual = temperatures.check_settings(
      temperature=temperature,
      temperature_range=temperature_range,
      temperature_learning_rate=temperature_learning_rate,
      temperature_momentum=temperature_momentum,
      rho=rho,
    )
    offset = temperatures.offset(individual.rho, sizes.num_pairs)

  def init():
    log_u = denominator.unvisited(both(sizes.num_pairs))
    pair_rows = denominator.PairRows(log_u)
    if individual is not None:
      first = temperatures.init_rows(individual, sizes)
      pair_rows = pair_rows._replace(**first)
    by_id = anchor_average == "id"
    id_rows = zetas.init_rows(settings, sizes, by_id=by_id)
    xi = each(lambda x: jnp.full((), x, float), first_xi)
    queue = queues.init_queue(zeta_queue, dim) if sinkhorn else None
    shared = Shared(xi, jnp.zeros((), jnp.int32), queue)
    return {}, base.State(base.Rows(pair_rows, *id_rows), shared)

  def apply(params, state, pairs):
    del params
    check_pairs(pairs)
    xi, count, queue = state.shared
    pair_rows, *id_rows = state.sample
    id_rows = Sides(*id_rows)
    zeta = zetas.read(id_rows, pairs, sizes)
    tau = both(temperature)
    if individual is not None:
      tau = temperatures.read(pair_rows, pairs, sizes)

    log_phi = denominator.estimate(pairs, sizes, temperature=tau, bias=zeta)
    has_negative = denominator.has_negative(log_phi)
    tables, log_u = denominator.track(
      pair_rows.log_u,
      both(pairs.pair_id),
      log_phi,
      gamma(count),
      both(sizes.num_pairs),
    )
    pair_rows, encoder_log_u = pair_rows._replace(log_u=tables), log_u
    if anchor_average == "id":
      tables = each(lambda x: x.log_u, id_rows)
      tables, encoder_log_u = denominator.track(
        tables, pairs.ids, log_phi, gamma(count), sizes.ids
      )
      id_rows = each(lambda x, u: x._replace(log_u=u), id_rows, tables)

    # An anchor's own pair: the zeta (or xi) of its contrast, the other side.
    log_own = each(lambda x, t: -x / t, swap(zeta), tau)
    log_epsilon = log_own
    if own_pair == "xi":
      log_epsilon = each(lambda x, t: -x / t, swap(xi), tau)
    log_denominator = each(jnp.logaddexp, log_epsilon, encoder_log_u)
    value, row_log_weight = denominator.anchor_loss(
      log_phi, log_denominator, sizes, temperature=tau, offset=offset
    )
    out = pairwise.weighted(
      pairs,
      temperature=tau,
      bias=zeta,
      row_log_weight=row_log_weight,
      # -log(epsilon' + u)
      contrast_log_weight=each(
        lambda o, u: -jnp.logaddexp(o, u), log_own, log_u
      ),
    )

    if sinkhorn:
      queue, gradient = queues.advance(
        queue,
        id_rows,
        pairs,
        zeta,
        log_phi,
        temperature=temperature,
        count=count,
        sizes=sizes,
      )
    else:
      gradient = zetas.gradient(
        zeta_estimator, out.contrast_sums, log_own, log_u, sizes.num_pairs
      )
    id_rows, zeta = zetas.step(
      settings, id_rows, pairs, gradient, has_negative, count, sizes
    )
    xi = each(lambda x, z: jnp.maximum(x, jnp.max(jnp.abs(z))), xi, zeta)
    metrics = denominator.log_u_metrics(log_u) | zetas.metrics(zeta, xi)
    if individual is not None:
      pair_rows = temperatures.step(
        individual,
        pair_rows,
        pairs,
        log_denominator,
        out.mean_logit,
        has_negative,
        count,
        sizes,
        offset=offset,
        log_own=log_epsilon,
      )
      metrics |= temperatures.metrics(tau)
    shared = Shared(xi, count + 1, queue)
    state = base.State(base.Rows(pair_rows, *id_rows), shared)
    return base.attach_gradient(value, out.surrogate), (state, metrics)

  return base.Objective(init, apply)

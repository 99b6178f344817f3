"""iSogCLR: the global contrastive loss with a temperature for each anchor."""

from typing import SupportsIndex

import jax.numpy as jnp

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base, denominator, temperatures
from nuclr_jax.types import Number, ScalarOrSchedule, both, check_pairs


def isogclr(
  *,
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None = None,
  num_texts: SupportsIndex | None = None,
  temperature: Number = 0.05,
  temperature_range: tuple[float, float] = (0.005, 0.5),
  temperature_learning_rate: ScalarOrSchedule = 1e-3,
  temperature_momentum: Number = 0.5,
  rho: Number = 8.0,
  gamma: ScalarOrSchedule = 0.8,
) -> base.Objective:
  r"""Global contrastive loss with individual temperatures (RGCL).

  With h_ij = (sim_ij - sim_ii) / temperature_i, u_i as in `sogclr`, n pairs
  and w_ij = exp(h_ij) / u_i over the batch's negatives, times
  (n - 1) / (B - 1):

    loss          = mean_i temperature_i (log(u_i / (n - 1)) + rho)
    g_i           = log(u_i / (n - 1)) + rho - sum_j w_ij h_ij, within [-5, 5]
    m_i          <- temperature_momentum m_i + (1 - temperature_momentum) g_i
    temperature_i <- temperature_i - temperature_learning_rate m_i

  It is distributionally robust: where the temperature is not at an end of its
  range, the KL divergence of w_i from uniform weights is rho at the optimum,
  so rho below log(n - 1) says how sharply an anchor chooses its negatives.
  Pairs are anchors twice, as images and as texts, with a temperature each.

  Args:
    num_pairs: Rows of state, twelve bytes each and side; `pair_id` is in
      [0, num_pairs).
    num_images: Distinct images (default `num_pairs`); pairs that share one are
      not negatives of each other.
    num_texts: Likewise for texts.
    temperature: First temperature of every anchor; greater than 0.
    temperature_range: Smallest and largest temperature (published: 0.005,
      0.05).
    temperature_learning_rate: Absolute, per step: a number of at least 0 or a
      schedule of the step count. While it is 0, temperatures and their
      momentum rest.
    temperature_momentum: In [0, 1), weight of the old momentum.
    rho: See above; published 6 to 8 for millions of pairs.
    gamma: Weight of the new estimate in u, in (0, 1], or a schedule.

  Returns:
    An `Objective` without params. `State.sample.pair` has `log_u`,
    `temperature` and `temperature_momentum`, each with leaves `image` and
    `text` of [num_pairs].

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> objective = isogclr(num_pairs=4, temperature=0.1, rho=1.0)
    >>> params, state = objective.init()
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> loss, (state, _) = objective.apply(params, state, pairs)
    >>> print(f"{loss:.3f}")  # 2 * 0.1 * (log(3 exp(-10) / 3) + 1)
    -1.800
    >>> state.sample.pair.temperature.image  # one negative: uniform, KL = 0
    Array([0.0995, 0.1   , 0.1   , 0.0995], dtype=float32)

  Reference: Qiu et al., Not All Semantics are Created Equal: Contrastive
    Self-supervised Learning with Automatic Temperature Individualization,
    ICML 2023.
  """
  sizes = checks.sizes(num_pairs, num_images, num_texts)
  gamma = checks.schedule("gamma", gamma, low=0.0, high=1.0)
  individual = temperatures.check_settings(
    temperature=checks.temperature(temperature),
    temperature_range=temperature_range,
    temperature_learning_rate=temperature_learning_rate,
    temperature_momentum=temperature_momentum,
    rho=rho,
  )
  offset = temperatures.offset(individual.rho, sizes.num_pairs - 1)

  def init():
    pair_rows = denominator.PairRows(
      log_u=denominator.unvisited(both(sizes.num_pairs)),
      **temperatures.init_rows(individual, sizes),
    )
    shared = denominator.Shared(count=jnp.zeros((), jnp.int32))
    return {}, base.State(base.Rows(pair=pair_rows), shared)

  def apply(params, state, pairs):
    del params
    check_pairs(pairs)
    count, pair_rows = state.shared.count, state.sample.pair
    tau = temperatures.read(pair_rows, pairs, sizes)
    log_phi = denominator.estimate(pairs, sizes, temperature=tau)
    tables, log_u = denominator.track(
      pair_rows.log_u,
      both(pairs.pair_id),
      log_phi,
      gamma(count),
      both(sizes.num_pairs),
    )
    value, row_log_weight = denominator.anchor_loss(
      log_phi, log_u, sizes, temperature=tau, offset=offset
    )
    out = pairwise.weighted(
      pairs, temperature=tau, row_log_weight=row_log_weight
    )
    pair_rows = temperatures.step(
      individual,
      pair_rows._replace(log_u=tables),
      pairs,
      log_u,
      out.mean_logit,
      denominator.has_negative(log_phi),
      count,
      sizes,
      offset=offset,
    )
    state = base.State(
      base.Rows(pair=pair_rows), denominator.Shared(count=count + 1)
    )
    metrics = denominator.log_u_metrics(log_u) | temperatures.metrics(tau)
    return base.attach_gradient(value, out.surrogate), (state, metrics)

  return base.Objective(init, apply)

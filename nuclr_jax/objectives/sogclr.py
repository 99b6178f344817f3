"""SogCLR and iSogCLR: a moving average of every anchor's denominator."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base, temperature_rules
from nuclr_jax.sample_state import denominator
from nuclr_jax.sample_state.table import read_batch, write_batch
from nuclr_jax.types import (
  PyTree,
  Sample,
  Sides,
  State,
  both,
  each,
  shows_its_call,
)


class Shared(NamedTuple):
  """The state that is the same for all samples."""

  count: Int[Array, ""]  # steps done; schedules read it
  temperature: PyTree  # of the temperature's rule


class AnchorRows(NamedTuple):
  """State of an anchor id, with `anchor_average="id"`."""

  log_u: Float[Array, "ids"]


@shows_its_call
@checks.checked
def sogclr(
  *,
  num_pairs: checks.NumPairs,
  num_images: checks.Count | None = None,
  num_texts: checks.Count | None = None,
  temperature: temperature_rules.TemperatureOrRule = 0.07,
  gamma: denominator.GammaOrRule = 0.8,
  positive_weight: checks.NonNegative = 0.0,
  anchor_average: denominator.AnchorAverage = "pair",
) -> base.Objective:
  r"""Makes a global contrastive loss with moving averages of denominators.

  With h_ij = (sim_ij - sim_ii) / temperature, the loss of anchor i is
  temperature * log u_i, where u_i tracks sum_{j != i} exp(h_ij) over all
  pairs, not over the batch: u_i <- (1 - gamma) u_i + gamma * batch estimate.
  Rows never visited hold -inf and take the batch estimate. Images and texts
  are anchors in turn; the loss is the sum of both means.

  With a rule that learns the temperature, the loss of anchor i is
  temperature_i * (log(u_i / (n - 1)) + rho): `temperature_rules.learned` (one
  for all: RGCL-g, FastCLIP-v3) or `temperature_rules.individual` (iSogCLR, see
  `isogclr`).

  With a positive weight k, k + u_i replaces u_i in the loss, and n - 1 + k
  replaces n - 1. At gamma = 1 and k = (n - 1) / (B - 1), the gradient is
  2 temperature times that of `clip`: this weight and the average are all that
  distinguishes the two.

  Args:
    num_pairs: The number of pairs of the data set. Each has a row of state, at
      its `pair_id` in [0, num_pairs).
    num_images: The number of distinct images; None means `num_pairs`. It and
      `num_texts` size the tables of `anchor_average="id"`, and nothing else.
    num_texts: The number of distinct texts; None means `num_pairs`.
    temperature: Divides cosine similarities, greater than 0; or a rule.
    gamma: Weight of the new estimate, in (0, 1], or a schedule of the step
      count (in FastCLIP-v1 it falls as a cosine from 1 over the first half of
      training); or `denominator.Adaptive(...)`, which makes this SCENT, with
      its positive weight.
    positive_weight: The weight k of the positive in an anchor's denominator, at
      least 0; published: 0. Its effect in long training runs depends on the
      temperature (docs/concepts.md).
    anchor_average: "pair" (the paper's) keeps one u per pair; "id" one u per
      image id for images as anchors and one per text id for texts.

  Returns:
    An `Objective`; `State.sample.pair.log_u` has leaves `image`
    and `text`, each [num_pairs] (with "id": `State.sample.image.log_u`
    [num_images] and `State.sample.text.log_u` [num_texts]).

  Raises:
    ValueError: If an argument is out of its range, or for "id" with individual
      temperatures.

  Example:
    >>> objective = sogclr(num_pairs=4, temperature=0.1)
    >>> params, state = objective.init()
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> loss, (state, _) = objective.apply(params, state, pairs)
    >>> print(f"{loss:.3f}", state.sample.pair.log_u.image)
    -1.780 [-8.901388      -inf      -inf -8.901388]

  Reference: Yuan et al., Provable Stochastic Optimization for Global
    Contrastive Learning, ICML 2022; Wei et al., FastCLIP, 2024 (cosine gamma,
    learned temperature).
  """
  sizes = checks.sizes(num_pairs, num_images, num_texts)
  log_positive = denominator.log_of(positive_weight)
  taus = temperature_rules.rule_of(temperature)
  num_terms = sizes.num_pairs - 1 + positive_weight
  offset = temperature_rules.offset(taus, num_terms)
  by_id = denominator.averages_by_id(
    anchor_average, individual=taus.is_individual
  )

  def init():
    params, of_pairs = taus.init(sizes)
    if by_id:
      log_u = denominator.unvisited(sizes.ids)
      sample = Sample((), *each(AnchorRows, log_u))
    else:
      log_u = denominator.unvisited(both(sizes.num_pairs))
      sample = Sample(pair=denominator.PairRows(log_u, **of_pairs))
    shared = Shared(jnp.zeros((), jnp.int32), taus.init_shared())
    return params, State(sample, shared=shared)

  @base.whole_batch
  def apply(params, state, pairs):
    count, of_taus = state.shared
    old = read_batch(state.sample, pairs, sizes)
    tau = taus.read(params, old.pair, of_taus, pairs)
    logits = pairwise.logits(pairs, temperature=tau)
    log_phi = denominator.estimate(logits, sizes)
    log_epsilon = both(log_positive)
    if by_id:
      rows, ids = Sides(old.image.log_u, old.text.log_u), pairs.ids
    else:
      rows, ids = old.pair.log_u, both(pairs.pair_id)
    weights = denominator.log_weights(gamma, count, rows, log_epsilon, sizes)
    log_u = denominator.track(rows, ids, log_phi, weights)
    if by_id:
      new = Sample((), *each(AnchorRows, log_u))
    else:
      new = Sample(old.pair._replace(log_u=log_u))
    loss = denominator.anchor_loss(
      log_phi, log_u, log_epsilon, sizes, temperature=tau, offset=offset
    )
    out = pairwise.weighted(logits, row_log_weight=loss.row_log_weight)
    positive_share = each(
      lambda d: jnp.exp(log_positive - d), loss.log_denominator
    )
    moved = temperature_rules.Step(
      pairs=pairs,
      log_denominator=loss.log_denominator,
      positive_share=positive_share,
      positive_logit=both(0.0),
      mean_logit=out.mean_logit,
      has_negative=denominator.has_negative(log_phi),
      offset=offset,
      count=count,
    )
    new = new._replace(pair=taus.step(new.pair, moved))
    sample = write_batch(state.sample, pairs, sizes, old=old, new=new)
    metrics = denominator.log_u_metrics(log_u) | taus.metrics(tau)
    shared = Shared(count + 1, taus.step_shared(of_taus, moved))
    state = State(sample, shared=shared)
    # Both terms carry a gradient to the temperature: `loss.value` through the
    # factor, the surrogate through u.
    value = base.attach_gradient(loss.value, loss.value + out.surrogate)
    return pairwise.nan_without_negatives(value, pairs), (state, metrics)

  def readout(params, state):
    sample = state.sample
    tau = taus.readout(params, sample.pair)
    if by_id:
      averages = Sides(sample.image.log_u, sample.text.log_u)
      return base.Readout(temperature=tau, log_u_by_id=averages)
    return base.Readout(temperature=tau, log_u=sample.pair.log_u)

  return base.Objective(init, apply, readout)


@shows_its_call
@checks.checked
def isogclr(
  *,
  num_pairs: checks.NumPairs,
  num_images: checks.Count | None = None,
  num_texts: checks.Count | None = None,
  temperature: temperature_rules.FirstTemperature = 0.05,
  bounds: tuple[float, float] = (0.005, 0.5),
  rate: checks.Rate = 0.02,
  momentum: checks.Momentum = 0.5,
  rho: checks.Finite = 8.0,
  gamma: denominator.GammaOrRule = 0.8,
) -> base.Objective:
  r"""Makes a global contrastive loss with individual temperatures (RGCL).

  This is `sogclr` with `temperature_rules.individual`; with
  `nuclr_jax.contrib.tempnet`, whose networks tell the temperatures, `sogclr` is
  iSogCLR with TempNet. With n pairs, h_ij =
  (sim_ij - sim_ii) / temperature_i, u_i as in `sogclr`, and w_ij =
  (n - 1) / (B - 1) exp(h_ij) / u_i over the batch's negatives:

    loss          = mean_i temperature_i (log(u_i / (n - 1)) + rho)
    g_i           = log(u_i / (n - 1)) + rho - sum_j w_ij h_ij, within [-5, 5]
    m_i          <- momentum m_i + (1 - momentum) g_i
    temperature_i <- temperature_i - rate temperature m_i

  The loss is distributionally robust: where the temperature is not at one of
  its bounds, the KL divergence of w_i from uniform weights is rho at the
  optimum, so a rho below log(n - 1) sets how sharply an anchor selects its
  negatives. Each pair is an anchor twice, as an image and as a text, with a
  temperature for each.

  Args:
    num_pairs: The number of pairs of the data set. Each has a row of state, at
      its `pair_id` in [0, num_pairs).
    num_images: The number of distinct images; None means `num_pairs`.
    num_texts: The number of distinct texts; None means `num_pairs`.
    temperature: First temperature of every anchor; greater than 0.
    bounds: Smallest and largest temperature (published: 0.005, 0.05).
    rate: Step size in units of the first temperature, in [0, 1]: a number or a
      schedule of the step count. While it is 0, temperatures and their
      momentum do not move.
    momentum: Weight of the old momentum, in [0, 1).
    rho: The KL divergence at the optimum; published values are 6 to 8 for
      millions of pairs.
    gamma: Weight of the new estimate in u, in (0, 1], a schedule of the step
      count, or `denominator.Adaptive(...)`.

  Returns:
    An `Objective` without params. `State.sample.pair` has `log_u`,
    `temperature` and `temperature_momentum`, each with leaves `image` and
    `text` of [num_pairs].

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> objective = isogclr(num_pairs=4, temperature=0.1, rate=0.01, rho=1.0)
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
  return sogclr(
    num_pairs=num_pairs,
    num_images=num_images,
    num_texts=num_texts,
    temperature=temperature_rules.individual(
      temperature, bounds=bounds, rate=rate, momentum=momentum, rho=rho
    ),
    gamma=gamma,
  )

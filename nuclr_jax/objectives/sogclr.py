"""SogCLR: the global contrastive loss with a moving average per anchor."""

from typing import NamedTuple, SupportsIndex

import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base, denominator, temperatures
from nuclr_jax.types import Number, ScalarOrSchedule, Sides, both


class AnchorRows(NamedTuple):
  """State of an anchor id when `anchor_average="id"`."""

  log_u: Float[Array, "ids"]


def sogclr(
  *,
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None = None,
  num_texts: SupportsIndex | None = None,
  temperature: Number = 0.07,
  gamma: ScalarOrSchedule = 0.8,
  anchor_average: str = "pair",
  learn_temperature: bool = False,
  rho: Number = 8.0,
) -> base.Objective:
  r"""Global contrastive loss with a moving average of each denominator.

  With h_ij = (sim_ij - sim_ii) / temperature, the loss of anchor i is
  temperature * log u_i, where u_i tracks sum_{j != i} exp(h_ij) over all
  pairs, not over the batch: u_i <- (1 - gamma) u_i + gamma * batch estimate.
  Rows never visited hold -inf and take the batch estimate. Images and texts
  are anchors in turn; the loss is the sum of both means.

  With `learn_temperature` (RGCL-g, FastCLIP-v3) the loss of anchor i is
  temperature * (log(u_i / (n - 1)) + rho), and one temperature for all is
  learned: its gradient, per side, is the mean over anchors of
  log(u_i / (n - 1)) + rho - sum_j w_ij h_ij, w_ij the softmax over negatives.
  At the optimum the KL divergence of w from the uniform weights is rho.

  Args:
    num_pairs: Rows of state, four bytes each and side; `pair_id` is in
      [0, num_pairs).
    num_images: Distinct images (default `num_pairs`); pairs that share one are
      not negatives of each other.
    num_texts: Likewise for texts.
    temperature: Divides cosine similarities; greater than 0. The first value
      if it is learned.
    gamma: Weight of the new estimate, in (0, 1], or a schedule of the step
      (FastCLIP-v1 falls as a cosine from 1 over the first half of training).
    anchor_average: "pair" (the paper's) keeps one u per pair; "id" one u per
      image id for images as anchors and one per text id for texts.
    learn_temperature: Whether `params["log_scale"]` = -log(temperature) is
      learned, see `clip`.
    rho: See above; below log(n - 1), as a larger KL divergence is impossible.
      Only used if the temperature is learned.

  Returns:
    An `Objective`; `State.sample.pair.log_u` has leaves `image`
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
    Contrastive Learning, ICML 2022; Wei et al., FastCLIP, 2024 (cosine gamma,
    learned temperature).
  """
  temperature = checks.temperature(temperature)
  checks.choice("anchor_average", anchor_average, ("pair", "id"))
  sizes = checks.sizes(num_pairs, num_images, num_texts)
  gamma = checks.schedule("gamma", gamma, low=0.0, high=1.0)
  rho = checks.rho(rho)
  checks.choice("learn_temperature", learn_temperature, (False, True))
  offset = 0.0
  if learn_temperature:
    offset = temperatures.offset(rho, sizes.num_pairs - 1)

  def init():
    if anchor_average == "pair":
      log_u = denominator.unvisited(both(sizes.num_pairs))
      sample = base.Rows(pair=denominator.PairRows(log_u))
    else:
      log_u = denominator.unvisited(sizes.ids)
      sample = base.Rows(
        image=AnchorRows(log_u.image), text=AnchorRows(log_u.text)
      )
    params = temperatures.init_params(temperature, learn_temperature)
    return params, base.State(
      sample, denominator.Shared(count=jnp.zeros((), jnp.int32))
    )

  def apply(params, state, pairs):
    tau = temperatures.one_for_all(params, temperature)
    log_phi = denominator.estimate(pairs, sizes, temperature=tau)
    gamma_now = gamma(state.shared.count)
    if anchor_average == "pair":
      tables, log_u = denominator.track(
        state.sample.pair.log_u,
        both(pairs.pair_id),
        log_phi,
        gamma_now,
        both(sizes.num_pairs),
      )
      sample = base.Rows(pair=denominator.PairRows(tables))
    else:
      tables = Sides(state.sample.image.log_u, state.sample.text.log_u)
      tables, log_u = denominator.track(
        tables, pairs.ids, log_phi, gamma_now, sizes.ids
      )
      sample = base.Rows(
        image=AnchorRows(tables.image), text=AnchorRows(tables.text)
      )
    value, row_log_weight = denominator.anchor_loss(
      log_phi,
      log_u,
      sizes,
      temperature=both(tau),
      offset=offset,
    )
    out = pairwise.weighted(
      pairs, temperature=tau, row_log_weight=row_log_weight
    )
    # The gradient in the temperature: through the factor, then through u.
    loss = base.attach_gradient(value, value + out.surrogate)
    metrics = denominator.log_u_metrics(log_u)
    if learn_temperature:
      metrics["temperature"] = tau
    state = base.State(sample, denominator.Shared(count=state.shared.count + 1))
    return loss, (state, metrics)

  return base.Objective(init, apply)

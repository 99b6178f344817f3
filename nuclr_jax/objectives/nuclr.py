"""NUCLR: the global contrastive loss with learned popularities."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from nuclr_jax import checks, pairwise
from nuclr_jax.objectives import base, temperature_rules
from nuclr_jax.sample_state import denominator, zeta_rules
from nuclr_jax.sample_state.table import read_batch, write_batch
from nuclr_jax.types import (
  PyTree,
  Sample,
  Sides,
  State,
  both,
  each,
  shows_its_call,
  swap,
)


class Shared(NamedTuple):
  """The state that is the same for all samples."""

  xi: Sides  # see `denominator`; .text is used with images as anchors
  count: Int[Array, ""]  # steps done; schedules read it
  temperature: PyTree  # of the temperature's rule


@shows_its_call
@checks.checked
def nuclr(
  *,
  num_pairs: checks.NumPairs,
  num_images: checks.Count | None = None,
  num_texts: checks.Count | None = None,
  temperature: temperature_rules.TemperatureOrRule = 0.05,
  gamma: denominator.GammaOrRule = 0.8,
  zeta: zeta_rules.ZetaRule | None = None,
  positive_weight: checks.NonNegative = 1.0,
) -> base.Objective:
  r"""Makes a non-uniform contrastive loss with a learned popularity per sample.

  For images as anchors (texts are anchors in the same way, with their own
  state), with L_ij = (sim_ij - sim_ii - zeta_j) / temperature for i != j:

    phi_i   = (n - 1) / (B - 1) sum_{j != i} exp(L_ij)
    u_i    <- (1 - gamma) u_i + gamma phi_i            (kept as log_u)
    loss    = mean_i temperature log(epsilon_i + u_i)
    zeta_j  moves by its rule, towards sum_i w_ij = 1

  The denominator is a Monte Carlo integral over texts, and exp(zeta_j /
  temperature) is, up to a factor, the popularity that makes it correct. The
  encoders' gradient is (1 / B) sum_i temperature / (epsilon_i + u_i)
  grad phi_i with u and epsilon constant. epsilon_i = positive_weight
  exp(-xi / temperature), with xi the running maximum of |zeta|.

  With `temperature_rules.individual`, every pair has its own temperature on
  each side: temperature_i replaces temperature above and the loss is
  mean_i temperature_i (log((epsilon_i + u_i) / n) + rho).

  Pairs that share an image or a text are not negatives of each other. Rows
  without any negative change nothing; a batch of such rows only has a loss of
  NaN, but changes nothing either (of one pair, it is an error). If several
  pairs of a batch share an id, its row moves once, by the mean of their
  gradients (for u, of their phi). A NaN (a bad id or embedding) gives a NaN
  loss and stays in xi: stop, and return to an earlier state.

  Args:
    num_pairs: The number of pairs of the data set. Each has a row of state, at
      its `pair_id` in [0, num_pairs).
    num_images: The number of distinct images; None means `num_pairs`.
    num_texts: The number of distinct texts; None means `num_pairs`.
    temperature: Divides cosine similarities, greater than 0; or
      `temperature_rules.individual(...)` or `temperature_rules.learned(...)`.
    gamma: Weight of the new estimate in u, in (0, 1], a schedule of the step
      count, or `denominator.Adaptive(...)`, each anchor's own.
    zeta: The rule that moves zeta: `zeta_rules.batch(...)`, the default since
      it needs neither `dim` nor a memory; `zeta_rules.queue(...)`, whose zeta
      is nearer to the exact one, with 0.6 % of the pairs in memory already
      (experiments/popularity/at_scale has the tables); or
      `zeta_rules.fixed(...)`. With zeta = 0, xi is 0 and the positive weighs
      `positive_weight`, more than with zeta that spread.
    positive_weight: Factor of epsilon, at least 0: 0 leaves an anchor's
      positive out, as SogCLR does. exp(-xi / temperature) is far below 1, so a
      weight like that of SogCLR takes a larger factor: 1,000 gives long
      training runs on glyphs most of what they lose to CLIP
      (experiments/when_it_pays).

  Returns:
    An `Objective`; it has params only with `temperature_rules.learned`.
    `State.sample.pair.log_u.image` and `.text` are [num_pairs], -inf = never
    visited; `State.sample.image` and `.text` hold `zeta` and `momentum` of that
    side as contrast; `State.shared` holds `xi` and `count`; `State.memory`
    holds what the rule of zeta remembers.
    Individual temperatures are in `State.sample.pair.temperature`.

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
    for Self-Supervised Representation Learning, ICLR 2025, Algorithm 1.
  """
  return nuclr_variant(
    num_pairs=num_pairs,
    num_images=num_images,
    num_texts=num_texts,
    temperature=temperature,
    gamma=gamma,
    zeta=zeta,
    positive=denominator.running_max(weight=positive_weight),
  )


@shows_its_call
@checks.checked
def nuclr_variant(
  *,
  num_pairs: checks.NumPairs,
  num_images: checks.Count | None = None,
  num_texts: checks.Count | None = None,
  temperature: temperature_rules.TemperatureOrRule = 0.05,
  gamma: denominator.GammaOrRule = 0.8,
  zeta: zeta_rules.ZetaRule | None = None,
  positive: denominator.PositiveRule | None = None,
  anchor_average: denominator.AnchorAverage = "pair",
) -> base.Objective:
  r"""Makes NUCLR with another rule for the positive, or another average.

  These are for ablations and for the released code.

  Args:
    num_pairs: The number of pairs of the data set. Each has a row of state, at
      its `pair_id` in [0, num_pairs).
    num_images: The number of distinct images; None means `num_pairs`.
    num_texts: The number of distinct texts; None means `num_pairs`.
    temperature: Divides cosine similarities, greater than 0; or
      `temperature_rules.individual(...)`.
    gamma: Weight of the new estimate in u, in (0, 1], a schedule of the step
      count, or `denominator.Adaptive(...)`, each anchor's own.
    zeta: The rule that moves zeta; None means `zeta_rules.batch()`.
    positive: The rule for epsilon: `denominator.running_max(...)` (the
      paper's, the default), `denominator.released(...)` (the released code)
      or `denominator.by_zeta(...)` (the ablation NUCLR-diamond).
    anchor_average: "pair" (the paper's) weights the encoders' gradient by one
      u per pair; "id" by one u per image id (text id for texts as anchors).

  Returns:
    An `Objective` with the state of `nuclr`; with "id", `State.sample.image`
    and `.text` also hold `log_u` of that side as anchor.

  Raises:
    ValueError: If an argument is out of its range, or for "id" with individual
      temperatures.

  Example:
    >>> rule = zeta_rules.batch(estimator="official", rate=1e-4)
    >>> objective = nuclr_variant(
    ...   num_pairs=4,
    ...   zeta=rule,
    ...   positive=denominator.released(steps_per_epoch=2),
    ... )
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> loss, (state, _) = objective.apply(*objective.init(), pairs)
    >>> print(state.shared.xi.text)
    0.0

  Reference: Wang et al., ICLR 2025, Algorithm 1 and Section 4.
  """
  sizes = checks.sizes(num_pairs, num_images, num_texts)
  taus = temperature_rules.rule_of(temperature)
  offset = temperature_rules.offset(taus, sizes.num_pairs)
  zetas = zeta_rules.batch() if zeta is None else zeta
  epsilons = denominator.running_max() if positive is None else positive
  checks.rule("zeta", zetas, zeta_rules.ZetaRule, "zeta_rules.batch()")
  checks.rule(
    "positive",
    epsilons,
    denominator.PositiveRule,
    "denominator.running_max()",
  )
  by_id = denominator.averages_by_id(
    anchor_average, individual=taus.is_individual
  )

  def init():
    params, of_pairs = taus.init(sizes)
    log_u = denominator.unvisited(both(sizes.num_pairs))
    id_rows, memory = zetas.init(sizes)
    if by_id:
      averages = denominator.unvisited(sizes.ids)
      id_rows = each(lambda x, u: x._replace(log_u=u), id_rows, averages)
    sample = Sample(denominator.PairRows(log_u, **of_pairs), *id_rows)
    count = jnp.zeros((), jnp.int32)
    shared = Shared(epsilons.init(id_rows), count, taus.init_shared())
    return params, State(sample, memory, shared)

  @base.whole_batch
  def apply(params, state, pairs):
    xi, count, of_taus = state.shared
    old = read_batch(state.sample, pairs, sizes)
    pair_rows, id_rows = old.pair, Sides(old.image, old.text)
    tau = taus.read(params, pair_rows, of_taus, pairs)
    zeta = each(lambda x: x.zeta, id_rows)

    # The positive's term. The zeta in it belongs to its contrast, so to the
    # anchor's other side.
    log_positive = each(lambda z, t: -z / t, swap(zeta), tau)
    positive_logit = epsilons.logit(xi, log_positive, tau)
    log_epsilon = each(lambda x: x + epsilons.log_weight, positive_logit)

    # Steps 2 and 3: the batch's estimates phi, and their averages u.
    def average(log_u, ids):
      weights = denominator.log_weights(gamma, count, log_u, log_epsilon, sizes)
      return denominator.track(log_u, ids, log_phi, weights)

    logits = pairwise.logits(pairs, temperature=tau, bias=zeta)
    log_phi = denominator.estimate(logits, sizes)
    log_u = average(pair_rows.log_u, both(pairs.pair_id))
    pair_rows, encoder_log_u = pair_rows._replace(log_u=log_u), log_u
    if by_id:
      encoder_log_u = average(each(lambda x: x.log_u, id_rows), pairs.ids)
      id_rows = each(lambda x, u: x._replace(log_u=u), id_rows, encoder_log_u)

    # Step 4: the encoders' gradient, with epsilon and u constant.
    loss = denominator.anchor_loss(
      log_phi, encoder_log_u, log_epsilon, sizes, temperature=tau, offset=offset
    )
    out = pairwise.weighted(
      logits,
      row_log_weight=loss.row_log_weight,
      contrast_factor=each(  # makes the weights 1 / (epsilon' + u)
        lambda own, u, row: jnp.exp(-jnp.logaddexp(own, u) - row),
        log_positive,
        log_u,
        loss.row_log_weight,
      ),
    )

    # Steps 5 and 6: the popularities and xi; also temperatures that are state.
    evidence = denominator.Evidence(
      pairs=pairs._replace(text=logits.sides.text.vector),
      own=logits.own,
      tables=Sides(state.sample.image, state.sample.text),
      zeta=zeta,
      tau=tau,
      log_phi=log_phi,
      log_u=log_u,
      log_positive=log_positive,
      contrast_sums=out.contrast_sums,
      count=count,
      sizes=sizes,
      unit=taus.first,
    )
    id_rows, memory = zetas.step(id_rows, state.memory, evidence)
    positive_share = each(
      lambda x, d: jnp.exp(x - d), log_epsilon, loss.log_denominator
    )
    moved = temperature_rules.Step(
      pairs=pairs,
      log_denominator=loss.log_denominator,
      positive_share=positive_share,
      positive_logit=positive_logit,
      mean_logit=out.mean_logit,
      has_negative=denominator.has_negative(log_phi),
      offset=offset,
      count=count,
    )
    new = Sample(taus.step(pair_rows, moved), *id_rows)
    sample = write_batch(state.sample, pairs, sizes, old=old, new=new)
    zeta = each(lambda x: x.zeta, id_rows)
    xi = epsilons.step(xi, Sides(sample.image, sample.text), zeta, evidence)

    metrics = denominator.log_u_metrics(log_u) | taus.metrics(tau)
    metrics |= zeta_rules.zeta_metrics(zeta, xi)
    shared = Shared(xi, count + 1, taus.step_shared(of_taus, moved))
    state = State(sample, memory, shared)
    # The surrogate contributes its gradient only, not its value.
    value = base.attach_gradient(loss.value, loss.value + out.surrogate)
    return pairwise.nan_without_negatives(value, pairs), (state, metrics)

  def readout(params, state):
    pair_rows, *id_rows = state.sample
    log_u_by_id = Sides(*(x.log_u for x in id_rows)) if by_id else None
    return base.Readout(
      temperature=taus.readout(params, pair_rows),
      log_u=pair_rows.log_u,
      log_u_by_id=log_u_by_id,
      zeta=Sides(*(x.zeta for x in id_rows)),
    )

  def assign(state, popularities):
    pair_rows, *id_rows = state.sample
    id_rows, memory = zetas.assign(Sides(*id_rows), state.memory, popularities)
    if popularities.log_u is not None:
      pair_rows = denominator.assign_log_u(pair_rows, popularities)
    xi = denominator.raise_to(state.shared.xi, popularities.zeta)
    sample = Sample(pair_rows, *id_rows)
    return State(sample, memory, state.shared._replace(xi=xi))

  return base.Objective(init, apply, readout, assign)

r"""Rules for zeta: what moves the popularities of images and texts.

A rule says how zeta starts and where its gradient g_j comes from; `zeta` has
the step that all rules share. With w_ij = exp(L_ij) / (epsilon'_i + u_i),
w_jj = epsilon'_j / (epsilon'_j + u_j) and epsilon'_i = exp(-zeta_i / tau),

  unbiased  1 - w_jj - (n - 1) / (B - 1) sum_{i in B, i != j} w_ij
  paper     1 - (n / B) [w_jj + (n - 1) / (B - 1) sum w_ij]   (eq. 14)
  official  1 - (n / B) [w_jj + sum w_ij]               (the released code)
  queue     -log(w_jj + sum over the latest pairs of w_ij), see `queue`

A rule is made in two steps: `batch(rate=0.1)` checks its arguments without
knowing the data; `nuclr` binds it to the sizes of a data set and to a
temperature.
"""

from typing import Annotated

import jax

from nuclr_jax import checks
from nuclr_jax.sample_state.queue import queue
from nuclr_jax.sample_state.zeta import (
  Unbound,
  ZetaRule,
  assign_zeta,
  check_init,
  check_settings,
  first_rows,
  move_zeta,
)
from nuclr_jax.types import (
  ScalarOrSchedule,
  Sides,
  each,
  swap,
)

__all__ = ["Unbound", "batch", "batch_gradient", "fixed", "queue"]

Estimator = checks.one_of(("unbiased", "paper", "official"))
# The derivative of the gradient in zeta / tau is at most 1, so a rate above 2
# could overshoot by more than the error that it corrects.
BatchRate = Annotated[
  ScalarOrSchedule,
  checks.Range(
    "in [0, 2] or a schedule of the step count", lambda x: 0 <= x <= 2
  ),
]


def fixed(*, init: checks.Finite | Sides = 0.0) -> Unbound:
  """Makes the rule that leaves zeta as it starts; only `assign` changes it.

  Args:
    init: First zeta of every row, in units of similarity: a number, or `Sides`
      of arrays with one number for each image id and each text id.

  Returns:
    A rule for `nuclr`'s argument `zeta`.

  Raises:
    ValueError: If `init` is not finite, or does not have one number per id of
      the data set.

  Example:
    >>> from nuclr_jax import objectives
    >>> objective = objectives.nuclr(num_pairs=4, zeta=fixed(init=0.1))
    >>> print(objective.init()[1].sample.text.zeta)
    [0.1 0.1 0.1 0.1]
  """
  check_init(init)

  def bind(spec, temperature):
    del temperature

    return ZetaRule(
      init=lambda: (first_rows(init, spec.sizes, momentum=False), ()),
      step=lambda rows, memory, evidence: (rows, memory),
      assign=lambda rows, memory, new: (assign_zeta(rows, new), memory),
    )

  return bind


def batch(
  *,
  estimator: Estimator = "unbiased",
  rate: BatchRate | Sides = 0.14,
  momentum: checks.Momentum = 0.0,
  center: bool | None = None,
  init: checks.Finite | Sides = 0.0,
) -> Unbound:
  r"""Makes the rule that moves zeta by a gradient estimated from the batch.

  The formulas are at the top of `zeta_rules`. "unbiased" has mean 0 at the
  solution, for given u; "paper" and "official" do not.

  Args:
    estimator: "unbiased", "paper" or "official".
    rate: Step size in units of the objective's first temperature, in [0, 2]:
      a number, a schedule of the step count, or `Sides` of them for zeta of
      images and of texts. While it is 0, zeta and its momentum do not move. By
      the gradient's error that zeta leaves, 0.14 and 0.5 are level and far
      better than 0.02; at a temperature of 0.01, 0.5 is better, the more so
      the larger the batch (experiments/popularity/at_scale). The gradients of
      "paper" and "official" are n / B times as large, and need a rate that
      much smaller.
    momentum: The weight of the old momentum, in [0, 1); 0 keeps none, which
      saves four bytes per row; published: 0.1.
    center: Whether the batch mean of the gradients is subtracted, per side. The
      exact gradients sum to 0; with u a moving average, their mean is a drift.
      None means True for "unbiased" and False for the other two.
    init: First zeta of every row, in units of similarity: a number, or `Sides`
      of arrays with one number for each image id and each text id.

  Returns:
    A rule for `nuclr`'s argument `zeta`.

  Raises:
    ValueError: If an argument is out of its range.

  Example:
    >>> from nuclr_jax import objectives
    >>> rule = batch(rate=0.1, momentum=0.0)
    >>> _, state = objectives.nuclr(num_pairs=4, zeta=rule).init()
    >>> print(state.sample.image.zeta, state.sample.image.momentum)
    [0. 0. 0. 0.] None

  Reference: Wang et al., ICLR 2025, eq. (14) and Algorithm 1. "unbiased" is
    derived in this library: given that j is in the batch, its own pair
    always is, and any other anchor with probability (B - 1) / (n - 1).
  """
  checks.choice("zeta.estimator", estimator, Estimator)
  if center is None:
    center = estimator == "unbiased"
  settings = check_settings(init, rate, momentum, center, kind=BatchRate)

  def bind(spec, temperature):
    sizes = spec.sizes

    def step(rows, memory, evidence):
      gradient = batch_gradient(
        estimator,
        evidence.contrast_sums,
        evidence.log_own,
        evidence.log_u,
        sizes.num_pairs,
      )
      rows = move_zeta(settings, rows, evidence, gradient, temperature)
      return rows, memory

    return ZetaRule(
      init=lambda: (first_rows(init, sizes, momentum=settings.momentum), ()),
      step=step,
      assign=lambda rows, memory, new: (assign_zeta(rows, new), memory),
    )

  return bind


def batch_gradient(
  estimator: str, contrast_sums: Sides, log_own: Sides, log_u: Sides, n: int
) -> Sides:
  """Estimates the gradient of zeta from the anchors of a batch.

  Args:
    estimator: "unbiased", "paper" or "official", see the top of `zeta_rules`.
    contrast_sums: sum_{i != j} w_ij over the anchors of the batch, filed under
      the contrast j.
    log_own: log epsilon', filed under the anchor.
    log_u: log u, filed under the anchor; w_jj = epsilon' / (epsilon' + u).
    n: The number of pairs in the data set.

  Returns:
    One number for each row of the batch, filed under the contrast.
  """
  own_weight = each(lambda own, u: jax.nn.sigmoid(own - u), log_own, log_u)

  def side(sums, own):
    size = len(sums)
    all_anchors = (n - 1) / max(size - 1, 1) * sums
    if estimator == "unbiased":
      return 1 - own - all_anchors
    if estimator == "paper":
      return 1 - n / size * (own + all_anchors)
    return 1 - n / size * (own + sums)

  return each(side, contrast_sums, swap(own_weight))

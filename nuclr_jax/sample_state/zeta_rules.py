r"""Zeta, the popularity of every image and text as contrast, and its rules.

A gradient g_j of the batch moves row j, once per id,

  m_j    <- beta m_j + (1 - beta) g_j, or g_j at the first touch
  zeta_j <- zeta_j - rate tau m_j,

with tau the first temperature of the objective: zeta acts only through
zeta / tau, so one dimensionless rate means the same at every temperature and
for every rule. A rule says how zeta starts and where g_j comes from. With w_ij
= exp(L_ij) / (epsilon'_i + u_i), w_jj = epsilon'_j / (epsilon'_j + u_j) and
epsilon'_i = exp(-zeta_i / tau),

  unbiased  1 - w_jj - (n - 1) / (B - 1) sum_{i in B, i != j} w_ij
  paper     1 - (n / B) [w_jj + (n - 1) / (B - 1) sum w_ij]   (eq. 14)
  official  1 - (n / B) [w_jj + sum w_ij]               (the released code)
  queue     -log(w_jj + sum over the latest pairs of w_ij), see `queue`

zeta is filed under the contrast: with images as anchors, `zeta.text` is used.
"""

from collections.abc import Callable
import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from nuclr_jax import checks, sharding
from nuclr_jax.sample_state import denominator
from nuclr_jax.sample_state import queue as memories
from nuclr_jax.sample_state.denominator import Evidence
from nuclr_jax.sample_state.table import mean_by_id
from nuclr_jax.types import (
  AnyArray,
  Metrics,
  Number,
  Popularities,
  PyTree,
  Schedule,
  Sides,
  Sizes,
  both,
  each,
  shows_its_call,
  swap,
)

Estimator = checks.one_of(("unbiased", "paper", "official"))
# The derivative of the gradient in zeta / tau is at most 1, so a rate above 2
# could overshoot by more than the error that it corrects.
BatchRate = Annotated[
  float | Schedule,
  checks.Range(
    "in [0, 2] or a schedule of the step count", lambda x: 0 <= x <= 2
  ),
]
# Or an array of them with an axis, which `check_init` allows, too.
FirstZeta = Annotated[
  float,
  checks.Range(
    "finite: a number, or a NumPy or JAX array with one for each id",
    math.isfinite,
  ),
]
REAL = (jnp.floating, jnp.integer)


class ZetaRows(NamedTuple):
  """State of a contrast id, one row per `image_id` or `text_id`."""

  zeta: Float[Array, "ids"]
  # Averages the gradient of zeta; 0 = untouched, None = rule without momentum.
  momentum: Float[Array, "ids"] | None = None
  # The average of this id as anchor, with `anchor_average="id"`.
  log_u: Float[Array, "ids"] | None = None


class ZetaRule(NamedTuple):
  """How zeta starts, moves, and is written from outside.

  `init` and `assign` deal with tables, `step` with the rows of a batch.
  """

  init: Callable[[Sizes], tuple[Sides, PyTree]]  # -> (`ZetaRows`, memory)
  # (`ZetaRows` sides of the batch, memory, evidence) -> (rows, memory)
  step: Callable[[Sides, PyTree, Evidence], tuple[Sides, PyTree]]
  # (tables, memory, popularities) -> (tables, memory); on the host
  assign: Callable[[Sides, PyTree, Popularities], tuple[Sides, PyTree]]
  call: str = "ZetaRule(...)"  # how it prints

  def __repr__(self) -> str:
    """Returns the call that made the rule."""
    return self.call


class Movement(NamedTuple):
  """How rows of zeta move, after checks."""

  rate: Sides  # schedules
  momentum: float
  center: bool


def check_init(init: Any) -> None:
  """Raises ValueError unless all first values of zeta are finite in float32."""
  if isinstance(init, Sides):
    named = {f"zeta.init.{side}": x for side, x in init._asdict().items()}
  else:
    named = {"zeta.init": init}
  for name, x in named.items():
    is_traced = isinstance(x, jax.core.Tracer)
    if is_traced or not isinstance(x, AnyArray) or x.ndim == 0:
      checks.argument(name, x, FirstZeta)
      continue
    if not any(jnp.issubdtype(x.dtype, kind) for kind in REAL):
      raise ValueError(f"{name} must be real numbers, got dtype {x.dtype}")
    wrong = ~(np.abs(np.asarray(x, float)) <= checks.LARGEST_FLOAT)
    if np.any(wrong):
      raise ValueError(
        f"{name} must be finite in float32, got {np.sum(wrong)} value(s) that "
        f"are not, the first in row {np.argmax(wrong)}"
      )


def first_rows(
  init: Number | Sides, sizes: Sizes, *, momentum: float | bool
) -> Sides:
  """Returns the first `ZetaRows` of images and of texts.

  Raises:
    ValueError: If `init` does not have as many numbers as there are ids.
  """

  def side(num_rows, first):
    if np.ndim(first) and np.shape(first) != (num_rows,):
      raise ValueError(
        f"zeta.init must have one number for each of {num_rows} ids (of "
        f"images, or of texts), got {list(np.shape(first))}"
      )
    # A copy: the caller's array is not to be donated with the state.
    zeta = jnp.array(jnp.broadcast_to(first, num_rows), float)
    return ZetaRows(zeta, jnp.zeros(num_rows) if momentum else None)

  return each(side, sizes.ids, both(init))


def move_zeta(
  movement: Movement, rows: Sides, evidence: Evidence, gradient: Sides
) -> Sides:
  """Takes one step of momentum descent on the batch's rows, once per id.

  Rows without a negative do not move; while the rate is 0, no row moves.

  Args:
    movement: How they move.
    rows: `ZetaRows` of the batch's images and texts.
    evidence: The evidence of the batch.
    gradient: The gradient of each row's zeta, of images and of texts;
      dimensionless.

  Returns:
    The new `ZetaRows` of both sides.
  """
  has_negative = denominator.has_negative(evidence.log_phi)

  def side(rows, gradient, touched, rate):
    rate = rate(evidence.count)
    touched &= rate != 0
    beta, old = movement.momentum, rows.momentum
    if old is not None:
      mixed = beta * old + (1 - beta) * gradient
      gradient = jnp.where(old == 0, gradient, mixed)
      rows = rows._replace(momentum=jnp.where(touched, gradient, old))
    moved = rows.zeta - rate * evidence.unit * gradient
    return rows._replace(zeta=jnp.where(touched, moved, rows.zeta))

  if movement.center:
    sides = jnp.stack(gradient)
    mean = denominator.mean_where(sides, has_negative, axis=1)
    gradient = Sides(*(sides - mean[:, None]))
  means = mean_by_id(gradient, evidence.pairs.ids, has_negative)
  return each(side, rows, *means, movement.rate)


def assign_zeta(id_rows: Sides, popularities: Popularities) -> Sides:
  """Writes zeta from outside; the momentum of these rows is reset."""

  def side(rows, ids, zeta):
    if not np.isfinite(zeta).all():
      raise ValueError("each zeta must be finite; log u alone may be -inf")
    momentum = rows.momentum
    if momentum is not None:
      momentum = sharding.replace_rows(momentum, ids, 0.0)
    zeta = sharding.replace_rows(rows.zeta, ids, zeta)
    return rows._replace(zeta=zeta, momentum=momentum)

  return each(side, id_rows, popularities.ids, popularities.zeta)


def zeta_metrics(zeta: Sides, xi: Sides) -> Metrics:
  """Returns the spread of zeta over the batch's rows, and xi, per side."""
  image, text = jnp.std(jnp.stack(zeta), axis=1)
  return {
    "zeta/image_std": image,
    "zeta/text_std": text,
    "xi/image": xi.image,
    "xi/text": xi.text,
  }


@shows_its_call
def fixed(*, init: Number | Sides = 0.0) -> ZetaRule:
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
  return ZetaRule(
    init=lambda sizes: (first_rows(init, sizes, momentum=False), ()),
    step=lambda rows, memory, evidence: (rows, memory),
    assign=lambda rows, memory, new: (assign_zeta(rows, new), memory),
  )


@shows_its_call
@checks.checked(of="zeta")
def batch(
  *,
  estimator: Estimator = "unbiased",
  rate: BatchRate | Sides = 0.14,
  momentum: checks.Momentum = 0.0,
  center: bool | None = None,
  init: Number | Sides = 0.0,
) -> ZetaRule:
  r"""Makes the rule that moves zeta by a gradient estimated from the batch.

  The formulas are at the top of `zeta_rules`. "unbiased" has mean 0 at the
  solution, for given u; "paper" and "official" do not.

  Args:
    estimator: "unbiased", "paper" or "official".
    rate: Step size in units of the objective's first temperature, in [0, 2]:
      a number, a schedule of the step count, or `Sides` of them for zeta of
      images and of texts. While it is 0, zeta and its momentum do not move. By
      the gradient's error that zeta leaves, 0.14 and 0.5 perform equally, and
      far better than 0.02; at a temperature of 0.01, 0.5 is better, the more so
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
    derived in this library: given that j is in the batch, its positive
    always is, and any other anchor with probability (B - 1) / (n - 1).
  """
  check_init(init)
  if center is None:
    center = estimator == "unbiased"
  movement = Movement(both(rate), momentum, center)

  def first(sizes):
    return first_rows(init, sizes, momentum=movement.momentum), ()

  def step(rows, memory, evidence):
    gradient = batch_gradient(
      estimator,
      evidence.contrast_sums,
      evidence.log_positive,
      evidence.log_u,
      evidence.sizes.num_pairs,
    )
    return move_zeta(movement, rows, evidence, gradient), memory

  return ZetaRule(
    init=first,
    step=step,
    assign=lambda rows, memory, new: (assign_zeta(rows, new), memory),
  )


def batch_gradient(
  estimator: str,
  contrast_sums: Sides,
  log_positive: Sides,
  log_u: Sides,
  n: int,
) -> Sides:
  """Estimates the gradient of zeta from the anchors of a batch.

  Args:
    estimator: "unbiased", "paper" or "official", see the top of `zeta_rules`.
    contrast_sums: sum_{i != j} w_ij over the anchors of the batch, filed under
      the contrast j.
    log_positive: log epsilon', filed under the anchor.
    log_u: log u, filed under the anchor; w_jj = epsilon' / (epsilon' + u).
    n: The number of pairs in the data set.

  Returns:
    One number for each row of the batch, filed under the contrast.
  """
  positive_weight = each(
    lambda own, u: jax.nn.sigmoid(own - u), log_positive, log_u
  )

  def side(sums, own):
    size = len(sums)
    all_anchors = (n - 1) / max(size - 1, 1) * sums
    if estimator == "unbiased":
      return 1 - own - all_anchors
    if estimator == "paper":
      return 1 - n / size * (own + all_anchors)
    return 1 - n / size * (own + sums)

  return each(side, contrast_sums, swap(positive_weight))


@shows_its_call
@checks.checked(of="zeta")
def queue(
  *,
  dim: checks.Count,
  size: checks.Count = 4096,
  rate: checks.Rate | Sides = 0.3,
  momentum: checks.Momentum = 0.0,
  center: bool = True,
  init: Number | Sides = 0.0,
) -> ZetaRule:
  """Makes the rule that moves zeta by Sinkhorn's step over the latest pairs.

  On generated pairs at a temperature of 0.04, a memory of a tenth of them gives
  zeta an R2 of 0.98 against the exact one, one of 96 in 16,384 an R2 of 0.9 and
  `batch` one of 0.75; at 0.01 it is 0.87, 0.66 and 0.13
  (experiments/popularity/at_scale). Individual temperatures are supported: the
  fixed point needs no common one.

  Args:
    dim: The width of the embeddings; from a config, that of the run's model.
    size: How many of the latest pairs are used, at least the batch size and
      best a multiple of it, since whole batches are kept; each pair takes 8 dim
      + 28 bytes, split over the devices. More than `num_pairs` of the
      objective would repeat pairs, and are as many as that.
    rate: Fraction of the way to the estimate, in [0, 1]: a number, a schedule
      of the step count, or `Sides` of them. While it is 0, zeta does not move,
      but the memory fills.
    momentum: The weight of the old momentum, in [0, 1). 0 saves four bytes per
      row.
    center: Whether the batch mean of the steps is subtracted, per side: zeta
      is defined up to a constant only.
    init: First zeta of every row, in units of similarity: a number, or `Sides`
      of arrays with one number for each image id and each text id.

  Returns:
    A rule for `nuclr`'s argument `zeta`; the state's `memory` is a
    `queue.Memory`.

  Raises:
    ValueError: If an argument is out of its range; from the step, if the memory
      is smaller than the batch or the embeddings have another width.

  Example:
    >>> from nuclr_jax import objectives
    >>> rule = queue(dim=8, size=64)
    >>> objective = objectives.nuclr(num_pairs=100, zeta=rule)
    >>> objective.init()[1].memory.embedding.image.shape
    (64, 8)

  Reference: derived in this library; Sinkhorn's iteration on the problem of
    Wang et al., ICLR 2025, eq. (8), over a first-in first-out memory as in He
    et al., Momentum Contrast, CVPR 2020.
  """
  check_init(init)
  movement = Movement(both(rate), momentum, center)

  def first(sizes):
    rows = first_rows(init, sizes, momentum=movement.momentum)
    return rows, memories.empty(min(size, sizes.num_pairs), dim)

  def step(rows, memory, evidence):
    rows_held = min(size, evidence.sizes.num_pairs)
    gradient, memory = memories.advance(memory, evidence, size=rows_held)
    return move_zeta(movement, rows, evidence, gradient), memory

  def assign(id_rows, memory, popularities):
    return assign_zeta(id_rows, popularities), memories.emptied(memory)

  return ZetaRule(first, step, assign)

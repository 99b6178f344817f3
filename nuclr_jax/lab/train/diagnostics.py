"""Diagnostics: how training is going, beyond the loss.

They are measured on a fixed random sample of the training pairs, augmented as
in training and embedded by the model in evaluation mode.
"""

from collections.abc import Callable, Mapping
from functools import partial
import logging
import math
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float
import numpy as np

from nuclr_jax import pairwise, sharding
from nuclr_jax.lab import distributed
from nuclr_jax.lab.train.batches import fixed_batches, put_own
from nuclr_jax.lab.train.build import Experiment
from nuclr_jax.lab.train.step import TrainState
from nuclr_jax.objectives import Objective, Readout, relative_to
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.sample_state import denominator
from nuclr_jax.sample_state.denominator import mean_where
from nuclr_jax.sample_state.table import mean_by_id, read_rows
from nuclr_jax.types import (
  Metrics,
  Pairs,
  Sides,
  Sizes,
  both,
  each,
  swap,
  unzip,
)

log = logging.getLogger(__name__)

# Pairs at most, unless one batch is larger: a 256th of the data, within limits.
SAMPLE, LARGEST_SAMPLE = 4_096, 32_768
GROUPS = 8  # of anchors, whose sums tell the noise
BLOCKS = 64  # of contrasts, whose sums tell standard errors
ROUNDING = 1e-8  # a mean square below this may be rounding
NOISY = ("zeta_residual", "zeta_gain", "zeta_gain_low", "zeta_gain_high")
SETTLED = 1_000  # first steps without alarms; the first epoch if it is shorter


def measure(
  pairs: Pairs,
  readout: Readout,
  *,
  sizes: Sizes,
  batch_size: int,
  reference: Sides | None = None,
) -> Metrics:
  r"""Measures a sample of m training pairs; a pure function.

  With L_ij = (sim_ij - sim_ii - zeta_j) / tau and sums over the negatives of an
  anchor, for images, and in the same way for texts,

    alignment            mean_i sim_ii
    mean_cosine          between the embeddings of two images; 1 = collapsed
    dimensions           (tr C)^2 / tr C^2 of their covariance C
    effective_negatives  mean_i (sum_j e^{L_ij})^2 / sum_j e^{2 L_ij},
                         within batches; in [1, batch_size - 1]
    u_drift              mean_i log u_i - log[(n - 1) / (m - 1) sum_j e^{L_ij}]
                         in nats: how far u is behind the model
    zeta_residual        root mean square over contrasts j of 1 - sum_i w_ij,
                         see `popularity.solve`; 0 at the exact zeta
    zeta_noise           what zeta_residual has to exceed to be told from 0
    zeta_gain            1 - zeta_residual / (the residual of zeta = 0)
    zeta_gain_low, zeta_gain_high
                         its interval; zeta_gain_high is at most 1
    temperature          mean tau

  All but the first three need a readout with a temperature; u_drift also needs
  u by pair, and those of zeta need zeta, which they estimate for all n pairs:
  the noise of the anchors is subtracted from mean squares, and the bias of
  denominators that see m of n contrasts is extrapolated from two halves of the
  sample. The noise of a mean square is 1.96 standard errors plus the size of
  that extrapolation; the interval of the gain is as wide on either side. What
  is below the noise is NaN: the residual and the gain if the mean square of
  zeta is negative, the gain and its interval if the residual of zeta = 0 is
  below its own noise. A sample that sees few of the contrasts that count
  underestimates zeta that are nearly exact (experiments/popularity/at_scale).

  Args:
    pairs: The sample, with embeddings of any norm; `batch_size` divides m.
    readout: What can be read from the objective, see `Objective.readout`.
    sizes: The sizes of the training data.
    batch_size: The batch size of training.
    reference: Embeddings by a reference model, which all but the first three
      metrics then are relative to.

  Example:
    >>> pairs = Pairs(jnp.eye(4), jnp.eye(4), jnp.arange(4))
    >>> sizes = Sizes(100, 100, 100)
    >>> readout = Readout(temperature=jnp.float32(0.5))
    >>> metrics = measure(pairs, readout, sizes=sizes, batch_size=4)
    >>> print(metrics["effective_negatives/image"], metrics["dimensions/image"])
    3.0 3.0
  """
  sides = each(lambda x: unit_norm(jnp.asarray(x, float)), Sides(*pairs[:2]))
  pairs = pairs._replace(**sides._asdict())
  metrics = {
    "mean_cosine": each(_mean_cosine, sides),
    "dimensions": each(_dimensions, sides),
  }
  if reference is not None:
    pairs = relative_to(pairs, reference)
  if readout.temperature is not None:
    metrics |= _of_negatives(pairs, readout, sizes, batch_size)
  return {"alignment": jnp.mean(jnp.sum(sides.image * sides.text, axis=1))} | {
    f"{name}/{side}": value
    for name, values in metrics.items()
    for side, value in zip(Sides._fields, values, strict=True)
  }


def _mean_cosine(x):
  count = len(x)
  total = jnp.sum(jnp.square(jnp.sum(x, axis=0))) - jnp.sum(jnp.square(x))
  return total / max(count * (count - 1), 1)


def _dimensions(x):
  x = x - jnp.mean(x, axis=0, keepdims=True)
  gram = tiles.matmul(x.T, x)
  norm = jnp.sum(jnp.square(gram))
  return jnp.square(jnp.trace(gram)) / jnp.where(norm > 0, norm, 1.0)


def _of_negatives(pairs, readout, sizes, batch_size) -> dict[str, Sides]:
  """Computes the metrics that depend on negatives."""

  def of_pairs(tables):
    return read_rows(tables, pairs.pair_id, sizes.num_pairs)

  tau, zeta = readout.temperature, None
  tau = of_pairs(tau) if isinstance(tau, Sides) else both(tau)
  if readout.zeta is not None:
    zeta = each(read_rows, readout.zeta, pairs.ids, sizes.ids)
  kind = dict(temperature=tau, bias=zeta)
  metrics = {
    "temperature": each(jnp.mean, tau),
    "effective_negatives": _effective(pairs, batch_size, **kind),
  }
  if readout.log_u is not None:
    log_phi = denominator.estimate(pairwise.logits(pairs, **kind), sizes)
    log_u = of_pairs(readout.log_u)
    metrics["u_drift"] = each(_mean_difference, log_u, log_phi)
  if zeta is not None:
    metrics |= _of_zeta(pairs, zeta, tau, sizes)
  return metrics


def _effective(pairs, batch_size, *, temperature, bias) -> Sides:
  """Computes effective_negatives, each anchor within a batch of the sample."""
  count = len(pairs.pair_id) // batch_size

  def of_batch(batch):
    pairs, tau, bias = batch
    # Half the temperature doubles L: `twice` is log sum_j e^{2 L_ij}.
    half = each(lambda x: x / 2, tau)
    once, twice = (
      pairwise.log_sum_exp(pairwise.logits(pairs, temperature=x, bias=bias))
      for x in (tau, half)
    )
    return each(lambda a, b: 2 * a - b, once, twice)

  def split(x):
    return x.reshape(count, batch_size, *x.shape[1:])

  everyone = each(
    lambda x: jnp.broadcast_to(x, pairs.pair_id.shape), temperature
  )
  logs = jax.lax.map(of_batch, jax.tree.map(split, (pairs, everyone, bias)))
  return each(lambda x: mean_where(jnp.exp(x), jnp.isfinite(x)), logs)


def _mean_difference(log_u, log_phi):
  known = jnp.isfinite(log_u) & jnp.isfinite(log_phi)
  return mean_where(log_u - log_phi, known)


class Squares(NamedTuple):
  """Estimates of (1 - sum_i w_ij)^2, one for each contrast j of a side."""

  sampled: Float[Array, "pairs"]  # with the denominators of the sample
  extrapolated: Float[Array, "pairs"]  # to the denominators of all pairs
  known: Bool[Array, "pairs"]  # which contrasts have an estimate


def _of_zeta(pairs, zeta, tau, sizes) -> dict[str, Sides]:
  """Computes the metrics of zeta."""
  count = len(pairs.pair_id) // 2 * 2  # for two halves
  tau = each(lambda x: jnp.broadcast_to(x, pairs.pair_id.shape), tau)
  pairs, zeta, tau = jax.tree.map(lambda x: x[:count], (pairs, zeta, tau))
  squares = jax.lax.map(
    lambda zeta: _squares(pairs, zeta, tau, sizes),
    each(lambda x: jnp.stack([x, jnp.zeros_like(x)]), zeta),
  )
  own, of_none = (jax.tree.map(itemgetter(i), squares) for i in range(2))
  found = each(partial(_gain, sizes=sizes), own, of_none, pairs.ids)
  return {name: each(itemgetter(name), found) for name in found.image}


def _squares(pairs, zeta, tau, sizes) -> Sides:
  """Estimates the squares from a sample, as `Squares` of both sides.

  With m of n contrasts in the denominators, the mean square is off by about
  c (1 / m - 1 / n). Two halves of the sample tell c: they are off by
  c (2 / m - 1 / n).
  """
  count = len(pairs.pair_id)
  unseen = max(1 - count / sizes.num_pairs, 0.0)
  halves = jax.tree.map(
    lambda x: jnp.stack([x[::2], x[1::2]]), (pairs, zeta, tau)
  )
  sampled, known = _sampled_squares(pairs, zeta, tau, sizes)
  by_half = jax.lax.map(lambda x: _sampled_squares(*x, sizes), halves)

  def side(sampled, known, half, known_in_half):
    half, known_in_half = (x.T.reshape(count) for x in (half, known_in_half))
    extrapolated = sampled + unseen * (sampled - half)
    return Squares(sampled, extrapolated, known & known_in_half)

  return each(side, sampled, known, *by_half)


def _sampled_squares(pairs, zeta, tau, sizes) -> tuple[Sides, Sides]:
  """Estimates the squares of contrasts, and says which have an estimate.

  The square of a sum over sampled anchors is too large by the variance of the
  sum. It is estimated from what groups of the anchors differ by, times the
  share of the anchors that are not sampled.
  """
  count, num_others = len(pairs.pair_id), max(sizes.num_pairs - 1, 1)
  scale = num_others / max(count - 1, 1)
  ids = jnp.stack(pairs.ids, axis=1)

  def in_groups(x, fill=0):
    rest = [(0, -count % GROUPS)] + [(0, 0)] * (x.ndim - 1)
    x = jnp.pad(x, rest, constant_values=fill)
    return x.reshape(-1, GROUPS, *x.shape[1:]).swapaxes(0, 1)

  def side(anchor, contrast, zeta, tau):
    # Vectors whose products are (sim_ij - zeta_j) / tau_i.
    ones = jnp.ones((count, 1), anchor.dtype)
    anchor = jnp.concatenate([anchor, -ones], axis=1) / tau[:, None]
    contrast = jnp.concatenate([contrast, zeta[:, None]], axis=1)

    def log_sums(rows, columns, column_ids, log_weight):
      return tiles.row_log_sum_exp(
        rows,
        columns,
        log_weight + math.log(scale),
        temperature=1.0,
        row_ids=ids,
        column_ids=column_ids,
      )

    own = jnp.sum(anchor * contrast, axis=1)
    rest = log_sums(anchor, contrast, ids, jnp.zeros_like(own))
    total = jnp.logaddexp(own, rest)
    groups = in_groups(anchor), in_groups(ids), in_groups(-total, -jnp.inf)
    sums = jax.lax.map(lambda x: jnp.exp(log_sums(contrast, *x)), groups)
    weights = jnp.concatenate([jnp.exp(own - total)[None], sums])
    return weights, rest > -jnp.inf

  vectors = Sides(pairs.image, pairs.text)
  weights, valid = unzip(each(side, swap(vectors), vectors, zeta, swap(tau)))
  means, known = jax.lax.map(
    lambda x: mean_by_id(x, pairs.ids, valid.image), weights
  )

  def square(means):
    own, sums = means[0], means[1:]
    noise = GROUPS * jnp.var(sums, axis=0, ddof=1)
    off = 1 - own - jnp.sum(sums, axis=0)
    return jnp.square(off) - max(1 - 1 / scale, 0.0) * noise

  return each(square, means), each(lambda x: x[0], known)


def _gain(squares, of_none, ids, *, sizes) -> Metrics:
  """Computes the metrics of zeta on one side.

  Args:
    squares: The `Squares` of zeta.
    of_none: Those of zeta = 0.
    ids: The ids of the contrasts.
    sizes: The sizes of the training data.
  """
  unseen = max(1 - len(ids) / sizes.num_pairs, 0.0)

  def mean(x):
    return mean_where(x, squares.known)

  def error(x):
    """Returns 1.96 standard errors of a mean; of equal ids, one is drawn."""
    blocks = jax.nn.one_hot(ids % BLOCKS, BLOCKS, dtype=x.dtype)
    totals = tiles.matmul(jnp.where(squares.known, x, 0)[None], blocks)
    count = jnp.maximum(jnp.sum(squares.known), 1)
    return 1.96 * jnp.sqrt(unseen * jnp.sum(jnp.square(totals))) / count

  def noise(x):
    bias = jnp.abs(mean(x.extrapolated) - mean(x.sampled))
    return error(x.extrapolated - mean(x.extrapolated)) + bias

  def gain(ratio):
    return 1 - jnp.sqrt(jnp.maximum(ratio, 0.0))

  square, of_zero = mean(squares.extrapolated), mean(of_none.extrapolated)
  resolved = of_zero > jnp.maximum(noise(of_none), ROUNDING)
  of_zero = jnp.where(resolved, of_zero, jnp.nan)
  ratio = square / of_zero
  off = error(squares.extrapolated - ratio * of_none.extrapolated) / of_zero
  off += jnp.abs(ratio - mean(squares.sampled) / mean(of_none.sampled))
  return {
    "zeta_residual": jnp.sqrt(jnp.where(square >= 0, square, jnp.nan)),
    "zeta_noise": jnp.sqrt(noise(squares)),
    "zeta_gain": gain(jnp.where(ratio >= 0, ratio, jnp.nan)),
    "zeta_gain_low": gain(ratio + off),
    "zeta_gain_high": gain(ratio - off),
  }


def of_run(parts: Experiment, mesh: Mesh) -> Callable[[TrainState], Metrics]:
  """Makes a function that measures a run's state, as `diagnostics/...`.

  It logs alarms as warnings, after the first epoch or `SETTLED` steps.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, which must be entered when the function is
      called.
  """
  model, batch_size = parts.model, parts.settings.batch_size
  sizes, readout = parts.data.train.sizes, _readable(parts.objective)
  share = np.clip(sizes.num_pairs // 256, SAMPLE, LARGEST_SAMPLE)
  count = max(1, min(int(share), sizes.num_pairs) // batch_size)
  settled = min(sizes.num_pairs // batch_size, SETTLED)
  scale = scale_of(parts)
  read_batches = fixed_batches(parts, count)
  layout = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)

  @jax.jit
  def embed(params, model_state, batch):
    return model.apply(params, model_state, batch, key=None, train=False)[0]

  @partial(jax.jit, out_shardings=everywhere)
  def score(embedded, params, state):
    pairs, reference = jax.tree.map(lambda *x: jnp.concatenate(x), *embedded)
    how = dict(sizes=sizes, batch_size=batch_size, reference=reference)
    return measure(pairs, readout(params, state), **how)

  def run(train_state):
    params, embedded = train_state.params, []
    for batch in read_batches():
      batch = put_own(batch, layout)
      pairs = embed(params["model"], train_state.model_state, batch)
      embedded.append((pairs, batch.reference))
    scores = score(embedded, params["objective"], train_state.objective)
    scores = {name: float(x) for name, x in jax.device_get(scores).items()}
    measured, scores = scores, without_noise(scores)
    step = int(train_state.step)
    if len(scores) < len(measured) and distributed.is_first():
      missing = ", ".join(sorted(measured.keys() - scores))
      said = "step %d: %s: below the noise of %d pairs, so not recorded"
      log.info(said, step, missing, count * batch_size)
    if step >= settled and distributed.is_first():
      for message in find_alarms(scores, scale):
        log.warning("step %d: %s", step, message)
    return {f"diagnostics/{name}": x for name, x in scores.items()}

  return run


def without_noise(scores: Mapping[str, float]) -> dict[str, float]:
  """Leaves out what is below the noise; `zeta_noise` says how much that is.

  Example:
    >>> without_noise({"zeta_noise/text": 0.2, "zeta_gain/text": math.nan})
    {'zeta_noise/text': 0.2}
  """
  return {
    name: value
    for name, value in scores.items()
    if not (math.isnan(value) and name.partition("/")[0] in NOISY)
  }


def _readable(objective: Objective) -> Callable[..., Readout]:
  """Returns the readout function; if ambiguous, warns and reads nothing."""
  try:
    jax.eval_shape(lambda: objective.readout(*objective.init()))
  except ValueError as error:
    log.warning("diagnostics without temperature, u and zeta: %s", error)
    return lambda params, state: Readout()
  return objective.readout


class Scale(NamedTuple):
  """What the values of metrics are compared with."""

  batch_size: int
  # Distinct images, texts or labels, whichever are fewest. Embeddings of either
  # side gather around as many points, and two points have one dimension.
  num_points: float = math.inf


def scale_of(parts: Experiment) -> Scale:
  """Returns what the metrics of a run are compared with."""
  numbers = *parts.data.train.sizes.ids, parts.data.num_classes or math.inf
  return Scale(parts.settings.batch_size, min(numbers))


class Alarm(NamedTuple):
  """A warning, and the values of a metric of `measure` that call for it."""

  name: str  # of the metric, without the side
  wrong: Callable[[float, Scale], bool]  # whether to warn of a value
  text: str  # of the warning, with {side} and {value}


ALARMS = (
  Alarm(
    "mean_cosine",
    lambda x, scale: x > 0.9 and scale.num_points > 2,
    "the embeddings of {side}s are nearly all the same (mean cosine "
    "{value:.2f}): collapse; try a lower learning rate, or a lower weight of "
    "added terms",
  ),
  Alarm(
    "dimensions",
    lambda x, scale: x < min(2, 0.75 * (scale.num_points - 1)),
    "the embeddings of {side}s have {value:.1f} dimensions: collapse, or a "
    "model that has not learned yet",
  ),
  Alarm(
    "effective_negatives",
    lambda x, scale: x < 1.5 < 0.9 * (scale.batch_size - 1),
    "{side}s as anchors see {value:.1f} negatives of a batch: the temperature "
    "is very low, or batches have near-duplicates",
  ),
  Alarm(
    "effective_negatives",
    lambda x, scale: x > 0.9 * (scale.batch_size - 1) > 1.5,
    "{side}s as anchors see all negatives of a batch alike ({value:.1f}), as "
    "at chance, where CLIP's loss is log(batch size): the temperature is high, "
    "the model has not learned yet, or captions do not belong to their images",
  ),
  Alarm(
    "temperature",
    lambda x, scale: not 0.005 <= x <= 1,
    "the temperature of {side}s as anchors is {value:.2g}, outside of "
    "[0.005, 1]: lower its learning rate, or fix it",
  ),
  Alarm(
    "u_drift",
    lambda x, scale: abs(x) > 2,
    "u of {side}s as anchors is {value:+.1f} nats off the model: if above, "
    "raise gamma, or lower the learning rate; if below, raise the temperature",
  ),
  Alarm(
    "zeta_gain_high",
    lambda x, scale: x < 0,
    "zeta of {side}s is worse than none (its gain is at most {value:.2f}): "
    "lower the rule's rate, or enlarge its memory",
  ),
)


def find_alarms(metrics: Metrics, scale: Scale) -> list[str]:
  """Returns the warnings that metrics of `diagnostics.measure` call for.

  Args:
    metrics: The metrics by name, with or without a prefix that ends in a slash;
      metrics of other names are ignored.
    scale: The batch size of training, and the distinct samples of its data.

  Example:
    >>> (message,) = find_alarms({"mean_cosine/text": 0.97}, Scale(8))
    >>> message[:42]
    'the embeddings of texts are nearly all the'
  """
  return [
    alarm.text.format(side=side, value=value)
    for alarm in ALARMS
    for side in Sides._fields
    for name, value in metrics.items()
    if f"/{name}".endswith(f"/{alarm.name}/{side}")
    and alarm.wrong(value, scale)
  ]

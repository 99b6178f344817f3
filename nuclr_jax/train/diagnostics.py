"""Diagnostics: how training is going, beyond the loss.

They are measured on a fixed random sample of the training pairs, augmented as
in training and embedded by the model in evaluation mode.
"""

from collections.abc import Callable
from functools import partial
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from nuclr_jax import distributed, pairwise, sharding
from nuclr_jax.objectives import Objective, Readout
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.sample_state import denominator
from nuclr_jax.sample_state.denominator import mean_where
from nuclr_jax.sample_state.table import mean_by_id, read_rows
from nuclr_jax.train.batches import fixed_batches
from nuclr_jax.train.build import Experiment
from nuclr_jax.train.step import TrainState
from nuclr_jax.types import Metrics, Pairs, Sides, Sizes, both, each, swap

log = logging.getLogger(__name__)

# Pairs at most, unless one batch is larger: a 256th of the data, within limits.
SAMPLE, LARGEST_SAMPLE = 4_096, 32_768
SETTLED = 1_000  # first steps without alarms; the first epoch if it is shorter


def measure(
  pairs: Pairs, readout: Readout, *, sizes: Sizes, batch_size: int
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
                         see `popularity.solve`, without the noise of the
                         anchors; 0 at the exact zeta
    zeta_gain            1 - zeta_residual / (the residual of zeta = 0)
    temperature          mean tau

  All but the first three need a readout with a temperature; u_drift also needs
  u by pair, and the residual and the gain need zeta. What is left in residuals
  is the error of denominators that the sample sees in part: by a quarter of
  4,096 generated pairs, the gain of exact zeta is 0.7 at tau 0.01 and 0.9 at
  0.04 (experiments/popularity/at_scale); zeta that are too small, or of the
  wrong sign, keep their order.

  Args:
    pairs: The sample, with embeddings of any norm; `batch_size` divides m.
    readout: What can be read from the objective, see `Objective.readout`.
    sizes: The sizes of the training data.
    batch_size: The batch size of training.

  Example:
    >>> pairs = Pairs(jnp.eye(4), jnp.eye(4), jnp.arange(4))
    >>> sizes = Sizes(100, 100, 100)
    >>> readout = Readout(temperature=jnp.float32(0.5))
    >>> metrics = measure(pairs, readout, sizes=sizes, batch_size=4)
    >>> print(metrics["effective_negatives/image"], metrics["dimensions/image"])
    3.0 3.0
  """
  pairs = pairs._replace(
    image=unit_norm(jnp.asarray(pairs.image, float)),
    text=unit_norm(jnp.asarray(pairs.text, float)),
  )
  sides = Sides(pairs.image, pairs.text)
  metrics = {
    "mean_cosine": each(_mean_cosine, sides),
    "dimensions": each(_dimensions, sides),
  }
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
    zeros = each(jnp.zeros_like, zeta)
    off, uniform = (_residual(pairs, x, tau, sizes) for x in (zeta, zeros))
    metrics["zeta_residual"] = off
    metrics["zeta_gain"] = each(
      lambda x, y: jnp.where(y > 0, 1 - x / y, 0.0), off, uniform
    )
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


def _residual(pairs, zeta, tau, sizes) -> Sides:
  """Estimates the root mean square of 1 - sum_i w_ij over contrasts, by side.

  The square of the sample's estimate is too large by the variance of what the
  sample lacks. Two halves of the anchors have sums a and b over them; (a - b)^2
  estimates that variance, times the share of the anchors that are not sampled.
  """
  logits = pairwise.logits(pairs, temperature=tau, bias=zeta)
  log_phi = denominator.estimate(logits, sizes)
  # Filed by anchor: the zeta of an anchor's own contrast is on the other side.
  log_own = each(lambda x, t: -x / t, swap(zeta), tau)
  total = each(jnp.logaddexp, log_own, log_phi)
  own_weight = swap(each(lambda x, y: jnp.exp(x - y), log_own, total))
  valid = denominator.has_negative(log_phi)
  num_others, rows = sizes.num_pairs - 1, jnp.arange(len(pairs.pair_id))
  seen = max(len(rows) - 1, 1)

  def sums(is_anchor):
    row_log_weight = each(lambda x: jnp.where(is_anchor, -x, -jnp.inf), total)
    found = pairwise.weighted(logits, row_log_weight=row_log_weight)
    return each(lambda x: num_others / seen * x, found.contrast_sums)

  a, b = sums(rows % 2 == 0), sums(rows % 2 == 1)
  off = each(lambda own, a, b: 1 - own - a - b, own_weight, a, b)
  noise, _ = mean_by_id(each(jnp.subtract, a, b), pairs.ids, valid)

  def side(off, known, noise):
    unseen = max(1 - seen / num_others, 0.0)
    square = jnp.square(off) - unseen * jnp.square(noise)
    return jnp.sqrt(jnp.maximum(mean_where(square, known), 0.0))

  return each(side, *mean_by_id(off, pairs.ids, valid), noise)


def of_run(parts: Experiment, mesh: Mesh) -> Callable[[TrainState], Metrics]:
  """Makes a function that measures a run's state, as `diagnostics/...`.

  It logs alarms as warnings, after the first epoch or `SETTLED` steps.

  Args:
    parts: The parts of the run.
    mesh: The mesh of the run, which must be entered when the function is
      called.
  """
  model, batch_size = parts.model, parts.config["batch_size"]
  sizes, readout = parts.data.train.sizes, _readable(parts.objective)
  share = np.clip(sizes.num_pairs // 256, SAMPLE, LARGEST_SAMPLE)
  count = max(1, min(int(share), sizes.num_pairs) // batch_size)
  settled = min(sizes.num_pairs // batch_size, SETTLED)
  read_batches = fixed_batches(parts, count)
  layout = NamedSharding(mesh, sharding.ROWS)
  everywhere = NamedSharding(mesh, sharding.REPLICATED)

  @jax.jit
  def embed(params, model_state, batch):
    return model.apply(params, model_state, batch, key=None, train=False)[0]

  @partial(jax.jit, out_shardings=everywhere)
  def score(embedded, params, state):
    pairs = jax.tree.map(lambda *x: jnp.concatenate(x), *embedded)
    return measure(
      pairs, readout(params, state), sizes=sizes, batch_size=batch_size
    )

  def run(train_state):
    params, embedded = train_state.params, []
    for batch in read_batches():
      batch = sharding.put_own(batch, layout)
      embedded.append(embed(params["model"], train_state.model_state, batch))
    scores = score(embedded, params["objective"], train_state.objective)
    scores = {name: float(x) for name, x in jax.device_get(scores).items()}
    step = int(train_state.step)
    if step >= settled and distributed.is_first():
      for message in find_alarms(scores, batch_size=batch_size):
        log.warning("step %d: %s", step, message)
    return {f"diagnostics/{name}": x for name, x in scores.items()}

  return run


def _readable(objective: Objective) -> Callable[..., Readout]:
  """Returns the readout function; if ambiguous, warns and reads nothing."""
  try:
    jax.eval_shape(lambda: objective.readout(*objective.init()))
  except ValueError as error:
    log.warning("diagnostics without temperature, u and zeta: %s", error)
    return lambda params, state: Readout()
  return objective.readout


class Alarm(NamedTuple):
  """A warning, and the values of a metric of `measure` that call for it."""

  name: str  # of the metric, without the side
  wrong: Callable[[float, int], bool]  # (value, batch size) -> whether to warn
  text: str  # of the warning, with {side} and {value}


ALARMS = (
  Alarm(
    "mean_cosine",
    lambda x, batch_size: x > 0.9,
    "the embeddings of {side}s are nearly all the same (mean cosine "
    "{value:.2f}): collapse; try a lower learning rate, or a lower weight of "
    "added terms",
  ),
  Alarm(
    "dimensions",
    lambda x, batch_size: x < 2,
    "the embeddings of {side}s have {value:.1f} dimensions: collapse, or a "
    "model that has not learned yet",
  ),
  Alarm(
    "effective_negatives",
    lambda x, batch_size: x < 1.5 < 0.9 * (batch_size - 1),
    "{side}s as anchors see {value:.1f} negatives of a batch: the temperature "
    "is very low, or batches have near-duplicates",
  ),
  Alarm(
    "effective_negatives",
    lambda x, batch_size: x > 0.9 * (batch_size - 1) > 1.5,
    "{side}s as anchors see all negatives of a batch alike ({value:.1f}): the "
    "temperature is high, or the model has not learned yet",
  ),
  Alarm(
    "temperature",
    lambda x, batch_size: not 0.005 <= x <= 1,
    "the temperature of {side}s as anchors is {value:.2g}, outside of "
    "[0.005, 1]: lower its learning rate, or fix it",
  ),
  Alarm(
    "u_drift",
    lambda x, batch_size: abs(x) > 2,
    "u of {side}s as anchors is {value:+.1f} nats off the model: raise gamma, "
    "or wait for the learning rate to fall",
  ),
  Alarm(
    "zeta_gain",
    lambda x, batch_size: x < -0.1,
    "zeta of {side}s is worse than none (gain {value:.2f}): lower "
    "the rule's rate, or enlarge its memory",
  ),
)


def find_alarms(metrics: Metrics, *, batch_size: int) -> list[str]:
  """Returns the warnings that metrics of `diagnostics.measure` call for.

  Args:
    metrics: The metrics by name, with or without a prefix that ends in a slash;
      metrics of other names are ignored.
    batch_size: The batch size of training.

  Example:
    >>> (message,) = find_alarms({"mean_cosine/text": 0.97}, batch_size=8)
    >>> message[:42]
    'the embeddings of texts are nearly all the'
  """
  return [
    alarm.text.format(side=side, value=value)
    for alarm in ALARMS
    for side in Sides._fields
    for name, value in metrics.items()
    if f"/{name}".endswith(f"/{alarm.name}/{side}")
    and alarm.wrong(value, batch_size)
  ]

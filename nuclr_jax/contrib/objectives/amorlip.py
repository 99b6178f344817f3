"""AmorLIP: networks that learn the denominators."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import optax

from nuclr_jax import checks, pairwise
from nuclr_jax.contrib.objectives import width
from nuclr_jax.contrib.objectives.one_temperature import rule_for_all
from nuclr_jax.objectives import base, temperature_rules
from nuclr_jax.pairwise import tiles
from nuclr_jax.sample_state import denominator
from nuclr_jax.types import (
  Params,
  Sides,
  State,
  each,
  shows_its_call,
  unzip,
)


class Networks(NamedTuple):
  """The networks of both sides, which predict log lambda of the anchors."""

  online: Sides  # moved in each step
  moment: Sides  # of the online networks, by Adam
  average: Sides  # a moving average of the online networks
  previous: Sides  # the average at the end of the last epoch
  count: Int[Array, ""]  # steps done


@shows_its_call
@checks.checked
def amorlip(
  *,
  dim: checks.Count,
  steps_per_epoch: checks.Count,
  temperature: temperature_rules.TemperatureOrRule = 0.07,
  positive_weight: checks.NonNegative = 1e-3,
  beta: checks.Rate = 0.8,
  hidden: checks.Positive = 0.5,
  num_updates: checks.Natural = 3,
  rate: checks.Positive = 1e-3,
  decay: checks.Fraction = 0.92,
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes a global contrastive loss whose denominators networks remember.

  For images as anchors (texts are anchors in the same way, with their own
  network), with Z_i the sum of exp(sim_ij / temperature) over the batch's
  negatives and positive_weight exp(sim_ii / temperature):

    lambda_i = beta lambda'(x_i) + (1 - beta) Z_i
    loss     = mean_i temperature (Z_i / lambda_i + log lambda_i - 1) - sim_ii

  where lambda' is the network of the last epoch's end, and lambda is constant
  in the gradient; that of a learned temperature leaves out Z_i / lambda_i - 1,
  as the published code does. In each step, `num_updates` steps of Adam move an
  online network, towards log lambda_i; every second step moves its average. At
  the end of an epoch, the average becomes lambda', and both start anew.

  So this is `sogclr` with gamma = 1 - beta whose stored denominators are those
  of a network: it needs no rows for samples, so that data may be a stream. The
  positive has weight 1, though, where `sogclr` gives it that of all negatives.

  Args:
    dim: The width of the embeddings.
    steps_per_epoch: How often lambda' is replaced; from a config, the length of
      an epoch. In the first epoch, beta is 0.
    temperature: Divides cosine similarities, greater than 0; or
      `temperature_rules.learned(...)`, whose rho is compared with the logarithm
      of the batch size.
    positive_weight: The weight of the positive in Z_i, at least 0; published:
      1e-3.
    beta: The weight of lambda', in [0, 1], or a schedule of the step count; the
      published one rises as a cosine from 0 to 0.8 over the first half.
    hidden: The width of the networks' hidden layer, in units of `dim`.
    num_updates: The number of Adam's steps on the networks in each step.
    rate: The step size of Adam.
    decay: The weight of the old average, in [0, 1).
    seed: The seed of the networks.

  Returns:
    An `Objective` whose `State.shared` holds the `Networks`.

  Raises:
    ValueError: If an argument is out of its range, or for individual
      temperatures; also from `apply`, if embeddings have another width.

  Example:
    >>> objective = amorlip(dim=2, steps_per_epoch=10)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> loss, (state, _) = objective.apply(*objective.init(), pairs)
    >>> int(state.shared.count)
    1

  Reference: AmorLIP, NeurIPS 2025 (arXiv 2505.18983).
  """
  taus = rule_for_all(temperature)
  num_hidden = math.ceil(hidden * dim)
  log_positive = denominator.log_of(positive_weight)
  adam = optax.adam(rate)

  def fresh(epoch):
    key = jax.random.fold_in(jax.random.key(seed), epoch)
    return each(lambda k: _first_network(k, dim, num_hidden), _two_keys(key))

  def init():
    params, _ = taus.init(None)
    online, average, previous = (fresh(0) for _ in range(3))
    moment = each(adam.init, online)
    count = jnp.int32(0)
    networks = Networks(online, moment, average, previous, count)
    return params, State(shared=networks)

  @base.whole_batch
  def apply(params, state, pairs):
    stop, networks = jax.lax.stop_gradient, state.shared
    batch, count = len(pairs.pair_id), networks.count
    tau = taus.read(params, None)
    logits = pairwise.logits(pairs, temperature=tau)
    log_sum = pairwise.log_sum_exp(logits)
    counts = denominator.has_negative(log_sum)
    anchors = stop(width.embeddings(pairs, dim))
    offset = temperature_rules.offset(taus, batch)
    weight = jnp.where(count < steps_per_epoch, 0.0, beta(count))
    log_new, log_old = denominator.log_shares(weight)

    def mixture(x, previous, log_sum, tau):
      """Computes log Z and log lambda, relative to the positive's term."""
      own = logits.own / stop(tau)
      log_z = jnp.logaddexp(log_sum, log_positive)
      log_previous = network(previous, x) - own
      mixed = jnp.logaddexp(log_old + log_previous, log_new + log_z)
      return log_z, jnp.where(counts, mixed, 0.0)

    log_z, log_d = unzip(
      each(mixture, anchors, networks.previous, log_sum, tau)
    )
    row_log_weight = each(lambda t, d: jnp.log(t / batch) - d, tau, log_d)
    out = pairwise.weighted(logits, row_log_weight=row_log_weight)

    def value(log_z, log_d, tau):
      share = stop(tau) * (jnp.exp(log_z - log_d) - 1)
      return jnp.mean(jnp.where(counts, tau * (log_d + offset) + share, 0.0))

    # The logits contain -sim_ii with the weight of all terms, but the weight of
    # the positive is 1.
    def positive(log_z, row_log_weight, tau):
      weight = jnp.exp(log_z + row_log_weight) - tau / batch
      logit = pairwise.own_similarity(pairs) / tau
      return jnp.sum(stop(jnp.where(counts, weight, 0.0)) * logit)

    total = sum(each(value, log_z, log_d, tau))
    own = sum(each(positive, log_z, row_log_weight, tau))
    total = base.attach_gradient(total, total + out.surrogate + own)

    log_lambda = each(lambda d, t: d + logits.own / stop(t), log_d, tau)
    metrics = taus.metrics(tau)
    online, moment, error = unzip(
      each(
        lambda *x: _fit(adam, num_updates, counts, *x),
        networks.online,
        networks.moment,
        anchors,
        log_lambda,
      )
    )
    metrics |= {f"log_lambda_error/{k}": x for k, x in error._asdict().items()}
    average = jax.tree.map(
      lambda old, new: jnp.where(
        count % 2 == 1, decay * old + (1 - decay) * new, old
      ),
      networks.average,
      online,
    )
    now = Networks(online, moment, average, networks.previous, count + 1)

    def next_epoch(last):
      new = fresh(last.count // steps_per_epoch)
      new = Networks(new, each(adam.init, new), new, average, last.count)
      return jax.tree.map(lambda x, old: x.astype(old.dtype), new, last)

    ends = now.count % steps_per_epoch == 0
    now = jax.lax.cond(ends, next_epoch, lambda same: same, now)
    total = pairwise.nan_without_negatives(total, pairs)
    return total, (State(shared=now), metrics)

  def readout(params, state):
    return base.Readout(temperature=taus.readout(params, None))

  return base.Objective(init, apply, readout)


def network(
  params: Params, x: Float[Array, "batch dim"]
) -> Float[Array, "batch"]:
  """Predicts log lambda of embeddings: two residual layers, and a number."""
  h = _norm(params["norm1"], jax.nn.relu(_linear(params["fc1"], x)))
  h = _norm(params["norm2"], jax.nn.relu(_linear(params["fc2"], h)))
  return _linear(params["fc3"], jax.nn.relu(h + x))[:, 0]


def _linear(params, x):
  return tiles.matmul(x, params["kernel"]) + params["bias"][None]


def _norm(params, x):
  mean, var = jnp.mean(x, 1, keepdims=True), jnp.var(x, 1, keepdims=True)
  unit = (x - mean) * jax.lax.rsqrt(var + 1e-5)
  return unit * params["scale"][None] + params["bias"][None]


def _two_keys(key) -> Sides:
  return Sides(*jax.random.split(key))


def _first_network(key, dim: int, hidden: int) -> Params:
  """Draws kernels with a variance of 1 / inputs."""

  def linear(key, inputs, outputs):
    kernel = jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs)
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}

  def norm(size):
    return {"scale": jnp.ones(size), "bias": jnp.zeros(size)}

  keys = jax.random.split(key, 3)
  return {
    "fc1": linear(keys[0], dim, hidden),
    "norm1": norm(hidden),
    "fc2": linear(keys[1], hidden, dim),
    "norm2": norm(dim),
    "fc3": linear(keys[2], dim, 1),
  }


def _fit(adam, num_updates, counts, params, moment, x, log_lambda):
  """Moves a network towards log lambda; returns its first error, too."""

  def error(params):
    return denominator.mean_where(
      (network(params, x) - log_lambda) ** 2, counts
    )

  def update(_, carry):
    params, moment = carry
    updates, moment = adam.update(jax.grad(error)(params), moment)
    return optax.apply_updates(params, updates), moment

  moved = jax.lax.fori_loop(0, num_updates, update, (params, moment))
  return *moved, jnp.sqrt(error(params))

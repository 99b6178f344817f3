"""NeuCLIP: denominators from prototypes of the other side."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nuclr_jax import checks, pairwise, sharding
from nuclr_jax.contrib.objectives import width
from nuclr_jax.contrib.objectives.one_temperature import rule_for_all
from nuclr_jax.objectives import base, temperature_rules
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.sample_state import denominator
from nuclr_jax.types import (
  Number,
  Scalar,
  Sides,
  State,
  each,
  shows_its_call,
  swap,
  unzip,
)

MOST = 30.0  # log of the greatest error of a prototype's anchor
TINY = 1e-20  # below the squares of gradients


class Prototypes(NamedTuple):
  """What stands for all contrasts; `.image` stands for images."""

  vector: Sides  # [num_prototypes, dim] each; rows of zeros are not in use yet
  square: Sides  # the sums of their squared gradients
  count: Int[Array, ""]  # steps done


@shows_its_call
@checks.checked
def neuclip(
  *,
  dim: checks.Count,
  num_prototypes: checks.Count = 4096,
  temperature: temperature_rules.TemperatureOrRule = 0.07,
  epsilon: checks.NonNegative = 1e-6,
  num_updates: checks.Natural = 10,
  rate: checks.Positive = 0.1,
  restart_every: checks.Count = 500,
  num_pairs: checks.NumPairs | None = None,
  batch_size: checks.Count | None = None,
) -> base.Objective:
  r"""Makes a global contrastive loss whose denominators prototypes predict.

  For images as anchors, with prototypes W_k of texts (texts are anchors in the
  same way, with prototypes of images), h_ij = (sim_ij - sim_ii) / temperature
  and g_i the mean of exp(h_ij) over the batch's negatives:

    alpha_i = log(epsilon + mean_k exp((cos(x_i, W_k) - sim_ii) / temperature))
    loss    = mean_i temperature (exp(-alpha_i) (epsilon + g_i) + alpha_i - 1)

  The loss is at least temperature log(epsilon + g_i), which it is where alpha_i
  is right. In each step, `num_updates` steps of AdaGrad first move W to lower
  the batch's loss; then alpha is constant in the gradient of the encoders,
  which is that of `sogclr` with (n - 1) exp(alpha_i) for the denominator. The
  first steps, and those from each multiple of `restart_every`, replace
  prototypes by the batch's embeddings, until all are replaced.

  There are no rows for samples, so that data may be a stream. Devices have all
  prototypes and share the batch of B: each of the updates sums the gradients of
  the prototypes over them. Time and memory are O(B K / devices) for K
  prototypes: cosines are kept for their gradient, since to compute them twice,
  tile by tile, would take three products instead of two. Restarts need no hook
  of the training loop, and no pass over data: they come with the steps.

  Prototypes have unit norm in every cosine, so that embeddings that are not
  (those of `relative_to`) make alpha meaningless.

  Args:
    dim: The width of the embeddings.
    num_prototypes: The number of prototypes of each side, K.
    temperature: Divides cosine similarities, greater than 0; or
      `temperature_rules.learned(...)`, whose rho is added to alpha_i.
    epsilon: Added to each denominator's mean, at least 0.
    num_updates: The number of AdaGrad steps on the prototypes in each step.
    rate: The step size of AdaGrad.
    restart_every: After how many steps prototypes are replaced again.
    num_pairs: The number of pairs of the data set, if it is known; it is from a
      config. More prototypes than that are refused.
    batch_size: The batch size, if it is known; it is from a config. What a
      batch cannot do is then refused at once, and not by `apply`.

  Returns:
    An `Objective` whose `State.shared` holds the `Prototypes`.

  Raises:
    ValueError: If an argument is out of its range, for individual
      temperatures, or if there are more prototypes than pairs; also from
      `apply`, if embeddings have another width, or if `restart_every` batches
      have fewer pairs than there are prototypes.

  Example:
    >>> objective = neuclip(dim=2, num_prototypes=4, num_updates=0)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2))
    >>> _, (state, _) = objective.apply(*objective.init(), pairs)
    >>> print(state.shared.vector.text)  # two are in use after one step
    [[1. 0.]
     [0. 1.]
     [0. 0.]
     [0. 0.]]

  Reference: NeuCLIP, ICLR 2026 (arXiv 2511.08417).
  """
  taus = rule_for_all(temperature)
  log_epsilon = denominator.log_of(epsilon)
  rho = taus.rho or 0.0
  if num_pairs is not None:
    temperature_rules.offset(
      taus, num_pairs
    )  # warns of a rho that is too large
    if num_prototypes > num_pairs:
      raise ValueError(
        f"num_prototypes must be at most the number of pairs {num_pairs}, "
        f"since embeddings of pairs become prototypes, got {num_prototypes}"
      )
  if batch_size is not None:
    _check_restarts(restart_every, batch_size, num_prototypes)

  def init():
    params, _ = taus.init(None)
    zeros = jnp.zeros((2, num_prototypes, dim), float)
    return params, State(
      shared=Prototypes(Sides(*zeros), Sides(*zeros), jnp.int32(0))
    )

  @base.whole_batch
  def apply(params, state, pairs):
    batch, (vector, square, count) = len(pairs.pair_id), state.shared
    _check_restarts(restart_every, batch, num_prototypes)
    tau = taus.read(params, None)
    logits = pairwise.logits(pairs, temperature=tau)
    log_negatives = math.log(max(batch - 1, 1))
    log_mean = each(lambda x: x - log_negatives, pairwise.log_sum_exp(logits))
    counts = denominator.has_negative(log_mean)
    target = each(lambda x: jnp.logaddexp(log_epsilon, x), log_mean)
    anchors = jax.lax.stop_gradient(width.embeddings(pairs, dim))

    def follow(x, contrasts, vector, square, target, tau):
      """Moves the prototypes that stand for contrasts; returns alpha, too."""
      tau = jax.lax.stop_gradient(tau)
      start = count % restart_every
      vector, square = _replace(vector, square, contrasts, start)

      def alpha(vector):
        return _log_mean_exp(x, vector, logits.own, tau, log_epsilon)

      def update(_, prototypes):
        vector, square = prototypes
        g = jax.grad(lambda w: _fit(alpha(w), target, counts))(vector)
        square += g * g
        return vector - rate * g * jax.lax.rsqrt(square + TINY), square

      vector, square = jax.lax.fori_loop(
        0, num_updates, update, (vector, square)
      )
      return vector, square, alpha(vector)

    vector, square, alpha = unzip(
      each(follow, anchors, *map(swap, (anchors, vector, square)), target, tau)
    )

    def loss(alpha, target, tau):
      return tau * (jnp.exp(target - alpha) + alpha - 1 + rho)

    value = sum(
      jnp.mean(jnp.where(counts, x, 0.0))
      for x in each(loss, alpha, jax.lax.stop_gradient(target), tau)
    )
    out = pairwise.weighted(
      logits,
      row_log_weight=each(
        lambda a, t: jnp.log(t / batch) - log_negatives - a,
        alpha,
        tau,
      ),
    )
    metrics = taus.metrics(tau)
    for side, a, t in zip(Sides._fields, alpha, target, strict=True):
      square_error = denominator.mean_where((a - t) ** 2, counts)
      metrics |= {
        f"log_normalizer/{side}": denominator.mean_where(a, counts),
        f"log_normalizer_error/{side}": jnp.sqrt(square_error),
      }
    state = State(shared=Prototypes(swap(vector), swap(square), count + 1))
    value = base.attach_gradient(value, value + out.surrogate)
    return pairwise.nan_without_negatives(value, pairs), (state, metrics)

  def readout(params, state):
    return base.Readout(temperature=taus.readout(params, None))

  return base.Objective(init, apply, readout)


def _check_restarts(every: int, batch: int, num_prototypes: int) -> None:
  """Raises ValueError if a restart cannot replace all prototypes."""
  if every * batch < num_prototypes:
    raise ValueError(
      f"{every} batches of {batch} pairs (restart_every) replace at most "
      f"{every * batch} prototypes, got num_prototypes = {num_prototypes}; "
      "raise restart_every, or use fewer prototypes"
    )


def _replace(vector, square, fresh, start):
  """Writes embeddings over those prototypes whose turn it is, if any."""
  count, batch = len(vector), len(fresh)
  turn = jnp.minimum(start, -(-count // batch)) * batch
  rows = jnp.minimum(turn + jnp.arange(batch), count)  # `count` is dropped
  return (
    vector.at[rows].set(sharding.gather(unit_norm(fresh)), mode="drop"),
    square.at[rows].set(0.0, mode="drop"),
  )


def _log_mean_exp(
  x: Float[Array, "batch dim"],
  vector: Float[Array, "prototypes dim"],
  own: Float[Array, "batch"],
  tau: Number,
  log_epsilon: float,
) -> Float[Array, "batch"]:
  """Returns alpha, from the prototypes that are in use."""
  is_used = jnp.any(vector != 0, axis=1)
  cosine = tiles.matmul(x, unit_norm(vector).T)
  logit = jnp.where(is_used[None], (cosine - own[:, None]) / tau, -jnp.inf)
  log_sum = jax.nn.logsumexp(logit, axis=1)
  return jnp.logaddexp(log_epsilon, log_sum - jnp.log(jnp.sum(is_used)))


def _fit(alpha, target, counts) -> Scalar:
  """Has the gradient of sum_i exp(target_i - alpha_i) + alpha_i, bounded."""
  error = 1 - jnp.exp(jnp.minimum(target - alpha, MOST))
  error = jnp.where(counts, jax.lax.stop_gradient(error), 0.0)
  return jnp.sum(error * alpha)

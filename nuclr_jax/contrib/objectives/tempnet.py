"""TempNet: a network that tells every anchor's temperature from its embedding.

It is a rule for the temperature, like those of `temperature_rules`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import optax

from nuclr_jax import checks, sharding
from nuclr_jax.contrib.objectives import width
from nuclr_jax.objectives import temperature_rules
from nuclr_jax.pairwise import tiles, unit_norm
from nuclr_jax.types import (
  Number,
  Pairs,
  PyTree,
  Sides,
  each,
  shows_its_call,
  swap,
)


class Network(NamedTuple):
  """The parameters of one side's network; see `temperatures`."""

  kernel: Float[Array, "dim dim"]
  bias: Float[Array, "dim"]
  prototypes: Float[Array, "prototypes dim"]  # of any norm
  log_temperature: Float[Array, ""]  # of the softmax over prototypes
  slope: Float[Array, "prototypes"]
  offset: Float[Array, ""]


class Learned(NamedTuple):
  """The state of the rule; `.image` belongs to images as anchors."""

  network: Sides
  moment: PyTree  # of the networks, by Adam


@shows_its_call
@checks.checked(of="temperature")
def tempnet(
  *,
  dim: checks.Count,
  num_prototypes: checks.Count = 256,
  bounds: tuple[checks.Temperature, checks.Temperature] = (0.005, 0.05),
  dropout: checks.Fraction = 0.5,
  rate: checks.Rate = 3e-5,
  rho: checks.Finite = 7.0,
  seed: checks.Seed = 0,
  batch_size: checks.Count | None = None,
) -> temperature_rules.TemperatureRule:
  r"""Makes temperatures that a network tells from the anchors' embeddings.

  For images as anchors (texts are anchors in the same way, with their own
  network), with x the embedding, c_k of K prototypes and s the logistic
  function:

    z    = dropout(s(W x + b)),   q_k = z . c_k / |c_k|
    p    = softmax(q / exp(log_temperature))
    tau  = low + (high - low) s(offset + sum_k slope_k (p_k - 1 / K) s(q_k))

  In the loss of the encoders, tau is constant. Adam moves the networks in every
  step of the objective, down the gradient of mean_i g_i tau_i, where g_i,
  constant, is the derivative of anchor i's loss by its temperature, as in
  `temperature_rules.individual` but without bounds. So `sogclr` with this rule
  is iSogCLR with TempNet, and `nuclr` has both, popularities and temperatures.

  The prototypes of images as anchors start as the texts of the first batch, and
  vice versa. Which entries dropout drops depends on the seed, the number of
  steps and the `pair_id`, and on nothing else. A batch without negatives moves
  nothing.

  Args:
    dim: The width of the embeddings.
    num_prototypes: The number of prototypes of each side, at most that of the
      pairs in the first batch.
    bounds: The smallest and the largest temperature; equal ones make `fixed`.
    dropout: The fraction of z that is dropped, in [0, 1).
    rate: The step size of Adam, in [0, 1]: a number or a schedule of the step
      count (published: 3e-5, less by a tenth after every epoch).
    rho: The KL divergence from uniform weights at the optimum; it should be
      below log(number of pairs).
    seed: The seed of the first networks and of dropout.
    batch_size: The batch size, if it is known; it is from a config. Too many
      prototypes are then refused at once, and not by `apply`.

  Returns:
    A rule for the argument `temperature` of `sogclr` and `nuclr`; its networks
    are in `State.shared.temperature`. There is no temperature to read without
    embeddings: `temperatures` gives those of any, also of unseen samples.

  Raises:
    ValueError: If an argument is out of its range; also from `apply`, if
      embeddings have another width, or a batch has fewer pairs than
      `num_prototypes`.

  Example:
    >>> from nuclr_jax import objectives
    >>> rule = tempnet(dim=2, num_prototypes=2, rho=1.0)
    >>> objective = objectives.sogclr(num_pairs=4, temperature=rule)
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.array([3, 0]))
    >>> _, (state, metrics) = objective.apply(*objective.init(), pairs)
    >>> print(state.shared.temperature.network.image.prototypes.round(3))
    [[1. 0.]
     [0. 1.]]
    >>> print(0.005 < metrics["temperature/image"] < 0.05)
    True

  Reference: Qiu et al., To Cool or not to Cool? Temperature Network Meets Large
    Foundation Models via DRO, ICML 2024.
  """
  low, high = bounds
  if low > high:
    raise ValueError(
      "temperature.bounds must be (low, high) with 0 < low <= high, got "
      f"{bounds!r}"
    )
  if batch_size is not None:
    _check_batch(batch_size, num_prototypes)
  adam = optax.scale_by_adam()

  def keys(count):
    """Returns a key for each side: of the first networks at 0, or of a step."""
    # Keys of the kind "rbg" draw for a row by its place in the batch.
    key = jax.random.key(seed, impl="threefry2x32")
    key = jax.random.fold_in(key, count)
    return Sides(*jax.random.split(key))

  def init_shared():
    network = each(lambda k: _first_network(k, dim, num_prototypes), keys(0))
    return Learned(network, adam.init(network))

  def started(learned, pairs):
    """Returns the networks; before the first step, with prototypes."""
    x = _embeddings(pairs, dim)
    _check_batch(len(x.image), num_prototypes)

    def side(network, contrasts):
      prototypes = jnp.where(
        learned.moment.count == 0,
        contrasts[:num_prototypes].astype(network.prototypes.dtype),
        network.prototypes,
      )
      return network._replace(prototypes=prototypes)

    return each(side, learned.network, swap(x))

  def predict(network, learned, pairs):
    """Returns the temperatures of a step, with dropout."""
    x = _embeddings(pairs, dim)

    def side(network, x, key):
      kept = _kept(key, pairs.pair_id, dim, 1 - dropout) if dropout else 1.0
      return temperatures(network, x, bounds=bounds, kept=kept)

    return each(side, network, x, keys(learned.moment.count + 1))

  def read(params, rows, learned, pairs):
    return predict(started(learned, pairs), learned, pairs)

  def step_shared(learned, step):
    network = started(learned, step.pairs)
    tau, by_network = jax.vjp(
      lambda network: predict(network, learned, step.pairs), network
    )
    g = temperature_rules.gradients(tau, step)
    g = each(lambda x: jnp.where(step.has_negative, x, 0.0) / len(x), g)
    (gradient,) = by_network(jax.lax.stop_gradient(g))
    updates, moment = adam.update(gradient, learned.moment)
    moved = jax.tree.map(
      lambda x, update: x - rate(step.count) * update, network, updates
    )
    moves = jnp.any(step.has_negative)
    return jax.tree.map(
      lambda new, old: jnp.where(moves, new, old).astype(old.dtype),
      Learned(moved, moment),
      learned,
    )

  return temperature_rules.TemperatureRule(
    first=(low + high) / 2,
    init=lambda sizes: ({}, {}),
    read=read,
    step=lambda rows, step: rows,
    readout=lambda params, rows: None,
    metrics=lambda tau: {
      "temperature/image": jnp.mean(tau.image),
      "temperature/text": jnp.mean(tau.text),
    },
    rho=rho,
    is_individual=True,
    init_shared=init_shared,
    step_shared=step_shared,
  )


def temperatures(
  network: Network,
  x: Float[Array, "batch dim"],
  *,
  bounds: tuple[float, float] = (0.005, 0.05),
  kept: Number | Float[Array, "batch dim"] = 1.0,
) -> Float[Array, "batch"]:
  """Returns the temperatures of anchors, which need not be in the data.

  Args:
    network: That of the anchors' side.
    x: Their embeddings, of unit norm.
    bounds: Those of the rule.
    kept: What z is multiplied by, for dropout.

  Example:
    >>> rule = tempnet(dim=2, num_prototypes=3)
    >>> network = rule.init_shared().network.image
    >>> tau = temperatures(network._replace(slope=jnp.zeros(3)), jnp.eye(2))
    >>> print(tau)
    [0.0275 0.0275]
  """
  low, high = bounds
  z = jax.nn.sigmoid(tiles.matmul(x, network.kernel) + network.bias[None])
  q = tiles.matmul(z * kept, unit_norm(network.prototypes).T)
  p = jax.nn.softmax(q / jnp.exp(network.log_temperature), axis=1)
  terms = (p - 1 / q.shape[1]) * jax.nn.sigmoid(q) * network.slope[None]
  return low + (high - low) * jax.nn.sigmoid(network.offset + terms.sum(axis=1))


def _first_network(key, dim: int, num_prototypes: int) -> Network:
  """Draws a layer as PyTorch does; prototypes follow in the first step."""
  most = 1 / math.sqrt(dim)
  drawn = jax.random.uniform(key, (dim + 1, dim), jnp.float32, -most, most)
  drawn = drawn.astype(float)
  return Network(
    kernel=drawn[:-1],
    bias=drawn[-1],
    prototypes=jnp.zeros((num_prototypes, dim)),
    log_temperature=jnp.full((), math.log(0.01), float),
    slope=jnp.ones(num_prototypes),
    offset=jnp.zeros(()),
  )


def _embeddings(pairs: Pairs, dim: int) -> Sides:
  """Gives every device the embeddings of all rows: the network is cheap."""
  x = width.embeddings(pairs, dim, name="temperature.dim")
  x = jax.lax.stop_gradient(x)
  return each(sharding.gather, x)


def _check_batch(batch: int, num_prototypes: int) -> None:
  """Raises ValueError unless a batch has enough rows."""
  if batch < num_prototypes:
    raise ValueError(
      f"temperature.num_prototypes must be at most the batch size {batch}, "
      f"since the first batch becomes prototypes, got {num_prototypes}"
    )


def _kept(
  key: Array, ids: Int[Array, "batch"], dim: int, share: float
) -> Float[Array, "batch dim"]:
  """Draws for each id what dropout keeps, 1 / share, or drops, 0."""
  keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)
  draw = jax.vmap(lambda k: jax.random.uniform(k, dim, jnp.float32))
  return (draw(keys) < share) / share

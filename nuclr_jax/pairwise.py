r"""All pairs of a batch, in two passes: the one numerical core.

Images and texts are anchors in turn. For image i as anchor and text j as
contrast the logit is

  L_ij = (sim_ij - sim_ii - bias_j) / temperature_i,

a pair j being no negative of pair i if they share an image or a text. Every
softmax-like objective needs two passes over these logits:

1. `log_sum_exp`: the anchors' log-sum-exp values, from which the objective
   makes its weights;
2. `weighted`: the sum of exp(L_ij + weight_i), its gradient (computed in the
   same pass), and the sums over anchors that per-contrast state needs.

Both passes touch similarities, logits and exponentials in float32 or better,
whatever the dtype of the embeddings. The gradient of the second pass treats
the weights as constants, so it has no derivative of its own: differentiating
twice is refused.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from nuclr_jax import sharding
from nuclr_jax.types import Pairs, Sides, check_pairs


class Weighted(NamedTuple):
  """What the second pass returns."""

  surrogate: Float[Array, ""]  # carries the gradient
  contrast_sums: Sides  # [batch] each; .text: sums over image anchors
  mean_logit: Sides  # [batch] each; .image: images as anchors


def embeddings(pairs: Pairs) -> Sides:
  """The embeddings in one type, float32 or better.

  Raises:
    ValueError: If the shapes or types of the batch do not fit together.
  """
  check_pairs(pairs)
  dtype = jnp.result_type(jnp.float32, pairs.image, pairs.text)
  return Sides(pairs.image.astype(dtype), pairs.text.astype(dtype))


def matmul(
  a: Float[Array, "m k"], b: Float[Array, "k n"]
) -> Float[Array, "m n"]:
  """A true float32 product: TF32 or bf16 passes would ruin exp(x / 0.01)."""
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def num_negatives(pairs: Pairs) -> Int[Array, "batch"]:
  """Counts the negatives of each row of the batch.

  Example:
    >>> ids = jnp.array([7, 7, 2])  # the first two share an image
    >>> num_negatives(Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3), ids))
    Array([1, 1, 2], dtype=int32)
  """
  check_pairs(pairs)
  return jnp.sum(_is_negative(pairs.ids), axis=1)


def own_similarity(pairs: Pairs) -> Float[Array, "batch"]:
  """The similarity of each image and its own text, sim_ii."""
  image, text = embeddings(pairs)
  return jnp.sum(image * text, axis=1)


def sum_over_negatives(
  pairs: Pairs, f: Callable[[Array], Array]
) -> Float[Array, ""]:
  """Sums f(sim_ij) over all images i and texts j that are negatives.

  Differentiable in the embeddings and in whatever `f` closes over.

  Args:
    pairs: The batch.
    f: An elementwise function, finite everywhere.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> print(sum_over_negatives(pairs, lambda sim: sim + 1))  # 3 x 2 zeros
    6.0
  """
  sim = _similarity(*embeddings(pairs))
  return jnp.sum(jnp.where(_is_negative(pairs.ids), f(sim), 0.0))


def log_sum_exp(
  pairs: Pairs, *, temperature, bias: Sides | None = None
) -> Sides:
  r"""Log-sum-exp of every anchor's logits over its negatives, values only.

  For images as anchors, log sum_{j negative of i} exp(L_ij) with
  L_ij = (sim_ij - sim_ii - bias.text_j) / temperature.image_i; for texts as
  anchors likewise with `bias.image` and `temperature.text`.

  Args:
    pairs: The batch, unit-norm embeddings.
    temperature: A scalar, or `Sides` of scalars or [batch] arrays (one per
      anchor); greater than 0.
    bias: `Sides` of [batch] arrays, subtracted from the similarities of that
      side *as contrast*; None means 0.

  Returns:
    `Sides` of [batch] arrays; -inf where an anchor has no negative. No
    gradient flows through them.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> log_sum_exp(pairs, temperature=0.5).image  # log(2 exp(-1 / 0.5))
    Array([-1.3068528, -1.3068528, -1.3068528], dtype=float32)
  """
  image, text, temperature, bias = _prepare(pairs, temperature, bias)
  logits = _logits(image, text, temperature, bias, _is_negative(pairs.ids))
  return jax.lax.stop_gradient(
    Sides(logsumexp(logits.image, axis=1), logsumexp(logits.text, axis=0))
  )


def weighted(
  pairs: Pairs,
  *,
  temperature,
  row_log_weight: Sides,
  contrast_log_weight: Sides | None = None,
  bias: Sides | None = None,
) -> Weighted:
  r"""Sums all exponentials with a weight per anchor, and differentiates them.

  With w_ij = exp(L_ij + row_log_weight_i) over the negatives j of i,

    surrogate       = sum_ij w_ij, summed over both sides;
    mean_logit_i    = sum_j w_ij L_ij;
    contrast_sums_j = sum_i exp(L_ij + contrast_log_weight_i).

  The gradient of `surrogate` reaches the embeddings and `temperature`; weights
  and biases are constants to it, and the other two results carry no gradient.
  The gradient is accumulated in the forward pass, so that nothing of size
  [batch, batch] is kept for the backward one.

  Args:
    pairs: The batch, unit-norm embeddings.
    temperature: As in `log_sum_exp`.
    row_log_weight: `Sides` of [batch] arrays, one weight per anchor (-inf
      removes the anchor).
    contrast_log_weight: The weights for `contrast_sums`; None means
      `row_log_weight`.
    bias: As in `log_sum_exp`.

  Returns:
    `Weighted(surrogate, contrast_sums, mean_logit)`.

  Example:
    >>> pairs = Pairs(jnp.eye(3), jnp.eye(3), jnp.arange(3))
    >>> lse = log_sum_exp(pairs, temperature=0.5)
    >>> weight = jax.tree.map(jnp.negative, lse)  # softmax over negatives
    >>> out = weighted(pairs, temperature=0.5, row_log_weight=weight)
    >>> print(out.surrogate, out.mean_logit.image)  # 3 rows x 2 sides
    6.0 [-2. -2. -2.]
  """
  image, text, temperature, bias = _prepare(pairs, temperature, bias)
  if contrast_log_weight is None:
    contrast_log_weight = row_log_weight
  constants = (pairs.ids, bias, row_log_weight, contrast_log_weight)
  out = _weighted(image, text, temperature, jax.lax.stop_gradient(constants))
  return out._replace(
    contrast_sums=jax.lax.stop_gradient(out.contrast_sums),
    mean_logit=jax.lax.stop_gradient(out.mean_logit),
  )


def _prepare(pairs, temperature, bias):
  """Casts up to float32, gives each row its temperature and its bias."""
  image, text = embeddings(pairs)
  if not isinstance(temperature, Sides):
    temperature = Sides(temperature, temperature)
  if bias is None:
    bias = Sides(0.0, 0.0)

  def spread(x):
    x = jnp.asarray(x, image.dtype)
    return jnp.broadcast_to(x, pairs.pair_id.shape)

  return (
    image,
    text,
    jax.tree.map(spread, temperature),
    jax.tree.map(spread, bias),
  )


def _similarity(image, text) -> Float[Array, "batch batch"]:
  """All similarities; on a mesh each device has the rows of its images."""
  image = sharding.constrain(image, sharding.ROWS)
  everyone = sharding.constrain(text, sharding.REPLICATED)
  return matmul(image, everyone.T)


def _is_negative(ids: Sides) -> Bool[Array, "batch batch"]:
  """True where two rows share neither an image nor a text."""
  return jnp.not_equal(ids.image[:, None], ids.image[None, :]) & jnp.not_equal(
    ids.text[:, None], ids.text[None, :]
  )


def _logits(image, text, temperature, bias, negative) -> Sides:
  """Both sides' logits [image, text]; -inf where a pair is no negative.

  The anchors of `.image` are the rows, those of `.text` the columns.
  """
  sim = _similarity(image, text)
  own = jnp.sum(image * text, axis=1)

  def masked(x):
    return jnp.where(negative, x, -jnp.inf)

  row, column = (slice(None), None), (None, slice(None))
  of_image = (sim - own[row] - bias.text[column]) / temperature.image[row]
  of_text = (sim - own[column] - bias.image[row]) / temperature.text[column]
  return Sides(masked(of_image), masked(of_text))


def _exp(logits, log_weight):
  """exp(logits + log_weight), 0 where logits are -inf whatever the weight."""
  return jnp.where(logits == -jnp.inf, 0.0, jnp.exp(logits + log_weight))


def _times(weights, logits):
  """Multiplies weights and logits; 0 where the logit is -inf."""
  return jnp.where(logits == -jnp.inf, 0.0, weights * logits)


@jax.custom_vjp
def _without_derivative(x):
  """The identity; differentiating it is an error instead of a wrong number."""
  return x


def _refuse(_, cotangent):
  raise NotImplementedError(
    "the gradient of this objective has no derivative: its weights are "
    "constants to it. Take finite differences of the gradient instead"
  )


_without_derivative.defvjp(lambda x: (x, None), _refuse)


@jax.custom_vjp
def _weighted(image, text, temperature, constants):
  return _weighted_forward(image, text, temperature, constants)[0]


def _weighted_forward(image, text, temperature, constants):
  ids, bias, row, contrast = constants
  logits = _logits(image, text, temperature, bias, _is_negative(ids))
  w_image = _exp(logits.image, row.image[:, None])
  w_text = _exp(logits.text, row.text[None, :])
  contrast_sums = Sides(
    image=jnp.sum(_exp(logits.text, contrast.text[None, :]), axis=1),
    text=jnp.sum(_exp(logits.image, contrast.image[:, None]), axis=0),
  )
  mean_logit = Sides(
    jnp.sum(_times(w_image, logits.image), axis=1),
    jnp.sum(_times(w_text, logits.text), axis=0),
  )
  out = Weighted(jnp.sum(w_image) + jnp.sum(w_text), contrast_sums, mean_logit)

  by_image = w_image / temperature.image[:, None]
  by_text = w_text / temperature.text[None, :]
  d_sim = by_image + by_text
  d_own = -(jnp.sum(by_image, axis=1) + jnp.sum(by_text, axis=0))[:, None]
  gradients = (
    matmul(d_sim, text) + d_own * text,
    matmul(d_sim.T, image) + d_own * image,
    Sides(
      -mean_logit.image / temperature.image,
      -mean_logit.text / temperature.text,
    ),
  )
  return out, _without_derivative(gradients)


def _weighted_backward(gradients, cotangent):
  return *jax.tree.map(lambda x: cotangent.surrogate * x, gradients), None


_weighted.defvjp(_weighted_forward, _weighted_backward)

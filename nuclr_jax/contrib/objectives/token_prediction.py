"""SuperCLIP's term: a linear layer predicts the tokens of the caption."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

from nuclr_jax import checks
from nuclr_jax.contrib.objectives import classes
from nuclr_jax.objectives import base
from nuclr_jax.pairwise import tiles
from nuclr_jax.types import Pairs, State, shows_its_call

NARROW = 1e-5  # added to the variance of an image's features
MANY = 2**30  # captions, at which counts are halved: int32 holds twice as many


class Seen(NamedTuple):
  """Counts of the captions so far."""

  captions: Int[Array, ""]
  with_token: Int[Array, "vocab"]  # how many of them have each token


@shows_its_call
@checks.checked
def token_prediction(
  *,
  vocab_size: int,
  num_features: int | None,
  special_ids: Sequence[int] = (0,),
  seed: checks.Seed = 0,
) -> base.Objective:
  r"""Makes the cross-entropy of a caption's tokens, predicted from its image.

  Image i has the features x_i of its tower, before the projection, and its
  caption the set S_i of tokens, without `special_ids`. Of n captions so far,
  those of this batch included, n_c have the token c:

    p_i  = softmax(W norm(x_i) + b)      norm: mean 0 and variance 1
    w_c  = log((n + 1) / (n_c + 1))      rare tokens count for more
    loss = -mean_i sum_{c in S_i} w_c log p_ic / sum_{c in S_i} w_c

  A token counts once for a caption; a caption whose tokens are all in every
  caption has the loss 0. It is a term to be added to any objective, such as
  `add(clip=clip(), tokens=scale(token_prediction(...), 1.0))`, which is
  SuperCLIP; from a config, `--config.terms.contrib:token_prediction.weight=1`.
  A loss in units of similarity, such as those of `sogclr` and `nuclr`, has 2
  temperature times the gradient of `clip`, so that the same balance has that
  weight. W and b are trained by the optimizer of the encoders.

  What the published code does is the same but for these:

    features  the mean of a ViT's patches, although the embedding is made of
              its class token; here those of the tower, whatever it pools. Its
              norm has a learned scale and offset, which W and b can absorb
    tokens    none is left out. The first and the last have w = 0, since all
              captions have them; padding (id 0, which is "!", too) is a target
              with w = log((n + 1) / (m + 1)) for m captions that are padded

  It has the same w_c from the same running counts; the paper has those of a
  known data set, log(n / (n_c + 1)), negative for a token of all captions.
  Counts need no pass over the data, which may be a stream; the weights of the
  first batches come from few captions. Memory is that of the logits, batch
  times vocabulary; on a mesh, each device has those of its rows.

  Args:
    vocab_size: The number of token ids; from a config, that of the tokenizer.
    num_features: The width of the image tower's features; from a config, that
      of the model.
    special_ids: Ids that are no targets, padding among them; from a config,
      those that the tokenizer gives to an empty caption.
    seed: The seed of the first W.

  Returns:
    An `Objective` with `params["tokens"]` [vocab_size, num_features] and
    `params["bias"]`, whose `State.shared` holds `Seen`; metric `divergence`,
    the loss without the entropy of the targets, which nothing can predict.

  Raises:
    ValueError: If there are no tokens or no features, or a special id is not
      below `vocab_size`; from `apply`, if `Pairs.extra` lacks
      `image_features` [batch, num_features] or the token ids `text`
      [batch, length], or an id is not below `vocab_size` (within `jax.jit`, the
      loss is NaN).

  Example:
    >>> term = token_prediction(vocab_size=8, num_features=3)
    >>> captions = jnp.array([[1, 2, 2, 0], [1, 3, 0, 0]])
    >>> extra = {"image_features": jnp.zeros((2, 3)), "text": captions}
    >>> pairs = Pairs(jnp.eye(2), jnp.eye(2), jnp.arange(2), extra=extra)
    >>> loss, (state, _) = term.apply(*term.init(), pairs)
    >>> print(jnp.exp(loss).round(4), state.shared.with_token)
    8.0 [0 2 1 1 0 0 0 0]

  Reference: Zhao et al., SuperCLIP: CLIP with Simple Classification
    Supervision, NeurIPS 2025 (arXiv 2512.14480).
  """
  _check_sizes(vocab_size, num_features, special_ids)
  is_special = np.isin(np.arange(vocab_size), special_ids)
  first_rows = classes.random_rows("tokens", vocab_size, num_features, seed)

  def init():
    zeros = jnp.zeros(vocab_size)
    seen = Seen(jnp.int32(0), jnp.zeros(vocab_size, jnp.int32))
    return first_rows() | {"bias": zeros}, State(shared=seen)

  @base.whole_batch
  def apply(params, state, pairs):
    x, tokens = _inputs(pairs, vocab_size, num_features)
    counts = _first_in_row(tokens) & ~jnp.asarray(is_special)[tokens]
    seen = _count(state.shared, tokens, counts)
    target = _targets(seen, tokens, counts, x.dtype)
    logits = tiles.matmul(_standardized(x), params["tokens"].T)
    logits += params["bias"][None]
    log_p = jax.vmap(jnp.take)(logits, tokens)
    log_p -= jax.nn.logsumexp(logits, axis=1, keepdims=True)
    loss = -jnp.mean(jnp.sum(target * log_p, axis=1))
    entropy = jnp.mean(jnp.sum(jax.scipy.special.entr(target), axis=1))
    return loss, (State(shared=seen), {"divergence": loss - entropy})

  return base.Objective(init, apply)


def _check_sizes(vocab_size, num_features, special_ids):
  """Raises ValueError for data without tokens, a model without features."""
  if not vocab_size:
    raise ValueError(
      "token_prediction predicts the tokens of captions, and these data have "
      "none (vocab_size = 0); train on images and captions, such as "
      "config.data.name = 'image_text', or leave the term out"
    )
  if num_features is None:
    raise ValueError(
      "token_prediction reads features of the image tower, and this model "
      "passes on none (num_features = None); choose a model with a tower of "
      "images and one of texts, such as small or towers, or leave the term out"
    )
  for x in special_ids:
    if not 0 <= x < vocab_size:
      raise ValueError(
        f"special_ids must be ids below vocab_size = {vocab_size}, got {x}; is "
        "it the vocabulary of these captions?"
      )


def _inputs(
  pairs: Pairs, vocab_size: int, num_features: int
) -> tuple[Float[Array, "batch features"], Int[Array, "batch length"]]:
  """Returns the features and the token ids; NaN rows for unknown ids."""
  extra = pairs.extra or {}
  x, tokens = (extra.get(name) for name in ("image_features", "text"))
  shapes = getattr(x, "shape", None), getattr(tokens, "shape", ())
  if (
    shapes[0] != (len(pairs.pair_id), num_features)
    or len(shapes[1]) != 2
    or not jnp.issubdtype(tokens.dtype, jnp.integer)
  ):
    found = [f"{name} {a.dtype}{list(a.shape)}" for name, a in extra.items()]
    raise ValueError(
      "token_prediction needs Pairs.extra with image_features [batch, "
      f"{num_features}] and the token ids text [batch, length], found "
      f"{', '.join(found) or 'nothing'}; models of two towers pass them on "
      "where train is True"
    )
  tokens = tokens.astype(int)  # uint8 cannot hold 256, which would become 0
  known = (tokens >= 0) & (tokens < vocab_size)
  if not isinstance(known, jax.core.Tracer) and not np.all(known):
    wrong = np.asarray(tokens)[~np.asarray(known)][0]
    raise ValueError(
      f"token ids must be below vocab_size = {vocab_size}, found {wrong}; give "
      "the size of the tokenizer's vocabulary"
    )
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  whole = jnp.all(known, axis=1, keepdims=True)
  return jnp.where(whole, x, jnp.nan), jnp.where(known, tokens, 0)


def _first_in_row(tokens: Int[Array, "batch length"]) -> Bool[Array, "..."]:
  """Marks the first of equal tokens in each row."""
  equal = tokens[:, :, None] == tokens[:, None]
  return jnp.argmax(equal, axis=2) == jnp.arange(tokens.shape[1])[None]


def _count(seen: Seen, tokens, counts) -> Seen:
  """Adds the captions of a batch; halves all counts before they overflow."""
  captions = seen.captions + len(tokens)
  with_token = seen.with_token.at[tokens].add(counts.astype(jnp.int32))
  shift = (captions >= MANY).astype(jnp.int32)
  return Seen(captions >> shift, with_token >> shift)


def _targets(seen: Seen, tokens, counts, dtype) -> Float[Array, "batch length"]:
  """Distributes 1 over the tokens that count in a row, by w_c."""
  with_token = seen.with_token[tokens].astype(dtype)
  weight = jnp.log((seen.captions.astype(dtype) + 1) / (with_token + 1))
  weight = jnp.where(counts, weight, 0.0)
  total = jnp.sum(weight, axis=1, keepdims=True)
  return weight / jnp.where(total > 0, total, 1.0)


def _standardized(x: Float[Array, "batch features"]):
  """Gives the features of each row the mean 0 and the variance 1."""
  x -= jnp.mean(x, axis=1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + NARROW)

"""Heads on precomputed features: training without towers, or one of them."""

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.checks import Count, Fraction, Natural
from nuclr_jax.lab.models import base


class Hidden(nnx.Module):
  """Layer normalization and a hidden layer."""

  def __init__(self, inputs: int, hidden: int, dropout: float, *, rngs):
    self.norm = nnx.LayerNorm(inputs, rngs=rngs)
    self.layer = nnx.Linear(inputs, hidden, rngs=rngs)
    self.dropout = nnx.Dropout(dropout)

  def __call__(
    self, x: Float[Array, "batch inputs"], rngs=None
  ) -> Float[Array, "batch hidden"]:
    x = jax.nn.gelu(self.layer(self.norm(x.astype(jnp.float32))))
    return self.dropout(x, rngs=rngs)


def rows(*, length: int) -> base.Tower:
  """Makes the text tower of precomputed features: a text is a row of them.

  With it, a locked text tower costs nothing in training. Its features come from
  `nuclr embed --features --input=texts.txt`, and a data set looks them up in
  place of token ids, see `data.embeddings.open_lookup`.

  Args:
    length: The width of the features.

  Example:
    >>> tower = rows(length=3)
    >>> features, _ = tower.apply({}, {}, jnp.ones((2, 3)))
    >>> tower.num_features, features.shape
    (3, (2, 3))
  """
  return base.Tower(lambda key: ({}, {}), _unchanged, length)


def heads(
  *,
  image_shape: tuple[int],
  length: int,
  dim: Count = 256,
  hidden: Natural = 0,
  dropout: Fraction = 0.0,
  projection_bias: bool = True,
  normalize: bool = True,
  frozen: tuple[str, ...] = (),
) -> base.Model:
  """Makes a model that projects features precomputed by frozen towers.

  Args:
    image_shape: The width of the images' features, as a tuple of one number.
    length: The width of the texts' features.
    dim: The width of the embeddings.
    hidden: The width of a hidden layer on each side; 0 leaves it out.
    dropout: The dropout rate after the hidden layer, in [0, 1).
    projection_bias: Whether the projections have a bias.
    normalize: Whether to scale embeddings to unit norm.
    frozen: Sides ("image", "text") whose hidden layer runs without dropout.

  Raises:
    ValueError: If the data are images, or if a number is out of range.

  Example:
    >>> model = heads(image_shape=(12,), length=8, dim=4)
    >>> params, _ = model.init(jax.random.key(0))
    >>> params["image_projection"].shape, params["text_projection"].shape
    ((12, 4), (8, 4))
  """
  if len(image_shape) != 1:
    raise ValueError(
      "the model 'heads' takes features (config.data.name = 'embeddings'), not "
      f"images of shape {image_shape}"
    )
  if hidden < 0 or not 0 <= dropout < 1:
    raise ValueError(
      f"hidden must be at least 0 and dropout in [0, 1), got {hidden} and "
      f"{dropout}"
    )

  def tower(width):
    if hidden:
      return base.from_nnx(
        lambda rngs: Hidden(width, hidden, dropout, rngs=rngs), hidden
      )
    return rows(length=width)

  return base.dual_encoder(
    tower(image_shape[0]),
    tower(length),
    dim=dim,
    projection_bias=projection_bias,
    normalize=normalize,
    frozen=frozen,
  )


def _unchanged(params, state, x, *, key=None, train=False):
  del params, key, train
  return x.astype(jnp.float32), state

"""One encoder of two views of the same things."""

from collections.abc import Callable, Mapping
import os
from typing import Any

import jax
import jax.numpy as jnp

from nuclr_jax.models import base
from nuclr_jax.models import pretrained as files
from nuclr_jax.models.small import convnet, transformer
from nuclr_jax.models.towers import IMAGE_TOWERS, TEXT_TOWERS, make_tower
from nuclr_jax.types import Pairs, Sides

ENCODERS: dict[str, Callable[..., base.Tower]] = {
  "convnet": convnet,
  "transformer": transformer,
  **IMAGE_TOWERS,
  **TEXT_TOWERS,
}


def views(
  *,
  image_shape: tuple[int, ...],
  vocab_size: int,
  length: int,
  encoder: Mapping[str, Any],
  pretrained: str | os.PathLike | None = None,
  dim: int = 128,
  hidden: int = 0,
  normalize: bool = True,
) -> base.Model:
  """Encodes both sides of a batch by the same tower, at once.

  `Batch.image` and `Batch.text` are two views: pictures, or token ids (the same
  ones twice, if dropout makes the views). Batch statistics are of both.

  Args:
    image_shape: Of the pictures, if the encoder takes some.
    vocab_size: Likewise, of token ids.
    length: Likewise.
    encoder: `{"name": ..., ...}`: a name in `ENCODERS`, and what else its
      factory takes.
    pretrained: Where to find the encoder's weights, see `pretrained.read`; None
      starts from random ones.
    dim: Width of the embeddings.
    hidden: Width of a hidden layer of the projection; 0 = a linear one.
    normalize: See `dual_encoder`.

  Returns:
    A `Model`; if weights are pretrained, it has `load`.

  Raises:
    ValueError: For an unknown encoder, or from its factory; from `load`, if
      weights are not there or do not fit.

  Example:
    >>> model = views(
    ...   image_shape=(8, 8, 1),
    ...   vocab_size=0,
    ...   length=0,
    ...   encoder={"name": "convnet", "num_features": 16},
    ...   dim=4,
    ... )
    >>> params, state = model.init(jax.random.key(0))
    >>> batch = Batch(*np.zeros((2, 3, 8, 8, 1), np.uint8), np.arange(3))
    >>> pairs, _ = model.apply(params, state, batch)
    >>> pairs.image.shape, bool((pairs.image == pairs.text).all())
    ((3, 4), True)
  """
  run = dict(image_shape=image_shape, vocab_size=vocab_size, length=length)
  tower = make_tower("encoder", ENCODERS, encoder, run)
  model = one_encoder(tower, dim=dim, hidden=hidden, normalize=normalize)
  if pretrained is None:
    return model
  side = "image" if encoder["name"] in IMAGE_TOWERS else "text"

  def load(params, state):
    found, state = files.load(
      pretrained, {side: params["encoder"]}, {side: state}, sides=(side,)
    )
    return params | {"encoder": found[side]}, state[side]

  return model._replace(load=load)


def one_encoder(
  tower: base.Tower, *, dim: int, hidden: int = 0, normalize: bool = True
) -> base.Model:
  """`views` of any tower.

  Its params are `{"encoder", "projection"}`, its state that of the tower.

  Args:
    tower: Of both views.
    dim: See `views`.
    hidden: Likewise.
    normalize: Likewise.

  Example:
    >>> from flax import nnx
    >>> tower = base.from_nnx(lambda rngs: nnx.Linear(3, 4, rngs=rngs), 4)
    >>> model = one_encoder(tower, dim=5)
    >>> params, state = model.init(jax.random.key(0))
    >>> x = jnp.arange(6.0).reshape(2, 3)
    >>> pairs, _ = model.apply(params, state, Batch(x, x, None))
    >>> pairs.image.shape, bool((pairs.image == pairs.text).all())
    ((2, 5), True)
  """
  widths = [tower.num_features, *([hidden] if hidden else []), dim]

  def init(key):
    first, *keys = jax.random.split(key, len(widths))
    params, state = tower.init(first)
    scale = jax.nn.initializers.lecun_normal()
    layers = {
      f"kernel_{i}": scale(key, widths[i : i + 2]) for i, key in enumerate(keys)
    }
    return {"encoder": params, "projection": layers}, state

  def encode(params, model_state, x, **how):
    return tower.apply(params["encoder"], model_state, jnp.asarray(x), **how)

  def project(params, x):
    for i in range(len(widths) - 1):
      x = x @ params["projection"][f"kernel_{i}"]
      x = jax.nn.relu(x) if i < len(widths) - 2 else x
    return base.unit_norm(x) if normalize else x

  def apply(params, model_state, batch, *, key=None, train=False):
    there = [x for x in (batch.image, batch.text) if x is not None]
    # Views of a thing beside each other, so that no device sends its rows.
    x = jnp.stack(there, axis=1)
    x = x.reshape(-1, *x.shape[2:])
    features, state = encode(params, model_state, x, key=key, train=train)
    found = project(params, features).reshape(-1, len(there), dim)
    rest = iter(range(len(there)))
    both = (
      None if x is None else found[:, next(rest)]
      for x in (batch.image, batch.text)
    )
    ids = (batch.pair_id, batch.image_id, batch.text_id, batch.label)
    return Pairs(*both, *ids), state

  def features(params, model_state, batch):
    def one(x):
      if x is None:
        return None
      return encode(params, model_state, x, key=None, train=False)[0]

    return Sides(one(batch.image), one(batch.text))

  return base.Model(init, apply, features=features)

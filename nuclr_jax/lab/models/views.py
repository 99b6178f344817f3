"""One encoder for both sides of a batch: two views of the same things."""

from collections.abc import Callable, Mapping
import os
from typing import Any

import jax
import jax.numpy as jnp

from nuclr_jax.lab.factories import Bound, Table, bound
from nuclr_jax.lab.models import base
from nuclr_jax.lab.models.pretrained import (
  check_encoder,
  check_normalization,
  load_towers,
)
from nuclr_jax.lab.models.towers import IMAGE_TOWERS, INPUTS, TEXT_TOWERS
from nuclr_jax.lab.ranges import HiddenWidth, Width
from nuclr_jax.pairwise import unit_norm
from nuclr_jax.types import Pairs, Sides

ENCODERS: dict[str, Callable[..., base.Tower]] = IMAGE_TOWERS | TEXT_TOWERS
ENCODER = Table(ENCODERS, run=INPUTS, makes=base.Tower)


def views(
  *,
  image_shape: tuple[int, ...],
  vocab_size: int,
  length: int,
  encoder: Bound | Mapping[str, Any],
  pretrained: str | os.PathLike | None = None,
  dim: Width = 128,
  hidden: HiddenWidth = 0,
  projected: bool = True,
  normalize: bool = True,
  frozen: tuple[str, ...] = (),
) -> base.Model:
  """Encodes both sides of a batch with the same tower, in one call.

  `Batch.image` and `Batch.text` hold two views of the same things: images, or
  token ids (the same ids twice if dropout makes the views differ). Batch
  statistics are taken over both.

  Args:
    image_shape: Height, width and channels of images, if the encoder takes
      images.
    vocab_size: The number of token ids, if the encoder takes texts.
    length: The number of token ids per text, if the encoder takes texts.
    encoder: `{"name": ..., ...}`: a name in `ENCODERS`, and any other argument
      of the encoder's factory.
    pretrained: Where the encoder's weights are (see `pretrained.read_tensors`);
      None starts from random ones.
    dim: The width of the embeddings.
    hidden: The width of a hidden layer in the projection; 0 leaves it out.
    projected: Whether there is a projection; else the embeddings are the
      encoder's features, whose width `dim` must be.
    normalize: Whether to scale embeddings to unit norm.
    frozen: `("encoder",)` if it always runs as in evaluation: without dropout,
      and with the batch statistics that it has.

  Returns:
    A `Model`, which has `load` if there are pretrained weights.

  Raises:
    ValueError: If the encoder is unknown, its factory refuses the arguments, or
      `dim` is not the width of features that are not projected;
      from `load`, if the weights cannot be read or do not fit.

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
  inputs = dict(image_shape=image_shape, vocab_size=vocab_size, length=length)
  encoder = bound("model.encoder", ENCODER, encoder)
  tower = encoder(**inputs)
  model = one_encoder(
    tower,
    dim=dim,
    hidden=hidden,
    projected=projected,
    normalize=normalize,
    frozen="encoder" in frozen,
  )
  if pretrained is None:
    return model
  side = "image" if encoder.takes("image_shape") else "text"

  def load(params, state):
    if side == "text":
      check_encoder(pretrained, encoder.values())
    else:
      check_normalization(pretrained, encoder.values(), "model.encoder")
    # `load_towers` knows only the names of a dual encoder's sides.
    loaded, state = load_towers(
      pretrained, {side: params["encoder"]}, {side: state}, sides=(side,)
    )
    return params | {"encoder": loaded[side]}, state[side]

  return model._replace(load=load)


def one_encoder(
  tower: base.Tower,
  *,
  dim: int,
  hidden: int = 0,
  projected: bool = True,
  normalize: bool = True,
  frozen: bool = False,
) -> base.Model:
  """Makes the model `views` from any tower.

  Its params are `{"encoder", "projection"}`, without the latter if it has none;
  its state is the tower's.

  Args:
    tower: The encoder of both views.
    dim: The width of the embeddings.
    hidden: The width of a hidden layer in the projection; 0 leaves it out.
    projected: Whether there is a projection.
    normalize: Whether to scale embeddings to unit norm.
    frozen: Whether the encoder always runs as in evaluation.

  Raises:
    ValueError: If `dim` is not the width of features that are not projected.

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
  if not projected:
    if hidden or dim != tower.num_features:
      raise ValueError(
        f"the encoder has {tower.num_features} features and no projection, so "
        f"dim must be {tower.num_features} and hidden 0, got {dim} and "
        f"{hidden}; change them, or set projected=True"
      )
    widths = widths[:1]

  def init(key):
    first, *keys = jax.random.split(key, len(widths))
    params, state = tower.init(first)
    scale = jax.nn.initializers.lecun_normal()
    layers = {
      f"kernel_{i}": scale(key, widths[i : i + 2]) for i, key in enumerate(keys)
    }
    projection = {"projection": layers} if layers else {}
    return {"encoder": params} | projection, state

  def encode(params, model_state, x, **options):
    x = jnp.asarray(x)
    return tower.apply(params["encoder"], model_state, x, **options)

  def project(params, x):
    for i in range(len(widths) - 1):
      x = x @ params["projection"][f"kernel_{i}"]
      x = jax.nn.relu(x) if i < len(widths) - 2 else x
    return unit_norm(x) if normalize else x

  def apply(params, model_state, batch, *, key=None, train=False):
    inputs = [x for x in (batch.image, batch.text) if x is not None]
    # The views of a thing go next to each other, not one side after the other,
    # so that every row stays on its device.
    x = jnp.stack(inputs, axis=1)
    x = x.reshape(-1, *x.shape[2:])
    train = train and not frozen
    features, state = encode(params, model_state, x, key=key, train=train)
    projected = project(params, features).reshape(-1, len(inputs), dim)
    column = iter(range(len(inputs)))
    embeddings = (
      None if x is None else projected[:, next(column)]
      for x in (batch.image, batch.text)
    )
    ids = (batch.pair_id, batch.image_id, batch.text_id, batch.label)
    return Pairs(*embeddings, *ids), state

  def features(params, model_state, batch):
    def one_side(x):
      if x is None:
        return None
      return encode(params, model_state, x, key=None, train=False)[0]

    return Sides(one_side(batch.image), one_side(batch.text))

  return base.Model(
    init, apply, features=features, masks_padding=tower.masks_padding
  )

"""The protocol of models, and the dual encoder that all objectives train.

A model is two pure functions over nested dicts. Flax modules live behind
`from_nnx`; outside of this package nobody sees them.
"""

from collections.abc import Callable
import inspect
from typing import Any, NamedTuple, Protocol

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nuclr_jax.types import Batch, Pairs, Params, PyTree, Sides

Key = Any  # a JAX random key


class ModelInit(Protocol):
  """Makes parameters and model state (batch statistics and the like)."""

  def __call__(self, key: Key) -> tuple[Params, PyTree]:
    """Returns `(params, model_state)`, nested dicts of arrays."""


class ModelApply(Protocol):
  """Embeds a batch."""

  def __call__(
    self,
    params: Params,
    model_state: PyTree,
    batch: Batch,
    *,
    key: Key | None,
    train: bool,
  ) -> tuple[Pairs, PyTree]:
    """Returns embeddings, as a rule of unit norm, and the next model state.

    A side of the batch that is None stays None. `key` drives dropout and the
    like; it may be None if `train` is False.
    """


class Model(NamedTuple):
  """Two towers into one space: `init(key)` and `apply(...)`.

  `load(params, model_state)`, if there is one, returns both with pretrained
  weights from files in place of first ones; a run calls it once, at its start.
  `features(params, model_state, batch)`, if there is one, gives both towers'
  features before their projection, as in evaluation.
  """

  init: ModelInit
  apply: ModelApply
  load: Callable[[Params, PyTree], tuple[Params, PyTree]] | None = None
  features: Callable[[Params, PyTree, Batch], Sides] | None = None


class Tower(NamedTuple):
  """One encoder: inputs to features.

  `init(key) -> (params, state)`;
  `apply(params, state, x, *, key, train) -> (features, state)`.
  """

  init: Any
  apply: Any
  num_features: int


def from_nnx(build, num_features: int) -> Tower:
  """Wraps a Flax NNX module as a `Tower`.

  Args:
    build: `build(rngs) -> nnx.Module`, called as `module(x)`, with `rngs=` if
      it takes them; its state is `nnx.Param` and `nnx.BatchStat` only (make
      dropout layers without `rngs`; they take them from the call).
    num_features: Width of the module's output.

  Raises:
    ValueError: From `apply`, if params or state are not this module's: NNX
      itself would match them by position and go on with another model.

  Example:
    >>> tower = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs), 2)
    >>> params, state = tower.init(jax.random.key(0))
    >>> sorted(params), state
    (['bias', 'kernel'], {})
  """
  kinds = (nnx.Param, nnx.BatchStat)
  graph, *trees = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))), *kinds)
  expected = _shapes(tuple(map(nnx.to_pure_dict, trees)))

  def init(key):
    _, *trees = nnx.split(build(nnx.Rngs(key)), *kinds)
    return tuple(map(nnx.to_pure_dict, trees))

  def apply(params, state, x, *, key=None, train=False):
    found = _shapes((params, state))
    if found != expected:
      wrong = sorted(set(found.items()) ^ set(expected.items()))
      raise ValueError(
        "params or state do not belong to this module; these differ (name, "
        f"shape): {wrong[:6]}; was the checkpoint made with another model?"
      )
    module = nnx.merge(graph, params, state)
    (module.train if train else module.eval)()
    arguments = {}
    if "rngs" in inspect.signature(module).parameters:
      arguments["rngs"] = None if key is None else nnx.Rngs(key)
    features = module(x, **arguments)
    return features, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

  return Tower(init, apply, num_features)


def dual_encoder(
  image: Tower,
  text: Tower,
  *,
  dim: int,
  normalize: bool = True,
  projection_bias: bool = False,
  frozen: tuple[str, ...] = (),
) -> Model:
  """Two towers, a linear projection each, and the unit sphere.

  Args:
    image: Encoder of `Batch.image`.
    text: Encoder of `Batch.text` (token ids).
    dim: Width of the embeddings.
    normalize: Whether embeddings have unit norm, as all objectives want but
      `vicreg`. (Evaluation uses unit norm in any case.)
    projection_bias: Whether the projections have a bias.
    frozen: Towers ("image", "text") that always run as in evaluation: batch
      statistics rest and nothing is dropped. Their parameters rest if the
      optimizer's `freeze` says so.

  Returns:
    A `Model`; its params are `{"image", "text", "image_projection",
    "text_projection"}` (and with biases `"image_projection_bias"`,
    `"text_projection_bias"`), its state `{"image", "text"}`.

  Example:
    >>> towers = [
    ...   from_nnx(lambda rngs, n=n: nnx.Linear(n, 4, rngs=rngs), 4)
    ...   for n in (3, 2)
    ... ]
    >>> model = dual_encoder(*towers, dim=5)
    >>> params, state = model.init(jax.random.key(0))
    >>> batch = Batch(jnp.ones((7, 3)), jnp.ones((7, 2)), None)
    >>> pairs, _ = model.apply(params, state, batch)
    >>> pairs.image.shape, pairs.text.shape
    ((7, 5), (7, 5))
  """

  def init(key):
    keys = jax.random.split(key, 4)
    image_params, image_state = image.init(keys[0])
    text_params, text_state = text.init(keys[1])
    scale = jax.nn.initializers.lecun_normal()
    params = {
      "image": image_params,
      "text": text_params,
      "image_projection": scale(keys[2], (image.num_features, dim)),
      "text_projection": scale(keys[3], (text.num_features, dim)),
    }
    if projection_bias:
      zeros = jnp.zeros(dim)
      params |= {"image_projection_bias": zeros, "text_projection_bias": zeros}
    return params, {"image": image_state, "text": text_state}

  def encode(params, model_state, batch, *, key, train):
    keys = dict.fromkeys(("image", "text"))
    if key is not None:
      keys["image"], keys["text"] = jax.random.split(key)
    found, state = {}, dict(model_state)
    for side, tower in (("image", image), ("text", text)):
      x = getattr(batch, side)
      found[side] = None
      if x is not None:
        found[side], state[side] = tower.apply(
          params[side],
          model_state[side],
          jnp.asarray(x),
          key=keys[side],
          train=train and side not in frozen,
        )
    return Sides(**found), state

  def project(params, side, features):
    if features is None:
      return None
    x = features @ params[f"{side}_projection"]
    if projection_bias:
      x += params[f"{side}_projection_bias"][None]
    return unit_norm(x) if normalize else x

  def apply(params, model_state, batch, *, key=None, train=False):
    found, state = encode(params, model_state, batch, key=key, train=train)
    both = (project(params, side, x) for side, x in found._asdict().items())
    ids = (batch.pair_id, batch.image_id, batch.text_id, batch.label)
    return Pairs(*both, *ids), state

  def features(params, model_state, batch):
    return encode(params, model_state, batch, key=None, train=False)[0]

  return Model(init, apply, features=features)


def unit_norm(x: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
  """Scales rows to unit norm, in float32 or better.

  Example:
    >>> print(unit_norm(jnp.array([3.0, 4.0])))
    [0.6 0.8]
  """
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.sum(x * x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
  """Names and shapes of all leaves."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path): x.shape for path, x in leaves}

"""The protocol of models, and the dual encoder that all objectives train.

A model is a pair of pure functions over nested dicts. Flax modules live behind
`from_nnx`; the rest of the library never sees them.
"""

from collections.abc import Callable, Sequence
import inspect
from typing import Any, NamedTuple, Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from nuclr_jax import checks
from nuclr_jax.pairwise import unit_norm
from nuclr_jax.types import Batch, Pairs, Params, PyTree, Sides

Key = Any  # a JAX random key
Side = checks.one_of(Sides._fields)


class ModelInit(Protocol):
  """Makes the initial parameters and model state (such as batch statistics)."""

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
    """Returns the embeddings and the next model state.

    Embeddings have unit norm unless the model is configured otherwise. A side
    of the batch that is None stays None. `key` is for random layers such as
    dropout; it may be None if `train` is False.
    """


class Model(NamedTuple):
  """A function from images and texts to embeddings in one space.

  Attributes:
    init: `init(key) -> (params, model_state)`.
    apply: `apply(params, model_state, batch, *, key, train) -> (pairs,
      model_state)`.
    load: `load(params, model_state)` returns both with pretrained weights from
      files in place of the initial ones; None if nothing is pretrained. A run
      calls it once, at its start.
    features: `features(params, model_state, batch)` returns both towers'
      features before the projection, computed as in evaluation; None if the
      model has no such features.
    masks_padding: Whether texts have the same embeddings without the zeros that
      end their token ids, so that evaluation may leave them out.
    num_features: The width of the `image_features` that training passes on in
      `Pairs.extra`, beside `text`; None if it passes on nothing.
  """

  init: ModelInit
  apply: ModelApply
  load: Callable[[Params, PyTree], tuple[Params, PyTree]] | None = None
  features: Callable[[Params, PyTree, Batch], Sides] | None = None
  masks_padding: bool = False
  num_features: int | None = None


class Tower(NamedTuple):
  """One encoder, from inputs to features.

  Attributes:
    init: `init(key) -> (params, state)`.
    apply: `apply(params, state, x, *, key, train) -> (features, state)`.
    num_features: The width of the features.
    masks_padding: As in `Model`, of a tower of texts.
  """

  init: Any
  apply: Any
  num_features: int
  masks_padding: bool = False


class _Keys(nnx.RngStream):
  """The keys of `nnx.RngStream`, counted in Python.

  To set its counter, which `jit` traces, NNX asks for an attribute that tracers
  lack; JAX composes an error for it that nobody sees, which takes most of the
  time in which a tower is made.
  """

  drawn = 0

  def __call__(self):
    self.drawn += 1
    return jax.random.fold_in(self.key[...], self.drawn - 1)


def _rngs(key):
  """The same keys as those of `nnx.Rngs(key)`."""
  rngs = nnx.Rngs(key)
  rngs.default = _Keys(key, tag="default")
  return rngs


def from_nnx(build, num_features: int) -> Tower:
  """Wraps a Flax NNX module as a `Tower`.

  Args:
    build: `build(rngs) -> nnx.Module`. The module is called as `module(x)`,
      with `rngs=` if its `__call__` takes it. All its variables must be
      `nnx.Param` or `nnx.BatchStat`: make dropout layers without `rngs`, and
      pass them the `rngs` of the call.
    num_features: The width of the module's output.

  Raises:
    ValueError: From `apply`, if params or state belong to another module. (NNX
      would match them by position and silently compute something else.)

  Example:
    >>> tower = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs), 2)
    >>> params, state = tower.init(jax.random.key(0))
    >>> sorted(params), state
    (['bias', 'kernel'], {})
  """
  kinds = (nnx.Param, nnx.BatchStat)
  graph, *trees = nnx.split(nnx.eval_shape(lambda: build(_rngs(0))), *kinds)
  expected = _shapes_by_name(tuple(map(nnx.to_pure_dict, trees)))

  def init(key):
    _, *trees = nnx.split(build(_rngs(key)), *kinds)
    return tuple(map(nnx.to_pure_dict, trees))

  def apply(params, state, x, *, key=None, train=False):
    shapes = _shapes_by_name((params, state))
    if shapes != expected:
      wrong = sorted(set(shapes.items()) ^ set(expected.items()))
      raise ValueError(
        "params or state do not belong to this module; these (name, shape) "
        f"are on one side only: {wrong[:6]}; was the checkpoint made with "
        "another model?"
      )
    module = nnx.merge(graph, params, state)
    (module.train if train else module.eval)()
    arguments = {}
    if "rngs" in inspect.signature(module).parameters:
      arguments["rngs"] = None if key is None else _rngs(key)
    features = module(x, **arguments)
    return features, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

  return Tower(init, apply, num_features)


@checks.checked
def dual_encoder(
  image: Tower,
  text: Tower,
  *,
  dim: int,
  normalize: bool = True,
  projection_bias: bool | Sequence[Side] = False,
  projected: Sequence[Side] = ("image", "text"),
  frozen: tuple[str, ...] = (),
) -> Model:
  """Makes a model of two towers, by default each with a linear projection.

  Args:
    image: The encoder of `Batch.image`.
    text: The encoder of `Batch.text` (token ids).
    dim: The width of the embeddings.
    normalize: Whether to scale embeddings to unit norm, as the objectives of
      the core expect. (Evaluation scales them in any case.)
    projection_bias: Whether the projections have a bias, or the sides whose
      projections have one.
    projected: The sides ("image", "text") that have a projection; the features
      of the other side are its embeddings and must have the width `dim`.
    frozen: Towers ("image", "text") that always run as in evaluation: without
      dropout, and with fixed batch statistics. Whether their parameters are
      trained is up to the optimizer's `freeze`.

  Returns:
    A `Model` with params `{"image", "text", "image_projection",
    "text_projection"}` (with biases, also `"image_projection_bias"` and
    `"text_projection_bias"`; without those of sides that are not projected)
    and state `{"image", "text"}`.

  Raises:
    ValueError: If a side is unknown, or is not projected and has features of
      another width than `dim`; or if it has a bias, but no projection.

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
  for side, tower in (("image", image), ("text", text)):
    if side not in projected and tower.num_features != dim:
      raise ValueError(
        f"the {side} tower has {tower.num_features} features and no "
        f"projection, so dim must be {tower.num_features}, got {dim}; change "
        f"dim, or add {side!r} to projected"
      )

  if isinstance(projection_bias, bool):
    biased = tuple(projected) if projection_bias else ()
  else:
    biased = tuple(projection_bias)
  if lost := sorted({*biased} - {*projected}):
    raise ValueError(
      f"projection_bias has {lost}, and projected does not; leave them out of "
      "projection_bias, or add them to projected"
    )

  def init(key):
    keys = jax.random.split(key, 4)
    image_params, image_state = image.init(keys[0])
    text_params, text_state = text.init(keys[1])
    scale = jax.nn.initializers.lecun_normal()
    params = {"image": image_params, "text": text_params}
    towers = {"image": (keys[2], image), "text": (keys[3], text)}
    for side in projected:
      key, tower = towers[side]
      shape = (tower.num_features, dim)
      params[f"{side}_projection"] = scale(key, shape)
      if side in biased:
        params[f"{side}_projection_bias"] = jnp.zeros(dim)
    return params, {"image": image_state, "text": text_state}

  def encode(params, model_state, batch, *, key, train):
    keys = dict.fromkeys(("image", "text"))
    if key is not None:
      keys["image"], keys["text"] = jax.random.split(key)
    encoded, state = {}, dict(model_state)
    for side, tower in (("image", image), ("text", text)):
      x = getattr(batch, side)
      encoded[side] = None
      if x is not None:
        encoded[side], state[side] = tower.apply(
          params[side],
          model_state[side],
          jnp.asarray(x),
          key=keys[side],
          train=train and side not in frozen,
        )
    return Sides(**encoded), state

  def project(params, side, features):
    if features is None:
      return None
    x = features
    if side in projected:
      x = x @ params[f"{side}_projection"]
      if side in biased:
        x += params[f"{side}_projection_bias"][None]
    return unit_norm(x) if normalize else x

  def apply(params, model_state, batch, *, key=None, train=False):
    encoded, state = encode(params, model_state, batch, key=key, train=train)
    embeddings = (
      project(params, side, x) for side, x in encoded._asdict().items()
    )
    ids = (batch.pair_id, batch.image_id, batch.text_id, batch.label)
    extra = None
    if train:
      extra = {"image_features": encoded.image, "text": batch.text}
    return Pairs(*embeddings, *ids, extra), state

  def features(params, model_state, batch):
    return encode(params, model_state, batch, key=None, train=False)[0]

  return Model(
    init,
    apply,
    features=features,
    masks_padding=text.masks_padding,
    num_features=image.num_features,
  )


def _shapes_by_name(tree: PyTree) -> dict[str, tuple[int, ...]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path): x.shape for path, x in leaves}

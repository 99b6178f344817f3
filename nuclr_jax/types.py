"""The values that flow through the library: batches, embeddings, metrics.

Dimension letters used in signatures: `batch` rows of a global batch, `dim`
embedding width, `num_pairs`, `num_images`, `num_texts` rows of per-sample
state.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num
import numpy as np

PyTree = Any
AnyArray = Array | np.ndarray  # on a device or on the host
Params = Any  # nested dicts of arrays
Metrics = dict[str, Any]  # slash-separated names -> scalars
Number = float | jax.typing.ArrayLike  # a scalar
Scalar = Float[Array, ""]
Schedule = Callable[[Any], Any]  # of the step count
ScalarOrSchedule = Number | Schedule


def constant_schedule(value: Number) -> Schedule:
  """The schedule that has the same value at every step.

  Example:
    >>> print(constant_schedule(0.5)(1_000))
    0.5
  """
  return lambda count: jnp.asarray(value)


class Sides(NamedTuple):
  """One value for images and one for texts."""

  image: Any
  text: Any


def both(x: Any) -> Sides:
  """The same value on both sides; `Sides` stay as they are.

  Example:
    >>> both(3)
    Sides(image=3, text=3)
  """
  return x if isinstance(x, Sides) else Sides(x, x)


def each(f: Callable[..., Any], *sides: Sides) -> Sides:
  """Applies `f` to the image parts, then to the text parts.

  Example:
    >>> each(lambda a, b: a + b, Sides(1, 2), Sides(10, 20))
    Sides(image=11, text=22)
  """
  return Sides(*map(f, *sides))


def unzip(sides: Sides) -> tuple[Sides, ...]:
  """Turns two tuples of results into a tuple of `Sides`.

  Example:
    >>> unzip(Sides(image=(1, 2), text=(10, 20)))
    (Sides(image=1, text=10), Sides(image=2, text=20))
  """
  return tuple(Sides(*x) for x in zip(*sides, strict=True))


def swap(sides: Sides) -> Sides:
  """Files the image part under `text` and the other way round.

  What belongs to image anchors is then filed with texts, their contrast.
  """
  return Sides(image=sides.text, text=sides.image)


# One for all anchors, one for each, or `Sides` of either; greater than 0.
Temperature = Number | Float[Array, "batch"] | Sides


class Batch(NamedTuple):
  """A batch of inputs; row i of `image` matches row i of `text`.

  To embed one side only, the other side and the ids may be None.
  """

  image: Num[Array, "batch ..."] | None
  text: Num[Array, "batch ..."] | None  # token ids, 0 = padding; other views
  pair_id: Int[Array, "batch"] | None
  image_id: Int[Array, "batch"] | None = None  # None = pair_id
  text_id: Int[Array, "batch"] | None = None  # None = pair_id
  label: Int[Array, "batch"] | None = None  # the class, of labelled data


class Pairs(NamedTuple):
  """A global batch of embeddings; row i of `image` matches row i of `text`.

  Embeddings have unit norm, unless an objective says that it wants others.
  Objectives that do not name `label` take no notice of it.
  """

  image: Float[Array, "batch dim"]
  text: Float[Array, "batch dim"]
  pair_id: Int[Array, "batch"]  # row of the pair's state, in [0, num_pairs)
  image_id: Int[Array, "batch"] | None = None  # None = pair_id
  text_id: Int[Array, "batch"] | None = None  # None = pair_id
  label: Int[Array, "batch"] | None = None  # the class, of labelled data

  @property
  def kinds(self) -> Sides:
    """The label on both sides; without labels `ids`."""
    if self.label is None:
      return self.ids
    return both(self.label)

  @property
  def ids(self) -> Sides:
    """`image_id` and `text_id`, each replaced by `pair_id` where None."""
    return Sides(
      image=self.pair_id if self.image_id is None else self.image_id,
      text=self.pair_id if self.text_id is None else self.text_id,
    )


def check_pairs(pairs: Pairs) -> None:
  """Raises ValueError unless each row has two embeddings and its ids."""
  sides = {"image": pairs.image, "text": pairs.text}
  ids = {k: v for k, v in pairs._asdict().items() if k.endswith("_id")}
  ids["label"] = pairs.label
  ids = {name: x for name, x in ids.items() if x is not None}
  shape = jnp.shape(pairs.image)

  def fits(x, shape, kind):
    return jnp.shape(x) == shape and jnp.issubdtype(jnp.result_type(x), kind)

  good = [fits(x, shape, jnp.floating) for x in sides.values()]
  good += [fits(x, shape[:1], jnp.integer) for x in ids.values()]
  if len(shape) != 2 or not all(good):
    found = [
      f"{name} {jnp.result_type(x)}{list(jnp.shape(x))}"
      for name, x in (sides | ids).items()
    ]
    raise ValueError(
      "image and text must be floating and of one shape [batch, dim], ids "
      f"and labels integers of shape [batch]; got {', '.join(found)}"
    )


class Sample(NamedTuple):
  """Per-sample state, grouped by the ids that its rows belong to."""

  pair: PyTree = ()  # leaves [num_pairs, ...], read at `pair_id`
  image: PyTree = ()  # leaves [num_images, ...], read at `image_id`
  text: PyTree = ()  # leaves [num_texts, ...], read at `text_id`


class State(NamedTuple):
  """State of an objective; all of it is in the checkpoint.

  On a mesh the rows of `sample` and of `memory` are split over the axis `data`
  and `shared` is replicated.
  """

  sample: Sample = Sample()  # a row for each id of the data set
  memory: PyTree = ()  # a row for each of the latest pairs; none outlive it
  shared: PyTree = ()  # counters and scalars


class Popularities(NamedTuple):
  """Popularities from outside, to be written into an objective's state."""

  ids: Sides  # the image ids and the text ids that are written
  zeta: Sides  # theirs, in units of similarity
  pair_id: Int[np.ndarray, "pairs"] | None = None  # of log_u
  log_u: Sides | None = None  # [pairs] each, filed with the anchors


class Sizes(NamedTuple):
  """How many rows of state a data set needs, one count per id space."""

  num_pairs: int
  num_images: int
  num_texts: int

  @property
  def ids(self) -> Sides:
    """`num_images` and `num_texts`."""
    return Sides(self.num_images, self.num_texts)


class Spec(NamedTuple):
  """What an objective may have to know of its data and model; static.

  Every factory of `objectives` takes one as its first argument, and says by
  `require` which fields it needs.
  """

  sizes: Sizes | None = None  # rows of per-sample state
  dim: int | None = None  # width of the embeddings
  num_classes: int | None = None  # of labelled data
  steps_per_epoch: int | None = None
  block_size: int | None = None  # pairs after each other that are of one class

  def require(self, *fields: str, what: str) -> "Spec":
    """This spec, if it has these fields.

    Args:
      *fields: Names of fields.
      what: Needs them, for the message.

    Raises:
      ValueError: If one of them is None.

    Example:
      >>> Spec(dim=8).require("dim", what="swav").dim
      8
    """
    if missing := [name for name in fields if getattr(self, name) is None]:
      hints = [SPEC_HINTS.get(name, name) for name in missing]
      raise ValueError(
        f"{what} needs {' and '.join(hints)}: give a Spec that has it, or the "
        "number by its name, such as num_pairs=1797"
      )
    return self


SPEC_HINTS = {"sizes": "num_pairs, the number of pairs of the data set"}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Metrics:
  """Joins the keys of nested mappings with slashes.

  Example:
    >>> flatten({"test": {"top1": 0.5}})
    {'test/top1': 0.5}
  """
  flat = {}
  for key, value in tree.items():
    name = f"{prefix}/{key}" if prefix else str(key)
    if isinstance(value, Mapping):
      flat.update(flatten(value, name))
    else:
      flat[name] = value
  return flat

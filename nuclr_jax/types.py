"""The values that flow through the library: batches, embeddings, metrics.

Dimension letters used in signatures: `batch` rows of a global batch, `dim`
embedding width, `num_pairs`, `num_images`, `num_texts` rows of per-sample
state.
"""

from collections.abc import Callable, Mapping
import functools
import inspect
import reprlib
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num
import numpy as np

PyTree = Any
AnyArray = Array | np.ndarray  # on a device or on the host
Params = Any  # nested dicts of arrays
Metrics = dict[str, Any]  # slash-separated names -> scalars
Number = float | np.number | AnyArray  # a scalar
Scalar = Float[Array, ""]
Schedule = Callable[[Any], Any]  # a function of the step count


class ConstantSchedule(NamedTuple):
  """A schedule that has the same value at every step.

  Example:
    >>> print(ConstantSchedule(0.5)(1_000))
    0.5
  """

  value: Number

  def __call__(self, count: Any) -> Array:
    """Returns the value."""
    return jnp.asarray(self.value)


class Sides(NamedTuple):
  """One value for images and one for texts.

  Each is filed under the side whose rows it describes. An anchor is a row whose
  contrast, all rows of the other side, a loss compares it with; every row of a
  batch takes both parts in turn. So `log_u.image`, of an anchor's denominator,
  belongs to images as anchors (against texts), while `zeta.image`, a row's
  popularity as contrast, belongs to images as contrast (of text anchors). Where
  a value of the contrast meets one of the anchor, one of them is swapped.
  """

  image: Any
  text: Any


def both(x: Any) -> Sides:
  """Puts one value on both sides; returns `Sides` unchanged.

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
  """Swaps the image part and the text part.

  What was filed under image anchors is then filed under texts, their contrast.
  """
  return Sides(image=sides.text, text=sides.image)


# One for all anchors, one per anchor, or `Sides` of either; greater than 0.
Temperature = Number | Float[Array, "batch"] | Sides


class Batch(NamedTuple):
  """A batch of inputs; row i of `image` matches row i of `text`.

  To embed only one side, the other side and the ids may be None.
  """

  image: Num[Array, "batch ..."] | None
  text: Num[Array, "batch ..."] | None  # token ids (0 = padding) or a view
  pair_id: Int[Array, "batch"] | None
  image_id: Int[Array, "batch"] | None = None  # None = pair_id
  text_id: Int[Array, "batch"] | None = None  # None = pair_id
  label: Int[Array, "batch"] | None = None  # the class, in labelled data
  # Another model's embeddings of these rows, see `objectives.relative_to`.
  reference: Sides | None = None


class Pairs(NamedTuple):
  """A global batch of embeddings; row i of `image` matches row i of `text`.

  Embeddings have unit norm unless an objective says otherwise. Objectives that
  do not mention `label` ignore it.

  Ids and labels are int32 on the devices. Ids on the host that int32 cannot
  hold are refused where they are first seen; `jax.jit` cuts NumPy's 64-bit
  arguments down to 32 bits before any code runs, so they go undetected.
  """

  image: Float[Array, "batch dim"]
  text: Float[Array, "batch dim"]
  pair_id: Int[Array, "batch"]  # row of the pair's state, in [0, num_pairs)
  image_id: Int[Array, "batch"] | None = None  # None = pair_id
  text_id: Int[Array, "batch"] | None = None  # None = pair_id
  label: Int[Array, "batch"] | None = None  # the class, in labelled data
  # More rows [batch, ...], by name, for the objectives that read them. In
  # training, models of two towers pass on `image_features`, those that are
  # projected to `image`, and `text`, that of the `Batch`.
  extra: Mapping[str, Num[Array, "batch ..."]] | None = None

  @property
  def kinds(self) -> Sides:
    """The label on both sides; without labels, `ids`."""
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


def check_32_bits(name: str, ids: Any) -> None:
  """Raises ValueError for ids on the host that JAX would replace by others.

  Of 64-bit integers, JAX keeps the lower 32 bits (unless `jax_enable_x64` is
  set), and takes 2**32 + 3 for 3. An array on a device, or a traced one, has
  been cut already and is not checked.

  Args:
    name: What the ids are called, for the message.
    ids: Integers; other dtypes are not checked.

  Example:
    >>> check_32_bits("pair_id", np.array([1, 2**32 + 3]))
    Traceback (most recent call last):
    ...
    ValueError: pair_id must fit in int32, found 4294967299; number the ids \
from 0, such as np.unique(ids, return_inverse=True)[1]
  """
  if isinstance(ids, jax.Array) or np.asarray(ids).dtype.kind not in "iu":
    return
  ids = np.asarray(ids)
  kept = ids.astype(jax.dtypes.canonicalize_dtype(ids.dtype))
  if (wrong := ids[kept != ids]).size:
    raise ValueError(
      f"{name} must fit in {kept.dtype}, found {wrong[0]}; number the ids from "
      "0, such as np.unique(ids, return_inverse=True)[1]"
    )


def check_pairs(pairs: Any) -> None:
  """Raises ValueError unless embeddings, ids, labels and extras fit."""
  if not isinstance(pairs, Pairs):
    raise ValueError(
      "a batch must be nuclr_jax.Pairs(image, text, pair_id), got "
      f"{type(pairs).__name__}; the order is apply(params, state, pairs)"
    )
  arrays = {"image": pairs.image, "text": pairs.text, "pair_id": pairs.pair_id}
  named = pairs._asdict()
  if isinstance(pairs.extra, Mapping):
    named |= {f"extra/{name}": x for name, x in named.pop("extra").items()}
  arrays |= {name: x for name, x in named.items() if x is not None}
  shape = getattr(pairs.image, "shape", ())

  def fits(name, x):
    rows, kind = shape[:1], jnp.integer
    if name in Sides._fields:
      rows, kind = shape, jnp.floating
    if not isinstance(x, AnyArray):
      return False
    if name.startswith("extra/"):
      return x.shape[:1] == rows
    return x.shape == rows and jnp.issubdtype(x.dtype, kind)

  if (
    len(shape) != 2 or 0 in shape or not all(map(fits, arrays, arrays.values()))
  ):
    descriptions = [
      f"{name} {x.dtype}{list(x.shape)}"
      if isinstance(x, AnyArray)
      else f"{name} {type(x).__name__}"
      for name, x in arrays.items()
    ]
    raise ValueError(
      "image and text must be floating and of one shape [batch, dim], ids "
      "and labels integers of shape [batch], extras [batch, ...], none of them "
      f"empty; got {', '.join(descriptions)}"
    )


class Sample(NamedTuple):
  """Per-sample state, grouped by the kind of id that its rows belong to."""

  pair: PyTree = ()  # leaves [num_pairs, ...], read at `pair_id`
  image: PyTree = ()  # leaves [num_images, ...], read at `image_id`
  text: PyTree = ()  # leaves [num_texts, ...], read at `text_id`


class State(NamedTuple):
  """State of an objective; all of it is checkpointed.

  On a mesh, the rows of `sample` and `memory` are split over the devices;
  `shared` is replicated.
  """

  sample: Sample = Sample()  # one row per id of the data set
  memory: PyTree = ()  # latest pairs; emptied when the data set changes
  shared: PyTree = ()  # counters and scalars


class Popularities(NamedTuple):
  """External popularities, to be written into an objective's state.

  `log_u` needs `pair_id`. Without it, log u of the old zeta stays until a pair
  is visited again: give it, or write zeta into a state that has no visits.
  """

  ids: Sides  # the image ids and the text ids that are written
  zeta: Sides  # of these ids, in units of similarity
  pair_id: Int[np.ndarray, "pairs"] | None = None  # rows of log_u
  log_u: Sides | None = None  # [pairs] each, filed under the anchors


class Sizes(NamedTuple):
  """How many rows of state a data set needs, one count per id space."""

  num_pairs: int
  num_images: int
  num_texts: int

  @property
  def ids(self) -> Sides:
    """`num_images` and `num_texts`."""
    return Sides(self.num_images, self.num_texts)


Factory = TypeVar("Factory", bound=Callable[..., Any])


def shows_its_call(factory: Factory) -> Factory:
  """Makes what a factory returns print as the call that made it.

  Args:
    factory: A function that returns a NamedTuple with a field `call`.

  Example:
    >>> from nuclr_jax.objectives import zeta_rules
    >>> zeta_rules.queue(dim=8, size=64)
    queue(dim=8, size=64, rate=0.3, momentum=0.0, center=True, init=0.0)
  """
  signature = inspect.signature(factory)

  def show(value):
    if hasattr(value, "call"):
      return repr(value)  # whole, however long
    return getattr(value, "__name__", None) or reprlib.repr(value)

  @functools.wraps(factory)
  def make(*args, **kwargs):
    made = factory(*args, **kwargs)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    shown = (f"{name}={show(x)}" for name, x in bound.arguments.items())
    return made._replace(call=f"{factory.__name__}({', '.join(shown)})")

  return make

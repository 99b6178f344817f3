"""What arguments may be: types with ranges, and checks with clear messages.

A signature such as `layers: Count = 12` says what a factory takes. A config is
checked against the signatures of its factories before any work is done; bodies
check what two arguments, or callers from Python, may get wrong.
"""

from collections.abc import Callable, Mapping, Sequence
import inspect
import logging
import math
import numbers
import operator
import types
from typing import (
  Annotated,
  Any,
  NamedTuple,
  SupportsIndex,
  Union,
  get_args,
  get_origin,
)

import jax
import jax.numpy as jnp

from nuclr_jax.types import (
  Number,
  ScalarOrSchedule,
  Schedule,
  Sizes,
  constant_schedule,
)

log = logging.getLogger(__name__)


class Range(NamedTuple):
  """The values that an annotated type allows."""

  allowed: str  # in words, for messages
  fits: Callable[[Any], bool]

  def __repr__(self) -> str:
    """Says what is allowed, so that `help` of a factory can be read."""
    return self.allowed


def one_of(names: tuple[str, ...]) -> Any:
  """Makes the type of an argument that is one of a few names."""
  return Annotated[str, Range(f"one of {names}", names.__contains__)]


LARGEST = 2**31  # whole numbers are below it: ids and steps are int32
LARGEST_FLOAT = 2**127  # below the largest number in float32
ROUNDING = 1e-6  # that a schedule may be beyond its range

Count = Annotated[
  int,
  Range(
    "a whole number of at least 1",
    lambda x: 1 <= x < LARGEST and x % 1 == 0,
  ),
]
Natural = Annotated[
  int,
  Range(
    "a whole number of at least 0",
    lambda x: 0 <= x < LARGEST and x % 1 == 0,
  ),
]


def up_to(most: int, *, least: int = 1) -> Any:
  """Makes the type of a whole number that no one means to be larger.

  A forged or mistyped size would otherwise fill the memory, or take forever,
  before anything else could notice it.
  """
  return Annotated[
    int,
    Range(
      f"a whole number from {least} to {most:,}",
      lambda x: least <= x <= most and x % 1 == 0,
    ),
  ]


Workers = up_to(1_024, least=0)  # processes of a machine
Layers = up_to(1_000)  # of a tower, or of one of its stages
Width = up_to(2**17)  # of features, and the number of heads
Length = up_to(2**17)  # of a text, in tokens
Ids = up_to(2**24)  # of a vocabulary; published ones have up to 2**18
Side = up_to(2**12)  # of a square image, or of a patch, in pixels
MAX_PATCHES = 2**14  # of an image; attention takes their square
Stages = Annotated[
  Sequence[Layers],
  Range(
    "1 to 8 whole numbers, each from 1 to 1,000", lambda x: 0 < len(x) <= 8
  ),
]
# Of the channels of images on the scale [0, 1].
Mean = Annotated[
  Number, Range("a number from -1,000 to 1,000", lambda x: abs(x) <= 1_000)
]
Std = Annotated[
  Number,
  Range("a number from 0.0001 to 10,000", lambda x: 1e-4 <= x <= 1e4),
]
Seed = Annotated[
  int, Range("a whole number in [0, 2**32)", lambda x: 0 <= x < 2**32)
]
Finite = Annotated[Number, Range("a finite number", math.isfinite)]
Positive = Annotated[
  Number, Range("a number greater than 0", lambda x: 0 < x < math.inf)
]
NonNegative = Annotated[
  Number, Range("a number of at least 0", lambda x: 0 <= x < math.inf)
]
StepSize = Annotated[  # a larger one only overflows
  Number,
  Range("a number of at least 0, and at most 1,000", lambda x: 0 <= x <= 1_000),
]
Eps = Annotated[  # of a normalization
  Number, Range("a number from 1e-20 to 1", lambda x: 1e-20 <= x <= 1)
]
Fraction = Annotated[Number, Range("in [0, 1)", lambda x: 0 <= x < 1)]
UpToOne = Annotated[Number, Range("in (0, 1]", lambda x: 0 < x <= 1)]
Momentum = Annotated[
  Number,
  Range(
    "in [0, 1) (it weights the old momentum; published code often gives the "
    "weight of the new gradient)",
    lambda x: 0 <= x < 1,
  ),
]
Temperature = Annotated[
  Number,
  Range(
    "a number greater than 0 (it divides cosine similarities; 0.01 to 0.1 is "
    "usual, 1e-6 to 1e6 possible)",
    lambda x: 1e-6 <= x <= 1e6,
  ),
]
Gamma = Annotated[
  ScalarOrSchedule,
  Range("in (0, 1] or a schedule of the step count", lambda x: 0 < x <= 1),
]
Rate = Annotated[
  ScalarOrSchedule,
  Range("in [0, 1] or a schedule of the step count", lambda x: 0 <= x <= 1),
]
NAMES = {int: "a whole number", float: "a finite number", str: "a text"}
NAMES |= {bool: "True or False", types.NoneType: "None", Mapping: "a mapping"}


def fits(value: Any, hint: Any) -> bool:
  """Returns whether a value of a config fits the annotation of an argument.

  True and False are not numbers, and numbers are finite.

  Args:
    value: Plain data: numbers, texts, None, tuples, mappings.
    hint: The annotation, such as `Count | None` or `tuple[Positive, ...]`.

  Example:
    >>> fits(12, Count), fits(0, Count), fits("12", Count), fits(True, Count)
    (True, False, False, False)
    >>> fits((1, 2), tuple[Count, ...]), fits((1, 2, 3), tuple[int, int])
    (True, False)
  """
  kind, inner = get_origin(hint), get_args(hint)
  if kind is Annotated:
    kind, span = inner
    return fits(value, kind) and (callable(value) or span.fits(value))
  if kind in (Union, types.UnionType):
    return any(fits(value, x) for x in inner)
  if kind in (tuple, Sequence):
    if not isinstance(value, tuple | list):
      return False
    if kind is tuple and inner[-1] is not ...:
      return len(value) == len(inner) and all(map(fits, value, inner))
    return all(fits(x, inner[0]) for x in value)
  if kind is Mapping and isinstance(value, Mapping):
    return all(fits(x, inner[1]) for x in value.values())
  if hint in (Any, inspect.Parameter.empty):
    return True
  if hint in (int, SupportsIndex):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if hint is float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and abs(value) <= LARGEST_FLOAT  # not NaN
  return isinstance(value, kind or hint)


def allowed(hint: Any) -> str:
  """Says in words what an annotation allows in a config.

  Example:
    >>> allowed(Count | None)
    'a whole number of at least 1, or None'
    >>> allowed(tuple[Positive, Positive])
    'a tuple of 2, each a number greater than 0'
    >>> allowed(Mapping[str, Positive])
    'a mapping, each value a number greater than 0'
  """
  kind, inner = get_origin(hint), get_args(hint)
  if kind is Annotated:
    return inner[1].allowed
  if kind in (Union, types.UnionType):
    return ", or ".join(dict.fromkeys(filter(None, map(allowed, inner))))
  if kind in (tuple, Sequence):
    count = "" if kind is not tuple or inner[-1] is ... else f" of {len(inner)}"
    return f"a tuple{count}, each {allowed(inner[0])}"
  if kind is Mapping and (values := allowed(inner[1])):
    return f"a mapping, each value {values}"
  if hint == Schedule:
    return "a schedule"
  return NAMES.get(kind or hint, "")


def alternatives(hint: Any) -> set[Any]:
  """Returns the types that an annotation allows, without their ranges.

  Example:
    >>> alternatives(Count | None) == {int, types.NoneType}
    True
  """
  kind, inner = get_origin(hint), get_args(hint)
  if kind is Annotated:
    return alternatives(inner[0])
  if kind in (Union, types.UnionType):
    return set().union(*map(alternatives, inner))
  return {hint}


def number(name: str, value: Any, kind: Any) -> float:
  """Returns an allowed scalar as a Python float.

  Args:
    name: The name of the argument, for the message.
    value: A number, a NumPy scalar or an array without axes.
    kind: A type with a range, such as `Positive`.

  Raises:
    ValueError: If `value` is not a number or not in the range.
  """
  try:
    number = math.nan if isinstance(value, bool | str) else float(value)
  except (TypeError, ValueError, OverflowError):
    number = math.nan
  if not get_args(kind)[1].fits(number):  # no range has NaN
    raise ValueError(f"{name} must be {allowed(kind)}, got {value!r}")
  return number


def temperature(temperature) -> float:
  """Returns the temperature if positive and finite, else raises ValueError."""
  return number("temperature", temperature, Temperature)


def positive(name: str, value) -> float:
  """Returns the value if positive and finite, else raises ValueError."""
  return number(name, value, Positive)


def count(name: str, value) -> int:
  """Returns the count if it is an integer >= 1, else raises ValueError."""
  return int(number(name, value, Count))


def weight(name: str, weight) -> float:
  """Returns a term's weight if finite and >= 0, else raises ValueError."""
  return number(name, weight, NonNegative)


def rho(rho) -> float:
  """Returns rho as a float if it is finite, else raises ValueError."""
  return number("rho", rho, Finite)


def momentum(name: str, momentum) -> float:
  """Returns the momentum's weight if in [0, 1), else raises ValueError."""
  return number(name, momentum, Momentum)


def choice(name: str, value: Any, kind: Any) -> None:
  """Raises ValueError unless the value is of a kind, such as `bool`."""
  if not fits(value, kind):
    raise ValueError(f"{name} must be {allowed(kind)}, got {value!r}")


def rule(name: str, rule, kind: type, example: str) -> None:
  """Raises ValueError unless `rule` is what a rule's factory returned."""
  if not isinstance(rule, kind):
    raise ValueError(f"{name} must be a rule such as {example}, got {rule!r}")


def sizes(
  num_pairs: SupportsIndex,
  num_images: SupportsIndex | None,
  num_texts: SupportsIndex | None,
) -> Sizes:
  """Fills in the defaults and checks the row counts of per-sample state."""
  counts = dict(num_pairs=num_pairs, num_images=num_images, num_texts=num_texts)
  for name, value in counts.items():
    if value is None and name != "num_pairs":
      continue
    try:
      counts[name] = operator.index("" if isinstance(value, bool) else value)
    except TypeError as error:
      message = f"{name} must be a whole number, got {value!r}"
      raise ValueError(message) from error
  n = counts["num_pairs"]
  sizes = Sizes(*(n if x is None else x for x in counts.values()))
  if sizes.num_pairs < 2:
    raise ValueError(
      f"num_pairs must be at least 2, got {num_pairs}; it is the number of "
      "pairs of the whole data set, not of a batch"
    )
  if sizes.num_pairs >= 2**31:
    raise ValueError(
      f"num_pairs must be below {2**31}, got {num_pairs}: ids are int32"
    )
  for name in ("num_images", "num_texts"):
    if not 1 <= getattr(sizes, name) <= num_pairs:
      raise ValueError(
        f"{name} must be in [1, num_pairs = {num_pairs}], got "
        f"{getattr(sizes, name)}; every id must occur in some pair"
      )
  return sizes


def schedule(name: str, value: Any, kind: Any) -> Schedule:
  """Makes a schedule of the step count from a number or a schedule.

  A schedule that leaves its range later, seen at powers of 2, is warned of: how
  long a run takes is not known here. It may be 0 at any step.

  Args:
    name: The name of the argument, for the message.
    value: A number or a schedule.
    kind: A type with a range, such as `Rate`.

  Raises:
    ValueError: If the number, or the schedule's first one, is not in the range.
  """
  if not callable(value):
    return constant_schedule(number(name, value, kind))
  for step in (0, *(2**k for k in range(31))):
    with jax.ensure_compile_time_eval():
      x = float(value(jnp.int32(step)))
    near = x - min(max(x, -ROUNDING), ROUNDING)
    if near == 0 or get_args(kind)[1].fits(near):
      continue
    if step == 0:
      number(f"{name} at step 0", x, kind)
    log.warning(
      "%s at step %d must be %s, got %g; a longer run needs a schedule that "
      "stays there",
      *(name, step, allowed(kind), x),
    )
    break
  return value

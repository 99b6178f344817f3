"""What arguments may be: types with ranges, and checks with clear messages.

A signature such as `layers: Count = 12` says what a factory takes. A config is
checked against the signatures of its factories before any work is done, and
`checked` applies a signature to callers from Python; bodies check only what
several arguments may get wrong together. Where a signature says `float`,
`checked` takes a NumPy scalar or an array without axes, too.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
import logging
import math
import numbers
import types
from typing import (
  Annotated,
  Any,
  Literal,
  NamedTuple,
  TypeVar,
  Union,
  get_args,
  get_origin,
)

import jax
import jax.numpy as jnp
import numpy as np

from nuclr_jax.types import (
  AnyArray,
  ConstantSchedule,
  Schedule,
  Sides,
  Sizes,
)

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable)


class Range(NamedTuple):
  """The values that an annotated type allows."""

  words: str
  fits: Callable[[Any], bool]
  note: str = ""  # what else helps a reader of an error

  def __repr__(self) -> str:
    """Says what is allowed, so that `help` of a factory can be read."""
    return self.words

  @property
  def allowed(self) -> str:
    """What is allowed and the note, for messages."""
    return f"{self.words} ({self.note})" if self.note else self.words


def one_of(names: tuple[str, ...]) -> Any:
  """Makes the type of an argument that is one of a few names."""
  return Annotated[str, Range(f"one of {names}", names.__contains__)]


LARGEST = 2**31  # whole numbers are below it: ids and steps are int32
LARGEST_FLOAT = 2**127  # below the largest number in float32
LIMITS = {
  LARGEST_FLOAT: "float32 holds numbers up to 2**127, about 1.7e38",
  LARGEST - 1: "int32 holds numbers up to 2**31 - 1",
}
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
Seed = Annotated[
  int, Range("a whole number in [0, 2**32)", lambda x: 0 <= x < 2**32)
]
Finite = Annotated[float, Range("a finite number", math.isfinite)]
Positive = Annotated[
  float, Range("a number greater than 0", lambda x: 0 < x < math.inf)
]
NonNegative = Annotated[
  float, Range("a number of at least 0", lambda x: 0 <= x < math.inf)
]
Fraction = Annotated[float, Range("in [0, 1)", lambda x: 0 <= x < 1)]
Momentum = Annotated[
  float,
  Range(
    "in [0, 1)",
    lambda x: 0 <= x < 1,
    "it weights the old momentum; published code often gives the weight of the "
    "new gradient",
  ),
]
Temperature = Annotated[
  float,
  Range(
    "a number greater than 0",
    lambda x: 1e-6 <= x <= 1e6,
    "it divides cosine similarities; 0.01 to 0.1 is usual, 1e-6 to 1e6 "
    "possible; sogclr and nuclr take rules, too",
  ),
]
Rate = Annotated[
  float | Schedule,
  Range("in [0, 1] or a schedule of the step count", lambda x: 0 <= x <= 1),
]
NumPairs = Annotated[
  int,
  Range(
    "a whole number of at least 2",
    lambda x: 2 <= x < LARGEST,
    "it is the number of pairs of the whole data set, not of a batch",
  ),
]
NAMES = {int: "a whole number", float: "a finite number", str: "a text"}
NAMES |= {bool: "True or False", types.NoneType: "None"}
NAMES |= {Mapping: "a mapping", dict: "a mapping", list: "a tuple"}


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
  if kind is Literal:
    return value in inner
  if kind in (tuple, list, Sequence):
    if not isinstance(value, tuple | list):
      return False
    if kind is tuple and inner[-1] is not ...:
      return len(value) == len(inner) and all(map(fits, value, inner))
    return all(fits(x, inner[0]) for x in value)
  if kind in (dict, Mapping) and isinstance(value, Mapping):
    return all(fits(x, inner[1]) for x in value.values())
  if hint in (Any, inspect.Parameter.empty) or isinstance(hint, str | TypeVar):
    return True
  if hint is int:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if hint is float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and abs(value) <= LARGEST_FLOAT  # not NaN
  if hint is list:  # a config has tuples
    return isinstance(value, tuple | list)
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
  if kind is Literal:
    return f"one of {inner}"
  if kind in (Union, types.UnionType):
    return ", or ".join(dict.fromkeys(filter(None, map(allowed, inner))))
  if kind in (tuple, list, Sequence):
    count = "" if kind is not tuple or inner[-1] is ... else f" of {len(inner)}"
    return f"a tuple{count}, each {allowed(inner[0])}"
  if kind in (dict, Mapping) and (values := allowed(inner[1])):
    return f"a mapping, each value {values}"
  if hint == Schedule:
    return "a schedule"
  return NAMES.get(kind or hint, "")


def shown(value: Any, hint: Any) -> str:
  """Shows a value that an annotation does not allow.

  If it is only too large, this adds the limit, which `allowed` leaves out.

  Example:
    >>> shown(-1, Count), shown(2**31, Count)
    ('-1', '2147483648; int32 holds numbers up to 2**31 - 1')
  """

  def within(limit, x):
    if isinstance(x, Mapping):
      return {key: within(limit, item) for key, item in x.items()}
    if isinstance(x, tuple | list):
      return [within(limit, item) for item in x]
    return min(max(x, -limit), limit) if isinstance(x, numbers.Real) else x

  for limit, words in LIMITS.items():
    least, more = (fits(within(x, value), hint) for x in (limit, limit + 1))
    if least and not more:
      return f"{value!r}; {words}"
  return repr(value)


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


def parameters(factory: Callable) -> Mapping[str, inspect.Parameter]:
  """Returns the parameters that can be given by name, with their annotations.

  Annotations that are texts, as `from __future__ import annotations` leaves
  them, are evaluated if they can be.
  """
  try:
    signature = inspect.signature(factory, eval_str=True)
  except (NameError, AttributeError, SyntaxError, TypeError):
    signature = inspect.signature(factory)
  kinds = (
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
  )
  return {k: x for k, x in signature.parameters.items() if x.kind in kinds}


def checked(function: Function | None = None, /, *, of: str = "") -> Any:
  """Decorates a function whose arguments must be in their annotations' ranges.

  What is annotated with a range, or as `bool`, is checked when the function is
  called; other arguments are not. The body then gets a Python number for a
  scalar of any kind, and a schedule for anything that may be one (`Rate`),
  on each side of `Sides` if they are allowed.

  Args:
    function: The function; its signature, docstring and name stay.
    of: What the function is for, which messages put before the names of its
      arguments, as in "zeta.size".

  Raises:
    ValueError: From the function, for the first value that is not allowed.

  Example:
    >>> @checked(of="zeta")
    ... def queue(*, size: Count, rate: Rate = 0.3):
    ...   return size, rate(jnp.int32(7))
    >>> size, rate = queue(size=np.int64(64))
    >>> print(size, rate)
    64 0.3
    >>> try:
    ...   queue(size=0)
    ... except ValueError as error:
    ...   print(error)
    zeta.size must be a whole number of at least 1, got 0
  """
  if function is None:
    return functools.partial(checked, of=of)
  signature = inspect.signature(function)
  hints = {
    name: (x.annotation, x.default)
    for name, x in signature.parameters.items()
    if _has_range(x.annotation)
  }
  prefix = f"{of}." if of else ""

  @functools.wraps(function)
  def call(*args, **kwargs):
    try:
      arguments = signature.bind(*args, **kwargs)
    except TypeError:
      return function(*args, **kwargs)  # Python's own message
    for name, (hint, default) in hints.items():
      value = arguments.arguments.get(name, default)
      arguments.arguments[name] = argument(f"{prefix}{name}", value, hint)
    return function(*arguments.args, **arguments.kwargs)

  # Otherwise, `help` in Python 3.14 shows the names of ranges. This comes after
  # `wraps`, which copies `__annotate__`: the assignment deletes the original.
  plain = inspect.unwrap(function)
  plain.__annotations__ = dict(plain.__annotations__)
  return call


def argument(name: str, value: Any, hint: Any) -> Any:
  """Returns an argument as `checked` gives it to a function.

  Args:
    name: The name of the argument, for the message.
    value: What the caller gave.
    hint: The annotation, such as `Count | None`.

  Raises:
    ValueError: If the annotation does not allow the value.

  Example:
    >>> argument("size", np.int64(3), Count | None)
    3
  """
  kinds = alternatives(hint)
  if isinstance(value, Sides) and Sides in kinds:
    sides = zip(Sides._fields, value, strict=True)
    return Sides(*(argument(f"{name}.{k}", x, hint) for k, x in sides))
  value = _plain(value)
  if isinstance(value, jax.core.Tracer):
    raise ValueError(
      f"{name} must be {allowed(hint)}, got an array that JAX traces; give a "
      "Python number, which jax.jit and jax.grad leave alone"
    )
  if isinstance(value, AnyArray) or not fits(value, hint):
    raise ValueError(
      f"{name} must be {allowed(hint)}, got {shown(value, hint)}"
    )
  is_number = type(value) in (int, float)
  if (is_number or callable(value)) and _may_vary(hint):
    return _schedule(name, value, hint)
  return float(value) if is_number and float in kinds else value


def _may_vary(hint: Any) -> bool:
  """Whether a range is that of a number or a schedule, such as `Rate`."""
  return any(
    get_origin(x) is Annotated and Schedule in alternatives(x)
    for x in (hint, *get_args(hint))
  )


def _plain(value: Any) -> Any:
  """Returns the Python value of a NumPy or JAX scalar; others as they are.

  A number that was made a schedule already is checked as a number: to call the
  schedule would start JAX, before processes could join.
  """
  if isinstance(value, ConstantSchedule):
    return value.value
  is_scalar = isinstance(value, np.generic | AnyArray) and np.ndim(value) == 0
  is_known = is_scalar and not isinstance(value, jax.core.Tracer)
  return value.item() if is_known else value


def _has_range(hint: Any) -> bool:
  return (
    hint is bool
    or get_origin(hint) is Annotated
    or any(map(_has_range, get_args(hint)))
  )


def _schedule(name: str, value: float | Schedule, hint: Any) -> Schedule:
  """Makes a schedule of the step count from a number or a schedule.

  A schedule that leaves its range later, seen at powers of 2, triggers a
  warning: how long a run takes is not known here. It may be 0 at any step.
  """
  if not callable(value):
    return ConstantSchedule(value)
  for step in (0, *(2**k for k in range(31))):
    try:
      with jax.ensure_compile_time_eval():
        x = float(value(jnp.int32(step)))
    except Exception as error:
      raise ValueError(
        f"{name} must be a function of the step count that returns one number; "
        f"at step {step}, {type(error).__name__}: {error}"
      ) from error
    near = x - min(max(x, -ROUNDING), ROUNDING)
    if near == 0 or fits(near, hint):
      continue
    if step == 0:
      raise ValueError(f"{name} at step 0 must be {allowed(hint)}, got {x!r}")
    log.warning(
      "%s at step %d must be %s, got %g; a longer run needs a schedule that "
      "stays there",
      *(name, step, allowed(hint), x),
    )
    break
  return value


def rule(name: str, rule, kind: type, example: str) -> None:
  """Raises ValueError unless `rule` is what a rule's factory returned."""
  if not isinstance(rule, kind):
    raise ValueError(f"{name} must be a rule such as {example}, got {rule!r}")


def sizes(
  num_pairs: int, num_images: int | None, num_texts: int | None
) -> Sizes:
  """Fills in the defaults of the row counts of per-sample state.

  Raises:
    ValueError: If there are more images or texts than pairs.
  """
  counts = Sizes(
    num_pairs,
    num_pairs if num_images is None else num_images,
    num_pairs if num_texts is None else num_texts,
  )
  for name, count in counts._asdict().items():
    if count > num_pairs:
      raise ValueError(
        f"{name} must be at most num_pairs = {num_pairs}, got {count}; every "
        "id must occur in some pair"
      )
  return counts

"""Checks of hyperparameters, with clear messages before any work is done."""

from collections.abc import Callable
import math
import operator
from typing import SupportsIndex

import jax
import jax.numpy as jnp
from jaxtyping import Array

from nuclr_jax.types import Sizes, constant_schedule


def number(name: str, value, allowed: str, is_allowed) -> float:
  """Returns an allowed scalar as a Python float.

  Args:
    name: The name of the argument, for the message.
    value: A number, a NumPy scalar or an array without axes.
    allowed: What is allowed, in words, for the message.
    is_allowed: Returns whether a float is allowed.

  Raises:
    ValueError: If `value` is not a number or not allowed.
  """
  try:
    number = math.nan if isinstance(value, bool | str) else float(value)
  except (TypeError, ValueError, OverflowError):
    number = math.nan
  if not is_allowed(number):  # no check allows NaN
    raise ValueError(f"{name} must be {allowed}, got {value!r}")
  return number


def temperature(temperature) -> float:
  """Returns the temperature if positive and finite, else raises ValueError."""
  return number(
    "temperature",
    temperature,
    "a number greater than 0 (it divides cosine similarities; 0.01 to 0.1 is "
    "usual)",
    lambda x: 0 < x < math.inf,
  )


def positive(name: str, value) -> float:
  """Returns the value if positive and finite, else raises ValueError."""
  return number(
    name, value, "a number greater than 0", lambda x: 0 < x < math.inf
  )


def count(name: str, value) -> int:
  """Returns the count if it is an integer >= 1, else raises ValueError."""
  wanted = "a whole number of at least 1"
  return int(number(name, value, wanted, lambda x: x >= 1 and x % 1 == 0))


def weight(name: str, weight) -> float:
  """Returns a term's weight if finite and >= 0, else raises ValueError."""
  return number(
    name, weight, "a number of at least 0", lambda x: 0 <= x < math.inf
  )


def rho(rho) -> float:
  """Returns rho as a float if it is finite, else raises ValueError."""
  return number("rho", rho, "a finite number", math.isfinite)


def momentum(name: str, momentum) -> float:
  """Returns the momentum's weight if in [0, 1), else raises ValueError."""
  return number(
    name,
    momentum,
    "in [0, 1) (it weights the old momentum; published code often gives the "
    "weight of the new gradient)",
    lambda x: 0 <= x < 1,
  )


def choice(name: str, value, choices: tuple) -> None:
  """Raises ValueError unless `value` is one of `choices`."""
  if value not in choices:
    raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def rule(name: str, rule, example: str) -> None:
  """Raises ValueError unless `rule` is what a rule's factory returned."""
  if not callable(rule):
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


def schedule(
  name: str, value, *, low: float, high: float, low_allowed: bool = False
) -> Callable[[Array], Array]:
  """Makes a schedule of the step count from a number or a schedule.

  A number is checked against its range. Of a schedule, only the value at step
  0 is checked; it may equal `low`.
  """
  if callable(value):
    with jax.ensure_compile_time_eval():
      first = value(jnp.zeros((), jnp.int32))
    span = f"in [{low:g}, {high:g}]"
    number(f"{name} at step 0", first, span, lambda x: low <= x <= high)
    return value
  constant = number(
    name,
    value,
    f"in {'[' if low_allowed else '('}{low:g}, {high:g}"
    f"{']' if high < math.inf else ')'} or a schedule of the step count",
    lambda x: low <= x <= high and x < math.inf and (low_allowed or x > low),
  )
  return constant_schedule(constant)

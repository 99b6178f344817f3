"""The type checker of the tests: beartype, where an int is a float.

jaxtyping has two functions checked in place of each one of the library: the
first takes its arguments, the second its arguments and its result, and neither
does anything. For a function inside another it makes them in each call of the
outer one. Those without annotations are left as they are.
"""

import inspect
from typing import Any

from beartype import BeartypeConf, beartype
import jaxtyping

# Collecting tests may import this file again, by another name.
jaxtyped = getattr(jaxtyping.jaxtyped, "__wrapped__", jaxtyping.jaxtyped)
beartyped = beartype(conf=BeartypeConf(is_pep484_tower=True))
checked = {}


def check(function):
  """`function`, which checks what it takes or, if it returns it, the result."""
  hints = function.__annotations__
  if hints.get("return", Any) is not Any:
    # The arguments have been checked, and jaxtyping still knows their sizes.
    hints = function.__annotations__ = {"return": hints["return"]}
  defaults = len(function.__defaults__ or ()), *(function.__kwdefaults__ or ())
  key = function.__module__, function.__code__, defaults, *hints.items()
  if key not in checked:
    checked[key] = beartyped(function)
  return checked[key]


def where_annotated(*, typechecker):
  """`jaxtyping.jaxtyped`, of what has anything to check."""

  def decorate(defined):
    if inspect.isfunction(defined) and not defined.__annotations__:
      return defined
    return jaxtyped(defined, typechecker=typechecker)

  return decorate


where_annotated.__wrapped__ = jaxtyped
jaxtyping.jaxtyped = where_annotated

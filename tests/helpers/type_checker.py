"""The type checker of the tests: beartype, where an int is a float.

`jaxtyping.jaxtyped` makes two stubs of a function, has both checked, and binds
the arguments of each call three times: a tenth of what the tests take. Here a
function is checked itself, once, within a scope for the names of its axes.
"""

import functools
import types

from beartype import BeartypeConf, beartype
import jaxtyping
from jaxtyping import _storage

check = beartype(
  conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
)


def jaxtyped(function=None, *, typechecker, plain=jaxtyping.jaxtyped):
  """What the tests have in place of `jaxtyping.jaxtyped`."""
  if function is None:
    return functools.partial(jaxtyped, typechecker=typechecker)
  if not isinstance(function, types.FunctionType):
    return plain(function, typechecker=typechecker)
  if not function.__annotations__:
    return function
  inner = typechecker(function)

  @functools.wraps(function)
  def call(*args, **kwargs):
    __tracebackhide__ = True
    _storage.push_shape_memo({})
    try:
      return inner(*args, **kwargs)
    finally:
      _storage.pop_shape_memo()

  return call

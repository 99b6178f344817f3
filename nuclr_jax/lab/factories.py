"""Factories that a config names, with their arguments.

A mapping with a `name` names a factory, and its other keys are arguments of the
factory. Arguments may be mappings, too: a rule (`{"name": "queue", "size":
4096}`), a schedule (`{"value": 0.1, "decay": "cosine"}`) or one value for each
side (`{"image": ..., "text": ...}`). `bind` checks all names, keys and values
against the signatures, so that a slip costs seconds and not the preparation of
a data set, and returns the factory with its arguments bound to it.
"""

from collections.abc import Callable, Collection, Mapping
import reprlib
from typing import Any, NamedTuple, Optional

from nuclr_jax import checks
from nuclr_jax.lab import extensions
from nuclr_jax.lab.config import ConfigError
from nuclr_jax.types import Schedule, Sides


class Table(NamedTuple):
  """Factories by name, and what a config may set of their arguments."""

  known: Mapping[str, Callable]
  run: tuple[str, ...] = ()  # arguments from the run, never from a config
  more: Mapping[str, Any] = {}  # types of keys that are not arguments of it
  parts: Mapping[str, Any] = {}  # tables for arguments that name a factory
  schedules: Optional["Table"] = None  # what may replace a number
  makes: type = object  # what each factory must return

  def find(self, name: Any) -> Callable | None:
    """Returns the factory of a name, or MODULE:FACTORY of another module."""
    return extensions.find(name, self.known)

  def names(self) -> str:
    """Lists the names that a config may give, for messages."""
    return f"{sorted(self.known)} or MODULE:FACTORY"


class Bound(NamedTuple):
  """A factory with checked arguments; a call adds those that a run has."""

  key: str  # of the config, for messages
  spec: Mapping[str, Any]  # what the config says
  factory: Callable
  arguments: Mapping[str, Any]  # some are `Bound` themselves
  more: Mapping[str, Any] = {}  # see `Table`
  makes: type = object

  def __repr__(self) -> str:
    """Shows the call, such as `queue(size=64)`."""
    shown = (f"{key}={x!r}" for key, x in self.arguments.items())
    return f"{self.name}({', '.join(shown)})"

  def __call__(self, **from_run: Any) -> Any:
    """Calls the factory.

    An argument that is a rule or a schedule is made first. A parameter that is
    annotated as `Bound` gets the factory itself.

    Args:
      **from_run: Arguments from the run, for the parameters that exist.

    Raises:
      ValueError: From the factories, or if one returns something else than
        what it is for.
    """
    known = checks.parameters(self.factory)
    arguments = {name: x for name, x in from_run.items() if name in known}
    for name, value in self.arguments.items():
      if Bound not in checks.alternatives(known[name].annotation):
        value = _made(value, from_run)
      arguments[name] = value
    made = self.factory(**arguments)
    if not isinstance(made, self.makes):
      raise ValueError(
        f"{self.name} must return {_described(self.makes)}, got "
        f"{reprlib.repr(made)}"
      )
    return made

  @property
  def name(self) -> str:
    """The name by which the config chooses the factory."""
    return self.spec.get("name") or getattr(self.factory, "__name__", self.key)

  def takes(self, name: str) -> bool:
    """Returns whether the factory has a parameter of this name."""
    return name in checks.parameters(self.factory)

  def values(self) -> dict[str, Any]:
    """Returns the arguments, with the factory's defaults for the others."""
    known = checks.parameters(self.factory).values()
    defaults = {x.name: x.default for x in known if x.default is not x.empty}
    return defaults | dict(self.arguments)


def bind(key: str, table: Table, spec: Any) -> Bound:
  """Checks a mapping that names a factory, and the mappings inside it.

  Args:
    key: The key of the config, for messages.
    table: The factories.
    spec: `{"name": ..., **arguments}`.

  Raises:
    ConfigError: For an unknown name or key, a missing key, or a value of the
      wrong type or out of its range.

  Example:
    >>> def queue(*, dim: int, size: checks.Count = 4096):
    ...   return f"{size} rows of {dim}"
    >>> rules = Table({"queue": queue}, run=("dim",))
    >>> rule = bind("zeta", rules, {"name": "queue", "size": 64})
    >>> rule
    queue(size=64)
    >>> rule(dim=8)
    '64 rows of 8'
    >>> try:
    ...   bind("zeta", rules, {"name": "queue", "size": 0})
    ... except ConfigError as error:
    ...   print(error)
    config.zeta.size must be a whole number of at least 1, got 0
  """
  if not isinstance(spec, Mapping):
    raise ConfigError(
      f"config.{key} must be a mapping with a name of {table.names()}, got "
      f"{spec!r}",
      key,
    )
  name = spec.get("name")
  try:
    factory = table.find(name)
  except ValueError as error:
    raise ConfigError(f"config.{key}.name: {error}", f"{key}.name") from error
  if factory is None:
    raise ConfigError(
      f"config.{key}.name is {name!r}{_why(name)}; known names are "
      f"{table.names()}",
      f"{key}.name",
    )
  what = key if name == key.rpartition(".")[2] else f"{key} {name!r}"
  return _bind(key, what, table, factory, spec, {"name"})


def _why(name: Any) -> str:
  """Says why no factory has a name, as far as that is known."""
  if not isinstance(name, str):
    return ", which is not a text"
  module, colon, attribute = name.partition(":")
  if colon:
    return f", but {module} defines no public function {attribute}"
  return "".join(f"; there is {x}" for x in extensions.like(name))


def bound(key: str, table: Table, spec: Any) -> Bound:
  """Binds a mapping; returns what is already bound unchanged."""
  return spec if isinstance(spec, Bound) else bind(key, table, spec)


def _bind(
  key: str,
  what: str,
  table: Table,
  factory: Callable,
  spec: Mapping[str, Any],
  besides: Collection[str] = (),
) -> Bound:
  """Checks arguments against the signature of a factory."""
  values = {x: value for x, value in spec.items() if x not in besides}
  known = checks.parameters(factory)
  known = [x for name, x in known.items() if name not in table.run]
  required = {x.name for x in known if x.default is x.empty}
  hints = {x.name: x.annotation for x in known}
  if clash := sorted(hints.keys() & table.more):
    raise ConfigError(
      f"{what} has a parameter {clash[0]}, and so does every such mapping; "
      "rename that of the factory",
      key,
    )
  hints |= table.more
  if unknown := sorted(values.keys() - hints.keys()):
    raise ConfigError(
      f"unknown keys {unknown} of {what}; known are {sorted(hints)}",
      f"{key}.{unknown[0]}",
    )
  if missing := sorted(required - values.keys()):
    raise ConfigError(f"{what} lacks {', '.join(missing)}", key)
  arguments = {
    x: _value(f"{key}.{x}", table, table.parts.get(x), hints[x], value)
    for x, value in values.items()
  }
  more = {x: arguments.pop(x) for x in table.more if x in arguments}
  return Bound(key, spec, factory, arguments, more, table.makes)


def _value(
  key: str, table: Table, part: Table | None, hint: Any, value: Any
) -> Any:
  """Checks the value of an argument; binds a mapping that describes it."""
  is_mapping, kinds = isinstance(value, Mapping), checks.alternatives(hint)
  if part and is_mapping and ("name" in value or not table.schedules):
    if kinds != {float}:  # a number that no rule may replace
      return bind(key, part, value)
    part = None
  if is_mapping and Sides in kinds and value.keys() == set(Sides._fields):
    sides = (_value(f"{key}.{x}", table, part, hint, value[x]) for x in value)
    return Sides(**dict(zip(value, sides, strict=True)))
  if is_mapping and table.schedules and Schedule in kinds:
    (factory,) = table.schedules.known.values()
    bound = _bind(key, key, table.schedules, factory, value)
    for name in ("value", "first_value", "end_value"):  # it stays within them
      if value.get(name):
        _value(f"{key}.{name}", table, None, hint, value[name])
    return bound
  if checks.fits(value, hint):
    return value
  allowed = [checks.allowed(hint)]
  if part:
    allowed.append(f"a mapping with a name of {part.names()}")
  raise ConfigError(
    f"config.{key} must be {', or '.join(filter(None, allowed))}, got "
    f"{checks.shown(value, hint)}",
    key,
  )


def _made(value: Any, from_run: Mapping[str, Any]) -> Any:
  """Makes the rule or the schedule that an argument describes."""
  if isinstance(value, Sides):
    return Sides(*(_made(x, from_run) for x in value))
  if not isinstance(value, Bound):
    return value
  try:
    return value(**from_run)
  except ValueError as error:
    raise ValueError(f"{value.key}: {error}") from error


def _described(kind: type) -> str:
  """Names a type that a factory must return, and where it is."""
  if kind is Callable:
    return "a function"
  article = "an" if kind.__name__[0] in "AEIO" else "a"
  public = kind.__module__.partition("._")[0]  # of optax, for one
  return f"{article} {kind.__name__} ({public}.{kind.__name__})"

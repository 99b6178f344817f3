"""Checks what a config's mappings name, and calls it.

A mapping with a `name` calls the factory of that name with the other keys as
keyword arguments. Arguments of a factory may be mappings, too: a rule
(`{"name": "queue", "size": 4096}`), a schedule (`{"value": 0.1, "decay":
"cosine"}`) or one value for each side (`{"image": ..., "text": ...}`).

All names, keys and values are checked against the signatures of the factories
before anything else is done with a config, so that a slip costs seconds and not
the preparation of a data set.
"""

from collections.abc import Callable, Mapping
import inspect
import os
from typing import Any, NamedTuple, get_origin

from nuclr_jax import checks
from nuclr_jax.lab import extensions
from nuclr_jax.lab.config import Config, ConfigError
from nuclr_jax.lab.data import DATASETS
from nuclr_jax.lab.models import ENCODERS, IMAGE_TOWERS, MODELS, TEXT_TOWERS
from nuclr_jax.lab.train.hooks import refresh_popularity
from nuclr_jax.lab.train.optimizer import make_optimizer, make_schedule
from nuclr_jax.objectives import OBJECTIVES, RULES, TERMS
from nuclr_jax.types import Schedule, Sides, Sizes


class Table(NamedTuple):
  """Factories by name, and what a config may set of their arguments."""

  known: Mapping[str, Callable]
  run: tuple[str, ...] = ()  # arguments from the run, never from a config
  more: Mapping[str, Any] = {}  # types of keys that are no arguments of it
  parts: Mapping[str, Any] = {}  # tables for arguments that name a factory
  schedules: bool = False  # whether a schedule may replace a number

  def find(self, name: Any) -> Callable | None:
    """Returns the factory of a name, or MODULE:FACTORY of another module."""
    return extensions.find(name, self.known)

  def names(self) -> str:
    """Lists the names that a config may give, for messages."""
    return f"{sorted(self.known)} or MODULE:FACTORY"


# What a run knows about its data and model, for whichever factory asks for it.
OF_THE_RUN = (*Sizes._fields, "dim", "num_classes", "steps_per_epoch")
OF_THE_RUN += ("data_block_size",)
INPUTS = ("image_shape", "vocab_size", "length")
PRETRAINED = {"pretrained": str | os.PathLike | None}
TOWERS = {
  "image": Table(IMAGE_TOWERS, run=INPUTS, more=PRETRAINED),
  "text": Table(TEXT_TOWERS, run=INPUTS, more=PRETRAINED),
  "encoder": Table(ENCODERS, run=INPUTS),
}
RULE_TABLES = {
  key: Table(x, run=OF_THE_RUN, schedules=True) for key, x in RULES.items()
}
TABLES = {
  "data": Table(DATASETS, run=("data_dir",)),
  "model": Table(MODELS, run=(*INPUTS, "frozen"), parts=TOWERS),
  "objective": Table(
    OBJECTIVES, run=OF_THE_RUN, parts=RULE_TABLES, schedules=True
  ),
}
# Mappings of a config that have no `name`, since their key decides the factory.
TERM = Table(TERMS, run=OF_THE_RUN, more={"weight": checks.NonNegative})
OPTIMIZER = Table({"adamw": make_optimizer}, schedules=True)
EVALUATOR = Table({}, run=("held_out",))
REFRESH = Table(
  {"refresh": refresh_popularity},
  run=("source", "objective", "seed", "steps_per_epoch"),
)
SCHEDULE = Table(
  {"schedule": make_schedule}, run=("num_steps", "steps_per_epoch")
)


def checked(config: dict[str, Any]) -> dict[str, Any]:
  """Returns the config if its factories take all of its names and values.

  Nested factories, such as `config.model.text` and the rules of an objective,
  and schedules are checked as well.

  Args:
    config: The config of a run, as completed by `config.complete`.

  Raises:
    ConfigError: For an unknown name or key, a missing key, or a value of the
      wrong type or out of its range.

  Example:
    >>> from nuclr_jax.lab.config import complete, load_config
    >>> config = checked(complete(load_config("glyphs")))
    >>> config["model"] |= {"depth": 3}
    >>> try:
    ...   _ = checked(config)
    ... except ConfigError as error:
    ...   print(error.key, str(error)[:33])
    model.depth unknown keys ['depth'] of model '
  """
  for key, table in TABLES.items():
    _check(key, table, config[key])
  for name, spec in (config["terms"] or {}).items():
    if not isinstance(spec, Mapping) or "weight" not in spec:
      key = f"terms.{name}"
      raise ConfigError(
        f"{key} must be a mapping with a weight, got {spec!r}", key
      )
    _check(f"terms.{name}", TERM, {"name": name} | spec)
  _check("optimizer", OPTIMIZER, {"name": "adamw"} | config["optimizer"])
  for name, spec in config["evaluators"].items():
    key = f"evaluators.{name}"
    if not isinstance(spec, Mapping):
      raise ConfigError(
        f"{key} must be a mapping of arguments, got {spec!r}", key
      )
    _check(key, EVALUATOR, {"name": name} | spec)
  if config["refresh"] is not None:
    _check("refresh", REFRESH, {"name": "refresh"} | config["refresh"])
  return config


def check_data(spec: Config) -> None:
  """Checks `config.data` alone, without the other keys of a config.

  Args:
    spec: The mapping `config.data`.

  Raises:
    ConfigError: For an unknown name or key, a missing key, or a value of the
      wrong type or out of its range.
  """
  _check("data", TABLES["data"], spec)


def call(
  key: str,
  table: Table,
  spec: Config,
  /,
  *args: Any,
  span: Mapping[str, int] | None = None,
  **from_run: Any,
) -> Any:
  """Calls the factory that `spec` names.

  Args:
    key: The key of the config, for messages.
    table: The factories.
    spec: `{"name": ..., **arguments}`.
    *args: Positional arguments, before those of the spec.
    span: `num_steps` and `steps_per_epoch` of the run, for schedules.
    **from_run: Arguments from the run, for factories that have such parameters;
      those in `spec` take precedence.
  """
  factory = table.find(spec["name"])
  known = inspect.signature(factory).parameters
  arguments = {name: x for name, x in from_run.items() if name in known}
  for name, value in spec.items():
    if name == "name":
      continue
    hint = known[name].annotation if name in known else None
    if get_origin(hint) is not Mapping:  # a mapping that stands for itself
      value = _resolve(f"{key}.{name}", table, name, value, span, from_run)
    arguments[name] = value
  return factory(*args, **arguments)


def _resolve(
  key: str, table: Table, argument: str, value: Any, span, from_run
) -> Any:
  """Turns a mapping into a rule, `Sides` or a schedule."""
  if not table.schedules or not isinstance(value, Mapping):
    return value  # some factories take mappings as they are
  part = table.parts.get(argument)
  if part is not None and "name" in value:
    return call(key, part, value, span=span, **from_run)
  if value.keys() == set(Sides._fields):
    return Sides(
      **{
        side: _resolve(f"{key}.{side}", table, argument, x, span, from_run)
        for side, x in value.items()
      }
    )
  try:
    return make_schedule(**value, **span)
  except (ValueError, TypeError) as error:
    raise ValueError(f"{key}: {error}") from error


def _check(key: str, table: Table, spec: Any) -> None:
  """Checks a mapping that names a factory, and the mappings inside it."""
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
    similar = "".join(f"; there is {x}" for x in extensions.like(f"{name}"))
    raise ConfigError(
      f"config.{key}.name is {name!r}{similar}; known names are "
      f"{table.names()}",
      f"{key}.name",
    )
  what = key if name == key.rpartition(".")[2] else f"{key} {name!r}"
  arguments = {x: value for x, value in spec.items() if x != "name"}
  _check_arguments(key, what, table, factory, arguments)


def _check_arguments(
  key: str,
  what: str,
  table: Table,
  factory: Callable,
  arguments: Mapping[str, Any],
) -> None:
  """Checks arguments against the signature of a factory."""
  parameters = [
    x
    for x in inspect.signature(factory).parameters.values()
    if x.kind != x.VAR_KEYWORD and x.name not in table.run
  ]
  required = {x.name for x in parameters if x.default is x.empty}
  hints = {x.name: x.annotation for x in parameters} | table.more
  if unknown := sorted(arguments.keys() - hints.keys()):
    raise ConfigError(
      f"unknown keys {unknown} of {what}; known are {sorted(hints)}",
      f"{key}.{unknown[0]}",
    )
  if missing := sorted(required - arguments.keys()):
    raise ConfigError(f"{what} lacks {', '.join(missing)}", key)
  for name, value in arguments.items():
    _check_value(
      f"{key}.{name}", table, table.parts.get(name), hints[name], value
    )


def _check_value(
  key: str, table: Table, part: Table | None, hint: Any, value: Any
) -> None:
  """Checks the value of an argument, or the mapping that stands for it."""
  is_mapping, kinds = isinstance(value, Mapping), checks.alternatives(hint)
  if part and (not table.schedules or (is_mapping and "name" in value)):
    _check(key, part, value)
  elif is_mapping and Sides in kinds and value.keys() == set(Sides._fields):
    for side, x in value.items():
      _check_value(f"{key}.{side}", table, part, hint, x)
  elif is_mapping and table.schedules and Schedule in kinds:
    _check_arguments(key, key, SCHEDULE, make_schedule, value)
    for name in ("value", "first_value", "end_value"):  # it stays within them
      if value.get(name):
        _check_value(f"{key}.{name}", table, None, hint, value[name])
  elif not checks.fits(value, hint):
    allowed = [checks.allowed(hint)]
    if part:
      allowed.append(f"a mapping with a name of {part.names()}")
    raise ConfigError(
      f"config.{key} must be {', or '.join(filter(None, allowed))}, got "
      f"{value!r}",
      key,
    )

"""Checks what a config's mappings name, and calls it.

A mapping with a `name` calls the factory of that name with the other keys as
keyword arguments. Arguments of a factory may be mappings, too: a rule
(`{"name": "queue", "size": 4096}`), a schedule (`{"value": 0.1, "decay":
"cosine"}`) or one value for each side (`{"image": ..., "text": ...}`).

All names and keys are checked before anything else is done with a config, so
that a misspelt key costs seconds and not the preparation of a data set.
"""

from collections.abc import Callable, Iterable, Mapping
import inspect
from typing import Any, NamedTuple

from nuclr_jax.config import Config, ConfigError
from nuclr_jax.data import DATASETS
from nuclr_jax.models import ENCODERS, IMAGE_TOWERS, MODELS, TEXT_TOWERS
from nuclr_jax.objectives import OBJECTIVES, RULES, TERMS
from nuclr_jax.train.hooks import refresh_popularity
from nuclr_jax.train.optimizer import make_optimizer, make_schedule
from nuclr_jax.types import Sides


class Table(NamedTuple):
  """Factories by name, and what a config may set of their arguments."""

  factories: Mapping[str, Callable]
  run: tuple[str, ...] = ()  # arguments from the run, never from a config
  more: tuple[str, ...] = ()  # keys that are read before the factory is called
  parts: Mapping[str, Any] = {}  # tables for arguments that name a factory
  schedules: bool = False  # whether a schedule may replace a number


INPUTS = ("image_shape", "vocab_size", "length")
TOWERS = {
  "image": Table(IMAGE_TOWERS, run=INPUTS, more=("pretrained",)),
  "text": Table(TEXT_TOWERS, run=INPUTS, more=("pretrained",)),
  "encoder": Table(ENCODERS, run=INPUTS),
}
RULE_TABLES = {key: Table(x, schedules=True) for key, x in RULES.items()}
TABLES = {
  "data": Table(DATASETS, run=("data_dir",)),
  "model": Table(MODELS, run=(*INPUTS, "frozen"), parts=TOWERS),
  "objective": Table(
    OBJECTIVES, run=("spec",), parts=RULE_TABLES, schedules=True
  ),
}
# Mappings of a config that have no `name`, since their key decides the factory.
TERM = Table(TERMS, run=("spec",), more=("weight",))
OPTIMIZER = Table({"optimizer": make_optimizer}, schedules=True)
REFRESH = Table(
  {"refresh": refresh_popularity},
  run=("source", "objective", "seed", "steps_per_epoch"),
)
SCHEDULE = Table(
  {"schedule": make_schedule}, run=("num_steps", "steps_per_epoch")
)


def checked(config: dict[str, Any]) -> dict[str, Any]:
  """Returns the config if its factories take all of its names and keys.

  Nested factories, such as `config.model.text` and the rules of an objective,
  and schedules are checked as well.

  Args:
    config: The config of a run, as completed by `config.complete`.

  Raises:
    ConfigError: For an unknown name or key, or for a missing key.

  Example:
    >>> from nuclr_jax.config import complete, load_config
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
    _check(f"terms.{name}", TERM, spec | {"name": name})
  _check("optimizer", OPTIMIZER, config["optimizer"] | {"name": "optimizer"})
  if config["refresh"] is not None:
    _check("refresh", REFRESH, config["refresh"] | {"name": "refresh"})
  return config


def check_data(spec: Config) -> None:
  """Checks `config.data` alone, without the other keys of a config.

  Args:
    spec: The mapping `config.data`.

  Raises:
    ConfigError: For an unknown name or key, or for a missing key.
  """
  _check("data", TABLES["data"], spec)


def call(
  key: str,
  table: Table,
  spec: Config,
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
  factory = table.factories[spec["name"]]
  known = inspect.signature(factory).parameters
  arguments = {name: x for name, x in from_run.items() if name in known}
  for name, value in spec.items():
    if name != "name":
      arguments[name] = _resolve(f"{key}.{name}", table, name, value, span)
  return factory(*args, **arguments)


def _resolve(key: str, table: Table, argument: str, value: Any, span) -> Any:
  """Turns a mapping into a rule, `Sides` or a schedule."""
  if not table.schedules or not isinstance(value, Mapping):
    return value  # some factories take mappings as they are
  part = table.parts.get(argument)
  if part is not None and "name" in value:
    return call(key, part, value, span=span)
  if value.keys() == set(Sides._fields):
    return Sides(
      **{
        side: _resolve(f"{key}.{side}", table, argument, x, span)
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
      f"config.{key} must be a mapping with a name of "
      f"{sorted(table.factories)}, got {spec!r}",
      key,
    )
  name = spec.get("name")
  if name not in table.factories:
    raise ConfigError(
      f"config.{key}.name is {name!r}; known names are "
      f"{sorted(table.factories)}",
      f"{key}.name",
    )
  what = key if name == key.rpartition(".")[2] else f"{key} {name!r}"
  _check_keys(key, what, table, table.factories[name], spec.keys() - {"name"})
  for argument, value in spec.items():
    _check_argument(f"{key}.{argument}", table, argument, value)


def _check_argument(key: str, table: Table, argument: str, value: Any) -> None:
  """Checks an argument that is a mapping, or must be one."""
  part = table.parts.get(argument)
  is_named = isinstance(value, Mapping) and "name" in value
  if part is not None and (is_named or not table.schedules):
    _check(key, part, value)
  elif not table.schedules or not isinstance(value, Mapping):
    return
  elif value.keys() == set(Sides._fields):
    for side, x in value.items():
      _check_argument(f"{key}.{side}", table, argument, x)
  else:
    _check_keys(key, key, SCHEDULE, make_schedule, value)


def _check_keys(
  key: str, what: str, table: Table, factory: Callable, keys: Iterable[str]
) -> None:
  """Checks keys against the arguments of a factory."""
  parameters = [
    x
    for x in inspect.signature(factory).parameters.values()
    if x.kind != x.VAR_KEYWORD  # only for calls from Python
  ]
  required = {x.name for x in parameters if x.default is x.empty}
  known = {x.name for x in parameters}.difference(table.run).union(table.more)
  if unknown := sorted(set(keys) - known):
    raise ConfigError(
      f"unknown keys {unknown} of {what}; known are {sorted(known)}",
      f"{key}.{unknown[0]}",
    )
  if missing := sorted(required.difference(table.run, keys)):
    raise ConfigError(f"{what} lacks {', '.join(missing)}", key)

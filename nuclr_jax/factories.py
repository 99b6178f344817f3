"""Calling factories by name: what a config's mappings mean."""

from collections.abc import Callable, Mapping
import inspect

from nuclr_jax.optimizer import make_schedule
from nuclr_jax.settings import Config
from nuclr_jax.types import Sides


def check_spec(key: str, table: Mapping[str, Callable], spec: Config) -> None:
  """Raises ValueError for a name or a key that is not known.

  Args:
    key: Of the config, for the message.
    table: Factories by name.
    spec: `{"name": ..., **arguments}`.
  """
  name = spec.get("name")
  if name not in table:
    raise ValueError(
      f"config.{key}.name is {name!r}; known names are {sorted(table)}"
    )
  check_keys(f"{key} {name!r}", table[name], spec)


def check_keys(what: str, factory: Callable, spec: Config) -> None:
  """Raises ValueError unless the factory takes all keys besides `name`."""
  known = set(inspect.signature(factory).parameters)
  unknown = sorted(set(spec) - known - {"name"})
  if unknown:
    raise ValueError(
      f"unknown keys {unknown} of {what}; known are {sorted(known)}"
    )


def call(
  where: str, table: Mapping[str, Callable], spec: Config, span=None, **given
):
  """Calls the factory that `spec` names with what it takes of `given`.

  Args:
    where: The key of the config, for messages.
    table: Factories by name.
    spec: `{"name": ..., **arguments}`. Mappings among them become `Sides` or
      schedules if there is a `span`.
    span: Lengths that schedules need, see `make_schedule`.
    **given: Of the run; `spec` goes first.
  """
  factory = table[spec["name"]]
  known = inspect.signature(factory).parameters
  arguments = {key: value for key, value in given.items() if key in known}
  for key, value in spec.items():
    if key != "name":
      if span is not None:  # only with a run's length there are schedules
        value = _resolve(f"{where}.{key}", value, span)
      arguments[key] = value
  return factory(**arguments)


def _resolve(where, value, span):
  """Turns mappings into `Sides` and schedules: {"value": ..., "decay": ...}."""
  if not isinstance(value, Mapping):
    return value
  if set(value) == {"image", "text"}:
    return Sides(
      **{
        side: _resolve(f"{where}.{side}", x, span) for side, x in value.items()
      }
    )
  check_keys(where, make_schedule, value)
  try:
    return make_schedule(**value, **span)
  except (ValueError, TypeError) as error:
    raise ValueError(f"{where}: {error}") from error

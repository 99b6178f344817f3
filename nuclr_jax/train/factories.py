"""Calls factories by name, which is what mappings in a config mean.

A mapping with `name` calls the factory of that name with the other keys as
keyword arguments. Arguments of a factory may be mappings, too: a rule
(`{"name": "queue", "size": 4096}`), a schedule (`{"value": 0.1, "decay":
"cosine"}`) or one value for each side (`{"image": ..., "text": ...}`).
"""

from collections.abc import Callable, Mapping
import inspect
from typing import Any, NamedTuple

from nuclr_jax.config import Config
from nuclr_jax.train.optimizer import make_schedule
from nuclr_jax.types import Sides

Table = Mapping[str, Callable]  # factories by name


class Language(NamedTuple):
  """What mappings among the arguments of a factory may mean."""

  span: Mapping[str, int] | None = None  # steps of the run; None = no schedules
  rules: Mapping[str, Table] = {}  # rules by name, for each argument


PLAIN = Language()  # passes mappings on as they are


def call(
  where: str,
  table: Table,
  spec: Config,
  *args: Any,
  language: Language = PLAIN,
  **defaults: Any,
) -> Any:
  """Calls the factory that `spec` names.

  Args:
    where: The key of the config, for messages.
    table: Factories by name.
    spec: `{"name": ..., **arguments}`.
    *args: Positional arguments, before the arguments of the spec.
    language: What mappings among the arguments mean.
    **defaults: Arguments from the run; `spec` takes precedence over them.
  """
  arguments = {
    key: _resolve(f"{where}.{key}", key, value, language)
    for key, value in spec.items()
    if key != "name"
  }
  return table[spec["name"]](*args, **(defaults | arguments))


def accepted(factory: Callable, **values: Any) -> dict[str, Any]:
  """Returns the values that a factory has parameters for."""
  known = inspect.signature(factory).parameters
  return {key: value for key, value in values.items() if key in known}


def _is_rule(value: Any) -> bool:
  return isinstance(value, Mapping) and "name" in value


def _resolve(where: str, key: str, value: Any, language: Language) -> Any:
  """Turns mappings into rules, `Sides` and schedules."""
  if not isinstance(value, Mapping):
    return value
  if _is_rule(value) and key in language.rules:
    return call(where, language.rules[key], value, language=language)
  if language.span is None:
    return value  # the factory takes mappings as they are
  if set(value) == {"image", "text"}:
    return Sides(
      **{
        side: _resolve(f"{where}.{side}", key, x, language)
        for side, x in value.items()
      }
    )
  try:
    return make_schedule(**value, **language.span)
  except (ValueError, TypeError) as error:
    raise ValueError(f"{where}: {error}") from error

"""Factories from other modules, which a config names as MODULE:FACTORY.

A config is data and may come from untrusted sources. The modules that it names
are therefore imported only if the user has said so: by `--import=MODULE`, by
`allow` in Python, or by installing a package that declares the module as an
entry point of the group "nuclr_jax":

  [project.entry-points.nuclr_jax]
  mine = "my_package.objectives"

The name of the entry point is then the MODULE of `mine:pull`. The library's own
`nuclr_jax.contrib` is known as `contrib`.
"""

from collections.abc import Callable, Mapping
import functools
import importlib
import importlib.metadata
import types

GROUP = "nuclr_jax"  # of entry points


class NotImported(ValueError):
  """A config names a module that the user has not allowed."""


_allowed = {"contrib": "nuclr_jax.contrib"}  # the module behind each name


def allow(module: str) -> None:
  """Imports a module, whose factories configs may then name.

  Args:
    module: The module, such as `mine` or `my_package.objectives`.

  Raises:
    ValueError: If it cannot be imported.

  Example:
    >>> allow("nuclr_jax.contrib")
    >>> find("nuclr_jax.contrib:swav").__name__
    'swav'
  """
  _import(module, f"--import={module}")
  _allowed[module] = module


def find(name: object, table: Mapping[str, Callable] = {}) -> Callable | None:
  """Returns the factory of a name; None if there is none.

  The factory of MODULE:FACTORY must be defined in the module or below it, under
  a name that does not begin with an underscore.

  Args:
    name: A name in the table, or a module, a colon and the factory.
    table: The factories of the library.

  Raises:
    NotImported: If the module may not be imported.
    ValueError: If it cannot be.

  Example:
    >>> find("contrib:swav").__name__
    'swav'
    >>> try:
    ...   find("os:system")
    ... except ValueError as error:
    ...   print(error)
    'os:system' names the module os, and a config alone cannot cause an import;
    if you trust it, add --import=os (in Python: extensions.allow('os'))
  """
  if not isinstance(name, str):
    return None
  if ":" not in name:
    return table.get(name)
  module, _, attribute = name.partition(":")
  words = [*module.split("."), attribute]
  if not all(map(str.isidentifier, words)) or attribute.startswith("_"):
    return None
  home = _allowed.get(module) or _entry_points().get(module)
  if home is None:
    raise NotImported(
      f"{name!r} names the module {module}, and a config alone cannot cause an "
      f"import; if you trust it, add --import={module} (in Python: "
      f"extensions.allow({module!r}))"
    )
  found = getattr(_import(home, f"the module of {name!r}"), attribute, None)
  place = getattr(found, "__module__", None)
  if not callable(found) or not f"{place}.".startswith(f"{home}."):
    return None
  return found


def like(name: str) -> list[str]:
  """Returns the names MODULE:FACTORY that end in a name.

  Example:
    >>> like("swav")
    ['contrib:swav']
  """
  found = []
  for module in ["contrib", *_entry_points()]:
    try:
      if find(f"{module}:{name}") is not None:
        found.append(f"{module}:{name}")
    except ValueError:
      pass  # a broken package is not worth suggesting
  return found


def _import(module: str, what: str) -> types.ModuleType:
  """Imports a module; raises ValueError for whatever its code raises."""
  try:
    return importlib.import_module(module)
  except Exception as error:
    raise ValueError(
      f"{what} cannot be imported: {type(error).__name__}: {error}; give a "
      "Python module, such as mine for ./mine.py"
    ) from error


@functools.cache
def _entry_points() -> dict[str, str]:
  """The modules that installed packages declare, by name."""
  found = importlib.metadata.entry_points(group=GROUP)
  return {point.name: point.module for point in found}

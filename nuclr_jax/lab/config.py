"""Configs: where they are, which keys they have, and how to change them.

A config is a nested mapping. Inside it, a mapping with a `name` names a factory
and gives its keyword arguments: `{"name": "clip", "temperature": 0.05}`.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
import json
import logging
import os
import pathlib
import runpy
import traceback
import types
from typing import Any, NamedTuple

from nuclr_jax import checks
from nuclr_jax.checks import Count, Natural, NonNegative, Positive, Seed
from nuclr_jax.lab.ranges import Tracker, Workers

log = logging.getLogger(__name__)

Config = Any  # a mapping, or an ml_collections.ConfigDict

# Keys of a config: the default, `...` if there is none, and the type.
KEYS = dict(
  data=(..., Mapping),
  model=(..., Mapping),
  objective=(..., Mapping),
  # {name: {"weight": ...}}, to be added; see `objectives.TERMS`
  terms=(None, Mapping | None),
  optimizer=(..., Mapping),
  # {"MODULE:FACTORY": arguments}, beside those of the data
  evaluators=(types.MappingProxyType({}), Mapping),
  batch_size=(..., Count),
  num_microbatches=(1, Count),  # pieces of a batch that the encoders see
  num_epochs=(..., Positive),
  seed=(0, Seed),
  num_devices=(None, Count | None),  # None = all
  num_slices=(1, Count),  # groups of devices with a slow network between them
  shard_params=(False, bool),  # split params and optimizer state, too
  offload_rows=(False, bool),  # keep per-sample state in the host's memory
  log_every=(50, Count),  # steps
  eval_every=(0, Natural),  # steps; 0 = by `eval_every_epochs`
  eval_every_epochs=(0.0, NonNegative),  # 0 = only at the end
  checkpoint_every=(0, Natural),  # steps; 0 = only at the end
  max_checkpoints=(2, Count),
  keep_best=(None, str | None),  # keep the state with the best such score
  num_workers=(0, Workers),  # processes that make batches; 0 = threads
  # services that show the metrics beside TensorBoard, see `train.trackers`
  trackers=((), tuple[Tracker, ...]),
  # what a run begins with beside weights: popularity.npz of another run,
  # "counts", "exact", "exact_u" or "pass_u", and "moments"; see
  # `warm_start.parse`
  warm_start=(None, str | os.PathLike | None),
  # embeddings of the training pairs that `nuclr embed` wrote: similarities are
  # relative to those of that model, see `objectives.relative_to`
  reference=(None, str | os.PathLike | None),
  # arguments of `hooks.refresh_popularity`; None = never
  refresh=(None, Mapping | None),
)
DEFAULTS = {key: default for key, (default, _) in KEYS.items()}
OWN_PARTS = "own_parts"  # in a run's config.json: what the config does not name
BOOLEANS = {"true": True, "t": True, "1": True}
BOOLEANS |= {"false": False, "f": False, "0": False}


class ConfigError(ValueError):
  """Says what is wrong with a config; `key` is the dotted key at fault."""

  def __init__(self, message: str, key: str = ""):
    super().__init__(message)
    self.key = key


def blank() -> Any:
  """Makes an `ml_collections.ConfigDict` of all keys that have a default.

  Config files start from it and set what they need.

  Example:
    >>> config = blank()
    >>> config.seed, config.refresh.every_epochs
    (0, 0.0)
  """
  from ml_collections import ConfigDict, config_dict

  defaults = {key: x for key, x in DEFAULTS.items() if x is not ...}
  types = dict(num_devices=int, keep_best=str, warm_start=str, reference=str)
  defaults |= {key: config_dict.placeholder(x) for key, x in types.items()}
  defaults["refresh"] = dict(
    every_epochs=0.0, max_pairs=16_384, tolerance=1e-2, max_iterations=200
  )
  defaults["terms"] = {}
  return ConfigDict(defaults)


def folder() -> pathlib.Path:
  """Returns the folder of the configs that the library ships.

  It is next to the package in a checkout, and in `lab` when installed.
  """
  here = pathlib.Path(__file__).parent
  return next(
    place
    for place in (here / "configs", here.parents[1] / "configs")
    if (place / "glyphs.py").exists()
  )


def path_of(name: str) -> str:
  """Resolves the name of a config to its file, if there is one.

  Args:
    name: A path, or the name of a config that the library ships, optionally
      followed by a colon and an argument.

  Returns:
    The path, with the same argument.

  Example:
    >>> path_of("glyphs:smoke") == f"{folder()}/glyphs.py:smoke"
    True
  """
  file, colon, argument = name.partition(":")
  path = pathlib.Path(file)
  if not path.is_file():
    shipped = folder() / f"{path.stem}.py"
    inside = path.parent in (pathlib.Path(), pathlib.Path("configs"))
    if shipped.exists() and inside and path.suffix in ("", ".py"):
      file = str(shipped)
  return file + colon + argument


def load_config(name: str) -> Any:
  """Loads the config that `nuclr train --config=NAME` takes.

  A .py file is run, and its `get_config` makes the config. A .json file is
  data, such as the config.json of a run.

  Args:
    name: A path or the name of a shipped config, as `path_of` resolves it.

  Returns:
    An `ml_collections.ConfigDict`, or the plain data of a .json file.

  Raises:
    ValueError: If there is no such file, if it is of another kind, if Python
      code in it raises an error, or if it belongs to a run with parts that its
      config does not name.

  Example:
    >>> load_config("glyphs:clip").objective.name
    'clip'
  """
  path, colon, argument = path_of(name).partition(":")
  suffix = pathlib.Path(path).suffix
  if not pathlib.Path(path).is_file():
    *others, last = sorted(x.stem for x in folder().glob("*.py"))
    raise ConfigError(
      f"{path} is not a config file; the library ships the configs "
      f"{', '.join(others)} and {last}"
    )
  if suffix == ".json" and not colon:
    return _read_recorded(pathlib.Path(path))
  if suffix == ".json":
    raise ConfigError(f"{path} takes no argument; leave out :{argument}")
  if suffix != ".py":
    raise ConfigError(
      f"{path} is neither a .py file, which is run and defines get_config, nor "
      "a .json file, such as the config.json of a run; rename or convert it"
    )
  try:
    module = runpy.run_path(path)
    if "get_config" not in module:
      raise ConfigError(f"{path} has no function get_config")
    return module["get_config"](*([argument] if colon else []))
  except ValueError:
    raise  # the config's own message
  except SyntaxError as error:
    raise ConfigError(
      f"{error.filename}, line {error.lineno}: {error.msg}"
    ) from error
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    where = f"{path}, line {lines[-1]}" if lines else path
    raise ConfigError(f"{where}: {type(error).__name__}: {error}") from error


def _read_recorded(path: pathlib.Path) -> dict[str, Any]:
  """Reads a config.json, to begin another run like the one that it is of."""
  try:
    config = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError) as error:
    raise ConfigError(f"{path} cannot be read: {error}") from error
  if not isinstance(config, dict):
    raise ConfigError(f"{path} must hold an object, got {config!r:.80}")
  if own := config.pop(OWN_PARTS, None):
    raise ConfigError(
      f"{path} is of a run with parts of its own, {own}, which it does not "
      "name; start from the config and the code of that run"
    )
  return plain_data(config)


def choose(argument: str, *tables: Mapping[str, Any]) -> list[str | None]:
  """Reads a config file's argument: at most one name from each table.

  Args:
    argument: Names separated by commas.
    *tables: The choices, by name; no two tables share a name.

  Returns:
    For each table, the name that was chosen from it, or None.

  Raises:
    ValueError: For a name that no table has, or two from the same table.

  Example:
    >>> choose("b", {"a": 1, "b": 2}, {"c": 3})
    ['b', None]
  """
  words = [word for word in argument.split(",") if word]
  chosen = [[word for word in words if word in table] for table in tables]
  if any(len(x) > 1 for x in chosen) or len(words) > sum(map(len, chosen)):
    known = ", and one of ".join(str(sorted(table)) for table in tables)
    raise ConfigError(
      f"the config's argument must be one of {known}, with a comma between if "
      f"there are several, got {argument!r}"
    )
  return [names[0] if names else None for names in chosen]


def complete(config: Config) -> dict[str, Any]:
  """Turns a config into plain nested dicts with the defaults filled in.

  Args:
    config: A mapping such as the one that `configs/glyphs.py` makes.

  Raises:
    ConfigError: For unknown or missing keys, or values that are not allowed.

  Example:
    >>> config = dict(data={}, model={}, objective={}, optimizer={})
    >>> config |= dict(batch_size=128, num_epochs=1)
    >>> complete(config)["max_checkpoints"]
    2
  """
  completed = DEFAULTS | plain_data(config)
  unknown = sorted(completed.keys() - DEFAULTS.keys())
  if unknown:
    raise ConfigError(
      f"unknown config keys {unknown}; known are {sorted(DEFAULTS)}",
      unknown[0],
    )
  missing = [key for key, value in completed.items() if value is ...]
  if missing:
    raise ConfigError(f"the config lacks {', '.join(missing)}", missing[0])
  for key, (_, kind) in KEYS.items():
    if not checks.fits(completed[key], kind):
      allowed, value = checks.allowed(kind), checks.shown(completed[key], kind)
      raise ConfigError(f"config.{key} must be {allowed}, got {value}", key)
  return completed


def plain_data(value: Any) -> Any:
  """Turns any nested mappings, sequences and arrays into dicts and tuples.

  Example:
    >>> plain_data({"freeze": ["model/image"]})
    {'freeze': ('model/image',)}
  """
  if isinstance(value, Mapping) or hasattr(value, "to_dict"):
    return {key: plain_data(x) for key, x in value.items()}
  if isinstance(value, list | tuple):
    return tuple(map(plain_data, value))
  if hasattr(value, "tolist"):  # arrays, and scalars of NumPy
    return plain_data(value.tolist())
  return value


def override(
  base: Config, changes: Iterable[tuple[str, str]]
) -> dict[str, Any]:
  """Applies changes as given on the command line: dotted keys and texts.

  A text takes the type of the value that it replaces. Where the config has no
  value, or None, the text is read as a Python literal, or else as a string. The
  same holds for every argument of a factory that replaces the config's (see
  `merge_named`).

  Args:
    base: The config to change; the defaults are filled in first.
    changes: Keys and texts, such as `("objective.temperature", "0.05")`. If a
      key occurs several times, the last text counts; for a tuple, each text
      adds an item.

  Returns:
    The changed config, in plain dicts.

  Raises:
    ConfigError: If a text does not fit, or a key and a part of it are given.

  Example:
    >>> config = {"model": {"name": "towers", "text": {"name": "bert"}}}
    >>> changed = override(config, [("model.text.layers", "2")])
    >>> changed["model"]["text"]
    {'name': 'bert', 'layers': 2}
  """
  defaults = {key: x for key, x in DEFAULTS.items() if x is not ...}
  return merge_named(defaults | plain_data(base), _nested(changes), read=_read)


def merge_named(
  base: Mapping[str, Any],
  overrides: Mapping[str, Any],
  *,
  read: Callable[[Any, Any], Any] = lambda value, old: value,
) -> dict[str, Any]:
  """Merges overrides into a nested mapping.

  A mapping with a `name` names a factory and gives its arguments. Overrides
  that choose another name drop the arguments of the base, which belong to the
  old factory.

  Args:
    base: The mapping; it is not modified.
    overrides: The mapping that takes precedence. Where both have a mapping, the
      two are merged; anything else is replaced.
    read: Makes the new value from the value in `overrides` and the old one
      (None if there is none).

  Example:
    >>> base = {"name": "queue", "size": 4096, "rate": 0.3}
    >>> merge_named(base, {"size": 64})
    {'name': 'queue', 'size': 64, 'rate': 0.3}
    >>> merge_named(base, {"name": "batch", "rate": 0.1})
    {'name': 'batch', 'rate': 0.1}
  """
  old_name, name = base.get("name"), overrides.get("name")
  if not isinstance(name, Mapping):  # as it is if a key is below `name`
    name = read(name, old_name) if "name" in overrides else old_name
  if name != old_name:
    base = {}
  merged = dict(base)
  for key, value in overrides.items():
    old = base.get(key)
    if isinstance(value, Mapping):
      inner = old if isinstance(old, Mapping) else {}
      merged[key] = merge_named(inner, value, read=read)
    else:
      merged[key] = read(value, old)
  return merged


def validation_period(
  *, eval_every: int, eval_every_epochs: float, steps_per_epoch: int
) -> int:
  """Returns the steps between validations; 0 = none before the end.

  Args:
    eval_every: The period in steps. It takes precedence over
      `eval_every_epochs`, with a warning.
    eval_every_epochs: The period in epochs.
    steps_per_epoch: The number of steps in an epoch.

  Example:
    >>> validation_period(
    ...   eval_every=0, eval_every_epochs=0.5, steps_per_epoch=10
    ... )
    5
  """
  if eval_every and eval_every_epochs:
    log.warning(
      "eval_every %d takes precedence over eval_every_epochs %g; set it to 0 "
      "to validate by epochs",
      eval_every,
      eval_every_epochs,
    )
  if eval_every or not eval_every_epochs:
    return eval_every
  return max(round(eval_every_epochs * steps_per_epoch), 1)


def is_due(period: int, step: int) -> bool:
  """Returns whether something is done at a step; a period of 0 is never.

  Example:
    >>> is_due(5, 10), is_due(5, 11), is_due(0, 10)
    (True, False, False)
  """
  return period > 0 and step % period == 0


class _Texts(NamedTuple):
  """The texts that the command line gives for one key."""

  key: str
  texts: tuple[str, ...]


def _nested(changes: Iterable[tuple[str, str]]) -> dict[str, Any]:
  """Nests changes by the parts of their keys; the leaves are `_Texts`."""
  tree = {}
  for key, text in changes:
    *parents, last = key.split(".")
    branch = tree
    for part in parents:
      branch = branch.setdefault(part, {})
      if isinstance(branch, _Texts):
        raise ConfigError(f"give either {branch.key} or {key}, not both", key)
    leaf = branch.get(last, _Texts(key, ()))
    if not isinstance(leaf, _Texts):
      raise ConfigError(f"give either {key} or parts of it, not both", key)
    branch[last] = _Texts(key, (*leaf.texts, text))
  return tree


def _read(change: _Texts, old: Any) -> Any:
  """Reads the value of a change, in the type of the old value."""
  text = change.texts[-1]
  if isinstance(old, tuple):
    return _read_tuple(change)
  value = _literal(text)
  if isinstance(old, str):
    return None if value is None else text
  # A mapping may replace a number: it describes a schedule or a rule.
  if value is None or isinstance(value, Mapping):
    return value
  if isinstance(old, bool):
    kind, value = "true or false", BOOLEANS.get(text.lower())
  elif isinstance(old, int):
    kind = f"a whole number such as {old}"
    value = value if type(value) is int else None  # not True
  elif isinstance(old, float):
    kind = f"a number such as {old:g}"
    value = _float(text)
  if value is None:
    raise ConfigError(f"{change.key} takes {kind}, got {text!r}", change.key)
  return value


def _read_tuple(change: _Texts) -> tuple | None:
  """Reads literals such as "('coco',)"; a plain word is one item."""
  items = []
  for text in change.texts:
    value = _literal(text)
    if isinstance(value, str) and value == text and "," in text:
      raise ConfigError(
        f"{change.key} takes a tuple such as \"('a', 'b')\", got {text!r}",
        change.key,
      )
    items.extend(value if isinstance(value, tuple) else [value])
  return None if items == [None] else tuple(items)


def _literal(text: str) -> Any:
  """Reads a Python literal as dicts and tuples, or returns the text itself."""
  if text in ("true", "false"):
    return BOOLEANS[text]
  try:
    return plain_data(ast.literal_eval(text))
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return text


def _float(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:
    return None

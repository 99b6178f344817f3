"""Configs: files, keys and their defaults."""

from collections.abc import Mapping
import logging
import pathlib
import runpy
import traceback
from typing import Any

from nuclr_jax.types import Sizes

log = logging.getLogger(__name__)

Config = Any  # a mapping, or an ml_collections.ConfigDict

# Keys of a config and their defaults; `...` marks those without one.
DEFAULTS = dict(
  data=...,
  model=...,
  objective=...,
  terms=None,  # {name: {"weight": ...}}, added to it; see `objectives.TERMS`
  optimizer=...,
  batch_size=...,
  num_microbatches=1,  # pieces of a batch that the encoders see at a time
  num_epochs=...,
  seed=0,
  num_devices=None,  # None = all
  shard_params=False,  # split params and optimizer state over the devices
  offload_rows=False,  # keep per-sample state in the host's memory
  log_every=50,  # steps
  eval_every=0,  # steps; 0 = by the next one
  eval_every_epochs=0.0,  # 0 = at the end only
  checkpoint_every=0,  # steps; 0 = at the end only
  max_checkpoints=2,
  keep_best=None,  # a score such as validation/mean_recall@1; see `best`
  num_workers=0,  # processes that make batches; 0 = threads of this one
  warm_start=None,  # popularity.npz of another run; zeta starts there
  refresh=None,  # arguments of `hooks.refresh_popularity`; None = never
)


def blank() -> Any:
  """An `ml_collections.ConfigDict` of all keys that have a default.

  Config files begin with it, so that the command line can set every key.

  Example:
    >>> config = blank()
    >>> config.seed, config.refresh.every_epochs
    (0, 0.0)
  """
  from ml_collections import ConfigDict, config_dict

  given = {key: x for key, x in DEFAULTS.items() if x is not ...}
  types = dict(num_devices=int, keep_best=str, warm_start=str)
  given |= {key: config_dict.placeholder(x) for key, x in types.items()}
  given["refresh"] = dict(
    every_epochs=0.0, max_pairs=16_384, tolerance=1e-2, max_iterations=200
  )
  given["terms"] = dict(
    difference_alignment=dict(
      weight=0.0, differences="chain", norm="l2", labels=False
    )
  )
  return ConfigDict(given)


def folder() -> pathlib.Path:
  """Where the configs are that came with the library.

  Beside the package in a checkout, inside of it when installed.
  """
  here = pathlib.Path(__file__).parent
  return next(
    place
    for place in (here / "configs", here.parent / "configs")
    if (place / "glyphs.py").exists()
  )


def path_of(given: str) -> str:
  """A config as a file that exists, if there is one.

  Args:
    given: A path, or the name of a config of the library, with or without a
      colon and an argument.

  Example:
    >>> path_of("glyphs:smoke") == f"{folder()}/glyphs.py:smoke"
    True
  """
  name, colon, argument = given.partition(":")
  found = pathlib.Path(name)
  if not found.is_file():
    own = folder() / f"{found.stem}.py"
    inside = found.parent in (pathlib.Path(), pathlib.Path("configs"))
    if own.exists() and inside and found.suffix in ("", ".py"):
      name = str(own)
  return name + colon + argument


def load(given: str) -> Any:
  """The config that `nuclr train --config=...` would take.

  Args:
    given: See `path_of`.

  Returns:
    An `ml_collections.ConfigDict`.

  Raises:
    ValueError: If there is no such file, it fails, or from the config.

  Example:
    >>> load("glyphs:clip").objective.name
    'clip'
  """
  path, colon, argument = path_of(given).partition(":")
  if not pathlib.Path(path).is_file():
    there = sorted(x.stem for x in folder().glob("*.py"))
    raise ValueError(
      f"{path} is no config file; with the library came {', '.join(there)}"
    )
  try:
    found = runpy.run_path(path)
    if "get_config" not in found:
      raise ValueError(f"{path} has no function get_config")
    return found["get_config"](*([argument] if colon else []))
  except ValueError:
    raise  # a config's own
  except SyntaxError as error:
    raise ValueError(
      f"{error.filename}, line {error.lineno}: {error.msg}"
    ) from error
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    place = [x.lineno for x in frames if x.filename == path]
    where = f"{path}, line {place[-1]}" if place else path
    raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def choose(argument: str, *tables: Mapping[str, Any]) -> list[str | None]:
  """The names that a config file's argument takes of tables.

  Args:
    argument: Names with commas between, at most one of each table.
    *tables: By name; no two have the same one.

  Returns:
    For each table the name of it that was given, or None.

  Raises:
    ValueError: For another name, or two of a table.

  Example:
    >>> choose("b", {"a": 1, "b": 2}, {"c": 3})
    ['b', None]
  """
  words = [word for word in argument.split(",") if word]
  found = [[word for word in words if word in table] for table in tables]
  if any(len(x) > 1 for x in found) or len(words) > sum(map(len, found)):
    known = ", and one of ".join(str(sorted(table)) for table in tables)
    raise ValueError(
      f"the config's argument must be one of {known}, with a comma between if "
      f"there are several, got {argument!r}"
    )
  return [x[0] if x else None for x in found]


def complete(config: Config) -> dict[str, Any]:
  """Plain nested dicts with the defaults filled in.

  Raises:
    ValueError: For unknown or missing keys and impossible numbers.
  """
  config = _plain(config)
  unknown = sorted(set(config) - set(DEFAULTS))
  if unknown:
    raise ValueError(
      f"unknown config keys {unknown}; known are {sorted(DEFAULTS)}"
    )
  config = DEFAULTS | config
  missing = sorted(key for key, value in config.items() if value is ...)
  if missing:
    raise ValueError(f"the config lacks {missing}")
  positive = "batch_size num_microbatches num_epochs log_every max_checkpoints"
  for key in positive.split():
    if not config[key] > 0:
      raise ValueError(f"{key} must be greater than 0, got {config[key]}")
  counts = "seed eval_every eval_every_epochs checkpoint_every num_workers"
  for key in counts.split():
    if config[key] < 0:
      raise ValueError(f"{key} must be at least 0, got {config[key]}")
  return config


def validation_period(config: Mapping[str, Any], sizes: Sizes) -> int:
  """Steps from one validation to the next; 0 = none before the end.

  `eval_every` goes before `eval_every_epochs`, with a warning.

  Args:
    config: A complete one.
    sizes: Of the training pairs.

  Example:
    >>> config = {"eval_every": 0, "eval_every_epochs": 0.5, "batch_size": 10}
    >>> validation_period(config, Sizes(100, 100, 100))
    5
  """
  epochs = config["eval_every_epochs"]
  if epochs and config["eval_every"]:
    log.warning(
      "eval_every %d goes before eval_every_epochs %g; set it to 0 to validate "
      "by epochs",
      config["eval_every"],
      epochs,
    )
  steps = max(round(epochs * (sizes.num_pairs // config["batch_size"])), 1)
  return config["eval_every"] or (steps if epochs else 0)


def _plain(config):
  """Nested dicts and tuples, from any mapping."""
  if isinstance(config, Mapping) or hasattr(config, "to_dict"):
    return {key: _plain(value) for key, value in config.items()}
  if isinstance(config, list | tuple):
    return tuple(map(_plain, config))
  return config

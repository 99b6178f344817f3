"""Shared by runs that train a config of the library."""

import ast
from collections.abc import Mapping
import functools
import pathlib
import runpy
from typing import Any, NamedTuple

from experiments.harness.study import Place
from nuclr_jax.lab.config import folder
from nuclr_jax.lab.data.places import cache_dir
from nuclr_jax.lab.distributed import flatten
from nuclr_jax.lab.train import build, loop, records


class Trained(NamedTuple):
  """A finished training."""

  parts: Any  # an `Experiment`
  state: Any  # a `TrainState`
  metrics: Mapping[str, float]  # the contents of metrics.json
  history: list[dict[str, float]]


@functools.cache  # so that a process does not see later edits of the file
def get_config(name: str):
  """Returns the `get_config` function of a file in configs/."""
  return runpy.run_path(str(folder() / f"{name}.py"))["get_config"]


def change(config, values: Mapping[str, Any], keys: Mapping[str, str]) -> None:
  """Sets values that are named in a study's words.

  Args:
    config: The `ConfigDict` to change.
    values: The new values, by the study's words.
    keys: For each word, the dotted keys that get its value, comma-separated.

  Raises:
    ValueError: If a word has no keys.

  Example:
    >>> from ml_collections import ConfigDict
    >>> config = ConfigDict({"objective": {"temperature": 0.1}})
    >>> change(config, {"tau": 0.05}, {"tau": "objective.temperature"})
    >>> config.objective.temperature
    0.05
  """
  unknown = sorted(values.keys() - keys.keys())
  if unknown:
    raise ValueError(
      f"the study has no keys for {unknown}, only for {sorted(keys)}"
    )
  changes = {
    key: value
    for word, value in values.items()
    for key in keys[word].split(", ")
  }
  with config.unlocked():  # some keys are not in the config's defaults
    config.update_from_flattened_dict(changes)


@functools.lru_cache(maxsize=4)  # reading takes seconds
def _load_data(spec: str, data_dir: str | None):
  return build.load_data(ast.literal_eval(spec), data_dir=data_dir)


def load_data(config, data_dir: str | None = None):
  """Reads the data of a config; runs with the same data read them once."""
  return _load_data(repr(config.data.to_dict()), data_dir)


def folder_beside(data_dir: str | None, name: str, remedy: str) -> pathlib.Path:
  """Returns a folder that a command has written beside the prepared data.

  Args:
    data_dir: The folder of prepared data sets.
    name: The name of the folder in it.
    remedy: What the folder is, and what writes it, for the message.

  Raises:
    ValueError: If it is missing.
  """
  found = cache_dir(data_dir) / name
  if not found.is_dir():
    raise ValueError(f"{found} is missing, {remedy}")
  return found


def prepare(config, place: Place):
  """Builds all parts of a run."""
  return build.build(config, data=load_data(config, place.data_dir))


def train(config, place: Place, parts) -> Trained:
  """Trains and evaluates; an interrupted run continues where it stopped.

  Args:
    config: The config of the training.
    place: The folders of the run.
    parts: What `prepare` returned.

  Raises:
    KeyboardInterrupt: If a signal stopped the training.
  """
  result = loop.fit(config, place.folder, parts=parts)
  if not result.finished:
    raise KeyboardInterrupt
  history = records.read_history(place.folder)
  return Trained(parts, result.train_state, result.metrics, history)


def flat(config) -> dict[str, Any]:
  """Returns a config as a flat dictionary with dotted keys."""
  return {
    key.replace("/", "."): value
    for key, value in flatten(config.to_dict()).items()
  }

"""Runs that train a config of the library."""

import ast
from collections.abc import Mapping
import functools
import runpy
from typing import Any, NamedTuple

from experiments.harness.study import Place
from nuclr_jax.config import folder
from nuclr_jax.train import build, loop, records
from nuclr_jax.types import flatten


class Trained(NamedTuple):
  """A finished training."""

  parts: Any  # an `Experiment`
  state: Any  # a `TrainState`
  metrics: Mapping[str, float]  # as in metrics.json
  history: list[dict[str, float]]


@functools.cache  # so that a process uses the file as it was at first
def get_config(name: str):
  """Returns `get_config` of a file in configs/."""
  return runpy.run_path(str(folder() / f"{name}.py"))["get_config"]


def change(config, values: Mapping[str, Any], keys: Mapping[str, str]) -> None:
  """Sets values that are named in a study's words.

  Args:
    config: The `ConfigDict` to change.
    values: By the study's words.
    keys: By word, the dotted keys that get its value, with commas between.

  Raises:
    ValueError: For a word without keys.

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
      f"the study has no keys for {unknown}; it has some for {sorted(keys)}"
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


def prepare(config, place: Place):
  """Builds all parts of a training."""
  return build.build(config, data=load_data(config, place.data_dir))


def train(config, place: Place, parts) -> Trained:
  """Trains and evaluates; an interrupted run goes on from where it stopped.

  Args:
    config: Its config.
    place: Where it leaves its files.
    parts: From `prepare`.

  Raises:
    KeyboardInterrupt: If a signal stopped the training.
  """
  result = loop.fit(config, place.folder, parts=parts)
  if not result.finished:
    raise KeyboardInterrupt
  history = records.read_history(place.folder)
  return Trained(parts, result.train_state, result.metrics, history)


def flat(config) -> dict[str, Any]:
  """Returns a config as one level of dotted keys."""
  return {
    key.replace("/", "."): value
    for key, value in flatten(config.to_dict()).items()
  }

"""From a config to the parts of a run.

A config names factories and their keyword arguments; this module looks them up
and calls them. Replace a part with your own by
`build(config)._replace(model=...)` and hand the result to `train.fit`.
"""

from functools import partial
import inspect
import os
from typing import Any, NamedTuple

from jax.sharding import Mesh
import numpy as np
import optax

from nuclr_jax import factories, sharding
from nuclr_jax.datasets import DATASETS, Data, Inputs, inputs_of
from nuclr_jax.hooks import Hook, check_has_zeta, refresh_popularity
from nuclr_jax.models import ENCODERS, MODELS, Model, microbatched
from nuclr_jax.objectives import (
  OBJECTIVES,
  TERMS,
  Objective,
  regularize,
  scale,
  temperatures,
)
from nuclr_jax.optimizer import (
  is_frozen,
  make_optimizer,
  without_frozen_gradients,
)
from nuclr_jax.popularity.files import load_zeta
from nuclr_jax.settings import Config, complete
from nuclr_jax.types import Params


class Experiment(NamedTuple):
  """All parts of a run."""

  config: dict[str, Any]
  data: Data
  model: Model
  objective: Objective
  optimizer: optax.GradientTransformation
  num_steps: int
  hooks: tuple[Hook, ...] = ()


def build(
  config: Config,
  *,
  data_dir: str | os.PathLike | None = None,
  data: Data | None = None,
  fresh: bool = True,
) -> Experiment:
  """Makes the parts that a config names; prepares the data if need be.

  Args:
    config: A mapping such as `configs/glyphs.py` makes.
    data_dir: Folder of prepared data sets, see `sources.cache_dir`.
    data: What `load_data` gave for `config.data`, so that many runs in one
      process read it once.
    fresh: False leaves out the warm start, which only a first state needs.

  Returns:
    An `Experiment`.

  Raises:
    ValueError: For unknown names or keys, and from the factories.
  """
  config = complete(config)
  _check_names(config)
  _check_views_differ(config)
  data = data or load_data(config["data"], data_dir=data_dir)
  sizes = data.train.sizes
  steps_per_epoch = sizes.num_pairs // config["batch_size"]
  num_steps = round(config["num_epochs"] * steps_per_epoch)
  if num_steps < 1:
    raise ValueError(
      f"the run has no step: num_epochs {config['num_epochs']}, batch_size "
      f"{config['batch_size']}, {sizes.num_pairs} training pairs; lower "
      "batch_size, or raise num_epochs"
    )
  span = dict(num_steps=num_steps, steps_per_epoch=steps_per_epoch)
  _check_blocks(config["objective"], data)
  given = sizes._asdict() | {"dim": config["model"].get("dim")}
  if data.num_classes is not None:
    given["num_classes"] = data.num_classes
  make = partial(factories.call, "objective", OBJECTIVES, span=span, **given)
  objective = make(config["objective"])
  if fresh and config["warm_start"] is not None:
    check_has_zeta("warm_start", objective)
    zeta = load_zeta(
      config["warm_start"],
      sizes,
      temperature=temperature_of(config, {"objective": {}}),
      fingerprint=data.train.fingerprint,
    )
    objective = make(config["objective"] | {"zeta_init": zeta})
  if terms := _terms(config):
    objective = regularize(objective, **terms)
  return Experiment(
    config=config,
    data=data,
    model=make_model(config, data.inputs),
    objective=objective,
    optimizer=factories.call(
      "optimizer",
      {"adamw": make_optimizer},
      {"name": "adamw", **config["optimizer"]},
      span,
    ),
    num_steps=num_steps,
    hooks=_hooks(config, data, objective, steps_per_epoch),
  )


def make_model(config: Config, inputs: Inputs) -> Model:
  """The model of a config that is complete, for its inputs.

  Raises:
    ValueError: From the factories.
  """
  freeze = config["optimizer"].get("freeze", ())
  model = factories.call(
    "model",
    MODELS,
    config["model"],
    image_shape=inputs.image_shape,
    vocab_size=inputs.tokenizer.vocab_size,
    length=inputs.tokenizer.length,
    frozen=tuple(
      x
      for x in ("image", "text")
      # By its own name, or by a pattern of everything below it.
      if any(is_frozen(f"model/{x}{end}", freeze) for end in ("", "/-"))
    ),
  )
  return microbatched(
    without_frozen_gradients(model, freeze), config["num_microbatches"]
  )


def make_mesh(config: Config) -> Mesh:
  """The mesh of a config; a batch must divide over devices and microbatches.

  Raises:
    ValueError: If it does not, or for an impossible number of devices.
  """
  mesh = sharding.make_mesh(config["num_devices"])
  pieces = config["num_microbatches"]
  if config["batch_size"] % (mesh.size * pieces):
    raise ValueError(
      "batch_size must be a multiple of the number of devices times "
      f"num_microbatches, got {config['batch_size']}, {mesh.size} and "
      f"{pieces}; change one, or use fewer devices with num_devices"
    )
  return mesh


def load_data(
  spec: Config, *, data_dir: str | os.PathLike | None = None
) -> Data:
  """Reads the data that `config.data` names; prepares it if need be.

  Raises:
    ValueError: For an unknown name or key.
  """
  factories.check_spec("data", DATASETS, spec)
  return factories.call("data", DATASETS, spec, data_dir=data_dir)


def load_inputs(
  spec: Config, *, data_dir: str | os.PathLike | None = None
) -> Inputs:
  """What models of `config.data` take; reads the data only if need be.

  Raises:
    ValueError: For an unknown name or key.
  """
  factories.check_spec("data", DATASETS, spec)
  return inputs_of(spec) or load_data(spec, data_dir=data_dir).inputs


def temperature_of(config: Config, params: Params) -> float:
  """The one temperature of a run, fixed or as learned so far.

  Args:
    config: Of the run.
    params: `TrainState.params`.

  Raises:
    ValueError: If its objective has none, or one for each sample.
  """
  name, learned = config["objective"]["name"], params["objective"]
  known = inspect.signature(OBJECTIVES[name]).parameters
  given = {key: x.default for key, x in known.items()} | config["objective"]
  if "log_scale" in learned and "temperature" not in known:  # no bound
    return float(np.exp(-np.asarray(learned["log_scale"])))
  if (
    "temperature" not in known
    or given.get("temperature_learning_rate") is not None
    or name == "swav"  # its temperature is of prototypes, not of pairs
  ):
    raise ValueError(
      f"the objective {name} has no single temperature; choose one with "
      "--temperature (nuclr popularity, nuclr evaluate --hubs)"
    )
  first = float(given["temperature"])
  return float(temperatures.one_for_all(learned, first))


def _terms(config) -> dict[str, Objective]:
  """What is added to the objective; those of weight 0 are left out."""
  found = {
    name: (factories.call("terms", TERMS, given | {"name": name}), weight)
    for name, weight, given in _weighted(config)
  }
  return {name: scale(*term) for name, term in found.items() if term[1]}


def _weighted(config):
  """Name, weight and arguments of each term."""
  for name, spec in (config["terms"] or {}).items():
    given = dict(spec)
    if "weight" not in given:
      raise ValueError(f"config.terms.{name} lacks weight; 0 = without it")
    weight = given.pop("weight")
    if weight < 0:
      raise ValueError(f"terms.{name}.weight must be at least 0, got {weight}")
    yield name, weight, given


def _hooks(config, data, objective, steps_per_epoch) -> tuple[Hook, ...]:
  """What the config asks for between the steps."""
  refresh = dict(config["refresh"] or {"every_epochs": 0})
  if "every_epochs" not in refresh:
    raise ValueError("config.refresh lacks every_epochs; 0 = never")
  if not refresh["every_epochs"]:
    return ()
  check_has_zeta("refresh", objective)
  return (
    refresh_popularity(
      data.train,
      objective,
      temperature=temperature_of(config, {"objective": {}}),
      seed=config["seed"],
      steps_per_epoch=steps_per_epoch,
      **refresh,
    ),
  )


def _check_blocks(spec, data) -> None:
  """Raises ValueError if an objective takes other blocks than there are."""
  known = inspect.signature(OBJECTIVES[spec["name"]]).parameters
  if "block_size" not in known or data.block_size is None:
    return
  wanted = spec.get("block_size", known["block_size"].default)
  if wanted != data.block_size:
    raise ValueError(
      f"config.objective.block_size is {wanted} and config.data.block_size "
      f"{data.block_size}; they must be equal (blocks of 2 or more need "
      "config.data.positive = 'class')"
    )


def _check_views_differ(config) -> None:
  """Raises ValueError if nothing makes two views of a sentence."""
  names = (config["data"]["name"], config["model"]["name"])
  if names != ("sentences", "views"):
    return
  encoder = config["model"].get("encoder", {})
  factory = ENCODERS.get(encoder.get("name"))
  if factory is None:
    return  # the model says so
  known = inspect.signature(factory).parameters
  default = known["dropout"].default if "dropout" in known else 0.0
  if encoder.get("dropout", default) == 0:
    raise ValueError(
      "config.model.encoder has no dropout, so that both views of a sentence "
      "are equal; set config.model.encoder.dropout, say to 0.1"
    )


def _check_names(config) -> None:
  """Finds unknown names before data is prepared."""
  tables = dict(data=DATASETS, model=MODELS, objective=OBJECTIVES)
  for key, table in tables.items():
    factories.check_spec(key, table, config[key])
  for name, _, given in _weighted(config):
    factories.check_spec(f"terms.{name}", TERMS, given | {"name": name})
  factories.check_keys("the optimizer", make_optimizer, config["optimizer"])
  factories.check_keys("refresh", refresh_popularity, config["refresh"] or {})
